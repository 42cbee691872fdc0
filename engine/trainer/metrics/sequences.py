"""Metrics of sequences: BLEU, and the error rate of tokens, characters or words.

The predicted tokens are an output of whole numbers (n, s), or the tokens of the highest scores of
(n, c, s) or (n, s, c) for targets (n, s).  Targets of `ignore_index` are left out, and with them
the predictions at their places where both have one length.  `end` is the token at which sequences
end.

With `blank`, the output is scores of CTC, (n, steps, c): repeated tokens are taken once, and then
blanks are left out.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError, ShapeError
from engine.base.labels import IGNORED
from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.trainer.metric import Declaration, MeanMetric, Metric, Tensors

__all__ = ["BLEU", "ErrorRate"]

_OUTPUT = "scores (n, c, s) or (n, s, c), tokens (n, s), or scores of CTC (n, steps, c)"
_TOKENS = "tokens, or their scores", "tokens"


class SequenceMetric(Metric):
    """Base of metrics of sequences of tokens.

    ignore_index: the target at places that do not count; None if all places count.
    end: the token that ends a sequence without belonging to it; None if sequences fill all places.
    blank: the blank token of CTC; None for models without CTC.
    steps_first: whether scores of CTC are (steps, n, c).
    lengths: the input with the number of steps of each sample; None to use all steps.
    target_lengths: the input with the number of targets of each sample; None to use all targets.
    """

    @check_arguments
    def __init__(
        self,
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        ignore_index: int | None = IGNORED,
        end: int | None = None,
        blank: int | None = None,
        steps_first: bool = False,
        lengths: str | None = None,
        target_lengths: str | None = None,
    ) -> None:
        self.ignore_index, self.end, self.blank = ignore_index, end, blank
        self.steps_first, self.lengths, self.target_lengths = steps_first, lengths, target_lengths
        super().__init__(name, output, target)

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        scores, targets = self.pair(outputs, inputs)
        if targets.dtype.kind not in "iu" or targets.ndim != 2:
            raise DTypeError(
                f"metric {self.name!r}: expected targets (n, s) of whole numbers (tokens), got "
                f"{list(targets.shape)} of {targets.dtype}"
            )
        tokens = self._predict_tokens(scores, targets)
        steps, counts = (
            None if name is None else self.tensor("input", inputs, name, 0)
            for name in (self.lengths, self.target_lengths)
        )
        for index, (row, wanted) in enumerate(zip(tokens, targets, strict=True)):
            mine = row if steps is None else row[: int(steps[index])]
            goal = wanted if counts is None else wanted[: int(counts[index])]
            self.count(*self._cut_sequences(mine, goal))

    def _predict_tokens(self, scores: Array, targets: Array) -> Array:
        """Return the predicted tokens (n, s)."""
        shape, fits = scores.shape, None
        if self.blank is not None and scores.ndim == 3:
            scores = np.moveaxis(scores, 0, 1) if self.steps_first else scores
            fits = 2 if len(scores) == len(targets) else None
        elif scores.ndim == 2 and scores.dtype.kind in "iu" and len(scores) == len(targets):
            return scores
        elif scores.ndim == 3:
            fits = next((a for a in (1, 2) if (*shape[:a], *shape[a + 1 :]) == targets.shape), None)
        if fits is None:
            raise ShapeError(
                f"metric {self.name!r}: an output {list(shape)} of {scores.dtype} and targets "
                f"{list(targets.shape)} do not fit; expected {_OUTPUT}"
            )
        self.refuse_nan(scores)
        tokens: Array = scores.argmax(fits)
        return tokens

    def _cut_sequences(self, row: Array, wanted: Array) -> tuple[list[int], list[int]]:
        """Return the tokens of a sample that count, predicted and wanted."""
        if self.ignore_index is not None:
            counted = wanted != self.ignore_index
            if self.blank is None and len(row) == len(wanted):
                row = row[counted]
            wanted = wanted[counted]
        predicted: list[int] = row.tolist()
        if self.blank is not None:
            before = [None, *predicted[:-1]]
            pairs = zip(predicted, before, strict=True)
            predicted = [token for token, last in pairs if token not in (last, self.blank)]
        return self._cut_at_end(predicted), self._cut_at_end(wanted.tolist())

    def _cut_at_end(self, tokens: list[int]) -> list[int]:
        return tokens[: tokens.index(self.end)] if self.end in tokens else tokens

    @abstractmethod
    def count(self, predicted: list[int], wanted: list[int]) -> None:
        """Count the tokens of a sample."""


class ErrorRate(MeanMetric, SequenceMetric):
    """The number of errors in the predictions, divided by the length of the targets.

    Errors are the insertions, deletions and replacements that turn the predictions into the
    targets.  The rate is 0 if there are none, and above 1 if there are more errors than targets.

    unit: the unit to count: "token", or "character" or "word" (separated by spaces) of the texts
        that `decode` returns.
    decode: a function from a list of tokens to a text, such as the method `decode` of a tokenizer.
    """

    declared = Declaration(
        "error_rate", mode="min", is_share=False, output=_TOKENS[0], targets=_TOKENS[1],
        empty="NaN without a target", variants={},
        other_names="wer cer ter word_error_rate character_error_rate edit_distance",
    )  # fmt: skip

    @check_arguments
    def __init__(
        self,
        unit: Literal["token", "character", "word"] = "token",
        decode: Callable[[list[int]], str] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if (unit == "token") != (decode is None):
            raise DTypeError(
                f"unit={unit!r}: characters and words are counted in the text that decode= "
                "makes of tokens; give both, or neither"
            )
        self.unit, self.decode = unit, decode
        names = {"token": "error_rate", "character": "cer", "word": "wer"}
        super().__init__(names[unit] if name is None else name, **options)

    def count(self, predicted: list[int], wanted: list[int]) -> None:
        first, second = self._split_units(predicted), self._split_units(wanted)
        self.add(measure_distance(first, second), len(second))

    def _split_units(self, tokens: list[int]) -> Sequence[Any]:
        if self.decode is None:
            return tokens
        text = self.decode(tokens)
        return text.split() if self.unit == "word" else text


class BLEU(SequenceMetric):
    """BLEU of all samples together, with one reference per sample (Papineni et al. 2002).

    It is the geometric mean of the precisions of n-grams, times the brevity penalty.

    grams: the length of the longest n-grams.
    is_smooth: whether to add 1 to the counts of n-grams longer than 1 (Lin and Och 2004).
    """

    declared = Declaration(
        "bleu", mode="max", is_share=True, output=_TOKENS[0], targets=_TOKENS[1],
        empty="0 if no n-gram of some length matches; NaN without a target", variants={},
    )  # fmt: skip

    @check_arguments(grams=AT_LEAST_1)
    def __init__(
        self, grams: int = 4, is_smooth: bool = False, name: str | None = None, **options: Any
    ) -> None:
        self.grams, self.is_smooth = grams, is_smooth
        super().__init__(name, **options)

    def reset(self) -> None:
        # The lengths predicted and wanted; then of each length of n-grams, how many match and are.
        self._counts = [0] * (2 + 2 * self.grams)

    def count(self, predicted: list[int], wanted: list[int]) -> None:
        counts = [len(predicted), len(wanted)]
        for size in range(1, self.grams + 1):
            mine, others = Counter(_list_grams(predicted, size)), Counter(_list_grams(wanted, size))
            counts += [(mine & others).total(), mine.total()]
        self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]

    def partial(self) -> list[Any]:
        return list(self._counts)

    def merge(self, partials: Sequence[list[Any]]) -> None:
        self._counts = [sum(int(n) for n in each) for each in zip(*partials, strict=True)]

    def result(self) -> float:
        length, wanted, *grams = self._counts
        if not wanted:
            return math.nan
        matches, totals = grams[::2], grams[1::2]
        if not matches[0] or not (self.is_smooth or all(matches)):
            return 0.0
        more = [0, *([int(self.is_smooth)] * (self.grams - 1))]
        logs = [math.log((m + a) / (t + a)) for m, t, a in zip(matches, totals, more, strict=True)]
        return math.exp(sum(logs) / self.grams + min(0.0, 1 - wanted / length))


def _list_grams(tokens: list[int], size: int) -> Iterator[tuple[int, ...]]:
    return zip(*(tokens[start:] for start in range(size)), strict=False)


def measure_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the least number of insertions, deletions and replacements (Levenshtein 1965)."""
    numbers: dict[Any, int] = {}
    a, b = (
        np.array([numbers.setdefault(each, len(numbers)) for each in several], np.int64)
        for several in (first, second)
    )
    steps = np.arange(len(b) + 1)
    row = steps.copy()
    for index, token in enumerate(a):
        below = np.minimum(row[1:] + 1, row[:-1] + (b != token))
        row = np.minimum.accumulate(np.concatenate([[index + 1], below]) - steps) + steps
    return int(row[-1])
