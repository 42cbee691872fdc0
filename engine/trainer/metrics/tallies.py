"""Metrics of tallies: how often each class was rightly predicted, predicted, and the target.

Where a sample has one class, tallies are of its position; where it may have several labels (scores
and targets of one shape, and a threshold), each label is a class of its own.

The average: "macro" is the mean over the classes, "weighted" the mean weighted by how often each is
the target, "micro" the value of all tallies together, "binary" the value of class 1 of two, and
None gives each class a column.  As in scikit-learn the mean leaves out classes that are neither
target nor predicted, unless they are labels, and a class whose quotient is 0 / 0 has
`zero_division`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import ShapeError
from engine.base.labels import IGNORED
from engine.base.signatures import ANY, check_arguments
from engine.trainer.metric import AveragedMetric, Declaration
from engine.trainer.metrics.classes import DECISIONS, LABELS, NOTHING, Decisions, has_labels

__all__ = ["F1", "MCC", "BalancedAccuracy", "Dice", "IoU", "Precision", "Recall"]

Average = Literal["macro", "micro", "weighted", "binary"]
AVERAGES: Mapping[str, Mapping[str, Any]] = {
    "_macro": {"average": "macro"},
    "_micro": {"average": "micro"},
    "_weighted": {"average": "weighted"},
    "_per_class": {"average": None},
}
BINARY: Mapping[str, Mapping[str, Any]] = {"_binary": {"average": "binary"}}
_UNDEFINED = f"a class with the quotient 0 / 0 has the value `zero_division` (0); {NOTHING}"


class Tallies(Decisions):
    """Base of metrics that follow from the tallies of the classes."""

    def reset(self) -> None:
        # A column a class: how often it was rightly predicted, predicted, and the target.
        self._counts = np.zeros((3, 2), np.int64)
        self._positions = 0
        self._is_labels = False

    def take(self, scores: Array, targets: Array) -> None:
        if self.threshold is None or not has_labels(scores, targets):
            super().take(scores, targets)
            return
        labels = scores.shape[self.axis or 1]
        rows = np.moveaxis(scores, self.axis or 1, -1).reshape(-1, labels)
        wanted = self.binary(np.moveaxis(targets, self.axis or 1, -1).reshape(-1, labels))
        counts = np.ones(wanted.shape, bool)
        if self.ignore_index is not None:
            counts = wanted != self.ignore_index
        above, is_wanted = (rows > self.threshold) & counts, (wanted == 1) & counts
        self._is_labels = True
        self._add(
            [(above & is_wanted).sum(0), above.sum(0), is_wanted.sum(0)], int(counts.any(1).sum())
        )

    def count(self, scores: Array, targets: Array) -> None:
        classes, predicted = scores.shape[1], scores.argmax(1)
        several = (predicted[predicted == targets], predicted, targets)
        self._add([np.bincount(each, minlength=classes) for each in several], len(targets))

    def _add(self, counts: Sequence[Array], positions: int) -> None:
        self._counts = _sum([self._counts, np.array(counts, np.int64)])
        self._positions += positions

    def partial(self) -> list[Any]:
        return [self._is_labels, self._positions, *self._counts.ravel().tolist()]

    def merge(self, partials: Sequence[list[Any]]) -> None:
        self._is_labels = any(each[0] for each in partials)
        self._positions = int(sum(each[1] for each in partials))
        self._counts = _sum([np.array(each[2:], np.int64).reshape(3, -1) for each in partials])


def _sum(several: Sequence[Array]) -> Array:
    """Return the sum of counts, with the columns of the widest."""
    classes = max(each.shape[1] for each in several)
    total = np.zeros((3, classes), np.int64)
    for each in several:
        total[:, : each.shape[1]] += each
    return total


class ClassTallies(AveragedMetric, Tallies):
    """Base of quotients of the tallies of a class, averaged over the classes.

    average: "macro", "micro", "weighted", "binary", or None, as the top of this file says.
    zero_division: the value of a class of 0 / 0; NaN: such classes are left out of the mean.
    """

    @check_arguments(zero_division=ANY)
    def __init__(
        self,
        average: Average | None = "macro",
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
        threshold: float | None = None,
        zero_division: float = 0.0,
    ) -> None:
        self.zero_division = zero_division
        name = self.settle(average, name)
        super().__init__(name, output, target, axis, ignore_index, threshold)

    def count(self, scores: Array, targets: Array) -> None:
        if self.average == "binary" and scores.shape[1] != 2:
            raise ShapeError(
                f"metric {self.name!r}: 'binary' is for 2 classes, got {scores.shape[1]}"
            )
        super().count(scores, targets)

    @abstractmethod
    def quotient(self, right: Array, predicted: Array, wanted: Array) -> tuple[Array, Array]:
        """Return the numerators and denominators of the classes."""

    def result(self) -> float:
        right, predicted, wanted = self._counts
        if not self._positions:
            return math.nan
        if self.average == "micro":
            return float(self._compute_values(*self._counts.sum(1, keepdims=True))[0])
        values = self._compute_values(right, predicted, wanted)
        if self.average == "binary":
            return float(values[1])
        occurs = np.full(len(values), True) if self._is_labels else predicted + wanted > 0
        counted = occurs & ~np.isnan(values)
        weights = (wanted if self.average == "weighted" else np.ones(len(values)))[counted]
        if not weights.sum():
            return self.zero_division
        return float(np.average(values[counted], weights=weights))

    def each(self, classes: int) -> Array:
        values = self._compute_values(*self._counts)
        return values if self._positions else values * math.nan

    def _compute_values(self, right: Array, predicted: Array, wanted: Array) -> Array:
        top, bottom = self.quotient(right, predicted, wanted)
        values = np.full(len(top), self.zero_division, np.float64)
        return np.divide(top, bottom, out=values, where=bottom > 0)


def _declare(name: str, other_names: str = "") -> Declaration:
    return Declaration(
        name, mode="max", is_share=True, output=DECISIONS, targets=LABELS, empty=_UNDEFINED,
        variants={**AVERAGES, **BINARY}, other_names=other_names,
    )  # fmt: skip


class Precision(ClassTallies):
    """TP / (TP + FP): the share of a class's predictions that are right."""

    declared = _declare("precision")

    def quotient(self, right: Array, predicted: Array, wanted: Array) -> tuple[Array, Array]:
        return right, predicted


