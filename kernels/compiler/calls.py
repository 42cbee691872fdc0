"""Calls of a kernel in a trimmed build: where its code finds their arguments.

All calls of a kernel in a trimmed build are known when it is made.  Words that are equal in all
calls become constants of its code (`emit.emit_library`).  The others are in a *record* for each
call, in a few bytes each, which the code reads from constant data of the library.  So no argument
is in writable memory, except the `CALL` of engine/plan/context.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.plan.context import CALL

Kind = Literal["none", "memory", "constants"]  # null, or an offset in one of two blocks
UNIT = 2  # bytes: the size of a record is a multiple of it, and where it begins


@dataclass(frozen=True, slots=True)
class RecordField:
    """A number of a call: `low + step * n`.

    n: the unsigned integer of `size` bytes at byte `at` of the record; 0 if it takes none.
    """

    low: int = 0
    step: int = 0
    size: int = 0
    at: int = 0

    @property
    def is_zero(self) -> bool:
        """Return whether it is 0 in all calls."""
        return not self.low and not self.size

    def count(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return `n` of each of these values."""
        return tuple((value - self.low) // (self.step or 1) for value in values)

    def write(self, name: str, into: list[str]) -> str:
        """Append the lines that compute it as an i64; returns the operand that has it."""
        if not self.size:
            return str(_wrap(self.low))
        kind = f"i{8 * self.size}"
        into += [
            f"%{name}.at = getelementptr i8, ptr %record, i64 {self.at}",
            f"%{name}.n = load {kind}, ptr %{name}.at, align {1 if self.at % UNIT else UNIT}",
        ]
        value = f"%{name}.n"
        if self.size < 8:
            into.append(f"%{name}.wide = zext {kind} {value} to i64")
            value = f"%{name}.wide"
        into += [
            f"%{name}.part = mul i64 {value}, {_wrap(self.step)}",
            f"%{name}.value = add i64 %{name}.part, {_wrap(self.low)}",
        ]
        return f"%{name}.value"


@dataclass(frozen=True, slots=True)
class Address:
    """A word that is an address.

    kinds: those that it has in some call.
    kind: which of them, counted from 0.
    offset: from the start of the block, in bytes.
    tile, thread: the bytes by which it moves with the number of a tile, and of a thread.
    """

    kinds: Sequence[Kind]
    kind: RecordField
    offset: RecordField
    tile: RecordField
    thread: RecordField

    def write(self, name: str, constants: str, into: list[str]) -> str:
        """Append the lines that compute it; returns the operand that has it.

        constants: the symbol of the block of constants.
        """
        blocks = {"memory": "%base", "constants": f'@"{constants}"'}
        kinds = [kind for kind in self.kinds if kind != "none"]
        if not kinds:
            return "null"
        which = self.kind.write(f"{name}.kind", into)
        at = blocks[kinds[0]]
        for kind in kinds[1:]:
            into += [
                f"%{name}.is.{kind} = icmp eq i64 {which}, {self.kinds.index(kind)}",
                f"%{name}.block = select i1 %{name}.is.{kind}, ptr {blocks[kind]}, ptr {at}",
            ]
            at = f"%{name}.block"
        for part, field, times in (
            ("offset", self.offset, ""), ("tile", self.tile, "%tile"),
            ("thread", self.thread, "%thread"),
        ):  # fmt: skip
            if field.is_zero:
                continue
            value = field.write(f"{name}.{part}", into)
            if times:
                into.append(f"%{name}.{part}.move = mul i64 {value}, {times}")
                value = f"%{name}.{part}.move"
            into.append(f"%{name}.{part}.to = getelementptr i8, ptr {at}, i64 {value}")
            at = f"%{name}.{part}.to"
        if "none" in self.kinds:
            into += [
                f"%{name}.lacks = icmp eq i64 {which}, {self.kinds.index('none')}",
                f"%{name}.given = select i1 %{name}.lacks, ptr null, ptr {at}",
            ]
            at = f"%{name}.given"
        return at


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls of a kernel in a library that have so many words.

    name: of the function that makes them.
    words: where each word is; None: the kernel is called with the words of the executor.
    size: bytes of the record of a call.
    alone: whether one thread runs it, as thread 0, so that there is nothing more to share.
    """

    symbol: str
    name: str
    words: Sequence[RecordField | Address] | None
    size: int
    alone: bool


def _wrap(value: int) -> int:
    """Return the signed number of 64 bits that is equal to it modulo 2^64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def write_caller(calls: Calls, constants: str) -> Iterator[str]:
    """Yield the function that the table has instead of a kernel; the kernel becomes a part of it.

    define internal void @gemm_f32_0_0.called(ptr %words, i64 %tid, i64 %n) {
      %own = alloca [30 x i64]                    the kernel's words, which registers replace
      %base = load ptr, ptr %words
      %record = ...
      %1.offset.at = getelementptr i8, ptr %record, i64 4
      %1.offset.n = load i16, ptr %1.offset.at
      ...
      %1.offset.to = getelementptr i8, ptr %base, i64 %1.offset.value
      store ptr %1.offset.to, ptr %to.1           an address that differs from call to call
      store i64 8, ptr %to.2                      a number that does not
      ...
      call void @gemm_f32_0_0(ptr %own, i64 0, i64 1) alwaysinline
    """
    tid, n = ("0", "1") if calls.alone else ("%tid", "%n")
    facts = "noalias readonly" if calls.words is not None else ""
    yield f'define internal void @"{calls.name}"(ptr {facts} %words, i64 %tid, i64 %n) {{'
    given = "%words"
    if calls.words is not None:
        given = "%own"
        yield f"%own = alloca [{max(1, len(calls.words))} x i64], align 16"
        for name, kind in (("base", "ptr"), ("record", "ptr"), ("tile", "i64"), ("thread", "i64")):
            yield f"%in.{name} = getelementptr i64, ptr %words, i64 {CALL.find_member(name).offset}"
            yield f"%{name} = load {kind}, ptr %in.{name}, align 8"
        for i, word in enumerate(calls.words):
            lines: list[str] = []
            if isinstance(word, Address):
                value, kind = word.write(f"w{i}", constants, lines), "ptr"
            else:
                value, kind = word.write(f"w{i}", lines), "i64"
            yield from lines
            yield f"%to.{i} = getelementptr i64, ptr %own, i64 {i}"
            yield f"store {kind} {value}, ptr %to.{i}, align 8"
    yield f'call void @"{calls.symbol}"(ptr {given}, i64 {tid}, i64 {n}) alwaysinline'
    yield "ret void\n}"
