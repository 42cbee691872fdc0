"""Findings: facts about a validation, collected batch by batch in bounded memory.

For a classification: how often each class was taken for each, the shares that the model gave the
classes, the worst samples, and some correct ones.  For samples that may have several labels: how
often each label was there, was predicted, and both.  For a regression: pairs of expected and
predicted values.  For both of these, the samples with the largest and the smallest errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.trainer.metrics.classes import has_labels
from engine.trainer.metrics.ranking import log_odds
from engine.trainer.reports import png
from engine.trainer.reports.thinned import Thinned

MAX_CLASSES = 1000  # of a confusion matrix
MAX_PAIRS = 400  # of expected and predicted values
MAX_ODDS = 1 << 20  # numbers that are kept for the curves of a classifier
SHOWN = 8  # values of a sample that is not a picture
LETTERS = 80  # of a value that is a text


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the validation, and the model's prediction for it.

    expected, predicted: the number of a class, or the first `SHOWN` values.
    confidence: the share of the predicted class, from 0 to 1; None without classification.
    error: the score of the predicted class minus the score of the expected one, or the mean
        absolute difference of the values.
    picture: u8[height, width, channels] of the sample; None if it does not look like one.
    values: the first `SHOWN` of its numbers or texts, out of `size`.
    name: the name of its file; empty if unknown.
    """

    expected: tuple[float, ...]
    predicted: tuple[float, ...]
    confidence: float | None
    error: float
    picture: Array | None
    values: tuple[float | str, ...]
    size: int
    name: str = ""


def _name_nothing(row: int) -> str:
    return ""