class Recall(ClassTallies):
    """TP / (TP + FN): the share of a class's positions that are predicted as this class."""

    declared = _declare("recall")

    def quotient(self, right: Array, predicted: Array, wanted: Array) -> tuple[Array, Array]:
        return right, wanted


class F1(ClassTallies):
    """2 TP / (2 TP + FP + FN): the harmonic mean of precision and recall."""

    declared = _declare("f1", "f1_score f1score")

    def quotient(self, right: Array, predicted: Array, wanted: Array) -> tuple[Array, Array]:
        return 2 * right, predicted + wanted


class Dice(F1):
    """2 TP / (2 TP + FP + FN) over all positions: the overlap of masks.  The same as F1."""

    declared = _declare("dice", "dice_coefficient dice_score")


class IoU(ClassTallies):
    """TP / (TP + FP + FN) over all positions: the Jaccard index of masks."""

    declared = _declare("iou", "miou mean_iou jaccard jaccard_score")

    def quotient(self, right: Array, predicted: Array, wanted: Array) -> tuple[Array, Array]:
        return right, predicted + wanted - right


class _Whole(Tallies):
    """Base of numbers that all classes make together; several labels are n c decisions."""

    def take(self, scores: Array, targets: Array) -> None:
        Decisions.take(self, scores, targets)


class BalancedAccuracy(_Whole):
    """The mean recall of the classes that occur among the targets."""

    declared = Declaration(
        "balanced_accuracy", mode="max", is_share=True, output=DECISIONS, targets=LABELS,
        empty=f"classes that no target has are left out; {NOTHING}", variants={},
        other_names="balanced_accuracy_score",
    )  # fmt: skip

    def result(self) -> float:
        right, _, wanted = self._counts
        occurs = wanted > 0
        return float((right[occurs] / wanted[occurs]).mean()) if occurs.any() else math.nan


class MCC(_Whole):
    """Matthews correlation coefficient, for two or more classes.

    (s c - Σ pₖ tₖ) / √((s² - Σ pₖ²)(s² - Σ tₖ²)), with s positions, c of them right, and class k pₖ
    times predicted and tₖ times the target.
    """

    declared = Declaration(
        "mcc", mode="max", is_share=False, output=DECISIONS, targets=LABELS,
        empty=f"0 if all targets or all predictions are of one class; {NOTHING}", variants={},
        other_names="matthews_corrcoef",
    )  # fmt: skip

    def result(self) -> float:
        if not self._positions:
            return math.nan
        right, predicted, wanted = ([int(n) for n in row] for row in self._counts)
        s = self._positions
        above = s * sum(right) - sum(p * t for p, t in zip(predicted, wanted, strict=True))
        spread = (s * s - sum(p * p for p in predicted)) * (s * s - sum(t * t for t in wanted))
        return above / math.sqrt(spread) if spread else 0.0
