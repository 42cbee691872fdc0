"""Plans as bytes: the one format of plan files, of plan caches and of plans inside trimmed builds.

    head       32 bytes, see `_HEAD`: magic, version, checksum, flags, and the sizes of what follows
    directory  u32 rows of each table, then u8 width of each column, in the order of `SCHEMA`
    columns    one after another, each an array of integers of its width: 0, 1, 2, 4 or 8 bytes
    constants  a block of bytes at a multiple of 64
    tail       bytes for whoever wrote the file

All numbers are little-endian and unsigned.  A column lies at a multiple of its width, so that C
reads it in place, from a constant array or from a file.  A width of 0 stands for a column of zeros
and takes no bytes.  `SCHEMA` also says what the numbers of a column are, from which both readers,
this one and the one in C, check every reference before they follow it.

A file holds one plan or several of one target, which share their tables.  A *stripped* file has
only what running needs: no names of nodes, no types and lifetimes of buffers, no kernel templates.
Trimmed builds and op-set libraries read stripped files, `from_bytes` reads whole ones.

The checksum and the checks of the readers catch damage.  SECURITY.md, "Prepared plans", says what
else is checked, where, and which plan files to trust.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import numpy as np

from engine.base.element_types import ELEMENT_TYPES
from engine.base.errors import FileError, PlanError
from engine.plan.collective import collectives
from engine.plan.plan import (
    ALIGN,
    REGIONS,
    Arg,
    Buffer,
    Kernel,
    KernelSpec,
    Mode,
    Phase,
    Plan,
    Port,
    Step,
)
from engine.plan.verify import verify

MAGIC, VERSION = b"EGPL", 8
STRIPPED = 1  # the flag of the head
# magic, version, CRC-32 of all that follows it, flags; bytes before the constants, of the constants
_HEAD = struct.Struct("<4sIIIQQ")
_SEALED = 12  # the checksum covers what comes from here on

MODES, PHASES = get_args(Mode), get_args(Phase)
_MOST = (1 << 64) - 1  # the largest number of a column
_MODE_CODES = {mode: code for code, mode in enumerate(MODES)}
_CODES = {t.name: t.onnx for t in ELEMENT_TYPES.values()}
_TYPES = {code: name for name, code in _CODES.items()}

T = TypeVar("T")
Rule = Literal["", "row", "row or none", "rows"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    rule: what its numbers are: plain; a "row" of table `of`; 1 + a row, or 0 for none; or how many
    "rows" of `of` belong to this row; the first row's come first.
    kept: whether stripped files have it.
    """

    table: str
    name: str
    rule: Rule
    of: str
    kept: bool


# One line per table.  `@` stands for a row, `?` for a row or none, `+` for a number of rows;
# columns after `|` are only in whole files.
_TABLES = """
text             byte
head             kernel_set@text target@text thread_count
kernel           symbol@text op@text | template@text parameters+kernel_parameter takes+taken
natural          value
wide             value | is_float
call             kernel args first words
word             pooled
step             call@call barrier group tiles numbered | source@text phase again
step             | pairs+pair operands+operand
cut              tile thread
arg              buffer?buffer cut?cut | mode
buffer           region line | name@text dtype rank+dim bytes first last
port             name@text dtype buffer@buffer rank+port_dim
port_dim         size
plan             steps+step ports+port inputs fault reset noise rate step done | name@text
plan             | buffers+buffer regions+region uses+use constants+constant lower_bound
model            build@text param grad state work kept copies
state            form dtype initial single
io               size
parameter        name@text dtype trainable listed moved line rank+parameter_dim
parameter_dim    size
order            parameter@parameter
batch            samples
kernel_parameter | is_text value
taken            | text@text
operand          | text@text
pair             | written read
dim              | size
region           | region bytes
use              | kernel@kernel
constant         | buffer@buffer place bytes
"""
_RULES: Mapping[str, Rule] = {"@": "row", "?": "row or none", "+": "rows"}


