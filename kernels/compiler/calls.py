"""Calls of a kernel in a library that no other library shares: what they have in common.

The plans of a trimmed build are known when it is made, and with them every word that a kernel will
ever get.  Words that are equal in all calls become constants of its code (`emit.emit_library`), and
its plans do not have them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calls:
    """Words and threads that all calls of a kernel in a library share.

    pointers: how many of its words are addresses; they come first.
    words: how many words there are; 0: the kernel writes into them, and they are not looked at.
    known: the words that are equal in all calls, by their place; addresses only where all are 0.
    alone: whether one thread runs it, as thread 0, so that there is no more to share.
    """

    pointers: int
    words: int
    known: Mapping[int, int | float]
    alone: bool

    def is_passed(self, place: int) -> bool:
        """Return whether plans have the word at a place."""
        return not self.words or place not in self.known


def write_caller(symbol: str, calls: Calls) -> Iterator[str]:
    """Yield the function that the table has instead of a kernel; the kernel becomes a part of it.

    define internal void @gemm_f32_0_0.called(ptr %words, i64 %tid, i64 %n) {
      %own = alloca [30 x i64]                    a copy, which registers replace
      %0 = load ptr, ptr %words                   a word that differs from call to call
      store ptr %0, ptr %own
      %to.1 = getelementptr i64, ptr %own, i64 1
      store i64 8, ptr %to.1                      a known one, which is not among %words
      ...
      call void @gemm_f32_0_0(ptr %own, i64 0, i64 1) alwaysinline
    """
    given, facts = ("%own", "noalias readonly") if calls.words else ("%words", "")
    yield f'define internal void @"{symbol}.called"(ptr {facts} %words, i64 %tid, i64 %n) {{'
    if calls.words:
        yield f"%own = alloca [{calls.words} x i64], align 16"
    passed = 0
    for i in range(calls.words):
        kind, value = ("ptr" if i < calls.pointers else "i64"), f"%v.{i}"
        if i < calls.pointers and i in calls.known:
            value = "null"
        elif i in calls.known:
            known = calls.known[i]
            bits = struct.pack("<d" if isinstance(known, float) else "<q", known)
            value = str(int.from_bytes(bits, "little", signed=True))
        else:
            yield f"%from.{i} = getelementptr i64, ptr %words, i64 {passed}"
            passed += 1
            yield f"%v.{i} = load {kind}, ptr %from.{i}, align 8"
        yield f"%to.{i} = getelementptr i64, ptr %own, i64 {i}"
        yield f"store {kind} {value}, ptr %to.{i}, align 8"
    tid, n = ("0", "1") if calls.alone else ("%tid", "%n")
    yield f'call void @"{symbol}"(ptr {given}, i64 {tid}, i64 {n}) alwaysinline'
    yield "ret void\n}"
