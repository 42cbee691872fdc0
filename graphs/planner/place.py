"""Placement: where each block of bytes lies in the arena, so that the arena is small.

Blocks that live at the same time must not overlap: dynamic storage allocation, which is NP-hard.
The most bytes that live at one call are a bound that no placement can beat.

1. Large blocks are few, and are placed first: one after another in some order, each as low as those
   allow that live when it does.  The first order begins with the blocks of the call where most
   bytes live, then come those of the next one (greedy by breadth).
2. Blocks that end at the top of the lowest placement so far go to the front of the order, and all
   are placed again: each order is made from what went wrong before (squeaky wheel optimization).
   An order that was tried before is shuffled, by one seed: the result is the same every time.
3. Small blocks fill the gaps that are left, the largest first (best-fit decreasing).

Where too many blocks live together for that, each is placed in the order of first or last calls,
in near-linear time.

Source: 1 and 3, Pisarchyk, Lee, "Efficient memory management for deep neural net inference",
arXiv 2001.03288; 2, Joslin, Clements, "Squeaky wheel optimization", JAIR 10 (1999).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from random import Random

from engine.graphs.planner.lifetimes import Block, liveness_bound
from engine.system.config import switch

# Measured on 127 sets of blocks: plans of all workloads (training, eval, and steps within budgets).
# Arenas are 0.11 % above the bound on average, 1.9 % at most.  Large blocks are those of at least
# 1 / SHARE of the bound: with 250 five arenas are larger by up to 0.8 %, with 2000 the mean is
# 0.01 points lower and placing takes 1.4 times as long.  ROUNDS: with 100 rounds the arenas of
# ResNet-18 within budgets are up to 2.9 % above the bound, with 300 up to 1.5 %.
SHARE = 500
ROUNDS = 300  # orders that are made from one
WORK = 10_000_000  # comparisons of large blocks in all rounds of an order: about 1 s
PAIRS = 2_000_000  # of blocks that live together: three times as many as ResNet-101 has, about 1 s

Placed = tuple[int, list[int]]  # the end of the highest block, and the offset of each


def place(blocks: Sequence[Block]) -> int:
    """Give every block an offset; return the size of the arena."""
    if switch("REUSE") == "0":
        top, offsets = 0, []
        for block in blocks:
            offsets.append(top)
            top += block.nbytes
    elif _pairs(blocks) > PAIRS:
        top, offsets = min((_fit_in_time(blocks, b) for b in (False, True)), key=itemgetter(0))
    else:
        top, offsets = _Placement(blocks).search()
    for block, offset in zip(blocks, offsets, strict=True):
        block.offset = offset
    return top


def _pairs(blocks: Sequence[Block]) -> int:
    """Return how many pairs of blocks live at the same time."""
    deaths = sorted(b.last for b in blocks)
    births = sorted(b.first for b in blocks)
    return sum(n - bisect_left(deaths, first) for n, first in enumerate(births))


class _Placement:
    """Places blocks in one order after another; blocks are told by their numbers.

    beside: of each block those that live when it does.
    large: the blocks that orders place; the others fill gaps.
    near: of each large block the large ones among those beside it.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks, self.bound = blocks, liveness_bound(blocks)
        self.sizes = [b.nbytes for b in blocks]
        self.beside = _beside(blocks)
        is_large = [SHARE * b.nbytes >= self.bound for b in blocks]
        self.large = [n for n, large in enumerate(is_large) if large]
        self.near = [[m for m in near if is_large[m]] for near in self.beside]

    def search(self) -> Placed:
        """Return the best placement that is found."""
        best, lowest = 1 << 62, list[int]()
        for order in _by_breadth(self.blocks, self.large):
            top, offsets = self._rounds(order)
            if top < best:
                top, offsets = self._fill(offsets)
            if top < best:
                best, lowest = top, offsets
            if best <= self.bound:
                break
        return best, lowest

    def _rounds(self, order: list[int]) -> Placed:
        """Place the large blocks in an order, and in those that follow from it."""
        sizes, best, lowest = self.sizes, 1 << 62, list[int]()
        work = sum([len(self.near[n]) for n in order])
        known, random = set[tuple[int, ...]](), Random(0)
        for _ in range(max(min(ROUNDS, WORK // max(work, 1)), 1)):
            offsets = self._stack(order)
            top = max([offsets[n] + sizes[n] for n in order], default=0)
            if top < best:
                best, lowest = top, offsets
            if best <= self.bound:
                break
            order = sorted(order, key=lambda n: offsets[n] + sizes[n] < best)
            if tuple(order) in known:
                random.shuffle(order)
            known.add(tuple(order))
        return best, lowest

    def _stack(self, order: Iterable[int]) -> list[int]:
        """Place the large blocks in an order, each as low as it fits; return all offsets."""
        sizes, near, offsets = self.sizes, self.near, [-1] * len(self.sizes)
        for n in order:
            size, low = sizes[n], 0
            placed = [(offsets[m], sizes[m]) for m in near[n] if offsets[m] >= 0]
            placed.sort()
            for begin, nbytes in placed:
                if begin - low >= size:
                    break
                if begin + nbytes > low:
                    low = begin + nbytes
            offsets[n] = low
        return offsets

    def _fill(self, offsets: list[int]) -> Placed:
        """Place all other blocks beside the large ones."""
        large = set(self.large)
        small = [n for n in range(len(self.sizes)) if n not in large]
        small.sort(key=lambda n: (-self.sizes[n], self.blocks[n].first))
        sizes, offsets = self.sizes, offsets[:]
        for n in small:
            size, low, best, gap = sizes[n], 0, -1, 0
            placed = [(offsets[m], sizes[m]) for m in self.beside[n] if offsets[m] >= 0]
            placed.sort()
            for begin, nbytes in placed:
                room = begin - low
                if room >= size and (best < 0 or room < gap):
                    best, gap = low, room
                if begin + nbytes > low:
                    low = begin + nbytes
            offsets[n] = low if best < 0 else best
        ends = [offset + size for offset, size in zip(offsets, self.sizes, strict=True)]
        return max(ends, default=0), offsets


def _beside(blocks: Sequence[Block]) -> list[list[int]]:
    """Return of each block those that live when it does."""
    beside: list[list[int]] = [[] for _ in blocks]
    live: list[int] = []
    for n in sorted(range(len(blocks)), key=lambda n: blocks[n].first):
        live = [m for m in live if blocks[m].last >= blocks[n].first]
        for m in live:
            beside[m].append(n)
        beside[n] += live
        live.append(n)
    return beside


_Key = Callable[[Block], tuple[int, ...]]
_KEYS: tuple[_Key, ...] = (
    lambda b: (b.first - b.last, -b.nbytes),
    lambda b: (b.first, -b.nbytes),
)


def _by_breadth(blocks: Sequence[Block], large: Sequence[int]) -> Iterator[list[int]]:
    """Yield orders that begin with the blocks that live at the call where most bytes do.

    Those that live at the call with the next most bytes follow, and so on.  Blocks of one call go
    by their length of life, or by first call.
    """
    change = [0] * (max((b.last for b in blocks), default=0) + 2)
    for b in blocks:
        change[b.first] += b.nbytes
        change[b.last + 1] -= b.nbytes
    live = list(accumulate(change))
    ranks: dict[int, int] = {}
    left = list(large)
    for rank, call in enumerate(sorted(range(len(live)), key=lambda call: -live[call])):
        if not left:
            break
        ranks |= {n: rank for n in left if blocks[n].first <= call <= blocks[n].last}
        left = [n for n in left if n not in ranks]
    for key in _KEYS:
        yield sorted(large, key=lambda n: (ranks[n], key(blocks[n])))


def _fit_in_time(blocks: Sequence[Block], backwards: bool) -> Placed:
    """Place blocks in the order of their first calls, or of their last ones, the last one first.

    Each gets the smallest gap that holds it; because the blocks around it live at one time, gaps
    are kept up to date, and the time is not quadratic in the blocks.
    """
    offsets = [0] * len(blocks)
    spans = [(-b.last, -b.first) if backwards else (b.first, b.last) for b in blocks]
    order = sorted(range(len(blocks)), key=lambda i: (spans[i][0], -blocks[i].nbytes))
    deaths = sorted(order, key=lambda i: spans[i][1])
    gaps: list[tuple[int, int]] = []  # size, begin; sorted
    begins: dict[int, int] = {}  # begin of a gap -> its end
    ends: dict[int, int] = {}  # end of a gap -> its begin
    top = most = dead = 0

    def open_gap(begin: int, end: int) -> None:
        insort(gaps, (end - begin, begin))
        begins[begin], ends[end] = end, begin

    def close_gap(begin: int, end: int) -> None:
        del gaps[bisect_left(gaps, (end - begin, begin))], begins[begin], ends[end]

    for i in order:
        while spans[deaths[dead]][1] < spans[i][0]:
            gone = deaths[dead]
            dead += 1
            begin = offsets[gone]
            end = last = begin + blocks[gone].nbytes
            if begin == end:
                continue
            if begin in ends:
                begin = ends[begin]
                close_gap(begin, offsets[gone])
            if end in begins:
                end = begins[end]
                close_gap(last, end)
            if end == top:
                top = begin
            else:
                open_gap(begin, end)
        nbytes = blocks[i].nbytes
        at = bisect_left(gaps, (nbytes, 0))
        if at < len(gaps):
            size, begin = gaps[at]
            close_gap(begin, begin + size)
            if size > nbytes:
                open_gap(begin + nbytes, begin + size)
            offsets[i] = begin
        else:
            offsets[i] = top
            top += nbytes
            most = max(most, top)
    return most, offsets
