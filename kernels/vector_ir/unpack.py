"""Vector IR that turns packed integers of 2, 4 or 8 bits into floats."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.vectors import (
    I32,
    I64,
    LLVM,
    NUMBA,
    Vector,
    call_outlined,
    counted,
    splat,
    store,
)

STEP = 16  # elements a turn, whatever the registers hold: whole bytes, and few loads
I8 = ir.IntType(8)


def unpack(target: Target, T: str, bits: int) -> Any:
    """unpack(q, first, into, n, flip, zero, scale): into[i] = ((q_i ^ flip) - zero) scale, i < n.

    q_i is the integer `first + i` of `bits` bits from q on; a byte holds the first of its integers
    in its lowest bits.  Flipping the highest bit of a signed integer makes it unsigned, larger by
    the value of that bit; so do zero points that are flipped too.
    """
    P, B = types.CPointer(NUMBA[T]), types.CPointer(types.uint8)
    emit = call_outlined(f"unpack_{T}_{bits}", lambda fn: _Unpack(fn, T, bits).build())

    def op(typingctx, q, first, into, n, flip, zero, scale):
        i64, real = types.int64, NUMBA[T]
        return types.void(B, i64, P, i64, i64, real, real), emit

    return op


def split(b: Any, packed: Any, bits: int) -> Any:
    """Return the integers of a vector of bytes, a byte each."""
    if bits == 8:
        return packed
    kind, count = packed.type, packed.type.count
    low = ir.Constant(kind, [2**bits - 1] * count)
    rows = []
    for part in range(8 // bits):
        shift = ir.Constant(kind, [bits * part] * count)
        rows.append(b.and_(b.lshr(packed, shift), low))
    while len(rows) > 1:  # rows that lie half of them apart are neighbours in the result
        half, size = len(rows) // 2, rows[0].type.count
        order = [k // 2 + (k % 2) * size for k in range(2 * size)]
        mask = ir.Constant(Vector(I32, 2 * size), order)
        rows = [b.shuffle_vector(rows[k], rows[k + half], mask) for k in range(half)]
    return rows[0]


class _Unpack:
    """Writes the body of `unpack`."""

    def __init__(self, fn: Any, T: str, bits: int) -> None:
        self.fn, self.T, self.bits, self.parts = fn, T, bits, 8 // bits
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))
        for k in (0, 2):
            fn.args[k].add_attribute("noalias")

    def build(self) -> None:
        b = self.b
        _, first, _, n, flip, zero, scale = self.fn.args
        # One at a time up to the first of a byte, then whole bytes, then what is left.
        past = b.and_(first, I64(self.parts - 1))
        head = b.and_(b.sub(I64(self.parts), past), I64(self.parts - 1))
        head = b.select(b.icmp_signed("<", head, n), head, n)
        small = b.trunc(flip, I8)
        every = [splat(b, v, STEP) for v in (small, zero, scale)]
        done = counted(b, I64(0), head, 1, lambda i: self._emit_one(i, small))
        done = counted(b, done, n, STEP, lambda i: self._emit_many(i, *every))
        counted(b, done, n, 1, lambda i: self._emit_one(i, small))
        b.ret_void()

    def _byte(self, i: Any) -> Any:
        """Return the address of the byte that holds integer i."""
        at = self.b.add(self.fn.args[1], i)
        return self.b.gep(self.fn.args[0], [self.b.udiv(at, I64(self.parts))])

    def _emit_one(self, i: Any, flip: Any) -> None:
        b = self.b
        _, first, into, _, _, zero, scale = self.fn.args
        value = b.load(self._byte(i), typ=I8)
        at = b.and_(b.add(first, i), I64(self.parts - 1))
        value = b.lshr(value, b.trunc(b.mul(at, I64(self.bits)), I8))
        value = b.xor(b.and_(value, I8(2**self.bits - 1)), flip)
        real = b.sitofp(b.zext(value, I32), LLVM[self.T])
        b.store(b.fmul(b.fsub(real, zero), scale), b.gep(into, [i]))

    def _emit_many(self, i: Any, flip: Any, zero: Any, scale: Any) -> None:
        b = self.b
        stored = Vector(I8, STEP // self.parts)
        packed = b.load(b.bitcast(self._byte(i), stored.as_pointer()), typ=stored)
        packed.align = 1
        value = b.xor(split(b, packed, self.bits), flip)
        wide = b.zext(value, Vector(I32, STEP))
        real = b.sitofp(wide, Vector(LLVM[self.T], STEP))
        value = b.fmul(b.fsub(real, zero), scale)
        store(b, value, b.gep(self.fn.args[2], [i]), ITEMSIZE[self.T])
