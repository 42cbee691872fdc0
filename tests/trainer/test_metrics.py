"""Metrics: batches of any sizes give what all samples at once give; positions that do not count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from engine.base.aliases import Array
from engine.errors import DTypeError, InputError, LabelError, NameNotFoundError, ShapeError
from engine.trainer.metric import MeanMetric
from engine.trainer.metrics import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Function,
    Metric,
    Perplexity,
    TopK,
    metrics_of,
)

SPLITS = [(23,), (8, 8, 7), (1, 20, 2), (22, 1)]
RNG = np.random.default_rng(0)


def measure(metric: Metric, scores: Array, targets: Array, split: Sequence[int]) -> float:
    """The metric of all rows, in batches of these sizes, after others that it is to forget."""
    metric.update({"y": scores}, {"x": scores, "labels": targets}, 1.0, len(scores))
    metric.reset()
    at = 0
    for size in split:
        y, t = scores[at : at + size], targets[at : at + size]
        metric.update({"y": y}, {"x": y, "labels": t}, 0.5, size)
        at += size
    assert at == len(scores)
    return metric.result()


def macro_f1(found: Array, targets: Array) -> float:
    """As sklearn.metrics.f1_score(average="macro") has it, by its definition."""
    values = []
    for c in np.union1d(found, targets):
        right = np.sum((found == c) & (targets == c))
        values.append(2 * right / (np.sum(found == c) + np.sum(targets == c)))
    return float(np.mean(values))


def top(k: int) -> Callable[[Array, Array], float]:
    def share(rows: Array, targets: Array) -> float:
        best = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        return float((best == targets[:, None]).any(1).mean())

    return share


CLASSES: list[tuple[Callable[[], Metric], Callable[[Array, Array], float]]] = [
    (Accuracy, lambda rows, t: float((rows.argmax(1) == t).mean())),
    (lambda: TopK(1), top(1)),
    (lambda: TopK(3), top(3)),
    (lambda: TopK(9), lambda rows, t: 1.0),
    (F1, lambda rows, t: macro_f1(rows.argmax(1), t)),
]
# How scores (n, positions, classes) come, for targets (n, positions).
LAYOUTS = {"onnx": lambda rows: np.moveaxis(rows, -1, 1), "language": lambda rows: rows}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("make", "formula"), CLASSES)
def test_batches_give_what_all_samples_give(
    make: Callable[[], Metric], formula: Callable[[Array, Array], float], split: tuple[int, ...]
) -> None:
    rows = RNG.integers(0, 6, (23, 5)).astype(np.float32)  # many scores are equal
    targets = RNG.integers(0, 5, 23)
    assert measure(make(), rows, targets, split) == pytest.approx(formula(rows, targets))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", SPLITS[1:])
@pytest.mark.parametrize(("make", "formula"), CLASSES)
def test_positions_that_do_not_count(
    make: Callable[[], Metric],
    formula: Callable[[Array, Array], float],
    split: tuple[int, ...],
    layout: str,
) -> None:
    rows = RNG.standard_normal((23, 4, 5)).astype(np.float32)
    targets = RNG.integers(0, 5, (23, 4))
    targets[RNG.random((23, 4)) < 0.4] = -100
    targets[7] = -100  # a sample without a position that counts
    counted = targets != -100
    expected = formula(rows[counted], targets[counted])
    measured = measure(make(), LAYOUTS[layout](rows), targets, split)
    assert measured == pytest.approx(expected)
    assert 0 < measured <= 1


def test_ignore_index_is_the_callers() -> None:
    scores = np.eye(3, dtype=np.float32)
    targets = np.array([0, 1, 0])
    assert measure(Accuracy(), scores, targets, (3,)) == pytest.approx(2 / 3)
    assert measure(Accuracy(ignore_index=0), scores, targets, (3,)) == 1.0
    with pytest.raises(LabelError, match=r"metric 'accuracy': target -100 is outside \[0, 3\)"):
        measure(Accuracy(ignore_index=None), scores, np.array([0, 1, -100]), (3,))


def test_where_both_axes_fit_the_classes_are_on_axis_1() -> None:
    scores = RNG.standard_normal((2, 3, 3)).astype(np.float32)
    targets = scores.argmax(1)
    assert measure(Accuracy(), scores, targets, (2,)) == 1.0
    assert measure(Accuracy(axis=-1), scores, scores.argmax(2), (2,)) == 1.0


@pytest.mark.parametrize(
    ("scores", "targets"),
    [((4, 3), (5,)), ((4,), (4, 2)), ((4, 3, 7), (4, 5)), ((4, 3), (4, 3)), ((), ())],
)
def test_shapes_that_do_not_fit(scores: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"metric 'top5': scores .* and targets .* expected"):
        TopK().update({"y": np.zeros(scores)}, {"t": np.zeros(targets, np.int64)}, 0.0, 4)


def test_one_hot_targets_are_no_decisions_unless_that_is_said() -> None:
    scores: Array = RNG.standard_normal((4, 3))
    targets: Array = np.eye(4, 3)
    with pytest.raises(ShapeError, match=r"the shape \[4, 3\]: give threshold=0 .logits. or 0.5"):
        measure(Accuracy(), scores, targets, (4,))
    expected = np.mean((scores > 0.5) == targets)
    assert measure(Accuracy(threshold=0.5), scores, targets, (4,)) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(23,), (23, 1)])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
@pytest.mark.parametrize("split", SPLITS)
def test_one_score_a_sample(shape: tuple[int, ...], kind: type, split: tuple[int, ...]) -> None:
    scores = RNG.standard_normal(shape)
    targets: Array = RNG.integers(0, 2, shape).astype(kind)
    flat = (scores > 0).ravel()
    right = int((flat & (targets.ravel() == 1)).sum())
    expected = 2 * right / (flat.sum() + targets.sum())
    assert measure(F1("binary"), scores, targets, split) == pytest.approx(expected)
    assert measure(F1(), scores, targets, split) == pytest.approx(
        macro_f1(flat.astype(int), targets.ravel().astype(int))
    )
    accuracy = np.mean(flat == targets.ravel())
    assert measure(Accuracy(), scores, targets, split) == pytest.approx(accuracy)
    half = measure(Accuracy(threshold=0.5), scores, targets, split)
    assert half == pytest.approx(np.mean((scores > 0.5).ravel() == targets.ravel()))


def test_two_scores_a_sample() -> None:
    scores = np.array([[1, 2], [2, 1], [1, 2], [0, 0]], np.float32)
    targets = np.array([1, 1, 0, 0])
    assert measure(F1("binary"), scores, targets, (3, 1)) == pytest.approx(2 * 1 / (2 + 2))
    with pytest.raises(ShapeError, match="'binary' is for 2 classes, got 3"):
        measure(F1("binary"), np.zeros((2, 3)), np.array([0, 1]), (2,))


@pytest.mark.parametrize("split", SPLITS)
def test_errors_of_regression(split: tuple[int, ...]) -> None:
    y, t = RNG.standard_normal((2, 23, 3)).astype(np.float32)
    d = y.astype(np.float64) - t
    assert measure(MSE(), y, t, split) == pytest.approx(np.mean(d * d), rel=1e-12)
    assert measure(MAE(), y, t, split) == pytest.approx(np.mean(np.abs(d)), rel=1e-12)
    assert measure(MAE(), y[:, :1], t[:, 0], split) == pytest.approx(np.mean(np.abs(d[:, 0])))


def test_errors_never_broadcast() -> None:
    with pytest.raises(ShapeError, match=r"metric 'mse': the output has shape \[4, 1\].*\[4, 4\]"):
        measure(MSE(), np.zeros((4, 1)), np.zeros((4, 4)), (4,))


def test_perplexity_is_that_of_all_positions() -> None:
    rows = RNG.standard_normal((6, 4, 5))
    targets = RNG.integers(0, 5, (6, 4))
    targets[RNG.random((6, 4)) < 0.4] = -100
    targets[5] = -100
    shares = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    losses = -np.take_along_axis(shares, np.maximum(targets, 0)[..., None], -1)[..., 0]
    counted = targets != -100
    metric = Perplexity()
    for part in (slice(0, 3), slice(3, 5), slice(5, 6)):
        some = losses[part][counted[part]]
        mean = float(some.mean()) if some.size else math.nan
        metric.update({"y": rows[part]}, {"t": targets[part]}, mean, 6)
    assert metric.result() == pytest.approx(math.exp(losses[counted].mean()))


def test_perplexity_of_large_losses_and_other_targets() -> None:
    metric = Perplexity()
    metric.update({}, {"t": np.zeros((3, 2), np.float32)}, 1.0, 3)
    metric.update({}, {"t": np.zeros((1, 2), np.float32)}, 5.0, 1)
    assert metric.result() == pytest.approx(math.exp(2.0))
    metric.update({}, {"t": np.zeros((1, 2), np.float32)}, 1e6, 1)
    assert metric.result() == math.inf
    metric.update({}, {"t": np.zeros((1, 2), np.float32)}, math.nan, 1)
    assert math.isnan(metric.result())


def test_functions_are_weighted_by_samples() -> None:
    def largest(y: Array, t: Array) -> float:
        return float(np.abs(y - t).mean())

    y, t = RNG.standard_normal((2, 23, 3))
    metric = Function(largest)
    assert metric.name == "largest"
    assert measure(metric, y, t, (20, 3)) == pytest.approx(np.abs(y - t).mean())
    everything: Any = lambda y, t: y  # noqa: E731  # as a user writes it
    with pytest.raises(DTypeError, match="metric 'all': expected a number, got ndarray"):
        measure(Function(everything, "all"), y, t, (23,))


@pytest.mark.parametrize("metric", [Accuracy(), TopK(), F1(), F1("binary"), MSE(), Perplexity()])
def test_no_batch_is_no_number(metric: Metric) -> None:
    assert math.isnan(metric.result())


def test_outputs_and_targets_by_name() -> None:
    scores, targets = np.eye(2), np.array([0, 1])
    outputs = {"aux": 1 - scores, "y": scores}
    inputs = {"x": scores, "labels": targets, "mask": np.ones(2)}
    metric = Accuracy(output="y", target="labels")
    metric.update(outputs, inputs, 0.0, 2)
    assert metric.result() == 1.0
    with pytest.raises(
        NameNotFoundError, match=r"metric 'accuracy': no output 'z'.*\['aux', 'y'\]"
    ):
        Accuracy(output="z").update(outputs, inputs, 0.0, 2)
    with pytest.raises(NameNotFoundError, match=r"no input 'label'.*nearest: 'labels'"):
        Accuracy(target="label").update(outputs, inputs, 0.0, 2)
    with pytest.raises(InputError, match="metric 'accuracy': the model has no outputs"):
        Accuracy().update({}, inputs, 0.0, 2)


def test_a_metric_of_ones_own_needs_a_name() -> None:
    class Own(MeanMetric):
        def update(self, *batch: object) -> None: ...

    assert Own("own").name == "own"
    with pytest.raises(InputError, match=r"Own needs name=, its column in the history"):
        Own()


def test_metrics_by_name() -> None:
    names = ["accuracy", "top5", "top1", "mse", "mae", "f1", "f1_binary", "perplexity"]
    metrics = metrics_of(names, ignore_index=7)
    assert [m.name for m in metrics] == names
    assert [m.mode for m in metrics] == ["max", "max", "max", "min", "min", "max", "max", "min"]
    assert isinstance(metrics[0], Accuracy)
    assert metrics[0].ignore_index == 7
    assert [m.name for m in metrics_of("f1")] == ["f1"]
    assert metrics_of(()) == []


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (["acuracy"], InputError, "no metric 'acuracy'; known: .*; nearest: 'accuracy'"),
        (["top0"], InputError, "no metric 'top0'"),
        (["mse", MSE()], InputError, "two metrics are called 'mse'"),
        ([Function(lambda y, t: 0.0, "loss")], InputError, "two metrics are called 'loss'"),
        ([Accuracy], DTypeError, r"Accuracy is a class; give Accuracy\(\)"),
        ([3], DTypeError, "expected a name, a Metric or a function, got int"),
    ],
)
def test_metrics_that_mean_nothing(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        metrics_of(given)
