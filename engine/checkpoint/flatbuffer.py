"""FlatBuffers without generated code: a bounds-checked reader, and a writer that copies nothing.

The Python package `flatbuffers` has no verifier: on a truncated or hostile file it reads elsewhere
or crashes, while this reader raises CheckpointError.  The bytes, all little-endian:

    table   int32 distance back to its vtable, then the fields
    vtable  uint16 bytes of the vtable, uint16 bytes of the table, then per slot the uint16 position
            of the field in the table, 0 if it is absent
    vector  uint32 count, then the elements; a string is a vector of bytes with a zero byte after it
    offset  uint32 distance forward from where it is stored
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

from engine.base.arguments import check_bytes
from engine.base.errors import CheckpointError, InputError

MAX_BYTES = 2**31 - 1  # of a file: offsets have 32 bits, and some of them a sign

Bytes: TypeAlias = bytes | bytearray | memoryview

U8, U16, U32 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I")
I32, I64, F32 = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<f")


# --- reading


class _InMemory:
    """Bytes in memory."""

    def __init__(self, data: Bytes, source: str) -> None:
        self._view = check_bytes(source, data)
        self.size = len(self._view)

    def compute_crc32(self, begin: int, crc: int = 0) -> int:
        """Return the CRC-32 of the bytes from `begin` on, after bytes whose CRC-32 is `crc`."""
        return zlib.crc32(self._view[begin:], crc)

    def read_at(self, pos: int, nbytes: int) -> memoryview:
        """Return the bytes from `pos` on, which must all be present."""
        return self._view[pos : pos + nbytes]

    def read_into(self, target: memoryview, pos: int) -> None:
        """Copy the bytes from `pos` on."""
        target[:] = self.read_at(pos, len(target))


class _InFile:
    """Bytes of an open file, with a small cache of blocks.

    The file is not mapped, because the process would end if it were truncated meanwhile.

    Raises:
        CheckpointError: from every method, the file is shorter than it was.
    """

    _BLOCK, _KEPT = 1 << 12, 64
    _PIECE = 1 << 20  # bytes that are read at a time for a checksum

    def __init__(self, file: io.RawIOBase, source: str) -> None:
        self._file, self._source = file, source
        self.size = file.seek(0, io.SEEK_END)
        self._blocks: dict[int, bytearray] = {}

    def compute_crc32(self, begin: int, crc: int = 0) -> int:
        """Return the CRC-32 of the bytes from `begin` on, after bytes whose CRC-32 is `crc`."""
        piece = memoryview(bytearray(min(self._PIECE, self.size - begin)))
        while begin < self.size:
            piece = piece[: self.size - begin]
            self.read_into(piece, begin)
            crc = zlib.crc32(piece, crc)
            begin += len(piece)
        return crc

    def read_at(self, pos: int, nbytes: int) -> memoryview:
        """Return the bytes from `pos` on, which were all present."""
        first, skip = divmod(pos, self._BLOCK)
        if skip + nbytes > self._BLOCK:
            content = bytearray(nbytes)
            self.read_into(memoryview(content), pos)
            return memoryview(content)
        if first not in self._blocks:
            if len(self._blocks) == self._KEPT:
                del self._blocks[next(iter(self._blocks))]
            begin = first * self._BLOCK
            block = bytearray(min(self._BLOCK, self.size - begin))
            self.read_into(memoryview(block), begin)
            self._blocks[first] = block
        return memoryview(self._blocks[first])[skip : skip + nbytes]

    def read_into(self, target: memoryview, pos: int) -> None:
        """Read the bytes from `pos` on."""
        self._file.seek(pos)
        while target:
            count = self._file.readinto(target)
            if not count:
                raise CheckpointError(
                    f"{self._source}: the file has become shorter since it was opened"
                )
            target = target[count:]


Source: TypeAlias = _InMemory | _InFile


def open_source(data: Bytes | io.RawIOBase, name: str) -> Source:
    """Return bytes, or an unbuffered binary file, for random access; `name` is for messages."""
    return _InFile(data, name) if isinstance(data, io.RawIOBase) else _InMemory(data, name)


class FlatbufferReader:
    """FlatBuffers bytes, checked before every access.

    Offsets only lead forward, so no walk can loop.  `budget` bounds the work and memory that
    overlapping objects could cause: each table, vector and string is charged for its bytes, and
    together they may take twice the bytes present (sharing a string would be legal).
    """

    def __init__(self, data: Bytes | io.RawIOBase, source: str) -> None:
        self.data = open_source(data, source)
        self.size = self.data.size
        self.source = source
        self.budget = 2 * self.size

    def fail(self, where: str, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.source}: {where}: {problem}")

    def read_number(self, kind: struct.Struct, pos: int, where: str) -> Any:
        """Return the number at byte `pos`, which must be a multiple of its size."""
        if pos < 0 or pos + kind.size > self.size:
            self.fail(where, f"needs {kind.size} bytes at {pos}, but {self.size} bytes are present")
        if pos % kind.size:
            self.fail(where, f"a number of {kind.size} bytes is misaligned at {pos}")
        return kind.unpack(self.data.read_at(pos, kind.size))[0]

    def claim(self, pos: int, nbytes: int, where: str) -> None:
        """Check that `nbytes` bytes at `pos` exist, and charge them to the budget."""
        if pos + nbytes > self.size:
            self.fail(where, f"needs {nbytes} bytes at {pos}, but {self.size} bytes are present")
        self.budget -= nbytes
        if self.budget < 0:
            self.fail(where, f"objects overlap: they claim more than twice the {self.size} bytes")

    def follow(self, pos: int, where: str) -> int:
        """Return the position to which the forward offset at `pos` leads."""
        offset: int = self.read_number(U32, pos, where)
        if offset == 0 or pos + offset >= self.size:
            self.fail(
                where, f"offset {offset} at {pos} leads outside the {self.size} bytes present"
            )
        return pos + offset

    def read_table(self, pos: int, where: str) -> FlatbufferTable:
        vtable = pos - self.read_number(I32, pos, where)
        vtable_size = self.read_number(U16, vtable, where)
        size = self.read_number(U16, vtable + 2, where)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self.size or size < 4:
            self.fail(where, f"the table at {pos} has a corrupt vtable at {vtable}")
        self.claim(pos, size, where)
        return FlatbufferTable(self, where, pos, size, vtable, vtable_size)

    def read_root(self, identifier: bytes, where: str) -> FlatbufferTable:
        """Return the root table of bytes that carry this identifier."""
        if self.size < 8:
            self.fail("header", f"{self.size} bytes; a {where} has at least 8")
        given = bytes(self.data.read_at(4, 4))
        if given != identifier:
            self.fail("header", f"identifier is {given!r}; a {where} has {identifier!r}")
        return self.read_table(self.follow(0, "header"), where)


@dataclass(frozen=True, slots=True)
class FlatbufferTable:
    """Table at byte `pos`; `where` names it in messages."""

    reader: FlatbufferReader
    where: str
    pos: int
    size: int  # bytes, from the vtable
    vtable: int  # byte position
    vtable_size: int  # bytes

    def fail(self, problem: str) -> NoReturn:
        self.reader.fail(self.where, problem)

    def name_table(self, name: str) -> FlatbufferTable:
        return replace(self, where=f"{self.where} {quote(name)}")

    def find_field(self, slot: int, nbytes: int) -> int | None:
        """Return the position of the field in `slot`, or None if it is absent."""
        entry = 4 + 2 * slot
        if entry + 2 > self.vtable_size:
            return None
        offset: int = self.reader.read_number(U16, self.vtable + entry, self.where)
        if offset == 0:
            return None
        if offset < 4 or offset + nbytes > self.size:
            self.fail(f"field {slot} lies at {offset} of a table of {self.size} bytes")
        return self.pos + offset

    def read_number(self, slot: int, kind: struct.Struct, default: int) -> Any:
        pos = self.find_field(slot, kind.size)
        return default if pos is None else self.reader.read_number(kind, pos, self.where)

    def find_target(self, slot: int, name: str) -> int | None:
        """Return the position of the object that the field refers to, or None if it is absent."""
        pos = self.find_field(slot, 4)
        return None if pos is None else self.reader.follow(pos, f"{self.where}.{name}")

    def find_vector(self, slot: int, item: int, name: str, tail: int = 0) -> tuple[int, int] | None:
        """Return (position of the first element, count) of a vector of `item`-byte elements."""
        pos = self.find_target(slot, name)
        if pos is None:
            return None
        where = f"{self.where}.{name}"
        count: int = self.reader.read_number(U32, pos, where)
        self.reader.claim(pos, 4 + count * item + tail, where)
        return pos + 4, count

    def read_string(self, slot: int, name: str) -> str:
        """Return a string; the format has no optional ones."""
        vector = self.find_vector(slot, 1, name, tail=1)
        if vector is None:
            self.fail(f"{name} is missing")
        start, count = vector
        data = self.reader.data.read_at(start, count + 1)
        if data[count] != 0:
            self.fail(f"{name} does not end in a zero byte")
        raw = bytes(data[:count])
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"{name} is not UTF-8: {raw[:40]!r} ({error.reason})")

    def read_child(self, slot: int, name: str) -> FlatbufferTable | None:
        pos = self.find_target(slot, name)
        return None if pos is None else self.reader.read_table(pos, name)

    def read_children(
        self, slot: int, name: str, *, required: bool = True
    ) -> Iterator[FlatbufferTable]:
        """Yield the tables of a vector of tables."""
        vector = self.find_vector(slot, 4, name)
        if vector is None:
            if required:
                self.fail(f"{name} is missing")
            return
        start, count = vector
        for i in range(count):
            place = f"{self.where}.{name}[{i}]"
            yield self.reader.read_table(self.reader.follow(start + 4 * i, place), place)


def quote(name: str) -> str:
    return repr(name) if len(name) <= 80 else repr(name[:77] + "...")


# --- writing

Field: TypeAlias = tuple[
    str, int, Any, Any
]  # (kind, slot, value, default), see `Writer.write_table`

_KINDS = {"Bool": U8, "Int32": I32, "UInt32": U32, "Int64": I64, "Float32": F32}
_REFERENCE = "reference"


def make_reference(slot: int, target: int) -> Field:
    """Return the field that refers to an object written before; 0 leaves it absent."""
    return _REFERENCE, slot, target, 0


class FlatbufferWriter:
    """Writer of objects from the last byte of a file to the first, as in the C++ builder.

    Methods return references: the number of bytes from the object to the end.  Given bytes are not
    copied.

    limit: the most bytes that a file may have.

    Raises:
        OverflowError: from any method, the file would be larger.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self._pieces: list[bytes | memoryview] = []  # in reverse order
        self._vtables: dict[tuple[int, ...], int] = {}
        self._align = 1  # of the whole file

    def compute_crc32(self) -> int:
        """Return the CRC-32 of the bytes written so far, as they lie in the file."""
        crc = 0
        for piece in reversed(self._pieces):
            crc = zlib.crc32(piece, crc)
        return crc

    def _put(self, piece: bytes | memoryview) -> int:
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size > self.limit:
            raise OverflowError
        return self.size

    def _pad(self, align: int, nbytes: int = 0) -> None:
        """Write zeros such that an object of `nbytes` bytes begins at a multiple of `align`."""
        self._align = max(self._align, align)
        self._put(bytes(-(self.size + nbytes) % align))

    def write_table(self, slots: int, *fields: Field) -> int:
        """Write a table, its fields from the highest address down; defaults are left out.

        A value may be a function, which is called when all bytes after the field are written.
        """
        end, places = self.size, [0] * slots
        for kind, slot, value, default in fields:
            if value == default:
                continue
            number = _KINDS.get(kind, U32)
            self._pad(number.size)
            if callable(value):
                value = value()
            places[slot] = self._put(
                number.pack(self.size + 4 - value if kind == _REFERENCE else value)
            )
        self._pad(4)
        index = len(self._pieces)
        place_ = self._put(bytes(4))  # the distance to the vtable, once that is known
        while places and not places[-1]:
            places.pop()
        vtable = (place_ - end, *(place_ - place if place else 0 for place in places))
        if vtable not in self._vtables:
            nbytes = 2 + 2 * len(vtable)
            self._vtables[vtable] = self._put(struct.pack(f"<{nbytes // 2}H", nbytes, *vtable))
        self._pieces[index] = I32.pack(self._vtables[vtable] - place_)
        return place_

    def write_references(self, targets: Sequence[int]) -> int:
        """Write a vector of references to objects."""
        end = self.size + -self.size % 4 + 4 * len(targets)  # to the start of the first
        steps = (end - 4 * i - target for i, target in enumerate(targets))
        return self._write_vector(struct.pack(f"<{len(targets)}I", *steps), len(targets), 4)

    def write_integers(self, values: Sequence[int]) -> int:
        """Write a vector of int64."""
        # The C++ builder does not align an empty vector to its element; its files have no such gap.
        packed = struct.pack(f"<{len(values)}q", *values)
        return self._write_vector(packed, len(values), 8 if values else 4)

    def write_bytes(self, data: bytes | memoryview, align: int = 4) -> int:
        """Write a vector of bytes, whose first lies at a multiple of `align`."""
        return self._write_vector(data, len(data), align)

    def write_text(self, raw: bytes) -> int:
        """Write a string from its bytes."""
        return self._write_vector(raw + b"\0", len(raw), 4)

    def write_string(self, value: str) -> int:
        """Write a string.

        Raises:
            InputError: it has no UTF-8 form.
        """
        try:
            return self.write_text(value.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"{quote(value)} cannot be stored as UTF-8: {error.reason}") from None

    def _write_vector(self, data: bytes | memoryview, count: int, align: int) -> int:
        self._pad(4, len(data))
        self._pad(align, len(data))
        self._put(data)
        return self._put(U32.pack(count))

    def finish(self, root: int, identifier: bytes) -> list[bytes | memoryview]:
        """Return the file with this root table, in pieces."""
        self._pad(self._align, 8)
        self._put(identifier)
        self._put(U32.pack(self.size + 4 - root))
        return self._pieces[::-1]
