"""Metrics of values, of the loss, and of whatever a function computes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError, ShapeError
from engine.base.labels import IGNORED
from engine.base.signatures import check_arguments
from engine.trainer.metric import AveragedMetric, Declaration, MeanMetric, Metric, Tensors
from engine.training.mode import Mode

__all__ = ["MAE", "MSE", "R2", "RMSE", "Perplexity"]

_VALUES, _SAME = "values", "values"
_NOTHING = "NaN without an element"


class ValueMetric(Metric):
    """Base of metrics that compare each element of an output with the target."""

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        predicted, targets = self.pair(outputs, inputs)
        if predicted.shape != targets.shape:
            if [d for d in predicted.shape if d > 1] != [d for d in targets.shape if d > 1]:
                raise ShapeError(
                    f"metric {self.name!r}: the output has shape {list(predicted.shape)}, "
                    f"the targets {list(targets.shape)}"
                )
            predicted = predicted.reshape(targets.shape)
        self.count(predicted.astype(np.float64), targets.astype(np.float64))

    @abstractmethod
    def count(self, predicted: Array, targets: Array) -> None:
        """Count the elements of a batch, as float64."""


class _Means(MeanMetric, ValueMetric):
    """Base of means, over all elements, of a function of the output less the target."""

    def count(self, predicted: Array, targets: Array) -> None:
        self.add(self.total(predicted - targets), targets.size)

    @abstractmethod
    def total(self, differences: Array) -> float:
        """Return the sum of the function over the differences."""


def _declare(name: str, other_names: str = "") -> Declaration:
    return Declaration(
        name, mode="min", is_share=False, output=_VALUES, targets=_SAME, empty=_NOTHING,
        variants={}, other_names=other_names,
    )  # fmt: skip


class MSE(_Means):
    """The mean of (y - t)² over all elements."""

    declared = _declare("mse", "mean_squared_error l2")

    def total(self, differences: Array) -> float:
        return float(np.square(differences).sum())


class RMSE(MSE):
    """The square root of the mean of (y - t)² over all elements."""

    declared = _declare("rmse", "root_mean_squared_error")

    def result(self) -> float:
        return math.sqrt(super().result())


class MAE(_Means):
    """The mean of |y - t| over all elements."""

    declared = _declare("mae", "mean_absolute_error l1")

    def total(self, differences: Array) -> float:
        return float(np.abs(differences).sum())


class R2(AveragedMetric, ValueMetric):
    """Coefficient of determination: 1 - Σ (y - t)² / Σ (t - mean t)², for each value.

    average: "macro": the mean over the values of a sample; "weighted": weighted by the variance of
        their targets; "micro": all of them as one value; None for a column for each.
    """

    declared = Declaration(
        "r2", mode="max", is_share=False, output=_VALUES, targets=_SAME,
        empty="if all targets are equal: 1 if every prediction is right, otherwise 0; "
        "NaN for fewer than 2 samples",
        variants={
            "_macro": {"average": "macro"},
            "_micro": {"average": "micro"},
            "_weighted": {"average": "weighted"},
            "_per_value": {"average": None},
        },
        other_names="r2_score rsquared",
    )  # fmt: skip

    @check_arguments
    def __init__(
        self,
        average: Literal["macro", "micro", "weighted"] | None = "macro",
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
    ) -> None:
        super().__init__(self.settle(average, name), output, target)

    def reset(self) -> None:
        self._samples = 0
        # Of each value the mean of the targets, the sum of their squared distances from it, and
        # the sum of the squared errors.
        self._sums = np.zeros((3, 0))

    def count(self, predicted: Array, targets: Array) -> None:
        rows = targets.reshape(len(targets), -1) if targets.ndim else targets.reshape(1, 1)
        errors = rows - predicted.reshape(rows.shape)
        if self.average == "micro":
            rows, errors = rows.reshape(-1, 1), errors.reshape(-1, 1)
        if len(rows):
            mean = rows.mean(0)
            spread = np.square(rows - mean).sum(0)
            self._add(len(rows), np.stack([mean, spread, np.square(errors).sum(0)]))

    def _add(self, samples: int, sums: Array) -> None:
        """Add the sums of other samples, by the formula of Chan, Golub and LeVeque (1983)."""
        if not self._samples:
            self._samples, self._sums = samples, sums
            return
        if sums.shape != self._sums.shape:
            raise ShapeError(
                f"metric {self.name!r}: the batches have samples of {self._sums.shape[1]} and of "
                f"{sums.shape[1]} values"
            )
        total = self._samples + samples
        apart = sums[0] - self._sums[0]
        self._sums[0] += apart * samples / total
        self._sums[1] += sums[1] + apart * apart * self._samples * samples / total
        self._sums[2] += sums[2]
        self._samples = total

    def partial(self) -> list[Any]:
        return [self._samples, *self._sums.ravel().tolist()]

    def merge(self, partials: Sequence[list[Any]]) -> None:
        self.reset()
        for samples, *several in partials:
            if samples:
                self._add(int(samples), np.array(several).reshape(3, -1))

    def _compute_values(self) -> Array:
        """Return the score of each value of a sample."""
        _, spread, errors = self._sums
        if self._samples < 2:
            return np.full(len(spread), math.nan)
        constant = np.where(errors == 0, 1.0, 0.0)
        return np.where(spread > 0, 1 - errors / np.where(spread > 0, spread, 1), constant)

    def result(self) -> float:
        values, weights = self._compute_values(), self._sums[1]
        if self._samples < 2 or not len(values):
            return math.nan
        is_weighted = self.average == "weighted" and weights.any()
        return float(np.average(values, weights=weights if is_weighted else None))

    def each(self, classes: int) -> Array:
        return self._compute_values()

    def results(self, classes: Sequence[str] | None = None) -> dict[str, float]:
        return super().results(None)  # names of classes do not name values

    def columns(self, classes: Sequence[str] | None = None) -> list[str]:
        return super().columns(None)


class Perplexity(MeanMetric):
    """exp of the mean loss over all positions that count.

    If the targets are not integers, every sample counts as one position.
    """

    takes = ("target",)
    declared = Declaration(
        "perplexity", mode="min", is_share=False, output="the loss",
        targets="any", empty="NaN if no position counts", variants={},
    )  # fmt: skip

    def __init__(
        self,
        name: str | None = None,
        target: str | None = None,
        ignore_index: int | None = IGNORED,
    ) -> None:
        self.ignore_index = ignore_index
        super().__init__(name, None, target)

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        targets = self.tensor("input", inputs, self.target, -1)
        count = weight
        if targets.dtype.kind in "iu":
            counted = targets.size if self.ignore_index is None else targets != self.ignore_index
            count = int(np.sum(counted))
        if count:  # the loss of a batch where nothing counts may be NaN
            self.add(loss * count, count)

    def result(self) -> float:
        mean = super().result()
        return math.exp(mean) if mean < 709 else mean * math.inf


class Function(MeanMetric):
    """The mean over all samples of a function of (output, targets), called for each batch.

    For a number that is not a mean over samples, derive a class from `Metric` instead.

    mode: None, so that the name decides, see `history.direction`.
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

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        scores, targets = self.pair(outputs, inputs)
        try:
            value = self.function(scores, targets)
        except Exception as error:
            error.add_note(
                f"in the metric {self.name!r}, which gets the model's output {list(scores.shape)} "
                f"and then the targets {list(targets.shape)}"
            )
            raise
        try:
            self.add(float(value) * weight, weight)
        except (TypeError, ValueError):
            raise DTypeError(
                f"metric {self.name!r}: expected a number, got {type(value).__name__}"
            ) from None
