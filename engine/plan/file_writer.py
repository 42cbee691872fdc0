"""Writes plans as bytes; file_schema.py describes the format."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from engine.base.errors import PlanError
from engine.plan.collective import list_collectives
from engine.plan.file_schema import (
    ELEMENT_CODES,
    HEAD,
    MAGIC,
    MODES,
    MOST,
    PHASES,
    SEALED,
    STRIPPED,
    VERSION,
    make_schema,
)
from engine.plan.plan import ALIGN, REGIONS, Arg, Kernel, Plan, PlanStep, Port

_MODE_CODES = {mode: code for code, mode in enumerate(MODES)}


class Writer:
    """The tables of a file that is being written.

    kernel_set: which version of the kernels the plans are for.
    target: the CPU whose blocks and vectors decide the words that kernels are given.
    """

    def __init__(
        self, kernel_set: str, target: str, threads: int, *, stripped: bool = False
    ) -> None:
        self.stripped = stripped
        self.constants = bytearray()
        self._columns: dict[str, list[list[int]]] = {}
        self._tables = make_schema(stripped=stripped)
        self._names = {table: [c.name for c in cs] for table, cs in self._tables.items()}
        self._rows: dict[tuple[Any, ...], int] = {}  # of rows that are kept once
        self._texts: dict[str, int] = {}
        self._places: dict[bytes, int] = {}
        self._words: list[tuple[bool, int]] = []  # whether it is a float, 64 bits
        self._text_bytes = bytearray()
        for table, columns in self._tables.items():
            self._columns[table] = [[] for _ in columns]
        self.add(
            "head",
            kernel_set=self.add_text(kernel_set),
            target=self.add_text(target),
            thread_count=threads,
        )

    def count_rows(self, table: str) -> int:
        """Return how many rows a table has so far."""
        return len(self._columns[table][0])

    def add(self, table: str, **values: int) -> int:
        """Append a row and return its number; what stripped files do not have is left out.

        Raises:
            PlanError: a number is negative or needs more than 64 bits.
        """
        row = self.count_rows(table)
        for name, into in zip(self._names[table], self._columns[table], strict=True):
            value = values.get(name, 0)
            if not 0 <= value <= MOST:
                raise PlanError(f"{table}.{name}: {value} does not fit a plan file")
            into.append(int(value))
        return row

    def extend(self, table: str, rows: int, **values: Sequence[int]) -> None:
        """Append rows, given their columns in `values`; like `add`, for many.

        Raises:
            PlanError: a number is negative or needs more than 64 bits.
        """
        for name, into in zip(self._names[table], self._columns[table], strict=True):
            numbers = values.get(name, ())
            if numbers and not (min(numbers) >= 0 and max(numbers) <= MOST):
                bad = next(n for n in numbers if not 0 <= n <= MOST)
                raise PlanError(f"{table}.{name}: {bad} does not fit a plan file")
            into += numbers or [0] * rows

    def add_once(self, table: str, **values: int) -> int:
        """Return the row that has these values, appended if there is none."""
        key = (table, *(values.get(column.name, 0) for column in self._tables[table]))
        if key not in self._rows:
            self._rows[key] = self.add(table, **values)
        return self._rows[key]

    def add_text(self, value: str) -> int:
        """Return the byte at which a text begins.  A zero byte ends it; one inside is written as C0
        80.

        Raises:
            PlanError: it holds half of a surrogate pair.
        """
        if value not in self._texts:
            try:
                raw = value.encode("utf-8").replace(b"\0", b"\xc0\x80")
            except UnicodeEncodeError:
                raise PlanError(f"{value!r} is not Unicode text") from None
            self._texts[value] = len(self._text_bytes)
            self._text_bytes += raw + b"\0"
        return self._texts[value]

    def place(self, content: bytes) -> int:
        """Return the offset of these bytes in the block of constants, a multiple of 64, each
        once.
        """
        if content not in self._places:
            self._places[content] = len(self.constants)
            self.constants += content + bytes(-len(content) % ALIGN)
        return self._places[content]

    def add_step(self, step: PlanStep, kernel: int, buffers: Sequence[int], **rest: int) -> None:
        """Append a step; buffers: for each argument 1 + its row, or 0; rest: more columns."""
        call = self._call(step, kernel)
        self.add(
            "step",
            call=call,
            barrier=int(step.barrier),
            alone=int(step.alone),
            group=step.group,
            tiles=step.tiles,
            numbered=int(step.numbered),
            **rest,
        )
        self._add_arguments(step.args, buffers)

    def _add_arguments(self, args: Sequence[Arg], buffers: Sequence[int]) -> None:
        """Append arguments; buffers: for each 1 + its row, or 0."""
        cuts = {(0, 0): 0}
        for a in args:
            if (a.tile, a.thread) not in cuts:
                cuts[a.tile, a.thread] = 1 + self.add_once("cut", tile=a.tile, thread=a.thread)
        self.extend(
            "arg",
            len(args),
            buffer=buffers,
            cut=[cuts[a.tile, a.thread] for a in args],
            mode=[_MODE_CODES[a.mode] for a in args],
        )

    def _call(self, step: PlanStep, kernel: int) -> int:
        """Return the row of `call` of a step; steps that call one kernel with the same constants
        share it.

        kernel: the row of its kernel.
        """
        is_whole = {*map(type, step.consts)} == {int}  # no numbers that are equal and differ
        same = step.consts if is_whole else tuple([_encode_word(c) for c in step.consts])
        key = ("call", kernel, len(step.args), same)
        if key not in self._rows:
            words = tuple([_encode_word(c) for c in step.consts])
            run = ("words", words)
            if run not in self._rows:
                self._rows[run] = len(self._words)
                self._words += words
            self._rows[key] = self.add(
                "call",
                kernel=kernel,
                args=len(step.args),
                first=self._rows[run],
                words=len(words),
            )
        return self._rows[key]

    def add_port(self, port: Port, dtype: str, buffer: int) -> None:
        """Append a port of the plan whose row comes next."""
        self.add(
            "port",
            name=self.add_text(port.name),
            dtype=ELEMENT_CODES[dtype],
            buffer=buffer,
            rank=self.add_shape("port_dim", port.shape),
        )

    def add_shape(self, table: str, shape: Sequence[int]) -> int:
        """Append the dimensions of a shape to a table of them; returns how many there are."""
        self.extend(table, len(shape), size=shape)
        return len(shape)

    def plan(self, plan: Plan) -> None:
        """Append a plan with all it holds.

        Raises:
            PlanError: the format cannot say it, or the file is stripped and the plan sums over
                ranks, or has steps that run once, which libraries do not.
        """
        sums = list_collectives(plan) if self.stripped else ()
        if sums:
            raise PlanError(
                f"plan {plan.name}: step {sums[0].step} sums over the ranks of a group; a library "
                "trains alone, so its plans are made without ranks"
            )
        if plan.once and self.stripped:
            raise PlanError(f"plan {plan.name}: steps that run once, which libraries do not have")
        base = self.count_rows("buffer")
        for b in plan.buffers:
            if b.offset % ALIGN:
                raise PlanError(f"plan {plan.name}: buffer {b.name} at {b.offset}: not aligned")
        self.extend(
            "buffer",
            len(plan.buffers),
            region=[REGIONS.index(b.region) for b in plan.buffers],
            line=[b.offset // ALIGN for b in plan.buffers],
            name=[self.add_text(b.name) for b in plan.buffers],
            dtype=[ELEMENT_CODES[b.dtype] for b in plan.buffers],
            rank=[len(b.shape) for b in plan.buffers],
            bytes=[b.nbytes for b in plan.buffers],
            first=[b.first + 1 for b in plan.buffers],
            last=[b.last + 1 for b in plan.buffers],
        )
        self.add_shape("dim", [size for b in plan.buffers for size in b.shape])
        kernels = {k.symbol: self._add_kernel(k) for k in plan.kernels}
        for k in plan.kernels:
            self.add("use", kernel=kernels[k.symbol])
        for s in plan.steps:
            if s.kernel not in kernels:
                raise PlanError(f"plan {plan.name}: step {s.source}: unknown kernel {s.kernel}")
        self.extend(
            "step",
            len(plan.steps),
            call=[self._call(s, kernels[s.kernel]) for s in plan.steps],
            barrier=[int(s.barrier) for s in plan.steps],
            alone=[int(s.alone) for s in plan.steps],
            group=[s.group for s in plan.steps],
            tiles=[s.tiles for s in plan.steps],
            numbered=[int(s.numbered) for s in plan.steps],
            source=[self.add_text(s.source) for s in plan.steps],
            phase=[PHASES.index(s.phase) for s in plan.steps],
            again=[int(s.again) for s in plan.steps],
            pairs=[len(s.inplace) for s in plan.steps],
            operands=[len(s.operands) for s in plan.steps],
        )
        args = [a for s in plan.steps for a in s.args]
        self._add_arguments(args, [0 if a.buffer < 0 else 1 + base + a.buffer for a in args])
        pairs = [pair for s in plan.steps for pair in s.inplace]
        self.extend(
            "pair", len(pairs), written=[w for w, _ in pairs], read=[read for _, read in pairs]
        )
        operands = [self.add_text(operand) for s in plan.steps for operand in s.operands]
        self.extend("operand", len(operands), text=operands)
        ports = (*plan.inputs, *plan.outputs)
        for port in ports:
            self.add_port(port, plan.buffers[port.buffer].dtype, base + port.buffer)
        for region, size in plan.regions:
            self.add("region", region=REGIONS.index(region), bytes=size)
        for index, content in plan.constants:
            place = self.place(content)
            self.add("constant", buffer=base + index, place=place, bytes=len(content))
        self.add(
            "plan",
            name=self.add_text(plan.name),
            steps=len(plan.steps),
            ports=len(ports),
            inputs=len(plan.inputs),
            buffers=len(plan.buffers),
            regions=len(plan.regions),
            uses=len(plan.kernels),
            constants=len(plan.constants),
            lower_bound=plan.lower_bound,
            once=plan.once,
        )

    def _add_kernel(self, kernel: Kernel) -> int:
        key = ("kernel", kernel)
        if key not in self._rows:
            spec = kernel.spec
            for parameter in spec.params:
                text = isinstance(parameter, str)
                value = (
                    self.add_text(parameter)
                    if isinstance(parameter, str)
                    else _encode_zigzag(parameter)
                )
                self.add("kernel_parameter", is_text=int(text), value=value)
            for taken in kernel.takes:
                self.add("taken", text=self.add_text(taken))
            self._rows[key] = self.add(
                "kernel",
                symbol=self.add_text(spec.symbol),
                template=self.add_text(spec.template),
                parameters=len(spec.params),
                takes=len(kernel.takes),
            )
        return self._rows[key]

    def to_bytes(self, tail: bytes = b"") -> bytes:
        """Return the file; `tail` comes after the plans, for readers that know it."""
        columns = {(t, i): c for t, cs in self._columns.items() for i, c in enumerate(cs)}
        columns["text", 0] = list(self._text_bytes)
        naturals, wide, pooled = self._pool()
        columns["natural", 0], columns["word", 0] = naturals, pooled
        columns["wide", 0] = [bits for _, bits in wide]
        if not self.stripped:
            columns["wide", 1] = [int(is_float) for is_float, _ in wide]
        rows = [len(columns[table, 0]) for table in self._tables]
        # Rows must take bytes, so that a reader can bound their number by the size of the file.
        widths = [_choose_width(c, least=1 if not i and c else 0) for (_, i), c in columns.items()]
        out = bytearray(HEAD.size)
        out += struct.pack(f"<{len(rows)}I", *rows) + bytes(widths)
        for column, width in zip(columns.values(), widths, strict=True):
            if width:
                out += bytes(-len(out) % width)
                out += np.array(column, np.uint64).astype(f"<u{width}").tobytes()
        out += bytes(-len(out) % ALIGN)
        flags = STRIPPED if self.stripped else 0
        sizes = len(out), len(self.constants)
        out += self.constants + tail
        out[: HEAD.size] = HEAD.pack(MAGIC, VERSION, 0, flags, *sizes)
        crc = zlib.crc32(memoryview(out)[SEALED:])
        out[: HEAD.size] = HEAD.pack(MAGIC, VERSION, crc, flags, *sizes)
        return bytes(out)

    def _pool(self) -> tuple[list[int], list[tuple[bool, int]], list[int]]:
        """Return small whole numbers, all other words, and the number of every word among both."""
        words = set(self._words)
        naturals = sorted(bits for is_float, bits in words if not is_float and bits <= 0xFFFF)
        wide = sorted(w for w in words if w[0] or w[1] > 0xFFFF)
        number = {w: i for i, w in enumerate([*((False, bits) for bits in naturals), *wide])}
        return naturals, wide, [number[word] for word in self._words]


def _encode_word(value: int | float) -> tuple[bool, int]:
    """Return a constant of a step: whether it is a float, and its 64 bits."""
    if isinstance(value, float):
        return True, cast("int", struct.unpack("<Q", struct.pack("<d", value))[0])
    if not -(1 << 63) <= value < 1 << 63:
        raise PlanError(f"{value} does not fit a plan file")
    return False, value & MOST


def _encode_zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def _choose_width(column: Sequence[int], least: int) -> int:
    most = max(column, default=0)
    return next(w for w in (0, 1, 2, 4, 8) if w >= least and most < 1 << 8 * w)


def to_bytes(plans: Sequence[Plan], kernel_set: str) -> bytes:
    """Return a whole file of plans for one target and number of threads; equal plans give equal
    bytes.

    Raises:
        PlanError: plans of several targets, or one that holds what the format cannot say.
    """
    if len({(p.target, p.threads) for p in plans}) != 1:
        raise PlanError("a plan file is for one target and one number of threads")
    out = Writer(kernel_set, plans[0].target, plans[0].threads)
    for plan in plans:
        out.plan(plan)
    return out.to_bytes()
