"""BLEU and error rates of sequences: tokens, texts, ends, padding, CTC."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.base.aliases import Array
from engine.errors import DTypeError, NonFiniteError, ShapeError
from engine.trainer.metrics import BLEU, ErrorRate
from engine.trainer.metrics.sequences import measure_distance

RNG = np.random.default_rng(8)


def edits(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the edit distance by its recursion."""

    @functools.cache
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        replaced: int = of(i - 1, j - 1) + (first[i - 1] != second[j - 1])
        return min(replaced, of(i - 1, j) + 1, of(i, j - 1) + 1)

    return of(len(first), len(second))


def test_distances() -> None:
    assert measure_distance("kitten", "sitting") == 3
    assert measure_distance("", "abc") == measure_distance("abc", "") == 3
    assert measure_distance("", "") == 0
    for _ in range(60):
        first, second = (RNG.integers(0, 4, RNG.integers(0, 9)).tolist() for _ in range(2))
        assert measure_distance(first, second) == edits(first, second)


@pytest.mark.parametrize("layout", ["tokens", "onnx", "language"])
@pytest.mark.parametrize("split", [(6,), (1, 4, 1)])
def test_tokens_of_every_layout(layout: str, split: tuple[int, ...]) -> None:
    tokens, wanted = RNG.integers(0, 5, (2, 6, 9))
    wanted[RNG.random((6, 9)) < 0.2] = -100
    given: Array = {
        "tokens": tokens, "onnx": np.moveaxis(np.eye(5)[tokens], 2, 1),
        "language": np.eye(5)[tokens]
    }[layout]  # fmt: skip
    metric, at, errors, length = ErrorRate(), 0, 0, 0
    parts: list[list[Any]] = [ErrorRate().partial()]
    for size in split:
        part, mine = slice(at, at + size), ErrorRate()
        for each in (metric, mine):
            each.update({"y": given[part]}, {"t": wanted[part]}, 0.0, size)
        parts.append(mine.partial())
        at += size
    for row, goal in zip(tokens, wanted, strict=True):
        counted = goal != -100
        errors += edits(row[counted].tolist(), goal[counted].tolist())
        length += int(counted.sum())
    assert metric.result() == errors / length
    joined = ErrorRate()
    joined.merge(parts)
    assert joined.result() == metric.result()


def test_sequences_end_at_their_end() -> None:
    array = np.array([[1, 2, 9, 4, 4], [9, 1, 1, 1, 1]])
    wanted = np.array([[1, 2, 3, 9, -100], [9, 3, -100, -100, -100]])
    metric = ErrorRate(end=9)
    metric.update({"y": array}, {"t": wanted}, 0.0, 2)
    assert metric.result() == 1 / 3


def test_characters_and_words() -> None:
    texts = {1: "the cat", 2: "the hat", 3: "a", 4: "sat"}

    def decode(tokens: list[int]) -> str:
        return " ".join(texts[token] for token in tokens)

    outputs = {"y": np.array([[1, 4], [3, 4]])}
    inputs = {"t": np.array([[2, 4], [3, -100]])}
    for unit, errors, length in (("character", 1, 12), ("word", 1, 4)):
        metric = ErrorRate(unit, decode)  # type: ignore[arg-type]  # one of both
        metric.update(outputs, inputs, 0.0, 2)
        assert metric.name == {"character": "cer", "word": "wer"}[unit]
        assert metric.result() == errors / length
    with pytest.raises(DTypeError, match=r"unit='word': .* give both, or neither"):
        ErrorRate("word")


def test_outputs_of_ctc() -> None:
    array = np.array([[0, 1, 1, 0, 1, 2, 2, 2], [3, 3, 0, 3, 0, 0, 1, 1]])  # 1 1 2; 3 3 1
    scores = np.eye(4)[array]
    inputs = {
        "t": np.array([[1, 1, 2], [3, 1, 2]]), "steps": np.array([8, 6]), "counts": np.array([3, 2])
    }  # fmt: skip
    for metric, given in (
        (ErrorRate(blank=0, target="t"), scores),
        (ErrorRate(blank=0, target="t", steps_first=True), np.moveaxis(scores, 1, 0)),
    ):
        metric.update({"y": given}, inputs, 0.0, 2)
        assert metric.result() == 2 / 6
    metric = ErrorRate(blank=0, target="t", lengths="steps", target_lengths="counts")
    metric.update({"y": scores}, inputs, 0.0, 2)  # 3 3 for 3 1
    assert metric.result() == 1 / 5


def test_bleu_is_of_all_samples_together() -> None:
    array = np.array([[1, 2, 3, 4, 5], [1, 2, 9, 4, 5]])
    wanted = np.array([[1, 2, 3, 4, 6], [1, 2, 3, 4, 5]])
    metric, parts = BLEU(), []
    for k in range(2):
        part = BLEU()
        for each in (metric, part):
            each.update({"y": array[k : k + 1]}, {"t": wanted[k : k + 1]}, 0.0, 1)
        parts.append(part.partial())
    expected = (8 / 10 * 5 / 8 * 2 / 6 * 1 / 4) ** 0.25
    assert metric.result() == pytest.approx(expected)
    joined = BLEU()
    joined.merge(parts)
    assert joined.result() == metric.result()
    short = BLEU(grams=1, end=9)
    short.update({"y": np.array([[1, 2, 9, 0]])}, {"t": np.array([[1, 2, 3, 4]])}, 0.0, 1)
    assert short.result() == pytest.approx(math.exp(1 - 4 / 2))


def test_bleu_without_matches_and_without_targets() -> None:
    assert math.isnan(BLEU().result())
    metric = BLEU()
    metric.update({"y": np.array([[1, 2, 3]])}, {"t": np.array([[1, 2, 3]])}, 0.0, 1)
    assert metric.result() == 0.0  # no sequence of 4
    smooth = BLEU(is_smooth=True)
    smooth.update({"y": np.array([[1, 2, 3]])}, {"t": np.array([[1, 2, 3]])}, 0.0, 1)
    assert smooth.result() == 1.0


@pytest.mark.parametrize("shape", [(2, 5, 9), (2, 5), (3, 9, 4), (2,)])
def test_outputs_that_are_no_sequences(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"'error_rate': an output .* and targets \[2, 7\] do not"):
        ErrorRate().update({"y": np.zeros(shape)}, {"t": np.zeros((2, 7), np.int64)}, 0.0, 2)


def test_targets_that_are_no_tokens() -> None:
    with pytest.raises(DTypeError, match=r"'bleu': expected targets \(n, s\).*got \[2\] of int64"):
        BLEU().update({"y": np.zeros((2, 3))}, {"t": np.zeros(2, np.int64)}, 0.0, 2)
    scores = np.full((2, 7, 3), math.nan)
    with pytest.raises(NonFiniteError, match=r"'bleu': the first output holds 42 NaN"):
        BLEU().update({"y": scores}, {"t": np.zeros((2, 7), np.int64)}, 0.0, 2)
