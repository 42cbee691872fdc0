"""Plans as bytes: a plan made on one machine runs on another that has its kernels.

    file     "EGPL"  u32 version  u64 bytes of the payload  u32 CRC-32 of the payload  payload
    payload  text table, then the fields of `Plan` in order of declaration

All little-endian.  Integers are LEB128, signed ones zigzagged; floats are 8 bytes; a text is its
index in the table; a sequence is its length, then its elements.

The checksum and the checks of the reader catch damage.  They do not make a stranger's plan safe to
run: the constants of steps tell kernels how far to reach.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast, get_args

from engine.element_types import ITEMSIZE
from engine.errors import ModelError, PlanError
from engine.runtime.plan import (
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
    verify,
)

MAGIC, VERSION = b"EGPL", 2
_HEADER = struct.Struct("<4sIQI")
_LIMIT = 1 << 62  # of sizes, offsets and counts: the sum of two fits 64 bits
_INT, _FLOAT, _TEXT = 0, 1, 2  # tags of a constant or parameter

T = TypeVar("T")


def to_bytes(plan: Plan) -> bytes:
    """The plan as a file; equal plans give equal bytes."""
    out = _Writer()
    out.plan(plan)
    table = bytearray()
    _unsigned(table, len(out.texts))
    for text in out.texts:
        raw = text.encode("utf-8")
        _unsigned(table, len(raw))
        table += raw
    payload = bytes(table + out.data)
    return _HEADER.pack(MAGIC, VERSION, len(payload), zlib.crc32(payload)) + payload


def from_bytes(data: bytes, source: str = "plan file") -> Plan:
    """The plan of a file, verified.

    Raises:
        ModelError: the bytes are no plan, damaged, of another version, or break a plan's rules.
    """
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise ModelError(f"{source}: not a plan file")
    _, version, size, crc = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ModelError(f"{source}: plan file of version {version}, expected {VERSION}")
    payload = data[_HEADER.size :]
    if len(payload) != size:
        raise ModelError(f"{source}: {len(payload)} bytes of payload, the header says {size}")
    if zlib.crc32(payload) != crc:
        raise ModelError(f"{source}: damaged, the checksum is wrong")
    try:
        reader = _Reader(payload)
        plan = reader.plan()
        if reader.at != len(payload):
            raise ModelError(f"{len(payload) - reader.at} bytes after the plan")
        return verify(plan)
    except (ModelError, PlanError) as error:
        raise ModelError(f"{source}: {error}") from None


def _unsigned(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()
        self.texts: dict[str, int] = {}

    def natural(self, value: int) -> None:
        if not 0 <= value < _LIMIT:
            raise PlanError(f"{value} does not fit a plan file")
        _unsigned(self.data, value)

    def integer(self, value: int) -> None:
        if not -(1 << 63) <= value < 1 << 63:
            raise PlanError(f"{value} does not fit a plan file")
        _unsigned(self.data, value << 1 if value >= 0 else (-value << 1) - 1)

    def text(self, value: str) -> None:
        self.natural(self.texts.setdefault(value, len(self.texts)))

    def each(self, values: Iterable[T], write: Callable[[T], None]) -> None:
        items = tuple(values)
        self.natural(len(items))
        for item in items:
            write(item)

    def scalar(self, value: str | int | float) -> None:
        if isinstance(value, str):
            self.natural(_TEXT)
            self.text(value)
        elif isinstance(value, float):
            self.natural(_FLOAT)
            self.data += struct.pack("<d", value)
        else:
            self.natural(_INT)
            self.integer(int(value))

    def raw(self, value: bytes) -> None:
        self.natural(len(value))
        self.data += value

    def region(self, item: tuple[str, int]) -> None:
        self.text(item[0])
        self.natural(item[1])

    def buffer(self, b: Buffer) -> None:
        for text in (b.name, b.dtype, b.region):
            self.text(text)
        self.each(b.shape, self.natural)
        for value in (b.offset, b.nbytes, b.first + 1, b.last + 1):  # -1: before the first step
            self.natural(value)

    def step(self, s: Step) -> None:
        for text in (s.kernel, s.source, s.phase):
            self.text(text)
        self.each(s.args, self.arg)
        self.each(s.consts, self.scalar)
        self.each((n for pair in s.inplace for n in pair), self.natural)
        self.natural(int(s.barrier))
        self.each(s.operands, self.text)

    def arg(self, a: Arg) -> None:
        self.text(a.mode)
        self.natural(a.buffer + 1)

    def kernel(self, k: Kernel) -> None:
        self.text(k.spec.template)
        self.each(k.spec.params, self.scalar)
        self.each(k.takes, self.text)

    def port(self, p: Port) -> None:
        self.text(p.name)
        self.natural(p.buffer)
        self.each(p.shape, self.natural)

    def constant(self, item: tuple[int, bytes]) -> None:
        self.natural(item[0])
        self.raw(item[1])

    def plan(self, p: Plan) -> None:
        self.text(p.name)
        self.text(p.target)
        self.natural(p.threads)
        self.each(p.regions, self.region)
        self.each(p.buffers, self.buffer)
        self.each(p.steps, self.step)
        self.each(p.kernels, self.kernel)
        self.each(p.inputs, self.port)
        self.each(p.outputs, self.port)
        self.each(p.constants, self.constant)
        self.natural(p.lower_bound)


class _Reader:
    """Reads what `_Writer` wrote; every method raises ModelError on what it would not write."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.buffers = 0
        self.texts: tuple[str, ...] = ()
        self.texts = self.each(lambda: self._decode(self.raw()))

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ModelError("a text is not UTF-8") from None

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ModelError(f"truncated at byte {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def natural(self, limit: int = _LIMIT) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift > 63:
                raise ModelError(f"an integer too long at byte {self.at}")
        if value >= limit:
            raise ModelError(f"{value} at byte {self.at}, expected less than {limit}")
        return value

    def integer(self) -> int:
        value = self.natural(1 << 64)
        return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def text(self, among: Iterable[str] | None = None) -> str:
        found = self.texts[self.natural(max(len(self.texts), 1))] if self.texts else ""
        if among is not None and found not in among:
            raise ModelError(f"{found!r} is none of {', '.join(among)}")
        return found

    def each(self, read: Callable[[], T]) -> tuple[T, ...]:
        count = self.natural()
        if count > len(self.data) - self.at:  # an element takes a byte at least
            raise ModelError(f"truncated at byte {self.at}: {count} elements")
        return tuple(read() for _ in range(count))

    def scalar(self) -> Any:
        tag = self.natural(3)
        if tag == _FLOAT:
            return struct.unpack("<d", self.take(8))[0]
        return self.text() if tag == _TEXT else self.integer()

    def number(self) -> int | float:
        value = self.scalar()
        if isinstance(value, str):
            raise ModelError(f"constant {value!r} of a step is a text")
        return cast("int | float", value)

    def parameter(self) -> str | int:
        value = self.scalar()
        if isinstance(value, float):
            raise ModelError(f"parameter {value!r} of a kernel is a float")
        return cast("str | int", value)

    def raw(self) -> bytes:
        return self.take(self.natural())

    def region(self) -> tuple[str, int]:
        return self.text(REGIONS), self.natural()

    def buffer(self) -> Buffer:
        name, dtype, region = self.text(), self.text(ITEMSIZE), self.text(REGIONS)
        shape = self.each(self.natural)
        offset, nbytes = self.natural(), self.natural()
        return Buffer(
            name, dtype, shape, region, offset, nbytes, self.natural() - 1, self.natural() - 1
        )

    def step(self) -> Step:
        kernel, source, phase = self.text(), self.text(), self.text(get_args(Phase))
        args = self.each(self.arg)
        consts = self.each(self.number)
        flat = self.each(lambda: self.natural(len(args)))
        if len(flat) % 2:
            raise ModelError(f"step {kernel}: in-place positions come in pairs")
        pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
        if any(args[i].buffer < 0 for i in flat):
            raise ModelError(f"step {kernel}: an in-place position has no buffer")
        barrier = bool(self.natural(2))
        operands = self.each(self.text)
        return Step(kernel, args, consts, source, cast("Phase", phase), pairs, barrier, operands)

    def arg(self) -> Arg:
        mode = cast("Mode", self.text(get_args(Mode)))
        return Arg(self.natural(self.buffers + 1) - 1, mode)

    def kernel(self) -> Kernel:
        template, params = self.text(), self.each(self.parameter)
        if not params:
            raise ModelError(f"kernel {template} has no parameters")
        return Kernel(KernelSpec(template, params), self.each(self.text))

    def port(self) -> Port:
        name, buffer = self.text(), self.natural(self.buffers)
        return Port(name, buffer, self.each(self.natural))

    def constant(self) -> tuple[int, bytes]:
        return self.natural(self.buffers), self.raw()

    def plan(self) -> Plan:
        name, target, threads = self.text(), self.text(), self.natural(1 << 16)
        regions = self.each(self.region)
        buffers = self.each(self.buffer)
        self.buffers = len(buffers)
        steps, kernels = self.each(self.step), self.each(self.kernel)
        inputs, outputs = self.each(self.port), self.each(self.port)
        constants, bound = self.each(self.constant), self.natural()
        if threads < 1 or len(dict(regions)) != len(regions):
            raise ModelError("no threads, or a region twice")
        for port in (*inputs, *outputs):
            b = buffers[port.buffer]
            if _size(port.shape) != _size(b.shape):
                raise ModelError(
                    f"port {port.name} of {port.shape} is buffer {b.name} of {b.shape}"
                )
        return Plan(name, target, threads, regions, buffers, steps, kernels, inputs, outputs,
                    constants, bound)  # fmt: skip


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for d in shape:
        size *= d
    return size
