"""Metrics against torchmetrics, on the same scores and targets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.base.aliases import Array
from engine.trainer import metrics as ours

pytest.importorskip("torchmetrics", reason="needs torchmetrics")
from torchmetrics import classification, functional, regression, text

RNG = np.random.default_rng(3)
AVERAGES = ["macro", "micro", "weighted"]
TALLIES = [
    (ours.Precision, "Precision"), (ours.Recall, "Recall"), (ours.F1, "F1Score"),
    (ours.IoU, "JaccardIndex"),
]  # fmt: skip


def measure(metric: ours.Metric, scores: Array, targets: Array) -> float:
    """Return our metric after batches of unequal sizes."""
    for part in (slice(0, 50), slice(50, 57), slice(57, None)):
        y, t = scores[part], targets[part]
        metric.update({"y": y}, {"t": t}, 0.0, len(y))
    return metric.result()


def theirs(metric: Any, scores: Array, targets: Array) -> float:
    metric.update(torch.from_numpy(scores), torch.from_numpy(targets))
    return float(metric.compute())


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("kind", "name"), TALLIES)
def test_tallies(kind: Any, name: str, average: str) -> None:
    scores = RNG.standard_normal((80, 5, 3)).astype(np.float32)
    targets = RNG.integers(0, 5, (80, 3))
    targets[RNG.random((80, 3)) < 0.2] = -100
    options = {"num_classes": 5, "average": average, "ignore_index": -100}
    expected = theirs(getattr(classification, f"Multiclass{name}")(**options), scores, targets)
    assert measure(kind(average), scores, targets) == pytest.approx(expected, abs=1e-6)
    labels = RNG.integers(0, 2, (80, 5))
    flat = RNG.random((80, 5)).astype(np.float32)
    kind_of = getattr(classification, f"Multilabel{name}")
    expected = theirs(kind_of(num_labels=5, average=average), flat, labels)
    assert measure(kind(average, threshold=0.5), flat, labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("average", ["macro", "weighted"])
@pytest.mark.parametrize(
    ("kind", "name"), [(ours.AUROC, "AUROC"), (ours.AveragePrecision, "AveragePrecision")]
)
def test_rankings(kind: Any, name: str, average: str) -> None:
    scores = RNG.standard_normal((80, 4)).astype(np.float32)
    scores[40:60] = scores[:20]
    targets = RNG.integers(0, 3, 80)  # class 3 does not occur
    metric = getattr(classification, f"Multiclass{name}")(num_classes=4, average=None)
    metric.update(torch.from_numpy(scores), torch.from_numpy(targets))
    with warnings.catch_warnings():  # of the class that does not occur
        warnings.simplefilter("ignore")
        each = metric.compute().numpy()[:3]
    weights = np.bincount(targets) if average == "weighted" else None
    expected = np.average(each, weights=weights)
    assert measure(kind(average), scores, targets) == pytest.approx(expected, abs=1e-6)
    labels = RNG.integers(0, 2, (80, 4))
    metric = getattr(classification, f"Multilabel{name}")(num_labels=4, average=average)
    expected = theirs(metric, scores, labels)
    assert measure(kind(average), scores, labels) == pytest.approx(expected, abs=1e-6)
    expected = theirs(getattr(classification, f"Binary{name}")(), scores[:, 0], labels[:, 0])
    assert measure(kind(), scores[:, 0], labels[:, 0]) == pytest.approx(expected, abs=1e-6)


NUMBERS: list[tuple[ours.Metric, Callable[[], Any]]] = [
    (ours.Accuracy(), lambda: classification.MulticlassAccuracy(5, average="micro")),
    (ours.TopK(3), lambda: classification.MulticlassAccuracy(5, top_k=3, average="micro")),
    (ours.BalancedAccuracy(), lambda: classification.MulticlassAccuracy(5, average="macro")),
    (ours.MCC(), lambda: classification.MulticlassMatthewsCorrCoef(5)),
]


@pytest.mark.parametrize(("metric", "make"), NUMBERS)
def test_numbers_of_all_classes(metric: ours.Metric, make: Callable[[], Any]) -> None:
    scores = RNG.standard_normal((80, 5)).astype(np.float32)
    targets = RNG.integers(0, 5, 80)
    metric.reset()
    expected = theirs(make(), scores, targets)
    assert measure(metric, scores, targets) == pytest.approx(expected, abs=1e-6)


def test_values() -> None:
    y, t = RNG.standard_normal((2, 80, 3)).astype(np.float32)
    for mine, metric in (
        (ours.R2(), regression.R2Score()),
        (ours.R2("weighted"), regression.R2Score(multioutput="variance_weighted")),
        (ours.MSE(), regression.MeanSquaredError()),
        (ours.RMSE(), regression.MeanSquaredError(squared=False)),
        (ours.MAE(), regression.MeanAbsoluteError()),
    ):
        assert measure(mine, y, t) == pytest.approx(theirs(metric, y, t), rel=1e-5)


@pytest.mark.parametrize("is_smooth", [False, True])
def test_sequences(is_smooth: bool) -> None:
    numbers = RNG.integers(0, 4, (80, 12))
    wanted = np.where(RNG.random((80, 12)) < 0.7, numbers, RNG.integers(0, 4, (80, 12)))
    numbers = np.where(np.arange(12) < RNG.integers(5, 13, (80, 1)), numbers, 9)

    def words(rows: Array) -> list[str]:
        return [" ".join(f"w{token}" for token in row if token != 9) for row in rows]

    texts = text.BLEUScore(smooth=is_smooth)
    texts.update(words(numbers), [[each] for each in words(wanted)])
    metric = ours.BLEU(is_smooth=is_smooth, end=9)
    assert measure(metric, numbers, wanted) == pytest.approx(float(texts.compute()), abs=1e-6)

    def decode(tokens: list[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)

    for unit, kind in (("character", text.CharErrorRate()), ("word", text.WordErrorRate())):
        kind.update(words(numbers), words(wanted))
        mine = ours.ErrorRate(unit, decode, end=9)  # type: ignore[arg-type]  # one of both
        assert measure(mine, numbers, wanted) == pytest.approx(float(kind.compute()), abs=1e-6)


def test_perplexity() -> None:
    scores = RNG.standard_normal((80, 6, 5)).astype(np.float32)
    targets = RNG.integers(0, 5, (80, 6))
    targets[RNG.random((80, 6)) < 0.3] = -100
    y, t = torch.from_numpy(scores), torch.from_numpy(targets)
    expected = float(functional.text.perplexity(y, t, ignore_index=-100))
    metric = ours.Perplexity()
    for part in (slice(0, 50), slice(50, 80)):
        loss = torch.nn.functional.cross_entropy(y[part].movedim(-1, 1), t[part])
        metric.update({"y": scores[part]}, {"t": targets[part]}, float(loss), 0)
    assert metric.result() == pytest.approx(expected, rel=1e-5)
