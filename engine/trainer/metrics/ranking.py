"""Metrics of the order of scores: the area under the ROC curve, and average precision.

Both are exact, for which they keep all scores, up to a limit in bytes.  Each class is a question of
its own, its positions against all others:

one score a position    the question of class 1, by the scores as they are
two classes             the same, by the share of class 1
more classes            by the share that the class has: its score where the scores of every
                        position add up to 1, otherwise the softmax of the scores
several labels          a question for each, by the scores as they are; scores and targets have one
                        shape
"""

from __future__ import annotations

import base64
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import LimitError, ShapeError
from engine.base.labels import IGNORED
from engine.base.signatures import check_arguments
from engine.trainer.metric import AveragedMetric, Declaration
from engine.trainer.metrics.classes import (
    DECISIONS,
    LABELS,
    ClassMetric,
    has_labels,
    has_one_score,
)
from engine.trainer.metrics.tallies import AVERAGES

__all__ = ["AUROC", "AveragePrecision"]

LIMIT = "256 MB"  # of scores and targets
_SUM = 1e-3  # the sum of the shares of a position may differ from 1 by as much


class _KeptScores(NamedTuple):
    """Scores (positions, classes) and the targets of these positions: classes, or 0 and 1 a label.

    A label that does not count has the target -1.
    """

    scores: Array
    targets: Array


class Ranking(AveragedMetric, ClassMetric):
    """Base of metrics that keep scores.

    average: "macro" for the mean over the classes; "weighted" to weight classes by how often they
        are the target; "micro" to treat all questions as one; None for a column for each class.
        With two classes, or one score per position, only class 1 counts, unless average is None.
    limit: bytes that scores and targets may take.
    """

    @check_arguments
    def __init__(
        self,
        average: Literal["macro", "micro", "weighted"] | None = "macro",
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        axis: int | None = None,
        ignore_index: int | None = IGNORED,
        limit: int | str = LIMIT,
    ) -> None:
        self.limit = arguments.check_nbytes("limit", limit)
        super().__init__(self.settle(average, name), output, target, axis, ignore_index)

    def reset(self) -> None:
        self._kept: list[_KeptScores] = []
        self._bytes = 0

    def take(self, scores: Array, targets: Array) -> None:
        if has_one_score(scores, targets):
            rows, wanted = self.counted(scores.reshape(-1, 1), self.binary(targets.reshape(-1)))
            self._keep(_KeptScores(rows, wanted.astype(np.int8)))
        elif has_labels(scores, targets):
            axis = self.axis or 1
            rows = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
            wanted = self.binary(np.moveaxis(targets, axis, -1).reshape(rows.shape))
            if self.ignore_index is not None:
                wanted = np.where(wanted == self.ignore_index, -1, wanted)
            self._keep(_KeptScores(rows, wanted.astype(np.int8)))
        else:
            super().take(scores, targets)

    def count(self, scores: Array, targets: Array) -> None:
        self._keep(_KeptScores(scores, targets.astype(np.int32)))

    def _keep(self, batch: _KeptScores) -> None:
        size = batch.scores.nbytes + batch.targets.nbytes
        if self._bytes + size > self.limit:
            raise LimitError(
                f"metric {self.name!r} keeps all scores; the scores of "
                f"{sum(len(each.targets) for each in [*self._kept, batch]):,} positions of "
                f"{batch.scores.shape[1]} classes take {self._bytes + size:,} bytes; its limit is "
                f"{self.limit:,} bytes: give {type(self).__name__}(limit=...), or fewer samples"
            )
        if self._kept and self._kept[0].scores.shape[1:] != batch.scores.shape[1:]:
            raise ShapeError(
                f"metric {self.name!r}: the batches have {self._kept[0].scores.shape[1]} and "
                f"{batch.scores.shape[1]} scores per position"
            )
        self._kept.append(_KeptScores(batch.scores.copy(), batch.targets))
        self._bytes += size

    def partial(self) -> list[Any]:
        return [encode_array(array) for batch in self._kept for array in batch]

    def merge(self, partials: Sequence[list[Any]]) -> None:
        self.reset()
        for part in partials:
            arrays = [decode_array(*each) for each in part]
            for scores, targets in zip(arrays[::2], arrays[1::2], strict=True):
                self._keep(_KeptScores(scores, targets))

    @abstractmethod
    def area(self, rows: Array, right: Array) -> float:
        """Return the area for one question; NaN if it is not defined.

        rows, right: how many positions, and how many positive ones, have each distinct score, from
            the highest on.
        """

    def result(self) -> float:
        if not self._kept:
            return math.nan
        values, sizes = self._compute_values(is_each=False)
        defined = ~np.isnan(values)
        weights = sizes[defined] if self.average == "weighted" else np.ones(int(defined.sum()))
        return float(np.average(values[defined], weights=weights)) if weights.any() else math.nan

    def each(self, classes: int) -> Array:
        return self._compute_values(is_each=True)[0] if self._kept else np.full(classes, math.nan)

    def _compute_values(self, is_each: bool) -> tuple[Array, Array]:
        """Return the areas of the questions, and how often each is the target.

        is_each: whether two classes are two questions.
        """
        scores, targets = (np.concatenate(several) for several in zip(*self._kept, strict=True))
        if targets.ndim == 1 and scores.shape[1] == 1:
            questions = [(scores[:, 0], targets == 1)]
        elif targets.ndim == 1:
            shares = _compute_shares(scores)
            self.refuse_nan(shares)  # of several infinities in a position
            chosen = range(1, 2) if scores.shape[1] == 2 and not is_each else range(scores.shape[1])
            questions = [(shares[:, k], targets == k) for k in chosen]
        else:
            questions = [
                (column[wanted >= 0], wanted[wanted >= 0] == 1)
                for column, wanted in zip(scores.T, targets.T, strict=True)
            ]
        if self.average == "micro":
            several = zip(*questions, strict=True)
            questions = [tuple(np.concatenate(list(each)) for each in several)]  # type: ignore[list-item]  # two arrays
        areas = [self.area(*count_descending(*question)) for question in questions]
        return np.array(areas), np.array([int(positive.sum()) for _, positive in questions])


