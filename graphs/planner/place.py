"""Placement: where each value lies in memory, and where barriers stand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, cycle, islice
from random import Random

from engine.graphs.planner.climb import climb
from engine.graphs.planner.draft import Call
from engine.graphs.planner.lifetimes import Block, liveness_bound, spans
from engine.plan.plan import ALIGN, align
from engine.system.config import switch

SPAN = 64  # calls of a stretch of the run, of which `_fit` keeps what lives in it
FEW = 500  # blocks up to which no try is left before its end
NEAR = 1.01  # of the bound: what is good enough not to try orders by chance
SHUFFLES, AGAIN = 12, 4  # orders by chance, and how often each is tried
MANY, WORK = 2000, 30_000_000  # blocks; comparisons of a block with another, in orders by size


def _fit(order: Sequence[Block], limit: int | None) -> int | None:
    """Place blocks in the given order, each in the smallest gap that holds it; return the end.

    None as soon as the end is not below the limit: the blocks that remain can only raise it.

    Source: Pisarchyk, Lee, "Efficient memory management for deep neural net inference",
    arXiv 2001.03288 (greedy by size is this with blocks in decreasing size).
    """
    placed: list[tuple[int, int, int, int]] = []  # begin, end, first, last; by their begin
    stretches = [list(placed) for _ in range(max((b.last for b in order), default=0) // SPAN + 1)]
    top = 0
    for block in order:
        born, died, nbytes = block.first, block.last, block.nbytes
        best, best_gap, cursor = -1, None, 0
        lived = slice(born // SPAN, died // SPAN + 1)
        is_short = lived.stop - lived.start == 1
        for begin, end, first, last in stretches[lived.start] if is_short else placed:
            if first > died or born > last:
                continue
            gap = begin - cursor
            if gap >= nbytes and (best_gap is None or gap < best_gap):
                best, best_gap = cursor, gap
            if end > cursor:
                cursor = end
        block.offset = cursor if best < 0 else best
        top = max(top, block.offset + nbytes)
        if limit is not None and top >= limit:
            return None
        row = (block.offset, block.offset + nbytes, born, died)
        for rows in (placed, *stretches[lived]):
            insort(rows, row)
    return top


def _fit_in_time(blocks: list[Block], backwards: bool = False) -> int:
    """Place blocks in the order of their first calls, or of their last ones, the last one first.

    Each gets the smallest gap that holds it, as by `_fit`; but because the blocks around it live at
    one time, gaps are kept up to date, and the time is not quadratic in the blocks.  Return the end
    of the highest block.
    """
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
            gone = blocks[deaths[dead]]
            dead += 1
            begin, end = gone.offset, gone.offset + gone.nbytes
            if begin == end:
                continue
            if begin in ends:
                begin = ends[begin]
                close_gap(begin, gone.offset)
            if end in begins:
                end = begins[end]
                close_gap(gone.offset + gone.nbytes, end)
            if end == top:
                top = begin
            else:
                open_gap(begin, end)
        block = blocks[i]
        found = bisect_left(gaps, (block.nbytes, 0))
        if found < len(gaps):
            size, block.offset = gaps[found]
            close_gap(block.offset, block.offset + size)
            if size > block.nbytes:
                open_gap(block.offset + block.nbytes, block.offset + size)
        else:
            block.offset = top
            top += block.nbytes
            most = max(most, top)
    return most


def place(blocks: list[Block]) -> int:
    """Give every block an offset; return the size of the arena.

    Several orders are tried: by size times length of life, by size, by length of life, by first and
    by last call; then those of `_by_peaks`; then, if none came near the bound, orders by chance,
    which is the same every time.  Each is tried again after the blocks that reached above the bound
    have been moved to its front; of more than `FEW` blocks, unless by chance, only one that gave
    the best result so far.  The search ends early when it reaches the bound, because no placement
    needs less.  Of many blocks the orders in time are tried first, and of the others as many as
    `WORK` allows, because a try is quadratic in the blocks.  If all that is not near the bound, the
    best of it is made lower by `climb`.
    """
    if switch("REUSE") == "0":
        top = 0
        for b in blocks:
            b.offset, top = top, top + b.nbytes
        return top
    bound = liveness_bound(blocks)
    best: tuple[int, list[int]] | None = None
    if len(blocks) > MANY:
        for backwards in (False, True):
            top = _fit_in_time(blocks, backwards)
            if best is None or top < best[0]:
                best = (top, [b.offset for b in blocks])
    square = max(len(blocks), 1) ** 2
    tries, work = min(16, 2 + FEW**2 // square), 0
    for n, order in enumerate(chain(islice(_orders(blocks), WORK // square), _shuffled(blocks))):
        by_chance = n >= ORDERS
        enough = NEAR * bound if by_chance else bound
        if best and (best[0] <= enough or work > WORK):
            break
        for _ in range(AGAIN if by_chance else tries):
            work += square // 2
            if best and work > WORK:
                break
            is_limited = len(blocks) > FEW and not by_chance
            end = _fit(order, best[0] if best and is_limited else None)
            if end is None:
                break
            if best is None or end < best[0]:
                best = (end, [b.offset for b in blocks])
            if end == bound:
                break
            order.sort(key=lambda b: b.offset + b.nbytes <= bound)
    assert best is not None
    for block, offset in zip(blocks, best[1], strict=True):
        block.offset = offset
    if best[0] <= NEAR * bound or len(blocks) > MANY:
        return best[0]
    return climb(blocks, bound, NEAR) or best[0]


_Key = Callable[[Block], tuple[int, ...]]
_KEYS: tuple[_Key, ...] = (
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
    lambda b: (-b.nbytes, b.first),
    lambda b: (-(b.last - b.first), -b.nbytes),
    lambda b: (b.first, -b.nbytes),
    lambda b: (-b.last, -b.nbytes),
)
_ROUGH: tuple[Callable[[Block], int], ...] = (
    lambda b: -b.nbytes * (b.last - b.first + 1),
    lambda b: b.first - b.last,
    lambda b: -b.nbytes,
)
ORDERS = len(_KEYS) + 3  # that are always tried: those of `_orders`


def _orders(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """The orders in which `place` tries to place blocks."""
    yield from (sorted(blocks, key=key) for key in _KEYS)
    yield from _by_peaks(blocks)


def _shuffled(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Orders by size times length of life, by length of life and by size, each roughly."""
    random = Random(0)
    for key in islice(cycle(_ROUGH), SHUFFLES):
        weights = {b: key(b) * random.uniform(0.7, 1.3) for b in blocks}
        yield sorted(blocks, key=weights.__getitem__)


