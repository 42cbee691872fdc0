"""Curves of a classifier from its scores: ROC, precision over recall, and calibration.

ROC and precision over recall are of one class against all others.  A threshold takes all samples of
one score together, as scikit-learn does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.base.aliases import Array
from engine.trainer.metrics.ranking import count_descending

BINS = 15  # of a reliability diagram; Guo et al., On Calibration of Modern Neural Networks, 2017


@dataclass(frozen=True, slots=True)
class ThresholdCounts:
    """The counts of a binary ranking at every threshold, from the highest one down.

    true, false: samples of the class, and others, with scores at or above each threshold.
    """

    true: Array
    false: Array

    @classmethod
    def of(cls, is_class: Array, scores: Array) -> ThresholdCounts | None:
        """Return the ranking of samples; None without samples of the class, or without others.

        is_class: b1[samples]; scores: the larger, the likelier is the class.
        """
        rows, right = map(np.cumsum, count_descending(scores, is_class))
        if not len(rows) or not 0 < right[-1] < rows[-1]:
            return None
        return cls(right, rows - right)

    def compute_roc(self) -> tuple[Array, Array]:
        """Return false and true positive rates, from (0, 0) to (1, 1)."""
        return (
            np.append(0.0, self.false / self.false[-1]),
            np.append(0.0, self.true / self.true[-1]),
        )

    @property
    def area(self) -> float:
        """The area under the ROC curve."""
        x, y = self.compute_roc()
        return float(((y[1:] + y[:-1]) * np.diff(x)).sum() / 2)

    def compute_precision_recall(self) -> tuple[Array, Array]:
        """Return precision and recall at every threshold, from the highest one down."""
        return self.true / (self.true + self.false), self.true / self.true[-1]

    @property
    def average_precision(self) -> float:
        """The mean precision, each threshold weighted by its gain of recall."""
        precision, recall = self.compute_precision_recall()
        return float((np.diff(recall, prepend=0.0) * precision).sum())


@dataclass(frozen=True, slots=True)
class Calibration:
    """Bins of predictions by their confidence; bins without predictions are left out.

    confidence: the mean confidence of each bin. accuracy: the share of right predictions in it.
    counts: the number of predictions in it.
    """

    confidence: Array
    accuracy: Array
    counts: Array

    @classmethod
    def of(cls, is_right: Array, confidence: Array) -> Calibration:
        """Return bins of equal width from 0 to 1; a bound belongs to the bin above it."""
        bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence, side="left")
        counts = np.bincount(bins, minlength=BINS)
        used = counts > 0
        mean, right = (
            np.bincount(bins, weights=values, minlength=BINS)[used] / counts[used]
            for values in (confidence.astype(np.float64), is_right.astype(np.float64))
        )
        return cls(mean, right, counts[used])

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap of confidence and accuracy."""
        gaps = np.abs(self.confidence - self.accuracy)
        return float((gaps * self.counts).sum() / self.counts.sum()) if len(gaps) else 0.0
