"""Vector IR of products of a row of floats and rows of packed integers with blocks."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.dots import add_lanes
from engine.kernels.vector_ir.unpack import I8, STEP, split
from engine.kernels.vector_ir.vectors import (
    I32,
    I64,
    LLVM,
    NUMBA,
    Vector,
    call_outlined,
    intrinsic,
    load,
    splat,
)


def block_dot(target: Target, T: str, bits: int, columns: int) -> Any:
    """block_dot(q, a, s, z, flip, blocks, size, q_row, s_row, y)

    y[c] = sum a_i ((q_i ^ flip) - z_j) s_j for `columns` rows of integers, q_row bytes apart, with
    scales s_row elements and zero points `blocks` elements apart.

    q_i is integer i of `bits` bits, packed as for `unpack`, from a whole byte on; j, the block of
    i, is i // size.  size is a multiple of `STEP`.
    """
    P, B = types.CPointer(NUMBA[T]), types.CPointer(types.uint8)
    name = f"block_dot_{T}_{bits}x{columns}_{target.vector}"
    emit = call_outlined(name, lambda fn: _BlockDot(fn, target, T, bits).build(columns))

    def op(typingctx, q, a, s, z, flip, blocks, size, q_row, s_row, y):
        return types.void(B, P, P, P, *[types.int64] * 5, P), emit

    return op


class _BlockDot:
    """Writes the body of `block_dot`."""

    def __init__(self, fn: Any, target: Target, T: str, bits: int) -> None:
        self.fn, self.bits, self.size = fn, bits, ITEMSIZE[T]
        self.has_tables = T == "f32" and target.arch == "x86_64" and target.vector == 4 * STEP
        self.vt = Vector(LLVM[T], STEP)
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))
        name = f"llvm.fmuladd.v{STEP}{self.vt.element.intrinsic_name}"
        self.fma = intrinsic(fn.module, name, self.vt, [self.vt] * 3)

    def build(self, columns: int) -> None:
        b = self.b
        q, a, s, z, flip, blocks, size, q_row, s_row, y = self.fn.args
        for pointer in (q, a, s, z, y):
            pointer.add_attribute("noalias")
        rows = [
            [b.gep(p, [b.mul(step, I64(c))]) for p, step in ((q, q_row), (s, s_row), (z, blocks))]
            for c in range(columns)
        ]
        every = splat(b, b.trunc(flip, I8), STEP)

        by_table = self.bits == 4 and self.has_tables
        numbers = self._make_table(flip) if by_table else None

        def add_block(j: Any, totals: list[Any]) -> list[Any]:
            zeros = [splat(b, b.load(b.gep(z, [j]), typ=self.vt.element), STEP) for *_, z in rows]
            first = b.mul(j, size)

            def add_step(i: Any, parts: list[Any]) -> list[Any]:
                at = b.add(first, i)
                left = load(b, b.gep(a, [at]), self.vt, self.size)
                out = []
                for (q, *_), zero, part in zip(rows, zeros, parts, strict=True):
                    value = b.fsub(self._read(q, at, every), zero)
                    out.append(b.call(self.fma, [value, left, part]))
                return out

            done, parts = I64(0), [ir.Constant(self.vt, [0.0] * STEP)] * columns
            if by_table:
                tables = [b.fsub(numbers, zero) for zero in zeros]
                done = b.and_(size, I64(-2 * STEP))

                def add_pairs(i: Any, parts: list[Any]) -> list[Any]:
                    at = b.add(first, i)
                    left = self._read_apart(a, at)
                    places = [b.gep(q, [b.udiv(at, I64(2))]) for q, *_ in rows]
                    return self._look_up(places, tables, left, parts)

                parts = self._sum(I64(0), done, 2 * STEP, parts, add_pairs)
            parts = self._sum(done, size, STEP, parts, add_step)
            out = []
            for (_, s, _), part, total in zip(rows, parts, totals, strict=True):
                scale = splat(b, b.load(b.gep(s, [j]), typ=self.vt.element), STEP)
                out.append(b.call(self.fma, [part, scale, total]))
            return out

        none = [ir.Constant(self.vt, [0.0] * STEP)] * columns
        sums = add_lanes(b, self._sum(I64(0), blocks, 1, none, add_block), STEP)
        for c in range(columns):
            b.store(b.extract_element(sums, I32(c)), b.gep(y, [I64(c)]))
        b.ret_void()

    def _sum(self, begin: Any, end: Any, step: int, starts: list[Any], add: Any) -> list[Any]:
        """Return the vectors that `add(i, vectors)` makes of others for i = begin ... end."""
        b, entry = self.b, self.b.block
        head, inside, done = (b.append_basic_block(n) for n in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        i, totals = b.phi(I64), [b.phi(self.vt) for _ in starts]
        i.add_incoming(begin, entry)
        b.cbranch(b.icmp_signed("<", i, end), inside, done)
        b.position_at_end(inside)
        after = add(i, totals)
        i.add_incoming(b.add(i, I64(step)), b.block)
        for total, start, new in zip(totals, starts, after, strict=True):
            total.add_incoming(start, entry)
            total.add_incoming(new, b.block)
        b.branch(head)
        b.position_at_end(done)
        return totals

    # --- integers of 4 bits as places in a table, where an instruction looks up 16 at once

    def _make_table(self, flip: Any) -> Any:
        """Return each integer of 4 bits, flipped, as a float."""
        b, kind = self.b, Vector(I32, STEP)
        numbers = b.xor(ir.Constant(kind, list(range(STEP))), splat(b, b.trunc(flip, I32), STEP))
        return b.sitofp(numbers, self.vt)

    def _read_apart(self, a: Any, at: Any) -> list[Any]:
        """Return the next floats with even numbers, and those with odd ones."""
        b = self.b
        low, high = (
            load(b, b.gep(a, [b.add(at, I64(STEP * i))]), self.vt, self.size) for i in (0, 1)
        )
        orders = (list(range(first, 2 * STEP, 2)) for first in (0, 1))
        kind = Vector(I32, STEP)
        return [b.shuffle_vector(low, high, ir.Constant(kind, order)) for order in orders]

    def _look_up(
        self, places: list[Any], tables: list[Any], left: list[Any], parts: list[Any]
    ) -> list[Any]:
        """Return sums with the products of the integers of 16 bytes: of low and of high bits.

        A table has what an integer stands for, less its zero point; only the low bits of a place
        count.
        """
        b, kind, out = self.b, Vector(I32, STEP), list[Any]()
        take = intrinsic(self.fn.module, "llvm.x86.avx512.permvar.sf.512", self.vt, [self.vt, kind])
        four = ir.Constant(kind, [4] * STEP)
        for place, table, part in zip(places, tables, parts, strict=True):
            low = b.zext(load(b, place, Vector(I8, STEP), 1), kind)
            for index, factor in zip((low, b.lshr(low, four)), left, strict=True):
                part = b.call(self.fma, [b.call(take, [table, index]), factor, part])
            out.append(part)
        return out

    def _read(self, q: Any, at: Any, flip: Any) -> Any:
        """Return `STEP` integers from number `at` on, as floats."""
        b, parts = self.b, 8 // self.bits
        stored = Vector(I8, STEP // parts)
        packed = load(b, b.gep(q, [b.udiv(at, I64(parts))]), stored, 1)
        value = b.xor(split(b, packed, self.bits), flip)
        return b.sitofp(b.zext(value, Vector(I32, STEP)), self.vt)
