"""Memory placement: an offset in the arena for each block of bytes, so that the arena is small.

Blocks with overlapping live ranges must not overlap in memory.  This is dynamic storage allocation,
which is NP-hard.  The peak of live bytes is a lower bound for every placement.

1. There are few large blocks, and they are placed first: one after another in some order, each at
   the lowest offset that the blocks with overlapping live ranges allow.  The first order starts
   with the blocks of the call with the most live bytes, followed by the blocks of the next one
   (greedy by breadth).
2. The blocks that end at the top of the lowest placement so far move to the front of the order, and
   all are placed again, so each order corrects the previous one (squeaky wheel optimization).  An
   order that was tried before is shuffled, with a fixed seed: the result is the same every time.
3. Small blocks fill the remaining gaps, the largest ones first (best-fit decreasing).

If there are too many blocks for this, each is placed in the order of first or last calls, in
near-linear time.

Source: 1 and 3, Pisarchyk, Lee, "Efficient memory management for deep neural net inference",
arXiv 2001.03288; 2, Joslin, Clements, "Squeaky wheel optimization", JAIR 10 (1999).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from random import Random

from engine.graphs.planner.lifetimes import MemoryBlock, compute_liveness_bound
from engine.system.config import switch

# `python -m bench arenas --budgets 70 50 0` compares arenas with the bound: at most 1.9 % above it.
# `python -m bench budgets.constants` prints the figures below: how far arenas exceed the bound.
#
# A block is large if it has at least 1 / SHARE of the bound's bytes.  With 250 or 2000, the arenas
# of ResNet-18 differ by less than 0.1 %.
SHARE = 500
# The number of orders derived from one.  With 10, ResNet-18 is 3.2 % above the bound instead of
# 1.9, and U-Net 3.6 instead of 0.9; with 100, a step of ResNet-18 in half of its memory takes 0.2 %
# more.
ROUNDS = 300
# How far an arena may exceed the bound, relative to it, without orders by another rule.  With 0,
# MobileNetV3's plan tries 300 orders more, which take 0.3 s and lead to no smaller arena.
CLOSE = 0.0075
# The largest number of comparisons of large blocks for an order, about 1 s.  With 100,000,
# ResNet-18 is 3.2 % above the bound.
WORK = 10_000_000
# The largest number of blocks for which gaps are filled, which would take over 1 s for more;
# ResNet-101 has 2,800.  With 0, ViT is 12.6 % above the bound instead of 0.8.
MANY = 5000

Placed = tuple[int, list[int]]  # the end of the highest block, and the offset of each


def place(blocks: Sequence[MemoryBlock]) -> int:
    """Give every block an offset; return the size of the arena."""
    if switch("REUSE") == "0":
        top, offsets = 0, []
        for block in blocks:
            offsets.append(top)
            top += block.nbytes
    elif len(blocks) > MANY:
        top, offsets = min((_fit_in_time(blocks, b) for b in (False, True)), key=itemgetter(0))
    else:
        top, offsets = _Placement(blocks).search()
    for block, offset in zip(blocks, offsets, strict=True):
        block.offset = offset
    return top


class _Placement:
    """Places blocks in one order after another; blocks are identified by their numbers.

    large: the blocks that orders place; the others fill gaps.
    near: for each large block, the large ones that are live at the same time.
    """

    def __init__(self, blocks: Sequence[MemoryBlock]) -> None:
        self.blocks, self.bound = blocks, compute_liveness_bound(blocks)
        self.sizes = [b.nbytes for b in blocks]
        self.large = [n for n, b in enumerate(blocks) if SHARE * b.nbytes >= self.bound]
        self.near = _list_beside(blocks, self.large)

    def search(self) -> Placed:
        """Return the best placement that is found."""
        best, lowest = 1 << 62, list[int]()
        for order in _order_by_breadth(self.blocks, self.large):
            top, offsets = self._place_rounds(order)
            if top < best:
                top, offsets = self._fill(offsets)
            if top < best:
                best, lowest = top, offsets
            if best <= (1 + CLOSE) * self.bound:
                break
        return best, lowest

    def _place_rounds(self, order: list[int]) -> Placed:
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

    def _fill(self, offsets: Sequence[int]) -> Placed:
        """Place all other blocks beside the large ones, each in the smallest gap that holds it."""
        blocks, offsets = self.blocks, list(offsets)
        placed: list[_Row] = []
        stretches: list[list[_Row]] = [
            [] for _ in range(_stretch(max((b.last for b in blocks), default=0)) + 1)
        ]
        small = [n for n, offset in enumerate(offsets) if offset < 0]
        small.sort(key=lambda n: (-self.sizes[n], blocks[n].first))
        for n in (*self.large, *small):
            born, died, nbytes = blocks[n].first, blocks[n].last, self.sizes[n]
            lived = slice(_stretch(born), _stretch(died) + 1)
            if offsets[n] < 0:
                is_short = lived.stop - lived.start == 1
                low, best, gap = 0, -1, 1 << 62
                for begin, end, first, last in stretches[lived.start] if is_short else placed:
                    if first > died or born > last:
                        continue
                    if nbytes <= begin - low < gap:
                        best, gap = low, begin - low
                    if end > low:
                        low = end
                offsets[n] = low if best < 0 else best
            row = offsets[n], offsets[n] + nbytes, born, died
            for rows in (placed, *stretches[lived]):
                insort(rows, row)
        return max((row[1] for row in placed), default=0), offsets


_Row = tuple[int, int, int, int]  # of a placed block its start, end, first and last call


def _stretch(call: int) -> int:
    """Return the number of the stretch of the run that a call is in."""
    return call // 64  # with 16 filling takes 1.2 times as long, with 256 as long


def _list_beside(blocks: Sequence[MemoryBlock], large: Sequence[int]) -> list[list[int]]:
    """Return of each large block the large ones that live when it does; nothing of others."""
    beside: list[list[int]] = [[] for _ in blocks]
    live: list[int] = []
    for n in sorted(large, key=lambda n: blocks[n].first):
        live = [m for m in live if blocks[m].last >= blocks[n].first]
        for m in live:
            beside[m].append(n)
        beside[n] += live
        live.append(n)
    return beside


_Key = Callable[[MemoryBlock], tuple[int, ...]]
_KEYS: tuple[_Key, ...] = (
    lambda b: (b.first - b.last, -b.nbytes),
    lambda b: (b.first, -b.nbytes),
)


def _order_by_breadth(blocks: Sequence[MemoryBlock], large: Sequence[int]) -> Iterator[list[int]]:
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


def _fit_in_time(blocks: Sequence[MemoryBlock], backwards: bool) -> Placed:
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
    ends: dict[int, int] = {}  # end of a gap -> its start
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