def encode_array(array: Array) -> tuple[str, tuple[int, ...], str]:
    """Return the type, the shape and the bytes of an array for a partial."""
    return array.dtype.str, array.shape, base64.b64encode(array.tobytes()).decode()


def decode_array(dtype: str, shape: Sequence[int], text: str) -> Array:
    """Return the array of a partial."""
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def _compute_shares(scores: Array) -> Array:
    """Return numbers that have the order of the shares of the classes.

    Of other scores than shares they are the log-odds of the softmax, which stay apart where shares
    are all rounded to 1.
    """
    if scores.size and scores.min() >= 0 and np.allclose(scores.sum(1), 1, atol=_SUM):
        return scores
    return log_odds(scores)


def log_odds(scores: Array) -> Array:
    """Return the log-odds of the softmax of scores: of each class against all others."""
    rows = scores.astype(np.float64)
    others = np.full(rows.shape, -np.inf)  # the logarithm of the sum of the powers of the others
    others[:, 1:] = np.logaddexp.accumulate(rows[:, :-1], axis=1)
    after = np.logaddexp.accumulate(rows[:, :0:-1], axis=1)[:, ::-1]
    others[:, :-1] = np.logaddexp(others[:, :-1], after)
    with np.errstate(invalid="ignore"):
        rows -= others
    return rows


def count_descending(scores: Array, positive: Array) -> tuple[Array, Array]:
    """Return how many rows and how many positive rows have each score, from the highest on."""
    order = np.argsort(scores)[::-1]
    ordered = scores[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    rows = np.diff(np.append(begins, len(ordered)))
    right = np.add.reduceat(positive[order].astype(np.int64), begins) if len(begins) else rows
    return rows, right


def _declare(name: str, empty: str, other_names: str) -> Declaration:
    return Declaration(
        name, mode="max", is_share=True, output=DECISIONS, targets=LABELS, empty=empty,
        variants=AVERAGES, other_names=other_names,
    )  # fmt: skip


class AUROC(Ranking):
    """The area under the ROC curve.

    It is the share of the pairs of a positive and another position in which the positive one has
    the higher score; equal scores count half.
    """

    declared = _declare(
        "auroc",
        "NaN for a class without a positive or without another position; left out of means",
        "auc roc_auc roc_auc_score rocauc",
    )

    def area(self, rows: Array, right: Array) -> float:
        others = rows - right
        pairs = int(right.sum()) * int(others.sum())
        below = others.sum() - np.cumsum(others)
        return float((right * (below + others / 2)).sum() / pairs) if pairs else math.nan


class AveragePrecision(Ranking):
    """Average precision: Σ (Rₙ - Rₙ₋₁) Pₙ, for precision P and recall R at each distinct score."""

    declared = _declare(
        "average_precision",
        "NaN for a class without a positive position; left out of means",
        "ap auprc pr_auc average_precision_score",
    )

    def area(self, rows: Array, right: Array) -> float:
        positive = int(right.sum())
        precision = np.cumsum(right) / np.cumsum(rows)
        return float((right * precision).sum() / positive) if positive else math.nan
