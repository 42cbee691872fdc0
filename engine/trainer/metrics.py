"""Metrics: numbers that say how good a model is, gathered batch by batch.

A metric takes one output of the model and one of its inputs, the targets: by default the first
output and the last input.  It returns the same after several batches as after all of their samples
in one batch; the sizes of batches, a smaller last one among them, do not matter.

The axis of the classes: integer targets of shape (n,) or (n, s, ...) go with scores that have one
axis more.  If the other axes match the targets, it is axis 1, as in ONNX: (n, c) or (n, c, s, ...).
Otherwise it is the last one, as in language models: (n, s, ..., c).  Scores of shape (n, s, s) are
read as ONNX's; `axis=` says otherwise.

Positions whose target is `ignore_index`, -100 unless the loss or the caller says otherwise, do not
count; neither as right nor as wrong nor in the number of positions.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import (
    DTypeError,
    InputError,
    LabelError,
    NameNotFoundError,
    ShapeError,
    nearest,
)
from engine.training.mode import Mode

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]

IGNORED = -100  # as PyTorch marks positions that do not count


class Metric(ABC):
    """Base of metrics.

    name: the column of the history, after "val_".
    mode: whether less ("min") or more ("max") of it is better; None: as its name says.
    output, target: the names of the output and of the input that it takes; None: the first output
        and the last input.
    """

    mode: Mode | None = "max"

    def __init__(self, name: str, output: str | None = None, target: str | None = None) -> None:
        self.name = arguments.text("name", name)
        self.output = None if output is None else arguments.text("output", output)
        self.target = None if target is None else arguments.text("target", target)
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        """Take a batch.

        outputs, inputs: arrays by name, in the order of the model.
        loss: the mean over the batch.
        weight: the number of its samples.

        Raises:
            NameNotFoundError: an output or input of a given name does not exist.
            ShapeError, DTypeError: they do not fit one another.
        """

    @abstractmethod
    def result(self) -> float:
        """Return the metric of all batches since the last `reset`; NaN if nothing has counted."""

    def partial(self) -> list[float] | None:
        """Return the counts since the last `reset`, as numbers that `merge` takes.

        None, which is what a class of one's own returns unless it says otherwise: it cannot be
        counted in parts, so that each rank of a group evaluates all of the data.
        """
        return None

    def merge(self, partials: Sequence[list[float]]) -> None:
        """Replace the counts by the sum of the parts that several ranks have counted."""
        raise NotImplementedError(f"{type(self).__name__} has partial() and no merge()")

    def pair(self, outputs: Tensors, inputs: Tensors) -> tuple[Array, Array]:
        """Return the output and the targets that this metric takes."""
        return (
            _named(self.name, "output", outputs, self.output, 0),
            _named(self.name, "input", inputs, self.target, -1),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _named(metric: str, kind: str, tensors: Tensors, name: str | None, index: int) -> Array:
    if name is None:
        if not tensors:
            raise InputError(f"metric {metric!r}: the model has no {kind}s")
        return tensors[list(tensors)[index]]
    if name not in tensors:
        raise NameNotFoundError(
            f"metric {metric!r}: no {kind} {name!r}; there are {list(tensors)}"
            f"{nearest(name, tensors)}"
        )
    return tensors[name]


class _Classes(Metric):
    """Base of metrics of class scores and integer targets.

    axis: of the scores, that has the classes; None: as the top of this file says.
    ignore_index: the target of positions that do not count; None: all do.
    """

    def __init__(
        self,
        name: str,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
    ) -> None:
        self.axis = None if axis is None else arguments.count("axis", axis)
        self.ignore_index = (
            None if ignore_index is None else arguments.count("ignore_index", ignore_index)
        )
        super().__init__(name, output, target)

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        scores, targets = self.rows(*self.pair(outputs, inputs))
        outside = targets[(targets < 0) | (targets >= scores.shape[1])]
        if outside.size:
            raise LabelError(
                f"metric {self.name!r}: target {outside[0]} is outside [0, {scores.shape[1]})"
            )
        self.count(scores, targets)

    @abstractmethod
    def count(self, scores: Array, targets: Array) -> None:
        """Count scores (positions, classes) and targets (positions,); every position counts."""

    def rows(self, scores: Array, targets: Array) -> tuple[Array, Array]:
        """Return scores (positions, classes) and targets (positions,) of the positions that count.

        Raises:
            DTypeError: the targets are not whole numbers.
            ShapeError: the shapes do not fit.
        """
        if targets.dtype.kind not in "iub":
            raise DTypeError(
                f"metric {self.name!r}: expected targets of whole numbers (classes), "
                f"got {targets.dtype}"
            )
        axis = self._axis(scores, targets)
        rows = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
        return self._counted(rows, targets.reshape(-1))

    def _counted(self, rows: Array, targets: Array) -> tuple[Array, Array]:
        if self.ignore_index is not None:
            counted = targets != self.ignore_index
            if not counted.all():
                return rows[counted], targets[counted]
        return rows, targets

    def _axis(self, scores: Array, targets: Array) -> int:
        shape = scores.shape
        choices = (1, scores.ndim - 1) if self.axis is None else (self.axis % max(scores.ndim, 1),)
        for axis in choices:
            if 0 < axis < scores.ndim and (*shape[:axis], *shape[axis + 1 :]) == targets.shape:
                return axis
        raise ShapeError(
            f"metric {self.name!r}: scores {list(shape)} and targets {list(targets.shape)} do not "
            "fit; expected scores (n, c) with targets (n), or (n, c, s, ...) or (n, s, ..., c) "
            "with (n, s, ...)"
        )


class _Decisions(_Classes):
    """Base of metrics of the predicted class, which is the one of the highest score.

    Of equal scores the first class is taken.  Where there is one score a position, as (n,) or
    (n, 1) with targets 0 and 1 of any type, class 1 is predicted above a threshold.

    threshold: 0, which is the default, is right for logits, 0.5 for probabilities.  If it is given,
        scores and targets of one shape (n, c) are n c decisions (several labels a sample).
    """

    def __init__(
        self,
        name: str,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
        threshold: float | None = None,
    ) -> None:
        self.threshold = None if threshold is None else arguments.real("threshold", threshold)
        super().__init__(name, output, target, axis, ignore_index)

    def rows(self, scores: Array, targets: Array) -> tuple[Array, Array]:
        single = scores.ndim < 2 or 1 in (scores.shape[1], scores.shape[-1])
        if scores.size != targets.size or not (single or self.threshold is not None):
            return super().rows(scores, targets)
        whole = targets.reshape(-1).astype(np.int64)
        if not np.array_equal(whole, targets.reshape(-1)):
            raise DTypeError(f"metric {self.name!r}: expected targets 0 and 1, got other numbers")
        above = scores.reshape(-1) > (self.threshold or 0.0)
        return self._counted(np.stack([~above, above], 1), whole)


class Accuracy(_Decisions):
    """The share of positions at which the predicted class is the target."""

    def __init__(
        self,
        name: str = "accuracy",
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
        threshold: float | None = None,
    ) -> None:
        super().__init__(name, output, target, axis, ignore_index, threshold)

    def reset(self) -> None:
        self._right, self._positions = 0.0, 0

    def count(self, scores: Array, targets: Array) -> None:
        self._right += float((scores.argmax(1) == targets).sum())
        self._positions += len(targets)

    def partial(self) -> list[float]:
        return [self._right, self._positions]

    def merge(self, partials: Sequence[list[float]]) -> None:
        self._right, self._positions = _sums(partials)

    def result(self) -> float:
        return _quotient(self._right, self._positions)


class TopK(_Classes):
    """The share of positions at which the target is among the `k` classes of the highest scores.

    A target is, if fewer than k classes have a higher score, or an equal one and come first.
    """

    def __init__(
        self,
        k: int = 5,
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
    ) -> None:
        self.k = arguments.count("k", k)
        if self.k < 1:
            raise InputError(f"k={k}: expected 1 or more")
        name = f"top{self.k}" if name is None else name
        super().__init__(name, output, target, axis, ignore_index)

    def reset(self) -> None:
        self._right, self._positions = 0.0, 0

    def count(self, scores: Array, targets: Array) -> None:
        own = scores[np.arange(len(targets)), targets][:, None]
        before = np.arange(scores.shape[1]) < targets[:, None]
        rank = ((scores > own) | ((scores == own) & before) | np.isnan(own)).sum(1)
        self._right += float((rank < self.k).sum())
        self._positions += len(targets)

    def partial(self) -> list[float]:
        return [self._right, self._positions]

    def merge(self, partials: Sequence[list[float]]) -> None:
        self._right, self._positions = _sums(partials)

    def result(self) -> float:
        return _quotient(self._right, self._positions)


class F1(_Decisions):
    """2 TP / (2 TP + FP + FN).

    average: "macro": the mean over all classes that occur among the targets or the predictions;
        "binary": the score of class 1 of two.

    The result is NaN where no such class occurs.
    """

    def __init__(
        self,
        average: Literal["macro", "binary"] = "macro",
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
        threshold: float | None = None,
    ) -> None:
        self.average = arguments.text("average", average)
        if average not in ("macro", "binary"):
            raise InputError(f"average={average!r}; expected 'macro' or 'binary'")
        if name is None:
            name = "f1" if average == "macro" else "f1_binary"
        super().__init__(name, output, target, axis, ignore_index, threshold)

    def reset(self) -> None:
        # A column a class: how often it was rightly predicted, predicted, and the target.
        self._counts = np.zeros((3, 2), np.int64)

    def count(self, scores: Array, targets: Array) -> None:
        classes = scores.shape[1]
        if self.average == "binary" and classes != 2:
            raise ShapeError(f"metric {self.name!r}: 'binary' is for 2 classes, got {classes}")
        predicted = scores.argmax(1)
        more = classes - self._counts.shape[1]
        if more > 0:
            self._counts = np.pad(self._counts, ((0, 0), (0, more)))
        for row, values in enumerate((predicted[predicted == targets], predicted, targets)):
            self._counts[row] += np.bincount(values, minlength=self._counts.shape[1])

    def partial(self) -> list[float]:
        return [float(count) for count in self._counts.ravel()]

    def merge(self, partials: Sequence[list[float]]) -> None:
        several = [np.array(each, np.int64).reshape(3, -1) for each in partials]
        classes = max(each.shape[1] for each in several)
        self._counts = sum(
            (np.pad(each, ((0, 0), (0, classes - each.shape[1]))) for each in several),
            np.zeros((3, classes), np.int64),
        )

    def result(self) -> float:
        right, predicted, wanted = self._counts
        if self.average == "binary":
            return _quotient(2 * int(right[1]), int(predicted[1] + wanted[1]))
        occurring = predicted + wanted > 0
        if not occurring.any():
            return math.nan
        return float((2 * right[occurring] / (predicted + wanted)[occurring]).mean())


class _Errors(Metric):
    """Base of means over all elements of what an output differs from the targets by."""

    mode = "min"

    def reset(self) -> None:
        self._sum, self._elements = 0.0, 0

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        predicted, targets = self.pair(outputs, inputs)
        if predicted.shape != targets.shape:
            if [d for d in predicted.shape if d > 1] != [d for d in targets.shape if d > 1]:
                raise ShapeError(
                    f"metric {self.name!r}: the output has shape {list(predicted.shape)}, "
                    f"the targets {list(targets.shape)}"
                )
            predicted = predicted.reshape(targets.shape)
        self._sum += self.total(np.subtract(predicted, targets, dtype=np.float64))
        self._elements += targets.size

    def partial(self) -> list[float]:
        return [self._sum, self._elements]

    def merge(self, partials: Sequence[list[float]]) -> None:
        self._sum, self._elements = _sums(partials)

    @abstractmethod
    def total(self, differences: Array) -> float:
        """Return the sum of what every difference counts."""

    def result(self) -> float:
        return _quotient(self._sum, self._elements)


class MSE(_Errors):
    """The mean of (y - t)² over all elements."""

    def __init__(
        self, name: str = "mse", output: str | None = None, target: str | None = None
    ) -> None:
        super().__init__(name, output, target)

    def total(self, differences: Array) -> float:
        return float(np.square(differences).sum())


class MAE(_Errors):
    """The mean of |y - t| over all elements."""

    def __init__(
        self, name: str = "mae", output: str | None = None, target: str | None = None
    ) -> None:
        super().__init__(name, output, target)

    def total(self, differences: Array) -> float:
        return float(np.abs(differences).sum())


class Perplexity(Metric):
    """exp of the mean loss, over all positions that count, if the targets are whole numbers.

    Of other targets, every sample counts as one.
    """

    mode = "min"

    def __init__(
        self,
        name: str = "perplexity",
        target: str | None = None,
        ignore_index: int | None = IGNORED,
    ) -> None:
        self.ignore_index = ignore_index
        super().__init__(name, None, target)

    def reset(self) -> None:
        self._sum, self._positions = 0.0, 0

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        targets = _named(self.name, "input", inputs, self.target, -1)
        count = weight
        if targets.dtype.kind in "iu":
            counted = targets.size if self.ignore_index is None else targets != self.ignore_index
            count = int(np.sum(counted))
        if count:  # the loss of a batch where nothing counts may be NaN
            self._sum += loss * count
            self._positions += count

    def partial(self) -> list[float]:
        return [self._sum, self._positions]

    def merge(self, partials: Sequence[list[float]]) -> None:
        self._sum, self._positions = _sums(partials)

    def result(self) -> float:
        mean = _quotient(self._sum, self._positions)
        return math.exp(mean) if mean < 709 else mean * math.inf


class Function(Metric):
    """The mean over all samples of what a function of (output, targets) returns for each batch.

    It is the function of all samples at once if that is a mean over samples; derive from `Metric`
    for one that is not.

    mode: None: as the name says, see `history.direction`.
    """

    def __init__(
        self,
        function: Callable[[Array, Array], float],
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        self.function = function
        known = name or str(getattr(function, "__name__", type(function).__name__))
        super().__init__("function" if known == "<lambda>" else known, output, target)
        self.mode = mode

    def reset(self) -> None:
        self._sum, self._samples = 0.0, 0

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        value = self.function(*self.pair(outputs, inputs))
        try:
            self._sum += float(value) * weight
        except (TypeError, ValueError):
            raise DTypeError(
                f"metric {self.name!r}: expected a number, got {type(value).__name__}"
            ) from None
        self._samples += weight

    def partial(self) -> list[float]:
        return [self._sum, self._samples]

    def merge(self, partials: Sequence[list[float]]) -> None:
        self._sum, self._samples = _sums(partials)

    def result(self) -> float:
        return _quotient(self._sum, self._samples)


NAMES = ("accuracy", "top5", "mse", "mae", "f1", "f1_binary", "perplexity")
Given = str | Metric | Callable[[Array, Array], float]


def metrics_of(given: Sequence[Given] | Given, ignore_index: int | None = IGNORED) -> list[Metric]:
    """Make metrics of names ("top" with any number after it), `Metric` objects and functions.

    ignore_index: for the metrics that are given by name.

    Raises:
        InputError: a name is not known, or two metrics have one name.
        DTypeError: something is none of these.
    """
    several: Any = given
    if isinstance(given, str | Metric) or callable(given):
        several = [given]
    try:
        several = list(several)
    except TypeError:
        raise DTypeError(f"metrics: expected a list, got {type(given).__name__}") from None
    metrics = [_metric(each, ignore_index) for each in several]
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1 or name == "loss":
            raise InputError(f"two metrics are called {name!r}: give one of them another name=")
    return metrics


def _metric(given: Any, ignore_index: int | None) -> Metric:
    if isinstance(given, Metric):
        return given
    if isinstance(given, type) and issubclass(given, Metric):
        raise DTypeError(f"metrics: {given.__name__} is a class; give {given.__name__}()")
    if not isinstance(given, str):
        if callable(given):
            return Function(given)
        raise DTypeError(
            f"metrics: expected a name, a Metric or a function, got {type(given).__name__}"
        )
    if top := re.fullmatch(r"top([1-9]\d*)", given):
        return TopK(int(top[1]), ignore_index=ignore_index)
    match given:
        case "accuracy":
            return Accuracy(ignore_index=ignore_index)
        case "f1":
            return F1(ignore_index=ignore_index)
        case "f1_binary":
            return F1("binary", ignore_index=ignore_index)
        case "perplexity":
            return Perplexity(ignore_index=ignore_index)
        case "mse":
            return MSE()
        case "mae":
            return MAE()
    raise InputError(f"no metric {given!r}; known: {', '.join(NAMES)}{nearest(given, NAMES)}")


def _quotient(total: float, count: int) -> float:
    return total / count if count else math.nan


def _sums(partials: Sequence[list[float]]) -> tuple[float, int]:
    """Return the sums of the first and of the second numbers."""
    first, second = zip(*partials, strict=True)
    return sum(first), int(sum(second))