def _by_peaks(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Orders that begin with the blocks that live at the call where most bytes do.

    Those that live at the call with the next most bytes follow, and so on.  Blocks of one call go
    by their length of life, by first call, or by size times length of life.

    Source: Pisarchyk, Lee, arXiv 2001.03288 (greedy by breadth).
    """
    change = [0] * (max((b.last for b in blocks), default=0) + 2)
    for b in blocks:
        change[b.first] += b.nbytes
        change[b.last + 1] -= b.nbytes
    live = list(accumulate(change))
    ranks: dict[Block, int] = {}
    left = list(blocks)
    for rank, call in enumerate(sorted(range(len(live)), key=lambda call: -live[call])):
        if not left:
            break
        ranks |= {b: rank for b in left if b.first <= call <= b.last}
        left = [b for b in left if b not in ranks]
    keys: tuple[_Key, ...] = (
        lambda b: (b.first - b.last, -b.nbytes),
        lambda b: (b.first, -b.nbytes),
        lambda b: (-b.nbytes * (b.last - b.first + 1),),
    )
    for key in keys:
        yield sorted(sorted(blocks, key=key), key=ranks.__getitem__)


Range = tuple[str, int, int]  # region, begin, end


def barriers(calls: list[Call], places: dict[str, Range]) -> list[bool]:
    """Whether all threads must meet before each call.

    They must if the call reads or writes bytes that a call since the last barrier wrote, or if it
    writes bytes that such a call read.  Otherwise other threads might still be at work on them.
    They never meet inside a group.

    places: the byte range of every value.
    """
    reads, writes = _Touched(), _Touched()
    out: list[bool] = []
    for first, last in spans(calls):
        group = calls[first : last + 1]
        mine_r = [places[n] for n in set().union(*(call.touched("ru") for call in group))]
        mine_w = [places[n] for n in set().union(*(call.touched("wus") for call in group))]
        meet = any(map(writes.meets, (*mine_r, *mine_w))) or any(map(reads.meets, mine_w))
        if meet:
            reads, writes = _Touched(), _Touched()
        for span in mine_r:
            reads.add(span)
        for span in mine_w:
            writes.add(span)
        out += [meet] + [False] * (last - first)
    return out


class _Touched:
    """A set of bytes: of each region the ranges in it, sorted, those that meet joined to one."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[list[int], list[int]]] = {}  # region -> begins, ends

    def meets(self, span: Range) -> bool:
        """Whether a range has a byte in the set."""
        region, begin, end = span
        begins, ends = self._ranges.get(region, ([], []))
        first = bisect_right(ends, begin)
        return first < len(begins) and begins[first] < end

    def add(self, span: Range) -> None:
        """Add the bytes of a range."""
        region, begin, end = span
        begins, ends = self._ranges.setdefault(region, ([], []))
        first, last = bisect_left(ends, begin), bisect_right(begins, end)
        if first < last:
            begin, end = min(begin, begins[first]), max(end, ends[last - 1])
        begins[first:last], ends[first:last] = [begin], [end]


def pack(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Place values one after another; return their offsets and the size of all.

    sizes: the bytes of each value.
    """
    offsets, top = {}, 0
    for name, nbytes in sizes.items():
        offsets[name] = top
        top += align(nbytes)
    assert top % ALIGN == 0
    return offsets, top
