"""Reads plans from bytes, and checks them; file_schema.py describes the format."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from engine.base.errors import FileError, PlanError
from engine.plan.file_schema import (
    ELEMENT_CODES,
    HEAD,
    MAGIC,
    MODES,
    PHASES,
    SEALED,
    STRIPPED,
    VERSION,
    make_schema,
)
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
    PlanStep,
    Port,
)
from engine.plan.verify import verify

_TYPES = {code: name for name, code in ELEMENT_CODES.items()}

T = TypeVar("T")


class Tables:
    """The columns of a file, with every reference checked.

    Raises:
        PlanError: the bytes are not a plan file, of another version, damaged or inconsistent.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < HEAD.size or data[:4] != MAGIC:
            raise PlanError("not a plan file")
        _, version, crc, flags, size, constants = HEAD.unpack_from(data)
        if version != VERSION:
            raise PlanError(f"a plan file of version {version}, expected {VERSION}")
        if size % ALIGN or size < HEAD.size or size + constants > len(data):
            raise PlanError(f"{len(data)} bytes, the head says {size + constants}")
        if zlib.crc32(memoryview(data)[SEALED:]) != crc:
            raise PlanError("damaged, the checksum is wrong")
        if flags not in (0, STRIPPED):
            raise PlanError(f"flags {flags}, which version {version} does not have")
        self.stripped = flags == STRIPPED
        self.constants = data[size : size + constants]
        self.tail = data[size + constants :]
        self._tables = make_schema(stripped=self.stripped)
        self._read(data[:size])
        self._check()
        self._texts: dict[int, str] = {}

    def _read(self, data: bytes) -> None:
        names = list(self._tables)
        columns = [c for cs in self._tables.values() for c in cs]
        at = HEAD.size + 4 * len(names) + len(columns)
        if at > len(data):
            raise PlanError("truncated in the directory")
        rows = struct.unpack_from(f"<{len(names)}I", data, HEAD.size)
        self.rows = dict(zip(names, rows, strict=True))
        self._columns: dict[tuple[str, str], list[int]] = {}
        for column, width in zip(columns, data[at - len(columns) : at], strict=True):
            count = self.rows[column.table]
            first = column is self._tables[column.table][0]
            if width not in (0, 1, 2, 4, 8) or (first and count and not width):
                raise PlanError(f"column {column.table}.{column.name} has a width of {width} bytes")
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
            raise PlanError(f"table head has {self.rows['head']} rows; expected 1")

    def read_column(self, table: str, name: str) -> list[int]:
        """Return all numbers of a column."""
        return self._columns[table, name]

    def read_text(self, at: int) -> str:
        """Return the text that begins at a byte."""
        if at not in self._texts:
            raw = self._bytes[at : self._bytes.index(b"\0", at)]
            try:
                self._texts[at] = raw.replace(b"\xc0\x80", b"\0").decode("utf-8")
            except UnicodeDecodeError:
                raise PlanError(f"the text at byte {at} is not UTF-8") from None
        return self._texts[at]

    def read_texts(self, table: str, name: str) -> list[str]:
        """Return all texts of a column."""
        known = self._texts
        return [known.get(at) or self.read_text(at) for at in self._columns[table, name]]


class _Parts(Generic[T]):
    """An iterator over the rows of a table in parts: one part per owner, in order."""

    def __init__(self, rows: Iterable[T]) -> None:
        self._rest = iter(rows)

    def take_rows(self, count: int) -> tuple[T, ...]:
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
        if (named := tables.read_texts("head", "kernel_set")) != [kernel_set]:
            raise PlanError(f"made for kernel set {named[0]}, this is {kernel_set}")
        return tuple(verify(plan) for plan in PlanReader(tables).read_plans())
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


def _choose(values: Sequence[int], of: Sequence[T] | Mapping[int, T], what: str) -> list[T]:
    """Return the values that codes stand for."""
    try:
        return [of[v] for v in values]
    except LookupError:
        raise PlanError(f"an unknown {what}") from None


def _compute_size(shape: Sequence[int]) -> int:
    size = 1
    for d in shape:
        size *= d
    return size


def _read_words(t: Tables) -> list[int | float]:
    """Return the constants of steps, by their number among `natural`, then `wide`."""
    values: list[int | float] = list(t.read_column("natural", "value"))
    for bits, is_float in zip(
        *(t.read_column("wide", c) for c in ("value", "is_float")), strict=True
    ):
        (value,) = struct.unpack("<d" if is_float else "<q", struct.pack("<Q", bits))
        values.append(value)
    return values


