"""Metrics against scikit-learn: averages, labels, the order of scores, what is undefined."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from engine.base.aliases import Array
from engine.errors import InputError, LabelError, LimitError, NonFiniteError, ShapeError
from engine.trainer.history import direction
from engine.trainer.metrics import (
    AUROC,
    F1,
    MCC,
    METRICS,
    R2,
    RMSE,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    Dice,
    IoU,
    Metric,
    Precision,
    Recall,
    TopK,
    metrics_of,
)
from engine.trainer.metrics.named import get_declaration, list_known, list_results
from tests.support.places import ROOT

RNG = np.random.default_rng(26)
SPLITS = [(60,), (20, 20, 20), (1, 58, 1)]
TALLIES: list[tuple[Any, Callable[..., Any]]] = [
    (Precision, sk.precision_score), (Recall, sk.recall_score), (F1, sk.f1_score),
    (Dice, sk.f1_score), (IoU, sk.jaccard_score),
]  # fmt: skip
RANKINGS: list[tuple[Any, Callable[..., Any]]] = [
    (AUROC, sk.roc_auc_score), (AveragePrecision, sk.average_precision_score),
]  # fmt: skip
MEANS = ["macro", "micro", "weighted"]


def take(metric: Metric, scores: Array, targets: Array, split: Sequence[int]) -> Metric:
    """Return a metric that has got rows in batches of these sizes."""
    at = 0
    for size in split:
        y, t = scores[at : at + size], targets[at : at + size]
        metric.update({"y": y}, {"x": y, "t": t}, 0.0, size)
        at += size
    assert at == len(scores)
    return metric


def share(make: Callable[[], Metric], scores: Array, targets: Array, split: Sequence[int]) -> float:
    """Return the metric of rows whose batches three ranks have counted, one of them none."""
    partials, at = [make().partial()], 0
    for first in (split[: len(split) // 2], split[len(split) // 2 :]):
        size = sum(first)
        part = take(make(), scores[at : at + size], targets[at : at + size], first)
        partials, at = [*partials, part.partial()], at + size
    whole = make()
    whole.merge([each for each in partials if each is not None])
    return whole.result()


def softmax(scores: Array) -> Array:
    powers = np.exp(scores.astype(np.float64))
    shares: Array = powers / powers.sum(1, keepdims=True)
    return shares


def classified(classes: int, absent: int | None = None) -> tuple[Array, Array]:
    """Return scores, many of them equal, and targets; no target is the class `absent`."""
    targets = RNG.integers(0, classes, 60)
    if absent is not None:
        targets[targets == absent] = (absent + 1) % classes
    return RNG.integers(-3, 4, (60, classes)).astype(np.float32), targets


@pytest.mark.parametrize("absent", [None, 2])
@pytest.mark.parametrize("average", MEANS)
@pytest.mark.parametrize(("kind", "reference"), TALLIES)
def test_tallies_of_classes(
    kind: Any, reference: Callable[..., float], average: str, absent: int | None
) -> None:
    scores, targets = classified(5, absent)
    scores[:, 3] = -9  # never predicted
    expected = reference(targets, scores.argmax(1), average=average, zero_division=0)
    for split in SPLITS:
        outcome = take(kind(average), scores, targets, split).result()
        assert outcome == pytest.approx(expected, abs=1e-12)
    assert share(lambda: kind(average), scores, targets, SPLITS[1]) == pytest.approx(expected)


@pytest.mark.parametrize("zero_division", [0.0, 1.0, math.nan])
@pytest.mark.parametrize(("kind", "reference"), TALLIES[:3])
def test_classes_of_zero_by_zero(
    kind: Any, reference: Callable[..., Any], zero_division: float
) -> None:
    scores, targets = classified(4, absent=1)
    scores[:, 2] = -9
    labels = [0, 1, 2, 3]
    predicted = scores.argmax(1)
    each = reference(targets, predicted, average=None, labels=labels, zero_division=zero_division)
    metric = take(kind(None, zero_division=zero_division), scores, targets, SPLITS[1])
    assert list(metric.results().values()) == pytest.approx(each, nan_ok=True)
    assert list(metric.results("abcd")) == [f"{metric.declared.name}_{c}" for c in "abcd"]  # type: ignore[union-attr]  # has one
    mean = reference(targets, predicted, average="macro", zero_division=zero_division)
    outcome = take(kind(zero_division=zero_division), scores, targets, SPLITS[1]).result()
    assert outcome == pytest.approx(mean)


@pytest.mark.parametrize("average", [*MEANS, None])
@pytest.mark.parametrize(("kind", "reference"), TALLIES)
def test_tallies_of_labels(kind: Any, reference: Callable[..., Any], average: str | None) -> None:
    scores: Array = RNG.standard_normal((60, 4)).astype(np.float32)
    targets = RNG.integers(0, 2, (60, 4)).astype(np.float32)
    targets[:, 1], scores[:, 1] = 0, -1  # neither given nor predicted
    expected = reference(targets, scores > 0, average=average, zero_division=0)
    for split in SPLITS:
        metric = take(kind(average, threshold=0), scores, targets, split)
        outcome = metric.result() if average else list(metric.results().values())
        assert outcome == pytest.approx(expected)
    if average:
        parts = share(lambda: kind(average, threshold=0), scores, targets, SPLITS[1])
        assert parts == pytest.approx(expected)


def test_labels_that_do_not_count() -> None:
    scores: Array = RNG.standard_normal((60, 3))
    targets = RNG.integers(0, 2, (60, 3))
    ignored = RNG.random((60, 3)) < 0.3
    marked = np.where(ignored, -100, targets)
    for k, actual in enumerate(
        take(Recall(None, threshold=0), scores, marked, (60,)).results().values()
    ):
        rows = ~ignored[:, k]
        assert actual == pytest.approx(sk.recall_score(targets[rows, k], scores[rows, k] > 0))
    areas = take(AUROC(None), scores, marked, (60,)).results()
    for k, actual in enumerate(areas.values()):
        rows = ~ignored[:, k]
        assert actual == pytest.approx(sk.roc_auc_score(targets[rows, k], scores[rows, k]))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("make", "reference"),
    [(MCC, sk.matthews_corrcoef), (BalancedAccuracy, sk.balanced_accuracy_score)],
)
def test_numbers_that_all_classes_make(
    make: Callable[..., Metric], reference: Callable[..., float], split: tuple[int, ...]
) -> None:
    for absent in (None, 2):
        scores, targets = classified(4, absent)
        with warnings.catch_warnings():  # a class that is predicted and never a target
            warnings.simplefilter("ignore")
            expected = reference(targets, scores.argmax(1))
        assert take(make(), scores, targets, split).result() == pytest.approx(expected)
        assert share(make, scores, targets, split) == pytest.approx(expected)
    flat: Array = RNG.standard_normal((60, 3))
    several = RNG.integers(0, 2, (60, 3))
    expected = reference(several.ravel(), flat.ravel() > 0)
    assert take(make(threshold=0), flat, several, split).result() == pytest.approx(expected)
    alone = np.zeros(60, np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = reference(alone, flat[:, 0] > 0)
    assert take(make(), flat[:, :1], alone, split).result() == pytest.approx(expected)


@pytest.mark.parametrize("average", MEANS)
@pytest.mark.parametrize(("kind", "reference"), RANKINGS)
def test_the_order_of_scores(kind: Any, reference: Callable[..., float], average: str) -> None:
    scores: Array = RNG.standard_normal((60, 4)).astype(np.float32)
    targets = RNG.integers(0, 4, 60)
    scores[30:45] = scores[:15]  # equal scores, of other targets
    shares = softmax(scores)
    expected = reference(np.eye(4)[targets], shares, average=average)
    for split in SPLITS:
        for given in (scores, shares, np.log(shares)):
            outcome = take(kind(average), given, targets, split).result()
            assert outcome == pytest.approx(expected, rel=1e-6)
    assert share(lambda: kind(average), scores, targets, SPLITS[1]) == pytest.approx(expected)
    labels = RNG.integers(0, 2, (60, 4)).astype(np.float32)
    expected = reference(labels, scores, average=average)
    assert take(kind(average), scores, labels, SPLITS[1]).result() == pytest.approx(expected)
    assert share(lambda: kind(average), scores, labels, SPLITS[1]) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "reference"), RANKINGS)
def test_the_order_of_one_score_and_of_two(kind: Any, reference: Callable[..., float]) -> None:
    scores: Array = RNG.integers(-4, 5, (60, 2)).astype(np.float32)
    targets = RNG.integers(0, 2, 60)
    for y, t in ((scores[:, 0], targets), (scores[:, :1], targets[:, None].astype(np.float32))):
        expected = reference(targets, scores[:, 0])
        assert take(kind(), y, t, SPLITS[1]).result() == pytest.approx(expected)
    for average in MEANS:
        outcome = take(kind(average), scores, targets, SPLITS[1]).result()
        assert outcome == pytest.approx(reference(targets, scores[:, 1] - scores[:, 0]))
    each = take(kind(None), scores, targets, SPLITS[1]).results(["no", "yes"])
    name = kind.declared.name
    assert list(each) == [f"{name}_no", f"{name}_yes"]
    assert each[f"{name}_no"] == pytest.approx(reference(1 - targets, scores[:, 0] - scores[:, 1]))


def test_large_logits_keep_their_order() -> None:
    """Where a softmax in float32 makes all of them 1."""
    scores = np.zeros((60, 3), np.float32)
    scores[:, 0] = 100 + np.arange(60)
    targets = (np.arange(60) < 30).astype(np.int64)
    assert take(AUROC(None), scores, targets, (60,)).results()["auroc_0"] == 1.0


@pytest.mark.parametrize("kind", [AUROC, AveragePrecision])
def test_classes_without_a_question_are_left_out(kind: Any) -> None:
    scores, targets = classified(4, absent=2)
    each = take(kind(None), scores, targets, (60,)).results()
    assert [math.isnan(value) for value in each.values()] == [False, False, True, False]
    for average in ("macro", "weighted"):
        values = [value for value in each.values() if not math.isnan(value)]
        weights = np.bincount(targets)[[0, 1, 3]] if average == "weighted" else None
        outcome = take(kind(average), scores, targets, (60,)).result()
        assert outcome == pytest.approx(np.average(values, weights=weights))
    alone = take(kind(), scores[:, :2], np.zeros(60, np.int64), (60,))
    assert math.isnan(alone.result())


def test_scores_are_kept_up_to_a_limit() -> None:
    scores, targets = classified(4)
    exact = 60 * (4 * 4 + 4)
    assert take(AUROC(limit=exact), scores, targets, SPLITS[1]).result() > 0
    with pytest.raises(LimitError, match=r"'auroc' keeps all scores.* 60 positions of 4 classes "):
        take(AUROC(limit=exact - 1), scores, targets, SPLITS[1])
    with pytest.raises(LimitError, match=r"limit is 100 bytes: give AUROC\(limit=...\)"):
        share(lambda: AUROC(limit=100), scores[:6], targets[:6], (3, 3))


@pytest.mark.parametrize("average", MEANS)
@pytest.mark.parametrize("split", SPLITS)
def test_determination(average: Any, split: tuple[int, ...]) -> None:
    t = 1e4 + RNG.standard_normal((60, 3)) * [1, 5, 0.1]
    y = t + RNG.standard_normal((60, 3))
    t[:, 2], y[:, 2] = 7, 7  # constant, and right
    name = {"macro": "uniform_average", "weighted": "variance_weighted"}.get(average)
    expected = sk.r2_score(t, y, multioutput=name) if name else sk.r2_score(t.ravel(), y.ravel())
    assert take(R2(average), y, t, split).result() == pytest.approx(expected)
    assert share(lambda: R2(average), y, t, split) == pytest.approx(expected)
    each = take(R2(None), y, t, split).results(["a", "b"])
    assert list(each) == ["r2_0", "r2_1", "r2_2"]
    assert list(each.values()) == pytest.approx(sk.r2_score(t, y, multioutput="raw_values"))
    wrong = take(R2(), y + 1, np.full_like(t, 3.0), split)
    assert wrong.result() == 0.0
    expected = sk.root_mean_squared_error(t.ravel(), y.ravel())
    assert take(RMSE(), y, t, split).result() == pytest.approx(expected)


def test_determination_needs_two_samples() -> None:
    assert math.isnan(take(R2(), np.ones((1, 2)), np.ones((1, 2)), (1,)).result())
    metric = take(R2(), np.ones((2, 2)), np.ones((2, 2)), (2,))
    with pytest.raises(ShapeError, match="samples of 2 and of 3 values"):
        take(metric, np.ones((2, 3)), np.ones((2, 3)), (2,))


@pytest.mark.parametrize(
    "metric", [Accuracy(), TopK(), F1(), MCC(), AUROC(), AveragePrecision(), BalancedAccuracy()]
)
def test_scores_without_an_order_are_refused(metric: Metric) -> None:
    scores, targets = classified(3)
    scores[41, 1] = math.nan
    with pytest.raises(NonFiniteError, match=rf"'{metric.name}'.* 1 NaN .* first at \[1, 1\]"):
        take(metric, scores, targets, (40, 20))
    metric.reset()
    scores[41, 1] = math.inf
    take(metric, scores, targets, (40, 20))
    if not isinstance(metric, AUROC | AveragePrecision):
        assert metric.result() >= -1


def test_targets_that_are_neither() -> None:
    with pytest.raises(LabelError, match=r"'recall': target 2 is outside \[0, 2\)"):
        take(Recall(threshold=0), np.ones((2, 3)), np.full((2, 3), 2), (2,))


def test_every_name_makes_a_metric_of_that_name() -> None:
    for name, make in list_known().items():
        (metric,) = metrics_of(name)
        assert metric.name == name
        assert type(metric) is type(make())
        assert direction(f"val_{name}") == metric.mode == metric.declared.mode  # type: ignore[union-attr]  # has one
    assert direction("val_recall_hot dog") == "max"
    assert direction("val_error_rate") == "min"
    assert len({get_declaration(kind).name for kind in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    ("name", "near"),
    [("aurok", "auroc"), ("f1_makro", "f1_macro"), ("recal", "recall"), ("bleau", "bleu")],
)
def test_unknown_names_are_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"no metric '{name}'; known: accuracy, .*'{near}'"):
        metrics_of([name])


def test_columns_of_two_metrics_are_not_one() -> None:
    scores, targets = classified(3)
    both = metrics_of(["f1_micro", "f1_per_class"])
    for metric in both:
        take(metric, scores, targets, (60,))
    assert list(list_results(both, ["a", "b", "c"])) == ["f1_micro", "f1_a", "f1_b", "f1_c"]
    with pytest.raises(InputError, match="two metrics have the column 'f1_micro'"):
        list_results(both, ["macro", "micro", "c"])


def test_the_page_lists_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert all(f"| `{get_declaration(kind).name}` |" in page for kind in METRICS)
