"""The form of a plan: each of its parts by itself, and steps with their kernels and groups.

The numbers of a step also tell its kernel how far to reach from its pointers.  Only the kernel
knows what they mean.  Their count and kinds are checked here, their values are not.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NoReturn, get_args

from engine.base.element_types import ITEMSIZE
from engine.base.errors import PlanError
from engine.base.plan_options import MAX_THREADS
from engine.plan.plan import (
    ALIGN,
    FAULT,
    NOISE,
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

LIMIT = 1 << 62  # of sizes and offsets: the sum of two fits 64 bits
_MODES, _PHASES = frozenset(get_args(Mode)), frozenset(get_args(Phase))
_INT = {int}
_WORD = range(-(1 << 63), 1 << 63)  # the integers of 64 bits
_STATUS = {FAULT: ("i64", (4,)), NOISE: ("i64", (2,))}  # inputs that the runtime fills itself


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


class PlanForm:
    """The checks of the form of one plan, and facts that they find.

    Later checks rely on earlier ones, so their order matters.

    needs: bytes of each buffer's tensor.
    inputs: the names of input ports, by their buffers.
    shared: for each step, the pairs of buffers, written and read, that may share bytes in it.
    spans: for each step, the first and the last step of its group, or itself twice.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.end = len(plan.steps) - 1
        self.regions = dict(plan.regions)
        self.needs: list[int] = []
        self.inputs: dict[int, str] = {}
        self.shared: list[set[tuple[int, int]]] = []
        self.spans: list[tuple[int, int]] = []

    def check(self) -> None:
        """Check all of it.

        Raises:
            PlanError: naming the buffer, step or port that breaks a rule.
        """
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

    def refuse(self, text: str) -> NoReturn:
        raise PlanError(f"plan {self.plan.name}: {text}")

    def fail(self, n: int, text: str) -> NoReturn:
        """Refuse step n."""
        step = self.plan.steps[n]
        self.refuse(f"step {n} {step.kernel} ({step.title}): {text}")

    def label(self, i: int) -> str:
        return f"%{i} {self.plan.buffers[i].name}"

    # --- the plan and its memory

    def check_constancy(self) -> None:
        """Check that nothing in the plan can change afterwards: it is made of tuples and bytes."""
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
        if type(plan.once) is not int or not 0 <= plan.once <= len(plan.steps):
            self.refuse(f"{plan.once} steps that run once, of {len(plan.steps)}")
        if not 0 <= plan.lower_bound <= plan.compute_region_bytes("work"):
            self.refuse(
                f"{plan.lower_bound} bytes of work alive at once, in an arena of "
                f"{plan.compute_region_bytes('work')}"
            )

    def check_buffer(self, i: int, b: Buffer) -> None:
        if b.dtype not in ITEMSIZE:
            self.refuse(f"buffer {self.label(i)}: unknown element type {b.dtype!r}")
        if b.region not in REGIONS:
            self.refuse(f"buffer {self.label(i)}: unknown region {b.region!r}")
        if b.shape and min(b.shape) < 0:
            self.refuse(f"buffer {self.label(i)}: shape {list(b.shape)}")
        need = ITEMSIZE[b.dtype] * math.prod(b.shape)
        if b.nbytes < need:
            self.refuse(f"buffer {self.label(i)}: {b.nbytes} bytes for a tensor of {need}")
        size = self.regions.get(b.region, 0)
        if b.offset % ALIGN or b.offset < 0 or b.offset + b.nbytes > size:
            self.refuse(
                f"buffer {self.label(i)}: bytes {b.offset}..{b.offset + b.nbytes} of region "
                f"{b.region} of {size} bytes, alignment {ALIGN}"
            )
        if b.first > b.last:
            self.refuse(f"buffer {self.label(i)}: lives {b.first}..{b.last}")
        if b.region != "work" and (b.first > 0 or b.last < self.end):
            self.refuse(
                f"buffer {self.label(i)}: lives {b.first}..{b.last}; in region "
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
        """Check that every port has its own buffer of region io, and every such buffer a port."""
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
            self.refuse(f"{self.label(min(alone))} of region io belongs to no port")

    def check_port(self, what: str, p: Port) -> None:
        b = self.check_index(p.buffer, what)
        if b.region != "io":
            self.refuse(f"{what} lies in region {b.region}; expected io")
        if any(d < 0 for d in p.shape) or math.prod(p.shape) != math.prod(b.shape):
            self.refuse(f"{what} of shape {list(p.shape)} is buffer {b.name} of {list(b.shape)}")

    def check_constants(self) -> None:
        """Check that every buffer of region const has its contents, once and in full."""
        filled: set[int] = set()
        for i, data in self.plan.constants:
            b = self.check_index(i, "constant")
            if b.region != "const" or len(data) != self.needs[i] or i in filled:
                self.refuse(
                    f"constant {self.label(i)}: {len(data)} bytes for {self.needs[i]} "
                    "of region "
                    f"{b.region}{', a second time' if i in filled else ''}"
                )
            filled.add(i)
        for i, b in enumerate(self.plan.buffers):
            if b.region == "const" and i not in filled:
                self.refuse(f"constant {self.label(i)} has no contents")

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
        """Check that the steps of a group have equally many tiles and no barrier between them."""
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
                if step.alone and (tiles or self.plan.threads == 1):
                    self.fail(at, "it runs alone in a group, or in a plan of one thread")
                if step.numbered not in (False, bool(tiles)):
                    self.fail(at, "it takes the number of a tile, and has none")
            if n < self.plan.once < n + len(members):
                self.fail(n, f"a group of {len(members)} steps, and some of them run once")
            self.spans += [(n, n + len(members) - 1)] * len(members)
            n += len(members)

    def cut(self, n: int, step: PlanStep, at: int) -> None:
        """Check that the tiles and the parts of threads of an argument lie in its buffer."""
        a = step.args[at]
        if {type(a.tile), type(a.thread)} != _INT or min(a.tile, a.thread) < 0:
            self.fail(n, f"argument {at} is cut into tiles of {a.tile}, {a.thread} a thread")
        if step.numbered and a.thread and a.thread != a.tile:
            self.fail(
                n, f"argument {at} is a thread's, of a kernel that does not get a thread's number"
            )
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
                self.fail(n, f"{self.label(i)} is {b.dtype}; argument {at} takes {expected}")
            begin, end = self.spans[n]
            if not (b.first <= begin and end <= b.last):
                self.fail(n, f"{self.label(i)} lives {b.first}..{b.last}")
            if mode != "r":
                self.check_write(n, i, mode)
        self.check_numbers(n, step, takes)

    def check_write(self, n: int, i: int, mode: str) -> None:
        region = self.plan.buffers[i].region
        if (mode in "wu" and region in UNWRITTEN) or (mode == "w" and i in self.inputs):
            self.fail(n, f"overwrites {self.label(i)}, an input or constant")
        if mode == "s" and region != "work":
            self.fail(n, f"has its scratch {self.label(i)} in region {region}")
        if region == "made" and n >= self.plan.once:
            self.fail(n, f"overwrites {self.label(i)}, which is made once")

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