def _columns() -> Iterator[Column]:
    for line in _TABLES.strip().splitlines():
        table, *words = line.split()
        kept = True
        for word in words:
            if word == "|":
                kept = False
                continue
            mark = next((m for m in _RULES if m in word), "")
            name, _, of = word.partition(mark) if mark else (word, "", "")
            yield Column(table, name, _RULES[mark] if mark else "", of, kept)


COLUMNS = tuple(_columns())


def schema(*, stripped: bool) -> dict[str, list[Column]]:
    """Return the columns of every table, in the order of the directory."""
    columns: dict[str, list[Column]] = {}
    for column in COLUMNS:
        if column.kept or not stripped:
            columns.setdefault(column.table, []).append(column)
    return columns


# --- writing


class Writer:
    """The tables of a file in the making.

    kernel_set: which version of the kernels the plans are for.
    target: the CPU whose blocks and vectors decide the words that kernels are given.
    """

    def __init__(
        self, kernel_set: str, target: str, threads: int, *, stripped: bool = False
    ) -> None:
        self.stripped = stripped
        self.constants = bytearray()
        self._columns: dict[str, list[list[int]]] = {}
        self._tables = schema(stripped=stripped)
        self._names = {table: [c.name for c in cs] for table, cs in self._tables.items()}
        self._rows: dict[tuple[Any, ...], int] = {}  # of rows that are kept once
        self._texts: dict[str, int] = {}
        self._places: dict[bytes, int] = {}
        self._words: list[tuple[bool, int]] = []  # whether it is a float, 64 bits
        self._text_bytes = bytearray()
        for table, columns in self._tables.items():
            self._columns[table] = [[] for _ in columns]
        self.add(
            "head", kernel_set=self.text(kernel_set), target=self.text(target), thread_count=threads
        )

    def rows(self, table: str) -> int:
        """Return how many rows a table has so far."""
        return len(self._columns[table][0])

    def add(self, table: str, **values: int) -> int:
        """Append a row and return its number; what stripped files do not have is left out.

        Raises:
            PlanError: a number is negative or needs more than 64 bits.
        """
        row = self.rows(table)
        for name, into in zip(self._names[table], self._columns[table], strict=True):
            value = values.get(name, 0)
            if not 0 <= value <= _MOST:
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
            if numbers and not (min(numbers) >= 0 and max(numbers) <= _MOST):
                bad = next(n for n in numbers if not 0 <= n <= _MOST)
                raise PlanError(f"{table}.{name}: {bad} does not fit a plan file")
            into += numbers or [0] * rows

    def once(self, table: str, **values: int) -> int:
        """Return the row that has these values, appended if there is none."""
        key = (table, *(values.get(column.name, 0) for column in self._tables[table]))
        if key not in self._rows:
            self._rows[key] = self.add(table, **values)
        return self._rows[key]

    def text(self, value: str) -> int:
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

    def step(self, step: Step, kernel: int, buffers: Sequence[int], **rest: int) -> None:
        """Append a step; buffers: for each argument 1 + its row, or 0; rest: more columns."""
        call = self._call(step, kernel)
        self.add(
            "step",
            call=call,
            barrier=int(step.barrier),
            group=step.group,
            tiles=step.tiles,
            numbered=int(step.numbered),
            **rest,
        )
        self._arguments(step.args, buffers)

    def _arguments(self, args: Sequence[Arg], buffers: Sequence[int]) -> None:
        """Append arguments; buffers: for each 1 + its row, or 0."""
        cuts = {(0, 0): 0}
        for a in args:
            if (a.tile, a.thread) not in cuts:
                cuts[a.tile, a.thread] = 1 + self.once("cut", tile=a.tile, thread=a.thread)
        self.extend(
            "arg",
            len(args),
            buffer=buffers,
            cut=[cuts[a.tile, a.thread] for a in args],
            mode=[_MODE_CODES[a.mode] for a in args],
        )

    def _call(self, step: Step, kernel: int) -> int:
        """Return the row of `call` of a step; steps that call one kernel with the same constants
        share it.

        kernel: the row of its kernel.
        """
        is_whole = {*map(type, step.consts)} == {int}  # no numbers that are equal and differ
        same = step.consts if is_whole else tuple([_word(c) for c in step.consts])
        key = ("call", kernel, len(step.args), same)
        if key not in self._rows:
            words = tuple([_word(c) for c in step.consts])
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

    def port(self, port: Port, dtype: str, buffer: int) -> None:
        """Append a port of the plan whose row comes next."""
        self.add(
            "port",
            name=self.text(port.name),
            dtype=_CODES[dtype],
            buffer=buffer,
            rank=self.shape("port_dim", port.shape),
        )

    def shape(self, table: str, shape: Sequence[int]) -> int:
        """Append the dimensions of a shape to a table of them; returns how many there are."""
        self.extend(table, len(shape), size=shape)
        return len(shape)

    def plan(self, plan: Plan) -> None:
        """Append a plan with all it holds.

        Raises:
            PlanError: the format cannot say it, or the file is stripped and the plan sums over
                ranks, which libraries do not.
        """
        sums = collectives(plan) if self.stripped else ()
        if sums:
            raise PlanError(
                f"plan {plan.name}: step {sums[0].step} sums over the ranks of a group; a library "
                "trains alone, so its plans are made without ranks"
            )
        base = self.rows("buffer")
        for b in plan.buffers:
            if b.offset % ALIGN:
                raise PlanError(f"plan {plan.name}: buffer {b.name} at {b.offset}: not aligned")
        self.extend(
            "buffer",
            len(plan.buffers),
            region=[REGIONS.index(b.region) for b in plan.buffers],
            line=[b.offset // ALIGN for b in plan.buffers],
            name=[self.text(b.name) for b in plan.buffers],
            dtype=[_CODES[b.dtype] for b in plan.buffers],
            rank=[len(b.shape) for b in plan.buffers],
            bytes=[b.nbytes for b in plan.buffers],
            first=[b.first + 1 for b in plan.buffers],
            last=[b.last + 1 for b in plan.buffers],
        )
        self.shape("dim", [size for b in plan.buffers for size in b.shape])
        kernels = {k.symbol: self._kernel(k) for k in plan.kernels}
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
            group=[s.group for s in plan.steps],
            tiles=[s.tiles for s in plan.steps],
            numbered=[int(s.numbered) for s in plan.steps],
            source=[self.text(s.source) for s in plan.steps],
            phase=[PHASES.index(s.phase) for s in plan.steps],
            again=[int(s.again) for s in plan.steps],
            pairs=[len(s.inplace) for s in plan.steps],
            operands=[len(s.operands) for s in plan.steps],
        )
        args = [a for s in plan.steps for a in s.args]
        self._arguments(args, [0 if a.buffer < 0 else 1 + base + a.buffer for a in args])
        pairs = [pair for s in plan.steps for pair in s.inplace]
        self.extend(
            "pair", len(pairs), written=[w for w, _ in pairs], read=[read for _, read in pairs]
        )
        operands = [self.text(operand) for s in plan.steps for operand in s.operands]
        self.extend("operand", len(operands), text=operands)
        ports = (*plan.inputs, *plan.outputs)
        for port in ports:
            self.port(port, plan.buffers[port.buffer].dtype, base + port.buffer)
        for region, size in plan.regions:
            self.add("region", region=REGIONS.index(region), bytes=size)
        for index, content in plan.constants:
            place = self.place(content)
            self.add("constant", buffer=base + index, place=place, bytes=len(content))
        self.add(
            "plan",
            name=self.text(plan.name),
            steps=len(plan.steps),
            ports=len(ports),
            inputs=len(plan.inputs),
            buffers=len(plan.buffers),
            regions=len(plan.regions),
            uses=len(plan.kernels),
            constants=len(plan.constants),
            lower_bound=plan.lower_bound,
        )

    def _kernel(self, kernel: Kernel) -> int:
        key = ("kernel", kernel)
        if key not in self._rows:
            spec = kernel.spec
            for parameter in spec.params:
                text = isinstance(parameter, str)
                value = self.text(parameter) if isinstance(parameter, str) else _zigzag(parameter)
                self.add("kernel_parameter", is_text=int(text), value=value)
            for taken in kernel.takes:
                self.add("taken", text=self.text(taken))
            self._rows[key] = self.add(
                "kernel",
                symbol=self.text(spec.symbol),
                template=self.text(spec.template),
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
        widths = [_width(c, least=1 if not i and c else 0) for (_, i), c in columns.items()]
        out = bytearray(_HEAD.size)
        out += struct.pack(f"<{len(rows)}I", *rows) + bytes(widths)
        for column, width in zip(columns.values(), widths, strict=True):
            if width:
                out += bytes(-len(out) % width)
                out += np.array(column, np.uint64).astype(f"<u{width}").tobytes()
        out += bytes(-len(out) % ALIGN)
        flags = STRIPPED if self.stripped else 0
        sizes = len(out), len(self.constants)
        out += self.constants + tail
        out[: _HEAD.size] = _HEAD.pack(MAGIC, VERSION, 0, flags, *sizes)
        crc = zlib.crc32(memoryview(out)[_SEALED:])
        out[: _HEAD.size] = _HEAD.pack(MAGIC, VERSION, crc, flags, *sizes)
        return bytes(out)

    def _pool(self) -> tuple[list[int], list[tuple[bool, int]], list[int]]:
        """Small whole numbers, all other words, and the number of every word among both."""
        words = set(self._words)
        naturals = sorted(bits for is_float, bits in words if not is_float and bits <= 0xFFFF)
        wide = sorted(w for w in words if w[0] or w[1] > 0xFFFF)
        number = {w: i for i, w in enumerate([*((False, bits) for bits in naturals), *wide])}
        return naturals, wide, [number[word] for word in self._words]


def _word(value: int | float) -> tuple[bool, int]:
    """Return a constant of a step: whether it is a float, and its 64 bits."""
    if isinstance(value, float):
        return True, cast("int", struct.unpack("<Q", struct.pack("<d", value))[0])
    if not -(1 << 63) <= value < 1 << 63:
        raise PlanError(f"{value} does not fit a plan file")
    return False, value & _MOST


def _zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def _width(column: Sequence[int], least: int) -> int:
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


# --- reading


class Tables:
    """The columns of a file, with every reference checked.

    Raises:
        PlanError: the bytes are not a plan file, of another version, damaged or inconsistent.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEAD.size or data[:4] != MAGIC:
            raise PlanError("not a plan file")
        _, version, crc, flags, size, constants = _HEAD.unpack_from(data)
        if version != VERSION:
            raise PlanError(f"a plan file of version {version}, expected {VERSION}")
        if size % ALIGN or size < _HEAD.size or size + constants > len(data):
            raise PlanError(f"{len(data)} bytes, the head says {size + constants}")
        if zlib.crc32(memoryview(data)[_SEALED:]) != crc:
            raise PlanError("damaged, the checksum is wrong")
        if flags not in (0, STRIPPED):
            raise PlanError(f"flags {flags} are none of version {version}")
        self.stripped = flags == STRIPPED
        self.constants = data[size : size + constants]
        self.tail = data[size + constants :]
        self._tables = schema(stripped=self.stripped)
        self._read(data[:size])
        self._check()
        self._texts: dict[int, str] = {}

    def _read(self, data: bytes) -> None:
        names = list(self._tables)
        columns = [c for cs in self._tables.values() for c in cs]
        at = _HEAD.size + 4 * len(names) + len(columns)
        if at > len(data):
            raise PlanError("truncated in the directory")
        rows = struct.unpack_from(f"<{len(names)}I", data, _HEAD.size)
        self.rows = dict(zip(names, rows, strict=True))
        self._columns: dict[tuple[str, str], list[int]] = {}
        for column, width in zip(columns, data[at - len(columns) : at], strict=True):
            count = self.rows[column.table]
            first = column is self._tables[column.table][0]
            if width not in (0, 1, 2, 4, 8) or (first and count and not width):
                raise PlanError(f"column {column.table}.{column.name} of width {width}")
            at += -at % max(width, 1)
            if at + width * count > len(data):
                raise PlanError(f"truncated in column {column.table}.{column.name}")
            self._columns[column.table, column.name] = (
                np.frombuffer(data, f"<u{width}", count, at).tolist() if width else [0] * count
            )
            at += width * count
        if len(data) - at >= ALIGN or any(data[at:]):
            raise PlanError("bytes after the last column")
        self._bytes = bytes(self._columns["text", "byte"])

    def _check(self) -> None:
        for table, columns in self._tables.items():
            for column in columns:
                values = self._columns[table, column.name]
                if not column.rule:
                    continue
                most = self.rows[column.of]
                if column.rule == "rows":
                    good = sum(values) == most
                else:
                    good = max(values, default=-1) < most + (column.rule != "row")
                if not good:
                    raise PlanError(f"column {table}.{column.name} does not fit table {column.of}")
        if self._bytes[-1:] != b"\0":
            raise PlanError("the last text has no end")
        if self.rows["head"] != 1:
            raise PlanError("not one row in table head")

    def column(self, table: str, name: str) -> list[int]:
        """Return all numbers of a column."""
        return self._columns[table, name]

    def text(self, at: int) -> str:
        """Return the text that begins at a byte."""
        if at not in self._texts:
            raw = self._bytes[at : self._bytes.index(b"\0", at)]
            try:
                self._texts[at] = raw.replace(b"\xc0\x80", b"\0").decode("utf-8")
            except UnicodeDecodeError:
                raise PlanError(f"the text at byte {at} is not UTF-8") from None
        return self._texts[at]

    def texts(self, table: str, name: str) -> list[str]:
        """Return all texts of a column."""
        known = self._texts
        return [known.get(at) or self.text(at) for at in self._columns[table, name]]


class _Parts(Generic[T]):
    """An iterator over the rows of a table in parts: one part per owner, in order."""

    def __init__(self, rows: Iterable[T]) -> None:
        self._rest = iter(rows)

    def next(self, count: int) -> tuple[T, ...]:
        """Return the rows of the next owner."""
        return tuple(islice(self._rest, count))


def from_bytes(data: bytes, kernel_set: str, source: str = "plan file") -> tuple[Plan, ...]:
    """Return the plans of a whole file, verified.

    kernel_set: the version of the kernels that are here.

    Raises:
        PlanError: the bytes are not a plan file, damaged, of another version or for other kernels,
            or a plan breaks a rule.
    """
    try:
        tables = Tables(data)
        if tables.stripped:
            raise PlanError("a stripped file is for libraries: it has no types and no lifetimes")
        if (named := tables.texts("head", "kernel_set")) != [kernel_set]:
            raise PlanError(f"made for kernel set {named[0]}, this is {kernel_set}")
        return tuple(verify(plan) for plan in PlanReader(tables).plans())
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None


def load(path: str | os.PathLike[str], kernel_set: str) -> tuple[Plan, ...]:
    """Return the plans of a file, verified.

    Raises:
        FileError: it cannot be read.
        PlanError: as `from_bytes`.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read plans '{os.fspath(path)}': {error.strerror}") from None
    return from_bytes(data, kernel_set, os.fspath(path))


def _choice(values: Sequence[int], of: Sequence[T] | Mapping[int, T], what: str) -> list[T]:
    """Return the values that codes stand for."""
    try:
        return [of[v] for v in values]
    except LookupError:
        raise PlanError(f"an unknown {what}") from None


def _size(shape: Sequence[int]) -> int:
    size = 1
    for d in shape:
        size *= d
    return size


def _word_values(t: Tables) -> list[int | float]:
    """Return the constants of steps, by their number among `natural`, then `wide`."""
    values: list[int | float] = list(t.column("natural", "value"))
    for bits, is_float in zip(*(t.column("wide", c) for c in ("value", "is_float")), strict=True):
        (value,) = struct.unpack("<d" if is_float else "<q", struct.pack("<Q", bits))
        values.append(value)
    return values


def _kernels(t: Tables) -> list[Kernel]:
    parameters: list[str | int] = []
    columns = (t.column("kernel_parameter", c) for c in ("is_text", "value"))
    for is_text, value in zip(*columns, strict=True):
        if is_text and value >= t.rows["text"]:
            raise PlanError("a parameter of a kernel is not a text")
        whole = -((value + 1) >> 1) if value & 1 else value >> 1
        parameters.append(t.text(value) if is_text else whole)
    params, takes = _Parts(parameters), _Parts(t.texts("taken", "text"))
    kernels = []
    rows = zip(
        t.texts("kernel", "symbol"),
        t.texts("kernel", "template"),
        t.column("kernel", "parameters"),
        t.column("kernel", "takes"),
        strict=True,
    )
    for symbol, template, n_parameters, n_takes in rows:
        kernel = Kernel(KernelSpec(template, params.next(n_parameters)), takes.next(n_takes))
        if not kernel.spec.params or kernel.symbol != symbol:
            raise PlanError(f"kernel {symbol} is not {template}{kernel.spec.params}")
        kernels.append(kernel)
    return kernels


def _buffers(t: Tables) -> list[Buffer]:
    dims = _Parts(t.column("dim", "size"))
    rows = zip(
        t.texts("buffer", "name"),
        _choice(t.column("buffer", "dtype"), _TYPES, "element type"),
        t.column("buffer", "rank"),
        _choice(t.column("buffer", "region"), REGIONS, "region"),
        *(t.column("buffer", c) for c in ("line", "bytes", "first", "last")),
        strict=True,
    )
    return [
        Buffer(name, dtype, dims.next(rank), region, line * ALIGN, size, first - 1, last - 1)
        for name, dtype, rank, region, line, size, first, last in rows
    ]


class PlanReader:
    """Makes the plans of a file one after another; each takes the next rows of every table."""

    def __init__(self, t: Tables) -> None:
        self.t = t
        self.kernels, self.words = _kernels(t), _word_values(t)
        (self.target,) = t.texts("head", "target")
        (self.threads,) = t.column("head", "thread_count")
        if not 1 <= self.threads < 1 << 16:
            raise PlanError(f"{self.threads} threads")
        self.buffers, self.base, self.end = _buffers(t), 0, 0
        self.calls = self._calls()
        self.known: dict[tuple[int, Mode, int, int], Arg] = {}
        cuts = [0, *t.column("cut", "tile")], [0, *t.column("cut", "thread")]
        self.args = _Parts(
            zip(
                t.column("arg", "buffer"),
                _choice(t.column("arg", "mode"), MODES, "mode"),
                *([of[cut] for cut in t.column("arg", "cut")] for of in cuts),
                strict=True,
            )
        )
        self.pairs = _Parts(zip(*(t.column("pair", c) for c in ("written", "read")), strict=True))
        self.operands = _Parts(t.texts("operand", "text"))
        self.steps = _Parts(
            zip(
                t.column("step", "call"),
                t.texts("step", "source"),
                _choice(t.column("step", "phase"), PHASES, "phase"),
                *(t.column("step", c) for c in ("pairs", "operands", "barrier")),
                *(t.column("step", c) for c in ("group", "tiles", "numbered", "again")),
                strict=True,
            )
        )
        self.dims = _Parts(t.column("port_dim", "size"))
        self.ports = _Parts(
            zip(
                t.texts("port", "name"),
                _choice(t.column("port", "dtype"), _TYPES, "element type"),
                t.column("port", "buffer"),
                t.column("port", "rank"),
                strict=True,
            )
        )
        self.regions = _Parts(
            zip(
                _choice(t.column("region", "region"), REGIONS, "region"),
                t.column("region", "bytes"),
                strict=True,
            )
        )
        self.uses = _Parts(t.column("use", "kernel"))
        self.constants = _Parts(
            zip(*(t.column("constant", c) for c in ("buffer", "place", "bytes")), strict=True)
        )

    def _calls(self) -> list[tuple[str, int, tuple[int | float, ...]]]:
        """Of every row of `call` the symbol, the number of arguments, the constants."""
        pooled = _choice(self.t.column("word", "pooled"), self.words, "constant")
        columns = [self.t.column("call", c) for c in ("kernel", "args", "first", "words")]
        symbols = [kernel.symbol for kernel in self.kernels]
        calls = []
        for kernel, args, first, words in zip(*columns, strict=True):
            if kernel >= len(symbols) or first + words > len(pooled):
                raise PlanError("a call of a kernel or of constants that are not there")
            constants = tuple(pooled[first : first + words])
            calls.append((symbols[kernel], args, constants))
        return calls

    def plans(self) -> Iterator[Plan]:
        """Yield all plans, not verified."""
        names = [c.name for c in schema(stripped=False)["plan"] if c.name != "name"]
        rows = zip(*(self.t.column("plan", c) for c in names), strict=True)
        for name, row in zip(self.t.texts("plan", "name"), rows, strict=True):
            yield self._plan(name, dict(zip(names, row, strict=True)))
        if self.args.next(1):
            raise PlanError("arguments of no step")

    def _plan(self, name: str, counts: Mapping[str, int]) -> Plan:
        self.base, self.end = self.end, self.end + counts["buffers"]
        self.known.clear()
        ports = tuple(self._port(*row) for row in self.ports.next(counts["ports"]))
        inputs = counts["inputs"]
        if inputs > len(ports):
            raise PlanError(f"plan {name} has {inputs} inputs among {len(ports)} ports")
        regions = self.regions.next(counts["regions"])
        if len(dict(regions)) != len(regions):
            raise PlanError(f"plan {name} has a region twice")
        return Plan(
            name,
            self.target,
            self.threads,
            regions,
            tuple(self.buffers[self.base : self.end]),
            tuple(self._step(*row) for row in self.steps.next(counts["steps"])),
            tuple(self.kernels[k] for k in self.uses.next(counts["uses"])),
            ports[:inputs],
            ports[inputs:],
            tuple(self._constant(*row) for row in self.constants.next(counts["constants"])),
            counts["lower_bound"],
        )

    def _buffer(self, row: int) -> int:
        """Return the index in its plan of a row of `buffer`."""
        if not self.base <= row < self.end:
            raise PlanError("a plan uses a buffer of another")
        return row - self.base

    def _port(self, name: str, dtype: str, row: int, rank: int) -> Port:
        index, shape = self._buffer(row), self.dims.next(rank)
        buffer = self.buffers[row]
        if dtype != buffer.dtype or _size(shape) != _size(buffer.shape):
            raise PlanError(
                f"port {name} of {dtype}{list(shape)} is buffer {buffer.name} of "
                f"{buffer.dtype}{list(buffer.shape)}"
            )
        return Port(name, index, shape)

    def _constant(self, row: int, place: int, size: int) -> tuple[int, bytes]:
        if place + size > len(self.t.constants):
            raise PlanError(f"the constant of buffer {row} is out of bounds")
        return self._buffer(row), self.t.constants[place : place + size]

    def _arg(self, key: tuple[int, Mode, int, int]) -> Arg:
        """Return an argument of the plan at hand that is not known yet; equal ones are one
        object.
        """
        row, mode, tile, thread = key
        made = self.known[key] = Arg(self._buffer(row - 1) if row else -1, mode, tile, thread)
        return made

    def _step(
        self,
        call: int,
        source: str,
        phase: Phase,
        pairs: int,
        operands: int,
        barrier: int,
        group: int,
        tiles: int,
        numbered: int,
        again: int,
    ) -> Step:
        symbol, n_args, words = self.calls[call]
        known = self.known
        args = tuple([known.get(key) or self._arg(key) for key in self.args.next(n_args)])
        inplace = self.pairs.next(pairs) if pairs else ()
        if len(args) != n_args or any(
            [i >= n_args or args[i].buffer < 0 for pair in inplace for i in pair]
        ):
            raise PlanError(f"step {source} of {symbol}: arguments that are not there")
        types = self.operands.next(operands) if operands else ()
        return Step(
            symbol,
            args,
            words,
            source,
            phase,
            inplace,
            bool(barrier),
            types,
            group,
            tiles,
            bool(numbered),
            bool(again),
        )
