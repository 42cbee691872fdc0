"""Connectionist temporal classification."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import OURS
from engine.tools.dev.cases.case import Case, Tensor, f32, fed

WORDS = np.array([[1, 2, 1], [2, 2, 0], [0, 0, 0], [3, 0, 0]])  # of 3, 2, 0 and 1 labels
LENGTHS = np.array([3, 2, 0, 1])
STEPS = np.array([6, 6, 4, 5])


def all_paths(logp: Any, word: list[int], blank: int) -> Any:
    """The probability of every path, a class a step, that collapses to a word."""
    total = 0.0
    for path in itertools.product(range(logp.shape[1]), repeat=len(logp)):
        runs = [c for c, _ in itertools.groupby(path)]
        if [c for c in runs if c != blank] == word:
            total += np.exp(sum(logp[t, c] for t, c in enumerate(path)))
    return total


def recursion(logp: Any, word: list[int], blank: int) -> Any:
    """The same by the probabilities of prefixes, for what has too many paths."""
    states = [blank]
    for label in word:
        states += [label, blank]
    p = np.exp(logp)
    alpha = np.zeros(len(states))
    alpha[:2] = p[0][states[:2]]
    for row in p[1:]:
        old = np.concatenate([[0, 0], alpha])
        skips = [s > 1 and c != blank and c != states[s - 2] for s, c in enumerate(states)]
        alpha = (old[2:] + old[1:-1] + old[:-2] * skips) * row[states]
    return alpha[-2:].sum()


def ctc(
    logp: Any, labels: Any, steps: Any, lengths: Any, blank: int = 0, zero_infinity: int = 0
) -> Any:
    losses = []
    for b, (t, u) in enumerate(zip(steps.astype(int), lengths.astype(int), strict=True)):
        few = logp.shape[2] ** t <= 1 << 13
        p = (all_paths if few else recursion)(logp[:t, b], labels[b, :u].tolist(), blank)
        losses.append(-np.log(p) if p or not zero_infinity else 0.0)
    return [np.array(losses)]


def rows(dtype: str, **attrs: Any) -> Case:
    given = (f32(6, 4, 4, high=0), fed(WORDS, dtype), fed(STEPS, dtype), fed(LENGTHS, dtype))
    return Case("CTCLoss", given, attrs, (0,), OURS, reference=ctc)


CASES = (
    rows("int64"),
    rows("int32", zero_infinity=1),
    Case("CTCLoss", (f32(6, 4, 4, high=0), fed(np.minimum(WORDS, 2), "int64"), STEPS, LENGTHS),
         {"blank": 3}, (0,), OURS, reference=ctc),
    Case("CTCLoss", (f32(2, 4, 4, high=0), WORDS, np.array([2, 2, 2, 0]), LENGTHS), {}, (), OURS,
         reference=ctc, name="no-path"),
    Case("CTCLoss", (f32(2, 4, 4, high=0), WORDS, np.array([2, 2, 2, 0]), LENGTHS),
         {"zero_infinity": 1}, (0,), OURS, reference=ctc, name="no-path-zero"),
    Case("CTCLoss", (f32(5, 3, 4, high=0), Tensor((3, 0), "int64"), np.array([5, 3, 0]),
                     np.zeros(3, np.int64)), {}, (0,), OURS, reference=ctc, name="empty-targets"),
    Case("CTCLoss", (f32(60, 8, 30, low=-6, high=-1), Tensor((8, 12), "int64", 1, 30),
                     np.full(8, 60), np.full(8, 12)), {}, (0,), OURS, reference=ctc, bench=True),
)  # fmt: skip