def _read_kernels(t: Tables) -> list[Kernel]:
    parameters: list[str | int] = []
    columns = (t.read_column("kernel_parameter", c) for c in ("is_text", "value"))
    for is_text, value in zip(*columns, strict=True):
        if is_text and value >= t.rows["text"]:
            raise PlanError("a parameter of a kernel is not a text")
        whole = -((value + 1) >> 1) if value & 1 else value >> 1
        parameters.append(t.read_text(value) if is_text else whole)
    params, takes = _Parts(parameters), _Parts(t.read_texts("taken", "text"))
    kernels = []
    rows = zip(
        t.read_texts("kernel", "symbol"),
        t.read_texts("kernel", "template"),
        t.read_column("kernel", "parameters"),
        t.read_column("kernel", "takes"),
        strict=True,
    )
    for symbol, template, n_parameters, n_takes in rows:
        kernel = Kernel(
            KernelSpec(template, params.take_rows(n_parameters)), takes.take_rows(n_takes)
        )
        if not kernel.spec.params or kernel.symbol != symbol:
            raise PlanError(f"kernel {symbol} is not {template}{kernel.spec.params}")
        kernels.append(kernel)
    return kernels


def _read_buffers(t: Tables) -> list[Buffer]:
    dims = _Parts(t.read_column("dim", "size"))
    rows = zip(
        t.read_texts("buffer", "name"),
        _choose(t.read_column("buffer", "dtype"), _TYPES, "element type"),
        t.read_column("buffer", "rank"),
        _choose(t.read_column("buffer", "region"), REGIONS, "region"),
        *(t.read_column("buffer", c) for c in ("line", "bytes", "first", "last")),
        strict=True,
    )
    return [
        Buffer(name, dtype, dims.take_rows(rank), region, line * ALIGN, size, first - 1, last - 1)
        for name, dtype, rank, region, line, size, first, last in rows
    ]


