"""Metrics of class scores and targets: how both are read, accuracy, and top k.

The axis of the classes: integer targets of shape (n,) or (n, s, ...) go with scores that have one
axis more.  If the other axes match the targets, it is axis 1, as in ONNX: (n, c) or (n, c, s, ...).
Otherwise it is the last one, as in language models: (n, s, ..., c).  Scores of shape (n, s, s) are
read as ONNX's; `axis=` says otherwise.

Positions whose target is `ignore_index`, -100 unless the loss or the caller says otherwise, do not
count; neither as right nor as wrong nor in the number of positions.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError, LabelError, ShapeError
from engine.base.labels import IGNORED
from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.trainer.metric import Declaration, MeanMetric, Metric, Tensors

__all__ = ["Accuracy", "TopK"]

# In the words of docs/metrics.md, which explains them.
SCORES, CLASSES = "class scores", "classes"
DECISIONS, LABELS = "class scores, one score, or labels", "classes, or 0 and 1"
NOTHING = "NaN if no position counts"


class ClassMetric(Metric):
    """Base of metrics of class scores and integer targets.

    axis: the axis of the scores that has the classes; None: as the top of this file says.
    ignore_index: the target of positions that do not count; None if all of them count.
    """

    @check_arguments
    def __init__(
        self,
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
    ) -> None:
        self.axis, self.ignore_index = axis, ignore_index
        super().__init__(name, output, target)

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        scores, targets = self.pair(outputs, inputs)
        self.refuse_nan(scores)
        self.take(scores, targets)

    def take(self, scores: Array, targets: Array) -> None:
        """Count the positions of a batch."""
        rows, wanted = self.rows(scores, targets)
        self.count(rows, self.inside(wanted, rows.shape[1]))

    def inside(self, targets: Array, classes: int) -> Array:
        """Return the targets, all of them classes.

        Raises:
            LabelError: one is none.
        """
        outside = targets[(targets < 0) | (targets >= classes)]
        if outside.size:
            raise LabelError(f"metric {self.name!r}: target {outside[0]} is outside [0, {classes})")
        return targets

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
        axis = self._find_axis(scores, targets)
        rows = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
        return self.counted(rows, targets.reshape(-1))

    def counted(self, rows: Array, targets: Array) -> tuple[Array, Array]:
        """Return the rows and targets of the positions that count."""
        if self.ignore_index is not None:
            counted = targets != self.ignore_index
            if not counted.all():
                return rows[counted], targets[counted]
        return rows, targets

    def _find_axis(self, scores: Array, targets: Array) -> int:
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

    def binary(self, targets: Array) -> Array:
        """Return targets of any type as the whole numbers 0, 1 and `ignore_index`.

        Raises:
            DTypeError: they are not whole numbers.
            LabelError: they are others.
        """
        with np.errstate(invalid="ignore"):
            whole = targets.astype(np.int64)
        if not np.array_equal(whole, targets):
            raise DTypeError(f"metric {self.name!r}: expected targets 0 and 1, got other numbers")
        counted = whole if self.ignore_index is None else whole[whole != self.ignore_index]
        self.inside(counted.reshape(-1), 2)
        return whole


def has_one_score(scores: Array, targets: Array) -> bool:
    """Return whether there is one score for each target, of class 1 of two."""
    alone = scores.ndim < 2 or 1 in (scores.shape[1], scores.shape[-1])
    return alone and scores.size == targets.size


def has_labels(scores: Array, targets: Array) -> bool:
    """Return whether there is a score for each of several labels that a sample may have."""
    return scores.ndim > 1 and scores.shape == targets.shape and not has_one_score(scores, targets)


class Decisions(ClassMetric):
    """Base class of metrics of the predicted class, which is the one with the highest score.

    Of classes with equal scores, the first one is predicted.  If there is one score per position,
    (n,) or (n, 1) with targets 0 and 1 of any type, class 1 is predicted above a threshold.

    threshold: the default, 0, is right for logits; use 0.5 for probabilities.  If a threshold is
        given, scores and targets of the same shape (n, c) are n c separate decisions (several
        labels per sample).
    """

    @check_arguments
    def __init__(
        self,
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
        threshold: float | None = None,
    ) -> None:
        self.threshold = threshold
        super().__init__(name, output, target, axis, ignore_index)

    def rows(self, scores: Array, targets: Array) -> tuple[Array, Array]:
        is_labels = has_labels(scores, targets)
        if not has_one_score(scores, targets) and not (is_labels and self.threshold is not None):
            if is_labels:
                raise ShapeError(
                    f"metric {self.name!r}: scores and targets both have the shape "
                    f"{list(scores.shape)}: give threshold=0 (logits) or 0.5 (probabilities) if a "
                    "sample may have several labels; otherwise expected targets of whole numbers, "
                    "the classes"
                )
            return super().rows(scores, targets)
        whole = self.binary(targets.reshape(-1))
        above = scores.reshape(-1) > (self.threshold or 0.0)
        return self.counted(np.stack([~above, above], 1), whole)


class Accuracy(MeanMetric, Decisions):
    """The share of positions whose predicted class is the target."""

    declared = Declaration(
        "accuracy", mode="max", is_share=True, output=DECISIONS, targets=LABELS, empty=NOTHING,
        variants={},
        other_names="acc categorical_accuracy sparse_categorical_accuracy binary_accuracy",
    )  # fmt: skip

    def count(self, scores: Array, targets: Array) -> None:
        self.add(float((scores.argmax(1) == targets).sum()), len(targets))


class TopK(MeanMetric, ClassMetric):
    """The share of positions whose target is among the `k` classes with the highest scores.

    Of classes with equal scores, the first ones are taken.
    """

    declared = Declaration(
        "top5", mode="max", is_share=True, output=SCORES, targets=CLASSES, empty=NOTHING,
        variants={},
    )  # fmt: skip

    @check_arguments(k=AT_LEAST_1)
    def __init__(
        self,
        k: int = 5,
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
    ) -> None:
        self.k = k
        name = f"top{self.k}" if name is None else name
        super().__init__(name, output, target, axis, ignore_index)

    def count(self, scores: Array, targets: Array) -> None:
        own = scores[np.arange(len(targets)), targets][:, None]
        before = np.arange(scores.shape[1]) < targets[:, None]
        rank = ((scores > own) | ((scores == own) & before)).sum(1)
        self.add(float((rank < self.k).sum()), len(targets))
