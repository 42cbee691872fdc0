"""Vector IR of the sum of products of a row of floats and a row of packed integers with blocks."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.unpack import I8, STEP, split
from engine.kernels.vector_ir.vectors import (
    I32,
    I64,
    LLVM,
    NUMBA,
    call_outlined,
    intrinsic,
    load,
    splat,
)


def block_dot(target: Target, T: str, bits: int) -> Any:
    """block_dot(q, a, s, z, flip, blocks, size, y): y[0] = sum a_i ((q_i ^ flip) - z_j) s_j.

    q_i is integer i of `bits` bits, packed as for `unpack`, from a whole byte on; j, the block of
    i, is i // size.  size is a multiple of `STEP`.
    """
    P, B = types.CPointer(NUMBA[T]), types.CPointer(types.uint8)
    emit = call_outlined(f"block_dot_{T}_{bits}", lambda fn: _BlockDot(fn, T, bits).build())

    def op(typingctx, q, a, s, z, flip, blocks, size, y):
        return types.void(B, P, P, P, types.int64, types.int64, types.int64, P), emit

    return op


class _BlockDot:
    """Writes the body of `block_dot`."""

    def __init__(self, fn: Any, T: str, bits: int) -> None:
        self.fn, self.bits, self.size = fn, bits, ITEMSIZE[T]
        self.vt = ir.VectorType(LLVM[T], STEP)
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))
        name = f"llvm.fmuladd.v{STEP}{self.vt.element.intrinsic_name}"
        self.fma = intrinsic(fn.module, name, self.vt, [self.vt] * 3)

    def build(self) -> None:
        b = self.b
        q, a, s, z, flip, blocks, size, y = self.fn.args
        for pointer in (q, a, s, z, y):
            pointer.add_attribute("noalias")
        every = splat(b, b.trunc(flip, I8), STEP)

        def add_block(j: Any, total: Any) -> Any:
            zero = splat(b, b.load(b.gep(z, [j]), typ=self.vt.element), STEP)

            def add_step(i: Any, part: Any) -> Any:
                at = b.add(b.mul(j, size), i)
                value = b.fsub(self._read(q, at, every), zero)
                return b.call(self.fma, [value, load(b, b.gep(a, [at]), self.vt, self.size), part])

            part = self._sum(size, STEP, add_step)
            scale = splat(b, b.load(b.gep(s, [j]), typ=self.vt.element), STEP)
            return b.call(self.fma, [part, scale, total])

        value = self._sum(blocks, 1, add_block)
        count = STEP
        while count > 1:
            count //= 2
            halves = [
                ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
                for first in (0, count)
            ]
            value = b.fadd(*(b.shuffle_vector(value, value, half) for half in halves))
        b.store(b.extract_element(value, I32(0)), y)
        b.ret_void()

    def _sum(self, end: Any, step: int, add: Any) -> Any:
        """Return the vector that `add(i, sum)` makes of 0 for i = 0, step, ... below end."""
        b, entry = self.b, self.b.block
        head, inside, done = (b.append_basic_block(n) for n in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        i, total = b.phi(I64), b.phi(self.vt)
        i.add_incoming(I64(0), entry)
        total.add_incoming(ir.Constant(self.vt, [0.0] * STEP), entry)
        b.cbranch(b.icmp_signed("<", i, end), inside, done)
        b.position_at_end(inside)
        after = add(i, total)
        i.add_incoming(b.add(i, I64(step)), b.block)
        total.add_incoming(after, b.block)
        b.branch(head)
        b.position_at_end(done)
        return total

    def _read(self, q: Any, at: Any, flip: Any) -> Any:
        """Return `STEP` integers from number `at` on, as floats."""
        b, parts = self.b, 8 // self.bits
        stored = ir.VectorType(I8, STEP // parts)
        packed = load(b, b.gep(q, [b.udiv(at, I64(parts))]), stored, 1)
        value = b.xor(split(b, packed, self.bits), flip)
        return b.sitofp(b.zext(value, ir.VectorType(I32, STEP)), self.vt)
