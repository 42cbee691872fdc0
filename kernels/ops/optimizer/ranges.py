"""Ranges: which elements of the flat tensors belong to the parameters of a node, for its kernels.

Kernels that add squares cut every range into runs of `RUN` elements, each added by one thread and
all in one order, so that sums repeat with any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import imax, imin, inline, off, udiv
from engine.plan.words import OPEN, Field, Words

RUN = 4096  # elements whose squares are added in the working type

RANGE = Words(
    "range",
    begin="first element",
    size="elements",
    row="elements that stay as they are where all their gradients are 0; 0: none do",
)
RANGES = Words("ranges", ranges=Field("of the parameters of a node", count=OPEN, of=RANGE))
TABLES = {"ranges": RANGES}
TABLE = f"ranges: i64[count, {RANGE.size}]"  # of signatures


def find_ends(c: KernelCall) -> tuple[int, int]:
    """Return the end of the ranges of a call, and how many runs they have."""
    ranges = c.records("ranges", RANGE, c.count)
    if c.owned and any(record["begin"] for record in ranges):
        c.refuse("a range that starts after its tensor, which threads hold in tiles")
    ends = [record["begin"] + record["size"] for record in ranges]
    return max(ends, default=0), sum(-(-record["size"] // RUN) for record in ranges)


def ranges_reach(c: KernelCall) -> Reach:
    """Return the reach into all operands that are there without a shape: the end of the ranges."""
    (end, _), names = find_ends(c), c.names()
    operands = [p for p in c.template.parameters if p.is_pointer and not p.size]
    there = [p for p in operands if not p.condition or c.template.holds(p.condition, names)]
    return {p.name: end for p in there}


@inline
def part(ranges, r, at, first, last):
    """Return start and size of the part of range r in [first, last); it starts at element `at`."""
    span = off(ranges.ranges, r)
    low, high = imax(first, at), imin(last, at + span.size)
    return span.begin + low - at, high - low


@inline
def within(ranges, r, at, first, last):
    """Return the runs of range r in [first, last), and how many it has; they start at run `at`."""
    runs = udiv(off(ranges.ranges, r).size + RUN - 1, RUN)
    return imax(first - at, 0), imin(last - at, runs), runs


def count_runs(n: int) -> int:
    """Return the number of runs of n elements."""
    return -(-n // RUN)


def pack_ranges(
    ranges: Sequence[tuple[int, int]], rows: Sequence[int] = ()
) -> np.ndarray[Any, Any]:
    """Return starts and sizes as kernels read them, i64; rows: elements of a row, see `RANGE`."""
    pairs = zip(ranges, rows or [0] * len(ranges), strict=True)
    words = RANGES.pack(ranges=[RANGE.pack(begin=b, size=n, row=row) for (b, n), row in pairs])
    return np.array(words.values, np.int64)
