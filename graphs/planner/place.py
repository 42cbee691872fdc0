"""Placement: where each value lies in memory, which share bytes, and where barriers stand."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from engine.graphs.planner.lower import Call, Draft
from engine.graphs.planner.order import Lifetimes, lifetimes
from engine.runtime.config import switch
from engine.runtime.plan import ALIGN, align


@dataclass(slots=True, eq=False)
class Block:
    """Bytes to place: those of one value, or of several that have the same bytes one after another.

    names: the values.  first, last: the calls between which it lives, both included.
    """

    names: list[str]
    nbytes: int
    first: int
    last: int
    offset: int = 0


def merge_inplace(draft: Draft, lives: Lifetimes) -> list[Block]:
    """The blocks of the work values.

    Where a call allows it, an output takes over the block of an input: if no later call reads the
    input, the call does not read it a second time, and both have the same size.
    """
    blocks: dict[str, Block] = {}
    for name, (first, last) in lives.items():
        value = draft.values[name]
        if value.region == "work":
            blocks[name] = Block([name], align(value.nbytes), first, last)
    if switch("REUSE") == "0":
        return list(blocks.values())
    for n, call in enumerate(draft.calls):
        taken: set[str] = set()
        for written, read in call.inplace:
            w, r = call.args[written][1], call.args[read][1]
            if w not in blocks or r not in blocks or w in taken or r in taken:
                continue
            old, new = blocks[r], blocks[w]
            others = [x for i, (_, x) in enumerate(call.args) if i not in (written, read)]
            if old is new or old.nbytes != new.nbytes or r in others:
                continue
            if old.last == n and new.first == n:
                old.names += new.names
                old.last = new.last
                for name in new.names:
                    blocks[name] = old
                taken |= {w, r}
    return list(dict.fromkeys(blocks.values()))


def _fit(blocks: list[Block], order: list[Block]) -> int:
    """Place blocks in the given order, each in the smallest gap that holds it; return the end.

    Source: Pisarchyk, Lee, "Efficient memory management for deep neural net inference",
    arXiv 2001.03288 (greedy by size is this with blocks in decreasing size).
    """
    placed: list[tuple[int, int, int, int]] = []  # begin, end, first, last; by their begin
    top = 0
    for block in order:
        born, died, nbytes = block.first, block.last, block.nbytes
        best, best_gap, cursor = -1, None, 0
        for begin, end, first, last in placed:
            if first > died or born > last:
                continue
            gap = begin - cursor
            if gap >= nbytes and (best_gap is None or gap < best_gap):
                best, best_gap = cursor, gap
            if end > cursor:
                cursor = end
        block.offset = cursor if best < 0 else best
        top = max(top, block.offset + nbytes)
        insort(placed, (block.offset, block.offset + nbytes, born, died))
    return top


def place(blocks: list[Block]) -> int:
    """Give every block an offset; return the size of the arena.

    Several orders are tried: by size, by size times length of life, by length of life, by first and
    by last call.  Each is tried again after the blocks that reached above the liveness bound have
    been moved to its front.  The best result is kept.  The search ends early when it reaches the
    bound, because no placement needs less.
    """
    if switch("REUSE") == "0":
        top = 0
        for b in blocks:
            b.offset, top = top, top + b.nbytes
        return top
    bound = liveness_bound(blocks)
    tries = min(16, 2 + 40_000 // max(len(blocks), 1) ** 2)  # a try is quadratic in the blocks
    best: tuple[int, list[int]] | None = None
    for key in _KEYS:
        order = sorted(blocks, key=key)
        for _ in range(tries):
            top = _fit(blocks, order)
            if best is None or top < best[0]:
                best = (top, [b.offset for b in blocks])
            if top == bound:
                break
            order.sort(key=lambda b: b.offset + b.nbytes <= bound)
        if best and best[0] == bound:
            break
    assert best is not None
    for block, offset in zip(blocks, best[1], strict=True):
        block.offset = offset
    return best[0]


_KEYS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda b: (-b.nbytes, b.first),
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
    lambda b: (-(b.last - b.first), -b.nbytes),
    lambda b: (b.first, -b.nbytes),
    lambda b: (-b.last, -b.nbytes),
)


def liveness_bound(blocks: list[Block]) -> int:
    """The most bytes that live at one call: no placement needs less."""
    births = [(b.first, b.nbytes) for b in blocks]
    deaths = [(b.last + 1, -b.nbytes) for b in blocks]
    top = alive = 0
    for _, change in sorted(births + deaths):  # at one step, deaths come before births
        alive += change
        top = max(top, alive)
    return top


Range = tuple[str, int, int]  # region, begin, end


def barriers(calls: list[Call], spans: dict[str, Range]) -> list[bool]:
    """Whether all threads must meet before each call.

    They must if the call reads or writes bytes that a call since the last barrier wrote, or if it
    writes bytes that such a call read.  Otherwise other threads might still be at work on them.

    spans: the byte range of every value, see `spans_of`.
    """
    reads: list[Range] = []
    writes: list[Range] = []
    out = []
    for call in calls:
        mine_r = [spans[n] for n in call.touched("ru")]
        mine_w = [spans[n] for n in call.touched("wus")]
        meet = _any_overlap(mine_r, writes) or _any_overlap(mine_w, writes + reads)
        if meet:
            reads, writes = [], []
        reads += mine_r
        writes += mine_w
        out.append(meet)
    return out


def _any_overlap(a: list[Range], b: list[Range]) -> bool:
    """Whether a range of one list has a byte in common with one of the other."""
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)


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


def spans_of(draft: Draft, offsets: dict[str, int]) -> dict[str, Range]:
    """The byte range of every placed value."""
    return {
        name: (draft.values[name].region, offset, offset + draft.values[name].nbytes)
        for name, offset in offsets.items()
    }


__all__ = [
    "Block", "barriers", "lifetimes", "liveness_bound", "merge_inplace", "pack", "place",
    "spans_of",
]  # fmt: skip
