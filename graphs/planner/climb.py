"""Climb: a placement of blocks that is made lower by letting blocks change places in an order.

Blocks are placed in an order, each at the lowest bytes that are free while it lives.  Of the block
that ends highest, those that it lies on, and those that these lie on, one changes places with, or
goes before, a block that was placed before it and lives at the same time.  The order is kept if no
block ends higher than before.  What is tried is drawn by chance, from one seed, and counted: the
result is the same every time.

Only blocks of some size take part; the others fill the gaps that are left.

Source: the hill climbing of the allocators of TensorFlow's Ethos-U compiler (Vela), there over all
buffers, with swaps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from engine.graphs.planner.lives import Block

SHARE = 500  # blocks of less than such a part of the bound fill gaps
STARTS = 8  # climbs from the same order, each by other chances
MOVES = 2  # orders that each tries, for each block of the order
ENOUGH = 1.005  # of the bound: what needs no further climbing


def climb(blocks: Sequence[Block], bound: int, good: float) -> int | None:
    """Give the blocks offsets of a lower placement than theirs; return its end.

    None, and all stays as it is, where none was found.

    bound: bytes that no placement can do without.
    good: of the bound, a placement with which the search ends.
    """
    given = [b.offset for b in blocks]
    best, found = max((b.offset + b.nbytes for b in blocks), default=0), given
    beside, is_large = _beside(blocks), [SHARE * b.nbytes >= bound for b in blocks]
    for seed in range(STARTS):
        search = _Climb(blocks, given, beside, is_large, Random(seed))
        for _ in range(MOVES * len(search.order)):
            if search.top <= ENOUGH * bound or not search.move():
                break
        if search.top < best:
            end = search.fill()
            if end < best:
                best, found = end, list(search.offsets)
        if best <= good * bound:
            break
    if found is given:
        return None
    for block, offset in zip(blocks, found, strict=True):
        block.offset = offset
    return best


def _beside(blocks: Sequence[Block]) -> list[list[int]]:
    """Of each block those that live when it does."""
    found: list[list[int]] = [[] for _ in blocks]
    live: list[int] = []
    for n in sorted(range(len(blocks)), key=lambda n: blocks[n].first):
        live = [m for m in live if blocks[m].last >= blocks[n].first]
        for m in live:
            found[n].append(m)
            found[m].append(n)
        live.append(n)
    return found


class _Climb:
    """One climb.

    order: the large blocks.  others: those that fill gaps.
    offsets, ends: of all blocks, as far as they are placed.
    rank: of each large block its place in the order.
    top: the end of the highest block of the order.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        given: Sequence[int],
        beside: Sequence[Sequence[int]],
        is_large: Sequence[bool],
        random: Random,
    ) -> None:
        """All large blocks are placed, in the order of the offsets that are given."""
        self.sizes = [b.nbytes for b in blocks]
        self.beside, self.random = beside, random
        order = sorted(range(len(blocks)), key=lambda n: (given[n], blocks[n].first))
        self.order = [n for n in order if is_large[n]]
        others = (n for n in order if not is_large[n])
        self.others = sorted(others, key=lambda n: -self.sizes[n])
        self.rivals = [[m for m in near if is_large[m]] for near in beside]
        self.rank = [len(order)] * len(blocks)
        self.offsets, self.ends = [0] * len(blocks), [0] * len(blocks)
        self.top = 0
        self._place(self.order, 0, None)

    def _place(self, order: list[int], begin: int, limit: int | None) -> bool:
        """Place the blocks of an order from a place on; those before keep theirs.

        False, and all stays as it is, as soon as one ends above the limit.
        """
        offsets, ends, rank, sizes = self.offsets[:], self.ends[:], self.rank[:], self.sizes
        for place in range(begin, len(order)):
            rank[order[place]] = place
        for place in range(begin, len(order)):
            n = order[place]
            size, low = sizes[n], 0
            for from_, to in sorted(
                [(offsets[m], ends[m]) for m in self.rivals[n] if rank[m] < place]
            ):
                if from_ - low >= size:
                    break
                low = max(low, to)
            offsets[n], ends[n] = low, low + size
            if limit is not None and low + size > limit:
                return False
        self.order, self.offsets, self.ends, self.rank = order, offsets, ends, rank
        self.top = max((ends[n] for n in order), default=0)
        return True

    def move(self) -> bool:
        """Try another order; False if there is none to try."""
        offsets, ends, rank = self.offsets, self.ends, self.rank
        waiting = [next(n for n in self.order if ends[n] == self.top)]
        stack = set(waiting)
        while waiting:
            n = waiting.pop()
            for m in self.rivals[n]:
                if ends[m] == offsets[n] and m not in stack:
                    stack.add(m)
                    waiting.append(m)
        pairs = [(n, m) for n in sorted(stack) for m in self.rivals[n] if rank[m] < rank[n]]
        if not pairs:
            return False
        n, other = pairs[int(self.random.random() * len(pairs))]
        order = list(self.order)
        begin = rank[other]
        if self.random.random() < 0.5:
            order[begin], order[rank[n]] = n, other
        else:
            order.pop(rank[n])
            order.insert(begin, n)
        self._place(order, begin, self.top)
        return True

    def fill(self) -> int:
        """Place the small blocks, the largest first; return the end of the highest of all."""
        top, placed = self.top, {*self.order}
        for n in self.others:
            size, low, best, gap = self.sizes[n], 0, -1, 0
            near = [(self.offsets[m], self.ends[m]) for m in self.beside[n] if m in placed]
            for from_, to in sorted(near):
                room = from_ - low
                if room >= size and (best < 0 or room < gap):
                    best, gap = low, room
                low = max(low, to)
            self.offsets[n] = low if best < 0 else best
            self.ends[n] = self.offsets[n] + size
            placed.add(n)
            top = max(top, self.ends[n])
        return top
