"""The bytes of a plan over its steps: nobody overwrites or reads what is another's at that time.

A group of steps that run tile by tile is one step to all others: its buffers live through all of
it, and its threads meet nowhere inside.  Therefore all its steps must see what one of them writes
cut in the same way, each tile, or each thread's part, for itself.

Collective steps sum bytes over ranks between the stages of a run (collective.py).  Their
ordinals rise, and no step touches the bytes of a sum that was begun before the step that awaits it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from engine.base.element_types import ITEMSIZE
from engine.plan.collective import KINDS, list_collectives
from engine.plan.form import PlanForm
from engine.plan.plan import LASTING, PERSISTENT, Arg, Buffer, PlanStep

_READS, _WRITES = frozenset("ru"), frozenset("wus")  # modes, as barriers see them


class PlanSharing:
    """The checks of the bytes of one plan, whose form is known to be right."""

    def __init__(self, form: PlanForm) -> None:
        self.plan, self.end = form.plan, form.end
        self.inputs, self.shared, self.spans = form.inputs, form.shared, form.spans
        self.refuse, self.fail, self.label = form.refuse, form.fail, form.label

    def check(self) -> None:
        """Check all of it.

        Raises:
            PlanError: naming the buffer or step that breaks a rule.
        """
        self.check_overlaps()
        for n, step in enumerate(self.plan.steps):
            self.check_aliases(n, step)
        for first, last in dict.fromkeys(self.spans):
            if self.plan.steps[first].tiles:
                self.check_cuts(first, last)
        self.check_order()
        self.check_collectives()
        if self.plan.threads > 1:
            self.check_barriers()

    def check_overlaps(self) -> None:
        """Check that live buffers share no bytes, except pairs of the step where their lives meet.

        For each region the steps are walked over, and the live buffers are kept sorted by offset.
        They are disjoint, so a new one can overlap only its two neighbours.  O(n log n).
        """
        members: dict[str, list[int]] = {}
        for i, b in enumerate(self.plan.buffers):
            if b.nbytes:
                members.setdefault(b.region, []).append(i)
        for indices in members.values():
            self.sweep(sorted(indices, key=lambda i: self.plan.buffers[i].first))

    def sweep(self, births: Sequence[int]) -> None:
        buffers = self.plan.buffers
        offsets: list[int] = []  # of the live buffers, ascending
        holders: list[int] = []  # the live buffers, in the same order
        deaths: list[tuple[int, int]] = []  # a heap: last step, buffer
        for i in births:
            b = buffers[i]
            while deaths and deaths[0][0] < b.first:
                gone = heapq.heappop(deaths)[1]
                at = bisect_left(offsets, buffers[gone].offset)
                if at < len(holders) and holders[at] == gone:  # otherwise its bytes were taken over
                    del offsets[at], holders[at]
            heapq.heappush(deaths, (b.last, i))
            at = bisect_right(offsets, b.offset)
            rivals = [j for j in holders[max(at - 1, 0) : at + 1] if _touch(b, buffers[j])]
            if not rivals:
                offsets.insert(at, b.offset)
                holders.insert(at, i)
                continue
            for j in rivals:
                self.check_takeover(i, j)
            holders[at - 1] = i

    def check_takeover(self, i: int, j: int) -> None:
        """Refuse buffer i on the bytes of the live buffer j, unless it takes them over in place."""
        b, c = self.plan.buffers[i], self.plan.buffers[j]
        same = (b.offset, b.nbytes) == (c.offset, c.nbytes)
        at = self.find_meeting(i, j)
        if not (same and at >= 0 and b.region == "work"):
            self.refuse(
                f"{self.label(i)} (live {b.first}..{b.last}) and {self.label(j)} "
                f"(live {c.first}..{c.last}) share bytes of {b.region}"
            )
        if ITEMSIZE[b.dtype] != ITEMSIZE[c.dtype]:
            self.fail(
                at,
                f"in place, {self.label(i)} and {self.label(j)} differ in item size",
            )

    def find_meeting(self, i: int, j: int) -> int:
        """Return the step in which buffer i takes over the bytes of j in place; -1 if none does.

        It is the last one that touches j, and the first one that touches i.  Both live through the
        whole of its group.
        """
        b, c = self.plan.buffers[i], self.plan.buffers[j]
        if not 0 <= b.first <= self.end:
            return -1
        first, last = self.spans[b.first]
        if (b.first, c.last) != (first, last) or c.first >= first:
            return -1
        touch = [
            (n, a.buffer)
            for n in range(first, last + 1)
            for a in self.plan.steps[n].args
            if a.buffer in (i, j)
        ]
        at = min((n for n, buffer in touch if buffer == i), default=-1)
        is_last = max((n for n, buffer in touch if buffer == j), default=-1) == at
        return at if is_last and at >= 0 and (i, j) in self.shared[at] else -1

    def check_aliases(self, n: int, step: PlanStep) -> None:
        """Check that arguments of a step share bytes only if it reads both, or a pair allows it.

        A buffer that the kernel updates may be passed twice: an optimizer without a state passes
        the parameters in its place.  Different buffers that are alive at the same time share all
        their bytes or none, see `check_overlaps`.
        """
        buffers = self.plan.buffers
        places: dict[tuple[str, int], int] = {}  # bytes -> the last argument that has them
        for at, a in enumerate(step.args):
            if a.buffer < 0 or not buffers[a.buffer].nbytes:
                continue
            b = buffers[a.buffer]
            place = b.region, b.offset
            if place in places:
                self.check_alias(n, step, at)
            places[place] = at

    def check_alias(self, n: int, step: PlanStep, w: int) -> None:
        """Check argument w against those before it that have its bytes."""
        buffers, mine = self.plan.buffers, self.plan.buffers[step.args[w].buffer]
        for r, a in enumerate(step.args[:w]):
            b = buffers[a.buffer]
            if a.buffer < 0 or not b.nbytes or (b.region, b.offset) != (mine.region, mine.offset):
                continue
            modes = step.args[w].mode + a.mode
            declared = (w, r) in step.inplace or (r, w) in step.inplace
            if modes not in ("rr", "uu") and not declared:
                self.fail(
                    n,
                    f"arguments {r} and {w} are both {self.label(step.args[w].buffer)}"
                    f" or share its bytes, of modes {modes}, and no pair in place",
                )

    def check_cuts(self, first: int, last: int) -> None:
        """Check that all steps of a group cut the values that one of them writes in the same way.

        A tile, or the part of a thread, is then all that any of them touches of it at a time.
        """
        written: dict[tuple[str, int], tuple[int, int]] = {}  # place in memory -> cut
        args = [
            (n, a) for n in range(first, last + 1) for a in self.plan.steps[n].args if a.buffer >= 0
        ]
        for n, a in args:
            if a.mode in _WRITES:
                if not a.tile and not a.thread:
                    self.fail(n, f"all tiles write the whole of {self.label(a.buffer)}")
                b = self.plan.buffers[a.buffer]
                written.setdefault((b.region, b.offset), (a.tile, a.thread))
        for n, a in args:
            b = self.plan.buffers[a.buffer]
            cut = written.get((b.region, b.offset))
            if b.nbytes and cut not in (None, (a.tile, a.thread)):
                self.fail(n, f"{self.label(a.buffer)} is read in other tiles than it is written in")

    def check_order(self) -> None:
        """Check that bytes are written before they are read, and that every output is written."""
        plan = self.plan
        written = {i for i, b in enumerate(plan.buffers) if b.region in PERSISTENT or not b.nbytes}
        written |= self.inputs.keys()
        in_work = [b.region == "work" and b.nbytes > 0 for b in plan.buffers]
        moving = {
            a.buffer for step in plan.steps[plan.once :] for a in step.args if a.mode in _WRITES
        }
        for n, step in enumerate(plan.steps):
            if n == plan.once:  # what else they wrote is gone in later runs
                written -= {i for i in written if in_work[i]}
            for a in step.args:
                if n < plan.once and a.buffer >= 0:
                    self.check_once(n, a, moving)
                if a.buffer not in written and a.mode in _READS:
                    self.fail(n, f"reads {self.label(a.buffer)}, which nothing wrote")
            for a in step.args:
                if a.mode == "w":
                    written.add(a.buffer)
            for a in step.args:
                if a.mode == "s":
                    written.discard(a.buffer)
        for p in plan.outputs:
            if p.buffer not in written:
                self.refuse(f"output {p.name} is never written")

    def check_once(self, n: int, a: Arg, moving: Set[int]) -> None:
        """Check that a step that runs once uses only constants, parameters that no step changes,
        results of such steps, and work memory.

        moving: the buffers that later steps write to.
        """
        region = self.plan.buffers[a.buffer].region
        if region not in (*LASTING, "made", "work"):
            self.fail(n, f"runs once, and touches {self.label(a.buffer)} of region {region}")
        if region == "param" and (a.mode != "r" or a.buffer in moving):
            self.fail(n, f"runs once, and touches {self.label(a.buffer)}, which a step changes")

    def check_collectives(self) -> None:
        """Check the order of collective steps, and that no step uses bytes that are being added."""
        sums = {each.step: each for each in list_collectives(self.plan)}
        last = 0
        flying: dict[tuple[str, int], int] = {}  # place of bytes -> the step that began their sum
        for n, step in enumerate(self.plan.steps) if sums else ():
            each = sums.get(n)
            if each is not None and (each.kind not in KINDS or each.ordinal <= last or step.tiles):
                self.fail(n, f"a collective step {each.kind!r}, number {each.ordinal} after {last}")
            if each is not None:
                last, buffer = each.ordinal, self.plan.buffers[each.buffer]
                place = buffer.region, buffer.offset
                if each.kind == "wait" and flying.pop(place, None) is None:
                    self.fail(n, f"awaits the sum of {self.label(each.buffer)}, never begun")
            for a in step.args:
                b = self.plan.buffers[a.buffer] if a.buffer >= 0 else None
                if b is not None and b.nbytes and (b.region, b.offset) in flying:
                    self.fail(n, f"touches {self.label(a.buffer)}, whose sum is under way")
            if each is not None and each.kind == "start":
                flying[place] = n
        for first in flying.values():
            self.fail(first, "nobody awaits this sum")

    def check_barriers(self) -> None:
        """Check that there is a barrier between two steps if one writes bytes that the other uses.

        None need stand between two that one thread runs.
        """
        steps = self.plan.steps
        shared, alone = _Footprint({}, {}), _Footprint({}, {})
        for n, last in dict.fromkeys(self.spans):
            is_followed = last < self.end and not steps[last + 1].barrier
            if steps[n].barrier:
                shared, alone = _Footprint({}, {}), _Footprint({}, {})
                if not is_followed:
                    continue
            group = steps[n : last + 1]
            mine_r = [i for step in group for i in self.list_touched(step, _READS)]
            mine_w = [i for step in group for i in self.list_touched(step, _WRITES)]
            is_alone = steps[n].alone
            for reads, writes in (shared,) if is_alone else (shared, alone):
                for i in mine_r:
                    if self.meets(writes, i):
                        self.fail(n, f"reads {self.label(i)}, written since the last barrier")
                for i in mine_w:
                    for what, ranges in (("written", writes), ("read", reads)):
                        if self.meets(ranges, i):
                            self.fail(n, f"writes {self.label(i)}, {what} since the last barrier")
            for ranges, mine in zip(alone if is_alone else shared, (mine_r, mine_w), strict=True):
                for i in mine:
                    b = self.plan.buffers[i]
                    ranges.setdefault(b.region, _Ranges()).add(b.offset, b.offset + b.nbytes)

    def list_touched(self, step: PlanStep, modes: frozenset[str]) -> list[int]:
        """Return the buffers, without empty ones, that a step uses in one of these modes."""
        buffers = self.plan.buffers
        return [a.buffer for a in step.args if a.mode in modes and buffers[a.buffer].nbytes]

    def meets(self, ranges: Mapping[str, _Ranges], i: int) -> bool:
        """Return whether a byte of a non-empty buffer is in sets of bytes by region."""
        b = self.plan.buffers[i]
        touched = ranges.get(b.region)
        return touched is not None and touched.touch(b.offset, b.offset + b.nbytes)


class _Footprint(NamedTuple):
    """The bytes that steps have read, and those that they wrote, by region."""

    reads: dict[str, _Ranges]
    writes: dict[str, _Ranges]


def _touch(b: Buffer, c: Buffer) -> bool:
    return b.offset < c.offset + c.nbytes and c.offset < b.offset + b.nbytes


class _Ranges:
    """A set of bytes, as ascending ranges with gaps between them."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def touch(self, begin: int, end: int) -> bool:
        """Return whether a byte of [begin, end), which is not empty, is in the set."""
        at = bisect_right(self.ends, begin)
        return at < len(self.begins) and self.begins[at] < end

    def add(self, begin: int, end: int) -> None:
        first, last = bisect_left(self.ends, begin), bisect_right(self.begins, end)
        if first < last:
            begin, end = min(begin, self.begins[first]), max(end, self.ends[last - 1])
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]