class PlanReader:
    """Makes the plans of a file one after another; each takes the next rows of every table."""

    def __init__(self, t: Tables) -> None:
        self.t = t
        self.kernels, self.words = _read_kernels(t), _read_words(t)
        (self.target,) = t.read_texts("head", "target")
        (self.threads,) = t.read_column("head", "thread_count")
        if not 1 <= self.threads < 1 << 16:
            raise PlanError(f"{self.threads} threads; expected 1 to {(1 << 16) - 1}")
        self.buffers, self.base, self.end = _read_buffers(t), 0, 0
        self.calls = self._read_calls()
        self.known: dict[tuple[int, Mode, int, int], Arg] = {}
        cuts = [0, *t.read_column("cut", "tile")], [0, *t.read_column("cut", "thread")]
        self.args = _Parts(
            zip(
                t.read_column("arg", "buffer"),
                _choose(t.read_column("arg", "mode"), MODES, "mode"),
                *([of[cut] for cut in t.read_column("arg", "cut")] for of in cuts),
                strict=True,
            )
        )
        self.pairs = _Parts(
            zip(*(t.read_column("pair", c) for c in ("written", "read")), strict=True)
        )
        self.operands = _Parts(t.read_texts("operand", "text"))
        self.steps = _Parts(
            zip(
                t.read_column("step", "call"),
                t.read_texts("step", "source"),
                _choose(t.read_column("step", "phase"), PHASES, "phase"),
                *(t.read_column("step", c) for c in ("pairs", "operands", "barrier", "group")),
                *(t.read_column("step", c) for c in ("tiles", "numbered", "again", "alone")),
                strict=True,
            )
        )
        self.dims = _Parts(t.read_column("port_dim", "size"))
        self.ports = _Parts(
            zip(
                t.read_texts("port", "name"),
                _choose(t.read_column("port", "dtype"), _TYPES, "element type"),
                t.read_column("port", "buffer"),
                t.read_column("port", "rank"),
                strict=True,
            )
        )
        self.regions = _Parts(
            zip(
                _choose(t.read_column("region", "region"), REGIONS, "region"),
                t.read_column("region", "bytes"),
                strict=True,
            )
        )
        self.uses = _Parts(t.read_column("use", "kernel"))
        self.constants = _Parts(
            zip(*(t.read_column("constant", c) for c in ("buffer", "place", "bytes")), strict=True)
        )

    def _read_calls(self) -> list[tuple[str, int, tuple[int | float, ...]]]:
        """Return the symbol, the number of arguments and the constants of every row of `call`."""
        pooled = _choose(self.t.read_column("word", "pooled"), self.words, "constant")
        columns = [self.t.read_column("call", c) for c in ("kernel", "args", "first", "words")]
        symbols = [kernel.symbol for kernel in self.kernels]
        calls = []
        for kernel, args, first, words in zip(*columns, strict=True):
            if kernel >= len(symbols) or first + words > len(pooled):
                raise PlanError("a call refers to a kernel or to constants that the file lacks")
            constants = tuple(pooled[first : first + words])
            calls.append((symbols[kernel], args, constants))
        return calls

    def read_plans(self) -> Iterator[Plan]:
        """Yield all plans, not verified."""
        names = [c.name for c in make_schema(stripped=False)["plan"] if c.name != "name"]
        rows = zip(*(self.t.read_column("plan", c) for c in names), strict=True)
        for name, row in zip(self.t.read_texts("plan", "name"), rows, strict=True):
            yield self._plan(name, dict(zip(names, row, strict=True)))
        if self.args.take_rows(1):
            raise PlanError("arguments that belong to no step")

    def _plan(self, name: str, counts: Mapping[str, int]) -> Plan:
        self.base, self.end = self.end, self.end + counts["buffers"]
        self.known.clear()
        ports = tuple(self._make_port(*row) for row in self.ports.take_rows(counts["ports"]))
        inputs = counts["inputs"]
        if inputs > len(ports):
            raise PlanError(f"plan {name} has {inputs} inputs among {len(ports)} ports")
        regions = self.regions.take_rows(counts["regions"])
        if len(dict(regions)) != len(regions):
            raise PlanError(f"plan {name} has a region twice")
        return Plan(
            name,
            self.target,
            self.threads,
            regions,
            tuple(self.buffers[self.base : self.end]),
            tuple(self._make_step(*row) for row in self.steps.take_rows(counts["steps"])),
            tuple(self.kernels[k] for k in self.uses.take_rows(counts["uses"])),
            ports[:inputs],
            ports[inputs:],
            tuple(
                self._read_constant(*row) for row in self.constants.take_rows(counts["constants"])
            ),
            counts["lower_bound"],
            counts["once"],
        )

    def _find_buffer(self, row: int) -> int:
        """Return the index in its plan of a row of `buffer`."""
        if not self.base <= row < self.end:
            raise PlanError("a plan uses a buffer of another")
        return row - self.base

    def _make_port(self, name: str, dtype: str, row: int, rank: int) -> Port:
        index, shape = self._find_buffer(row), self.dims.take_rows(rank)
        buffer = self.buffers[row]
        if dtype != buffer.dtype or _compute_size(shape) != _compute_size(buffer.shape):
            raise PlanError(
                f"port {name} of {dtype}{list(shape)} is buffer {buffer.name} of "
                f"{buffer.dtype}{list(buffer.shape)}"
            )
        return Port(name, index, shape)

    def _read_constant(self, row: int, place: int, size: int) -> tuple[int, bytes]:
        if place + size > len(self.t.constants):
            raise PlanError(f"the constant of buffer {row} is out of bounds")
        return self._find_buffer(row), self.t.constants[place : place + size]

    def _make_arg(self, key: tuple[int, Mode, int, int]) -> Arg:
        """Return an argument of the plan at hand that is not known yet; equal ones are one
        object.
        """
        row, mode, tile, thread = key
        made = self.known[key] = Arg(self._find_buffer(row - 1) if row else -1, mode, tile, thread)
        return made

    def _make_step(
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
        alone: int,
    ) -> PlanStep:
        symbol, n_args, words = self.calls[call]
        known = self.known
        args = tuple([known.get(key) or self._make_arg(key) for key in self.args.take_rows(n_args)])
        inplace = self.pairs.take_rows(pairs) if pairs else ()
        if len(args) != n_args or any(
            [i >= n_args or args[i].buffer < 0 for pair in inplace for i in pair]
        ):
            raise PlanError(f"step {source} of {symbol}: arguments that are not there")
        types = self.operands.take_rows(operands) if operands else ()
        return PlanStep(
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
            bool(alone),
        )
