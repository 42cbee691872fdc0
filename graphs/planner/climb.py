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

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from random import Random

from engine.graphs.planner.lifetimes import Block

SHARE = 500  # blocks of less than such a part of the bound fill gaps
STARTS = 8  # climbs from the same order, each by other chances
MOVES = 2  # orders that each tries, for each block of the order
PLACED = 2000  # blocks that all climbs place again, for each of the order: the time is linear
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
    left = PLACED * sum(is_large)
    for seed in range(STARTS):
        search = _Climb(blocks, given, beside, is_large, Random(seed))
        for _ in range(MOVES * len(search.order)):
            if search.top <= ENOUGH * bound or search.placed > left or not search.move():
                break
        left -= search.placed
        if search.top < best:
            end = search.fill()
            if end < best:
                best, found = end, list(search.offsets)
        if best <= good * bound or left <= 0:
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
    placed: how many blocks moves have placed again.
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
        self.rank, self.placed = [len(order)] * len(blocks), 0
        for place, n in enumerate(self.order):
            self.rank[n] = place
        rank = self.rank
        self._below = [sum([rank[m] < rank[n] for m in near]) for n, near in enumerate(self.rivals)]
        self.offsets, self.ends = [0] * len(blocks), [0] * len(blocks)
        for n in self.order:
            self._put(n)
        self.top = max((self.ends[n] for n in self.order), default=0)

    def _put(self, n: int) -> None:
        """Place a block at the lowest bytes that those before it in the order leave."""
        offsets, ends, rank = self.offsets, self.ends, self.rank
        size, low, place = self.sizes[n], 0, rank[n]
        for from_, to in sorted([(offsets[m], ends[m]) for m in self.rivals[n] if rank[m] < place]):
            if from_ - low >= size:
                break
            if to > low:
                low = to
        offsets[n], ends[n] = low, low + size

    def _settle(self, changed: Iterable[int]) -> bool:
        """Place those blocks again of which others are before them than were, and what follows.

        A block keeps its bytes unless one before it that lives when it does is new or has moved.

        changed: blocks before which others stand.  Returns whether no block ends above `top`; if
        one does, all lie where they did.
        """
        offsets, ends, rank, order = self.offsets, self.ends, self.rank, self.order
        waiting = [rank[n] for n in changed]
        heapify(waiting)
        known = set(waiting)
        before: list[tuple[int, int, int]] = []
        while waiting:
            place = heappop(waiting)
            n = order[place]
            was = offsets[n]
            self.placed += 1
            before.append((n, was, ends[n]))
            self._put(n)
            if ends[n] > self.top:
                for m, offset, end in before:
                    offsets[m], ends[m] = offset, end
                return False
            if offsets[n] != was:
                for m in self.rivals[n]:
                    if rank[m] > place and rank[m] not in known:
                        known.add(rank[m])
                        heappush(waiting, rank[m])
        self.top = max((ends[n] for n in order), default=0)
        return True

    def move(self) -> bool:
        """Try another order; False if there is none to try."""
        offsets, ends, rank, below = self.offsets, self.ends, self.rank, self._below
        waiting = [next(n for n in self.order if ends[n] == self.top)]
        stack = set(waiting)
        while waiting:
            n = waiting.pop()
            for m in self.rivals[n]:
                if ends[m] == offsets[n] and m not in stack:
                    stack.add(m)
                    waiting.append(m)
        count = sum([below[n] for n in stack])
        if not count:
            return False
        chance = int(self.random.random() * count)
        for n in sorted(stack):
            if chance < below[n]:
                break
            chance -= below[n]
        other = next(islice((m for m in self.rivals[n] if rank[m] < rank[n]), chance, None))
        to_swap = self.random.random() < 0.5
        first, last = rank[other], rank[n]
        changed = self._swap(first, last) if to_swap else self._hoist(last, first)
        if not self._settle(changed):
            self._swap(first, last) if to_swap else self._hoist(first, last)
        return True

    def _swap(self, first: int, last: int) -> set[int]:
        """Let two blocks change places in the order; return those that have others before them."""
        order, rank, below = self.order, self.rank, self._below
        a, b = order[first], order[last]
        changed = {a, b}
        for n, more in ((a, 1), (b, -1)):
            for m in self.rivals[n]:
                if first < rank[m] < last:
                    below[n] += more
                    below[m] -= more
                    changed.add(m)
        below[a] += 1  # the two live at the same time
        below[b] -= 1
        order[first], order[last] = b, a
        rank[a], rank[b] = last, first
        return changed

    def _hoist(self, from_: int, to: int) -> set[int]:
        """Move a block to another place in the order; return those that have others before them."""
        order, rank, below = self.order, self.rank, self._below
        n = order.pop(from_)
        order.insert(to, n)
        low, high, more = (to, from_, 1) if to < from_ else (from_, to, -1)
        changed = {n}
        for m in self.rivals[n]:
            if low <= rank[m] <= high:
                below[m] += more
                below[n] -= more
                changed.add(m)
        for place in range(low, high + 1):
            rank[order[place]] = place
        return changed

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
