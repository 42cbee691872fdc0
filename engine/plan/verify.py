"""The rules of a plan.  They are checked once, when it is made or read from a file.

Binding it to memory asks for it again, for plans that come another way: a plan that has passed
cannot change, and carries a mark that nothing else gives it.

A plan that passes touches only bytes of its own regions, through pointers to the element types that
its kernels are compiled for.  No step reads what no step wrote, no value is overwritten before its
last reader, and no two threads meet at the same bytes without a barrier between them.  So much
follows from the plan alone.

A group of steps that run tile by tile is one step to all others: its buffers live through all of
it, and its threads meet nowhere inside.  Therefore all its steps must see what one of them writes
cut in the same way, each tile, or each thread's part, for itself.

Collective steps sum bytes over ranks between the stages of a run (collective.py).  Their
ordinals rise, and no step touches the bytes of a sum that was begun before the step that awaits it.

The numbers of a step also tell its kernel how far to reach from its pointers.  Only the kernel
knows what they mean.  Their count and kinds are checked here, their values are not.
"""

from __future__ import annotations

import functools
import heapq
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import get_args

from engine.base.element_types import ITEMSIZE
from engine.base.errors import PlanError
from engine.plan.collective import KINDS, list_collectives
from engine.plan.plan import (
    ALIGN,
    FAULT,
    NOISE,
    PERSISTENT,
    REGIONS,
    UNWRITTEN,
    Arg,
    Buffer,
    Kernel,
    Mode,
    Phase,
    Plan,
    PlanStep,
    Port,
)
from engine.system.config import MAX_THREADS

LIMIT = 1 << 62  # of sizes and offsets: the sum of two fits 64 bits
_READS, _WRITES = frozenset("ru"), frozenset("wus")  # modes, as barriers see them
_MODES, _PHASES = frozenset(get_args(Mode)), frozenset(get_args(Phase))
_INT = {int}
_WORD = range(-(1 << 63), 1 << 63)  # the integers of 64 bits
_STATUS = {FAULT: ("i64", (4,)), NOISE: ("i64", (2,))}  # inputs that the runtime fills itself


def verify(plan: Plan) -> Plan:
    """Check all rules of a plan, and return it; one that has passed is not checked again.

    Raises:
        PlanError: naming the buffer, step or port that breaks a rule.
    """
    if not getattr(plan, "_is_verified", False):
        _PlanCheck(plan).run()
        object.__setattr__(plan, "_is_verified", True)
    return plan


@dataclass(frozen=True, slots=True)
class _Signature:
    """`Kernel.takes`, taken apart.

    pointers: the element types that each pointer may have.
    open: whether further pointers follow, whose types the step gives.
    numbers: "i64" or "f64" each, then `least` to `most` further i64 (None: without end).
    """

    pointers: tuple[tuple[str, ...], ...]
    open: bool
    numbers: tuple[str, ...]
    least: int
    most: int | None


@functools.lru_cache(maxsize=4096)
def _parse_signature(takes: tuple[str, ...]) -> _Signature | None:
    """Return the parts of a signature; None if it is malformed."""
    pointers = [t[:-1] for t in takes if t.endswith("*")]
    numbers = list(takes[len(pointers) :])
    is_open = bool(pointers) and pointers[-1] == "..."
    kinds = tuple(tuple(p.split("|")) for p in (pointers[:-1] if is_open else pointers))
    least = 0
    most: int | None = 0
    if numbers and (rest := re.fullmatch(r"i64\[(?:(\d{1,9})(\+?))?\]", numbers[-1])):
        numbers.pop()
        least = int(rest[1] or 0)
        most = None if rest[2] or not rest[1] else least
    known = all(t in ITEMSIZE for kind in kinds for t in kind)
    if not known or not all(n in ("i64", "f64") for n in numbers):
        return None
    return _Signature(kinds, is_open, tuple(numbers), least, most)