@dataclass(eq=False, kw_only=True)
class Findings:
    """The findings of a validation.

    features, target, output: the names of the input that is shown, of the labels, and of the
        output that is compared with them.
    classes: their names; None if unknown.
    threshold: the output above which a sample has a label, as the loss declares it; None if each
        sample has one class, or values.
    limit: how many samples of each kind are kept.
    step, epoch: the optimizer step and the epoch of this validation.
    counts: i64[classes, classes], how often the row's class was taken for the column's class;
        None: no classification, or more than `MAX_CLASSES` classes.
    labels: i64[labels, 3], how often each of several labels was there, was predicted, and both;
        None: a sample has one class, or values.
    scored: f32[samples, 2 labels], of every n-th sample the targets of the labels, then the scores.
    total: how many labels were compared.
    worst: the samples with the largest errors, starting with the largest.
    best: correct samples, few of each class; or the samples with the smallest errors.
    are_masks: whether a sample has a class for each pixel; its picture then has the expected and
        the predicted mask beside it, and its error is the share of the pixels that are wrong.
    pairs: f64[pairs, 2], expected and predicted values of a regression.
    odds: f32[samples, 1 + classes], of every n-th label its class and the log-odds that the model
        gave each class; scores that are not finite are left out.  Log-odds stay apart where shares
        are all rounded to 1.
    """

    features: str
    target: str
    output: str
    classes: Sequence[str] | None = None
    threshold: float | None = None
    limit: int = 12
    step: int = 0
    epoch: int = 0
    counts: Array | None = None
    labels: Array | None = None
    scored: Thinned = field(default_factory=lambda: Thinned(MAX_ODDS))
    total: int = 0
    worst: list[Sample] = field(default_factory=list)
    best: list[Sample] = field(default_factory=list)
    are_masks: bool = False
    pairs: Thinned = field(default_factory=lambda: Thinned(2 * MAX_PAIRS))
    odds: Thinned = field(default_factory=lambda: Thinned(MAX_ODDS))
    _has_two: bool | None = None  # classes, with one score for both
    _are_shares: bool | None = None  # whether that score is a probability
    _right: Counter[int] = field(default_factory=Counter)  # how many of each class are in `best`

    def add(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        name: Callable[[int], str] = _name_nothing,
    ) -> None:
        """Add a batch; skip it if it lacks the names, or is of another kind.

        name: returns the name of the file of a row.
        """
        if self.features not in inputs or self.target not in inputs or self.output not in outputs:
            return
        given, labels = np.asarray(inputs[self.features]), np.asarray(inputs[self.target])
        scores = np.asarray(outputs[self.output])
        if not labels.ndim or scores.dtype.kind != "f" or len(scores) != len(labels):
            return
        if self.threshold is not None and has_labels(scores, labels):
            self._add_labels(given, scores, labels, self.threshold, name)
        elif self._is_two_classes(scores, labels):
            self._add_classes(
                given, self._convert_to_two(scores.reshape(-1)), labels.reshape(-1), name
            )
        elif labels.dtype.kind in "iu":
            for axis in (1, scores.ndim - 1):  # as metrics find it, see engine/trainer/metrics
                if axis and scores.shape[:axis] + scores.shape[axis + 1 :] == labels.shape:
                    self._add_classes(given, np.moveaxis(scores, axis, -1), labels, name)
                    break
        elif labels.dtype.kind == "f" and scores.size == labels.size:
            self._add_values(given, scores, labels, name)

    def _is_two_classes(self, scores: Array, labels: Array) -> bool:
        """Return whether all batches so far have one score per sample and targets 0 or 1."""
        if self._has_two is not False:
            is_single = scores.size == labels.size == len(labels) and labels.dtype.kind in "iubf"
            before, self._has_two = self._has_two, is_single and bool(np.isin(labels, (0, 1)).all())
            if before and not self._has_two:  # values that began with zeros and ones
                self.counts, self.total, self.worst, self.best = None, 0, [], []
                self.odds = Thinned(MAX_ODDS)
        return self._has_two

    def _convert_to_two(self, scores: Array) -> Array:
        """Return scores of both classes: logits, unless the first batch has only probabilities."""
        if self._are_shares is None:
            self._are_shares = bool(((scores >= 0) & (scores <= 1)).all())
        other = 1 - scores if self._are_shares else np.zeros_like(scores)
        return np.stack([other, scores], axis=1)

    def _add_classes(
        self, given: Array, scores: Array, labels: Array, name: Callable[[int], str]
    ) -> None:
        """Compare scores of (positions..., classes) with labels of (positions...)."""
        classes = scores.shape[-1]
        if classes > MAX_CLASSES and labels.ndim > 1:  # as of a language model: nothing is shown
            return
        rows = scores.reshape(-1, classes)
        expected = labels.reshape(-1).astype(np.int64)
        predicted = rows.argmax(1)
        compared = np.flatnonzero((expected >= 0) & (expected < classes))  # others are left out
        self.total += len(compared)
        if self.counts is None and classes <= MAX_CLASSES:
            self.counts = np.zeros((classes, classes), np.int64)
        if self.counts is not None and len(self.counts) == classes:
            places = expected[compared] * classes + predicted[compared]
            counts = np.bincount(places, minlength=classes * classes)
            self.counts += counts.reshape(classes, classes)
            self._add_odds(rows, expected, compared)
        if labels.ndim == 3 and given.ndim == 4:
            self._keep_masks(given, scores.argmax(-1), labels, classes, name)
        if labels.ndim > 1 or len(given) != len(rows):  # more labels than samples
            return

        def make_sample(row: int) -> Sample:
            truth, taken = int(expected[row]), int(predicted[row])
            return _make_sample(
                given[row], (truth,), (taken,), float(rows[row, taken] - rows[row, truth]),
                float(compute_sigmoid(_log_odds(rows[row : row + 1])[0, taken])), name(row),
            )  # fmt: skip

        errors = rows[compared, predicted[compared]] - rows[compared, expected[compared]]
        is_wrong = predicted[compared] != expected[compared]
        self._keep_worst(compared[is_wrong], errors[is_wrong], make_sample)
        share = -(-self.limit // classes)  # so that the samples are of many classes
        for row in compared[~is_wrong]:
            if len(self.best) == self.limit:
                break
            if self._right[int(expected[row])] < share:
                self._right[int(expected[row])] += 1
                self.best.append(make_sample(int(row)))

    def _add_odds(self, rows: Array, expected: Array, compared: Array) -> None:
        """Keep the log-odds of the classes for every n-th label that is compared."""
        picked = compared[self.odds.pick(len(compared))]
        picked = picked[np.isfinite(rows[picked]).all(1)]
        if len(picked):
            columns = [expected[picked, np.newaxis], _log_odds(rows[picked])]
            self.odds.add(np.concatenate(columns, 1).astype(np.float32))

    def _add_labels(
        self,
        given: Array,
        scores: Array,
        targets: Array,
        threshold: float,
        name: Callable[[int], str],
    ) -> None:
        """Compare scores of several labels, on axis 1, with targets of 0 and 1."""
        count = scores.shape[1]
        if not count or count > MAX_CLASSES:
            return
        if self.labels is None:
            self.labels = np.zeros((count, 3), np.int64)
        if len(self.labels) != count:
            return
        above = scores > threshold
        rows, wanted, taken = (
            np.moveaxis(each, 1, -1).reshape(-1, count) for each in (scores, targets, above)
        )
        counts = (wanted == 0) | (wanted == 1)  # others are left out
        there, taken = wanted == 1, taken & counts
        self.labels += np.stack([there.sum(0), taken.sum(0), (there & taken).sum(0)], 1)
        picked = self.scored.pick(len(rows))
        self.scored.add(np.concatenate([wanted[picked], rows[picked]], 1).astype(np.float32))
        self.total += int(counts.sum())
        shape = (len(scores), -1)
        self._keep_samples(given, targets.reshape(shape), above.reshape(shape), name)

    def _add_values(
        self, given: Array, scores: Array, labels: Array, name: Callable[[int], str]
    ) -> None:
        count = len(scores)
        expected, predicted = labels.reshape(count, -1), scores.reshape(count, -1)
        if not count or not expected.shape[1]:
            return
        pairs = np.stack([expected.reshape(-1), predicted.reshape(-1)], 1)
        self.pairs.add(pairs[self.pairs.pick(len(pairs))].astype(np.float64))
        self.total += count
        self._keep_samples(given, expected, predicted, name)

    def _keep_masks(
        self,
        given: Array,
        predicted: Array,
        labels: Array,
        classes: int,
        name: Callable[[int], str],
    ) -> None:
        """Keep the pictures with the most and the fewest wrong pixels, each beside its masks."""
        size = labels.shape[1:]
        if size not in (given.shape[2:], given.shape[1:3]) or png.make_pixels(given[0]) is None:
            return
        self.are_masks = True
        expected = np.where((labels >= 0) & (labels < classes), labels, -1)
        counted = (expected >= 0).sum((1, 2))
        errors = ((expected >= 0) & (predicted != expected)).sum((1, 2)) / counted.clip(min=1)

        def make_sample(row: int) -> Sample:
            picture = png.make_pixels(given[row])
            assert picture is not None
            strip = png.join_masks(picture, (expected[row], predicted[row]))
            return Sample((), (), None, float(errors[row]), strip, (), given[row].size, name(row))

        self._keep_extremes(errors, make_sample)

    def _keep_samples(
        self, given: Array, expected: Array, predicted: Array, name: Callable[[int], str]
    ) -> None:
        """Keep the samples with the largest and the smallest mean absolute differences."""
        count = len(expected)
        if len(given) != count:
            return
        errors = np.abs(predicted.astype(np.float64) - expected).mean(1)

        def make_sample(row: int) -> Sample:
            truth, answer = (tuple(map(float, v[row, :SHOWN])) for v in (expected, predicted))
            return _make_sample(given[row], truth, answer, float(errors[row]), None, name(row))

        self._keep_extremes(errors, make_sample)

    def _keep_extremes(self, errors: Array, make_sample: Callable[[int], Sample]) -> None:
        """Keep the samples with the largest and the smallest errors."""
        self._keep_worst(np.arange(len(errors)), errors, make_sample)
        for row in _find_smallest(errors, self.limit):
            if len(self.best) < self.limit or errors[row] < self.best[-1].error:
                self.best = sorted([*self.best, make_sample(int(row))], key=_get_error)[
                    : self.limit
                ]

    def _keep_worst(self, rows: Array, errors: Array, sample: Any) -> None:
        for i in _find_smallest(-errors, self.limit):
            if len(self.worst) < self.limit or errors[i] > self.worst[-1].error:
                worst = [*self.worst, sample(int(rows[i]))]
                self.worst = sorted(worst, key=_get_error, reverse=True)[: self.limit]


def _get_error(sample: Sample) -> float:
    return sample.error


def _find_smallest(values: Array, limit: int) -> list[int]:
    """Return the indices of the smallest finite values in order; the first of equal ones."""
    finite = np.flatnonzero(np.isfinite(values))
    order = finite[np.argsort(values[finite], kind="stable")]
    return [int(i) for i in order[:limit]]


def _make_sample(
    given: Array,
    expected: tuple[float, ...],
    predicted: tuple[float, ...],
    error: float,
    confidence: float | None,
    name: str,
) -> Sample:
    given = np.asarray(given)
    picture = png.make_pixels(given)
    if given.dtype.kind in "fiub":
        shown: tuple[float | str, ...] = tuple(v.item() for v in given.reshape(-1)[:SHOWN])
    else:
        shown = tuple(str(v)[:LETTERS] for v in given.reshape(-1)[:SHOWN])
    return Sample(expected, predicted, confidence, error, picture, shown, given.size, name)


def _log_odds(rows: Array) -> Array:
    """Return the log-odds of the classes from shares, or their logarithms up to a constant."""
    scores = rows.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # shares of 0 and 1, infinite scores
        are_shares = (scores >= 0).all(1) & (np.abs(scores.sum(1) - 1) <= 1e-3)
        of_shares = np.log(scores) - np.log1p(-np.minimum(scores, 1.0))
        return np.where(are_shares[:, np.newaxis], of_shares, log_odds(scores))


def compute_sigmoid(odds: Array) -> Array:
    """Return the shares of log-odds."""
    result: Array = 0.5 * (1 + np.tanh(0.5 * odds))
    return result
