"""Barriers: the calls before which all threads must wait for each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from engine.graphs.planner.draft import DraftCall
from engine.graphs.planner.lifetimes import list_spans
from engine.plan.plan import FAULT

Range = tuple[str, int, int]  # region, begin, end


def find_barriers(calls: list[DraftCall], places: dict[str, Range]) -> list[bool]:
    """Return whether all threads must meet before each call.

    They must if the call reads or writes bytes that a call since the last barrier wrote, or if it
    writes bytes that such a call read.  Otherwise other threads might still be at work on them.
    They never meet inside a group.  Calls that thread 0 runs alone follow each other without a
    meeting, except after one that may find bad data, where a run can end.

    places: the byte range of every value.
    """
    shared, alone = (_Touched(), _Touched()), (_Touched(), _Touched())  # what calls read, and wrote
    may_end = False
    out: list[bool] = []
    for first, last in list_spans(calls):
        group = calls[first : last + 1]
        mine_r = [places[n] for n in set().union(*(call.list_touched("ru") for call in group))]
        mine_w = [places[n] for n in set().union(*(call.list_touched("wus") for call in group))]
        meet = may_end or any(
            any(map(writes.meets, (*mine_r, *mine_w))) or any(map(reads.meets, mine_w))
            for reads, writes in ((shared,) if group[0].alone else (shared, alone))
        )
        if meet:
            shared, alone = (_Touched(), _Touched()), (_Touched(), _Touched())
        may_end = group[0].alone and any(name == FAULT for _, name in group[0].args)
        reads, writes = alone if group[0].alone else shared
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
        """Return whether a range has a byte in the set."""
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