class _PlanCheck:
    """The checks of one plan.  Later checks rely on earlier ones, so their order matters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.end = len(plan.steps) - 1
        self.regions = dict(plan.regions)
        self.needs: list[int] = []  # bytes of each buffer's tensor
        self.inputs: dict[int, str] = {}  # buffers of input ports
        self.shared: list[set[tuple[int, int]]] = []  # pairs of a step: written, read buffer
        # Of each step the first and the last step of its group, or itself twice.
        self.spans: list[tuple[int, int]] = []

    def run(self) -> None:
        self.check_constancy()
        self.check_sizes()
        for i, buffer in enumerate(self.plan.buffers):
            self.check_buffer(i, buffer)
        self.check_ports()
        self.check_constants()
        signatures = self.check_kernels()
        self.check_groups()
        for n, step in enumerate(self.plan.steps):
            if step.kernel not in signatures:
                self.fail(n, "unknown kernel")
            self.check_arguments(n, step, signatures[step.kernel])
            self.note_pairs(n, step)
        self.check_overlaps()
        for n, step in enumerate(self.plan.steps):
            self.check_aliases(n, step)
        for first, last in dict.fromkeys(self.spans):
            if self.plan.steps[first].tiles:
                self.check_cuts(first, last)
        self.order()
        self.check_collectives()
        if self.plan.threads > 1:
            self.check_barriers()

    def refuse(self, text: str) -> None:
        raise PlanError(f"plan {self.plan.name}: {text}")

    def fail(self, n: int, text: str) -> None:
        """Refuse step n."""
        step = self.plan.steps[n]
        self.refuse(f"step {n} {step.kernel} ({step.title}): {text}")

    def label_step(self, i: int) -> str:
        return f"%{i} {self.plan.buffers[i].name}"

    # --- the plan and its memory

    def check_constancy(self) -> None:
        """Nothing in the plan can change once it is checked: it is made of tuples and bytes."""
        plan = self.plan
        wholes = (
            plan.regions, plan.buffers, plan.steps, plan.kernels, plan.inputs, plan.outputs,
            plan.constants, *plan.regions, *plan.constants,
        )  # fmt: skip
        self.check_kind(tuple, wholes)
        self.check_kind(Buffer, plan.buffers, "shape")
        self.check_kind(PlanStep, plan.steps, "args", "consts", "operands", "inplace")
        self.check_kind(Arg, chain.from_iterable(step.args for step in plan.steps))
        self.check_kind(tuple, chain.from_iterable(step.inplace for step in plan.steps))
        self.check_kind(Port, (*plan.inputs, *plan.outputs), "shape")
        self.check_kind(Kernel, plan.kernels, "takes")
        self.check_kind(tuple, (kernel.spec.params for kernel in plan.kernels))
        self.check_kind(bytes, (data for _, data in plan.constants))

    def check_kind(self, kind: type, rows: Iterable[object], *parts: str) -> None:
        """Refuse rows that are not of this kind, and parts of them that are not tuples."""
        others = set(map(type, rows)) - {kind}
        if not others:
            for part in parts:
                others |= set(map(type, map(attrgetter(part), rows))) - {tuple}
        if others:
            self.refuse(f"it holds {', '.join(sorted(t.__name__ for t in others))}")

    def check_sizes(self) -> None:
        plan, names = self.plan, [name for name, _ in self.plan.regions]
        if not 1 <= plan.threads <= MAX_THREADS:
            self.refuse(f"{plan.threads} threads; expected 1 to {MAX_THREADS}")
        if len(set(names)) != len(names):
            self.refuse(f"a region twice: {', '.join(names)}")
        for name, size in plan.regions:
            if name not in REGIONS:
                self.refuse(f"unknown region {name!r}")
            if not 0 <= size < LIMIT:
                self.refuse(f"region {name} of {size} bytes")
        if not 0 <= plan.lower_bound <= plan.compute_region_bytes("work"):
            self.refuse(
                f"{plan.lower_bound} bytes of work alive at once, in an arena of "
                f"{plan.compute_region_bytes('work')}"
            )

    def check_buffer(self, i: int, b: Buffer) -> None:
        if b.dtype not in ITEMSIZE:
            self.refuse(f"buffer {self.label_step(i)}: unknown element type {b.dtype!r}")
        if b.region not in REGIONS:
            self.refuse(f"buffer {self.label_step(i)}: unknown region {b.region!r}")
        if b.shape and min(b.shape) < 0:
            self.refuse(f"buffer {self.label_step(i)}: shape {list(b.shape)}")
        need = ITEMSIZE[b.dtype] * math.prod(b.shape)
        if b.nbytes < need:
            self.refuse(f"buffer {self.label_step(i)}: {b.nbytes} bytes for a tensor of {need}")
        size = self.regions.get(b.region, 0)
        if b.offset % ALIGN or b.offset < 0 or b.offset + b.nbytes > size:
            self.refuse(
                f"buffer {self.label_step(i)}: bytes {b.offset}..{b.offset + b.nbytes} of region "
                f"{b.region} of {size} bytes, alignment {ALIGN}"
            )
        if b.first > b.last:
            self.refuse(f"buffer {self.label_step(i)}: lives {b.first}..{b.last}")
        if b.region != "work" and (b.first > 0 or b.last < self.end):
            self.refuse(
                f"buffer {self.label_step(i)}: lives {b.first}..{b.last}; in region "
                f"{b.region} it lives "
                f"from the first step to the last, 0..{self.end}"
            )
        self.needs.append(need)

    def check_index(self, i: int, what: str) -> Buffer:
        """Return the buffer with an index; refuses an index that no buffer has."""
        if not 0 <= i < len(self.plan.buffers):
            self.refuse(f"{what}: no buffer %{i}")
        return self.plan.buffers[i]

    def check_ports(self) -> None:
        """Every port has a buffer of region io of its own, and every such buffer has a port."""
        plan = self.plan
        for kind, ports in (("input", plan.inputs), ("output", plan.outputs)):
            names: set[str] = set()
            for p in ports:
                self.check_port(f"{kind} {p.name}", p)
                if p.name in names:
                    self.refuse(f"two {kind}s {p.name!r}")
                names.add(p.name)
        for p in plan.inputs:
            b = plan.buffers[p.buffer]
            if p.shape != b.shape:
                self.refuse(f"input {p.name} of {list(p.shape)} in a buffer of {list(b.shape)}")
            if p.name in _STATUS and (b.dtype, b.shape) != _STATUS[p.name]:
                self.refuse(f"input {p.name} is {b.dtype}{list(b.shape)}")
        self.inputs = {p.buffer: p.name for p in plan.inputs}
        bound = [p.buffer for p in (*plan.inputs, *plan.outputs)]
        if len(set(bound)) != len(bound):
            self.refuse("two ports share a buffer")
        alone = {i for i, b in enumerate(plan.buffers) if b.region == "io"} - set(bound)
        if alone:
            self.refuse(f"{self.label_step(min(alone))} of region io belongs to no port")

    def check_port(self, what: str, p: Port) -> None:
        b = self.check_index(p.buffer, what)
        if b.region != "io":
            self.refuse(f"{what} lies in region {b.region}; expected io")
        if any(d < 0 for d in p.shape) or math.prod(p.shape) != math.prod(b.shape):
            self.refuse(f"{what} of shape {list(p.shape)} is buffer {b.name} of {list(b.shape)}")

    def check_constants(self) -> None:
        """Every buffer of region const has its contents, once and whole."""
        filled: set[int] = set()
        for i, data in self.plan.constants:
            b = self.check_index(i, "constant")
            if b.region != "const" or len(data) != self.needs[i] or i in filled:
                self.refuse(
                    f"constant {self.label_step(i)}: {len(data)} bytes for {self.needs[i]} "
                    "of region "
                    f"{b.region}{', a second time' if i in filled else ''}"
                )
            filled.add(i)
        for i, b in enumerate(self.plan.buffers):
            if b.region == "const" and i not in filled:
                self.refuse(f"constant {self.label_step(i)} has no contents")

    # --- steps, one by one

    def check_kernels(self) -> dict[str, _Signature]:
        signatures: dict[str, _Signature] = {}
        for k in self.plan.kernels:
            if not k.spec.params:
                self.refuse(f"kernel {k.spec.template} has no parameters")
            parts = _parse_signature(k.takes)
            if parts is None:
                self.refuse(
                    f"kernel {k.symbol} takes {' '.join(k.takes)!r}, which is not a signature"
                )
            elif k.symbol in signatures:
                self.refuse(f"two kernels share a symbol: {k.symbol}")
            else:
                signatures[k.symbol] = parts
        return signatures

    def check_groups(self) -> None:
        """Groups are runs of steps of as many tiles, without a barrier inside."""
        steps, n = self.plan.steps, 0
        while n <= self.end:
            count = steps[n].group
            if type(count) is not int or not 0 <= count <= self.end + 1 - n:
                self.fail(n, f"a group of {count} steps")
            members = steps[n : n + max(count, 1)]
            tiles = members[0].tiles
            if type(tiles) is not int or not (0 < tiles < LIMIT if count else tiles == 0):
                self.fail(n, f"{tiles} tiles in a group of {count} steps")
            for at, step in enumerate(members[1:], n + 1):
                if step.tiles != tiles or step.group or step.barrier:
                    self.fail(at, f"a barrier, or other tiles, in the group of step {n}")
            for at, step in enumerate(members, n):
                if step.numbered not in (False, bool(tiles)):
                    self.fail(at, "it is told the number of a tile, and has none")
            self.spans += [(n, n + len(members) - 1)] * len(members)
            n += len(members)

    def check_cuts(self, first: int, last: int) -> None:
        """The steps of a group see what one of them writes cut in the same way.

        A tile, or the part of a thread, is then all that any of them touches of it at a time.
        """
        written: dict[tuple[str, int], tuple[int, int]] = {}  # place in memory -> cut
        args = [
            (n, a) for n in range(first, last + 1) for a in self.plan.steps[n].args if a.buffer >= 0
        ]
        for n, a in args:
            if a.mode in _WRITES:
                if not a.tile and not a.thread:
                    self.fail(n, f"all tiles write the whole of {self.label_step(a.buffer)}")
                b = self.plan.buffers[a.buffer]
                written.setdefault((b.region, b.offset), (a.tile, a.thread))
        for n, a in args:
            b = self.plan.buffers[a.buffer]
            cut = written.get((b.region, b.offset))
            if b.nbytes and cut not in (None, (a.tile, a.thread)):
                self.fail(
                    n, f"{self.label_step(a.buffer)} is cut otherwise than where it is written"
                )

    def cut(self, n: int, step: PlanStep, at: int) -> None:
        """Check that the tiles and the parts of threads of an argument lie in its buffer."""
        a = step.args[at]
        if {type(a.tile), type(a.thread)} != _INT or min(a.tile, a.thread) < 0:
            self.fail(n, f"argument {at} is cut into tiles of {a.tile}, {a.thread} a thread")
        if step.numbered and a.thread and a.thread != a.tile:
            self.fail(n, f"argument {at} is a thread's, of a kernel that is told no thread")
        parts = 0 if not step.tiles else self.plan.threads if a.thread else step.tiles
        reach, room = (a.thread or a.tile) * parts, self.needs[a.buffer] if a.buffer >= 0 else 0
        if step.numbered and not a.thread:  # the last tile may be shorter, and there may be others
            is_whole = not reach or reach - a.tile < room
        else:
            is_whole = reach == room or a.mode in "rs" or not reach
            is_whole &= reach <= room and not (a.tile and a.thread and not step.numbered)
        if not is_whole or (not reach and (a.tile or a.thread)):
            self.fail(
                n, f"argument {at}: tiles of {a.tile}, {a.thread} a thread, of {room} bytes in all"
            )

    def check_arguments(self, n: int, step: PlanStep, takes: _Signature) -> None:
        """Check that a step passes the arguments that its kernel takes."""
        if not step.source or step.phase not in _PHASES:
            self.fail(n, f"source {step.source!r}, phase {step.phase!r}")
        fixed = len(takes.pointers)
        if (step.operands and not takes.open) or len(step.args) != fixed + len(step.operands):
            self.fail(n, f"{len(step.args)} pointers; it takes {fixed + len(step.operands)}")
        kinds = takes.pointers
        if step.operands:
            kinds = (*kinds, *((t,) for t in step.operands))
        buffers, count = self.plan.buffers, len(self.plan.buffers)
        for at, a in enumerate(step.args):
            i, mode = a.buffer, a.mode
            if mode not in _MODES or (i == -1) != (mode == "-"):
                self.fail(n, f"argument {at} is %{i} of mode {mode!r}")
            if i != -1 and not 0 <= i < count:
                self.fail(n, f"argument {at}: no buffer %{i}")
            if step.tiles or a.tile or a.thread:
                self.cut(n, step, at)
            if i == -1:
                continue
            b = buffers[i]
            if b.dtype not in kinds[at]:
                expected = " or ".join(kinds[at])
                self.fail(n, f"{self.label_step(i)} is {b.dtype}; argument {at} takes {expected}")
            begin, end = self.spans[n]
            if not (b.first <= begin and end <= b.last):
                self.fail(n, f"{self.label_step(i)} lives {b.first}..{b.last}")
            if mode != "r":
                self.check_write(n, i, mode)
        self.check_numbers(n, step, takes)

    def check_write(self, n: int, i: int, mode: str) -> None:
        region = self.plan.buffers[i].region
        if (mode in "wu" and region in UNWRITTEN) or (mode == "w" and i in self.inputs):
            self.fail(n, f"overwrites {self.label_step(i)}, an input or constant")
        if mode == "s" and region != "work":
            self.fail(n, f"has its scratch {self.label_step(i)} in region {region}")

    def check_numbers(self, n: int, step: PlanStep, takes: _Signature) -> None:
        fixed, count = len(takes.numbers), len(step.consts)
        low, high = fixed + takes.least, None if takes.most is None else fixed + takes.most
        if count < low or (high is not None and count > high):
            self.fail(n, f"{count} numbers; it takes {low}{'' if high == low else ' or more'}")
        is_plain = "f64" not in takes.numbers and set(map(type, step.consts)) == _INT
        if is_plain and min(step.consts) in _WORD and max(step.consts) in _WORD:
            return
        for at, c in enumerate(step.consts):
            kind = takes.numbers[at] if at < fixed else "i64"
            if type(c) is not (int if kind == "i64" else float):
                self.fail(n, f"number {at} is {c!r}; expected {kind}")
            if kind == "i64" and c not in _WORD:
                self.fail(n, f"number {at} is {c}, which has more than 64 bits")

    def note_pairs(self, n: int, step: PlanStep) -> None:
        """Note which buffers may share bytes in this step, since its pairs say so."""
        shared_pairs: set[tuple[int, int]] = set()
        for w, r in step.inplace:
            if w == r or not 0 <= w < len(step.args) or not 0 <= r < len(step.args):
                self.fail(n, f"in-place positions {w} and {r} of {len(step.args)} arguments")
            written, read = step.args[w], step.args[r]
            if written.mode not in "wu" or read.mode not in "ru":
                self.fail(n, f"in place, {w} is {written.mode!r} and {r} is {read.mode!r}")
            shared_pairs.add((written.buffer, read.buffer))
        self.shared.append(shared_pairs)

    # --- bytes

    def check_overlaps(self) -> None:
        """No two live buffers share bytes, but for pairs of the step where their lives meet.

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
                f"{self.label_step(i)} (live {b.first}..{b.last}) and {self.label_step(j)} "
                f"(live {c.first}..{c.last}) share bytes of {b.region}"
            )
        if ITEMSIZE[b.dtype] != ITEMSIZE[c.dtype]:
            self.fail(
                at, f"in place, {self.label_step(i)} and {self.label_step(j)} differ in item size"
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
        """Arguments of one step share bytes only if it reads both, or if one of its pairs says so.

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
                    f"arguments {r} and {w} are both {self.label_step(step.args[w].buffer)}"
                    f" or share its bytes, of modes {modes}, and no pair in place",
                )

    def order(self) -> None:
        """Every read is of bytes that were written, and every output is written."""
        plan = self.plan
        written = {i for i, b in enumerate(plan.buffers) if b.region in PERSISTENT or not b.nbytes}
        written |= self.inputs.keys()
        for n, step in enumerate(plan.steps):
            for a in step.args:
                if a.buffer not in written and a.mode in _READS:
                    self.fail(n, f"reads {self.label_step(a.buffer)}, which nothing wrote")
            for a in step.args:
                if a.mode == "w":
                    written.add(a.buffer)
            for a in step.args:
                if a.mode == "s":
                    written.discard(a.buffer)
        for p in plan.outputs:
            if p.buffer not in written:
                self.refuse(f"output {p.name} is never written")

    def check_collectives(self) -> None:
        """Collective steps come in their order, and nobody touches bytes whose sum is under way."""
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
                    self.fail(n, f"awaits the sum of {self.label_step(each.buffer)}, never begun")
            for a in step.args:
                b = self.plan.buffers[a.buffer] if a.buffer >= 0 else None
                if b is not None and b.nbytes and (b.region, b.offset) in flying:
                    self.fail(n, f"touches {self.label_step(a.buffer)}, whose sum is under way")
            if each is not None and each.kind == "start":
                flying[place] = n
        for first in flying.values():
            self.fail(first, "nobody awaits this sum")

    def check_barriers(self) -> None:
        """A barrier stands between two steps if one writes bytes that the other touches."""
        steps = self.plan.steps
        reads: dict[str, _Ranges] = {}
        writes: dict[str, _Ranges] = {}
        for n, last in dict.fromkeys(self.spans):
            is_followed = last < self.end and not steps[last + 1].barrier
            if steps[n].barrier:
                reads, writes = {}, {}
                if not is_followed:
                    continue
            group = steps[n : last + 1]
            mine_r = [i for step in group for i in self.list_touched(step, _READS)]
            mine_w = [i for step in group for i in self.list_touched(step, _WRITES)]
            for i in mine_r:
                if self.meets(writes, i):
                    self.fail(n, f"reads {self.label_step(i)}, written since the last barrier")
            for i in mine_w:
                for what, ranges in (("written", writes), ("read", reads)):
                    if self.meets(ranges, i):
                        self.fail(n, f"writes {self.label_step(i)}, {what} since the last barrier")
            for ranges, mine in ((reads, mine_r), (writes, mine_w)):
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
