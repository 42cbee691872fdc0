"""Vector IR of products of rows by rows: the factors of each sum lie side by side in both."""

from __future__ import annotations

import itertools
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
    Grid,
    Vector,
    call_outlined,
    intrinsic,
    load,
)
from engine.kernels.vocabulary.kernel import ACCUMULATE, BIAS, RELU


def dots(target: Target, T: str, mr: int, nr: int) -> Any:
    """dots(a, b, c, bias, k, lda, ldb, ldc, mode): C = act(A B^T (+ C) (+ bias)).

    A is mr rows of k elements, B is nr rows of them, C mr rows of nr: A[i, p] is a[i lda + p],
    B[j, p] is b[j ldb + p], C[i, j] is c[i ldc + j].  `mode` adds up ACCUMULATE, BIAS (one value a
    column) and RELU.  C must not overlap A, B or bias.

    A vector of each row is multiplied at a time, so a sum has as many parts as a vector has lanes.
    """
    lanes = target.lanes(ITEMSIZE[T])
    name = f"dots_{T}_{mr}x{nr}x{lanes}"
    emit = call_outlined(name, lambda fn: _Dots(fn, target, T, mr, nr).build())

    def op(typingctx, a, b, c, bias, k, lda, ldb, ldc, mode):
        return types.void(*[types.CPointer(NUMBA[T])] * 4, *[types.int64] * 5), emit

    return op


def add_lanes(b: Any, vectors: list[Any], lanes: int) -> Any:
    """Return a vector whose first elements are the sums over the lanes of each of some vectors.

    Halves of two are added as one, as long as there are two; then the halves of the last.
    """
    parts = lanes  # of each sum
    while parts > 1:
        pairs = list(zip(vectors[::2], vectors[1::2], strict=False)) or [(vectors[0],) * 2]
        length = vectors[0].type.count
        starts = range(0, length, parts)
        low, high = (
            [s + p for s in starts for p in range(first, first + parts // 2)]
            for first in (0, parts // 2)
        )
        if len(vectors) > 1:
            low, high = ([*half, *(length + p for p in half)] for half in (low, high))
        masks = [ir.Constant(Vector(I32, len(half)), half) for half in (low, high)]
        vectors = [
            b.fadd(*(b.shuffle_vector(first, second, mask) for mask in masks))
            for first, second in pairs
        ]
        parts //= 2
    while len(vectors) > 1:
        length = vectors[0].type.count
        mask = ir.Constant(Vector(I32, 2 * length), list(range(2 * length)))
        vectors = [
            b.shuffle_vector(x, y, mask) for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


class _Dots:
    """Writes the body of one such product."""

    def __init__(self, fn: Any, target: Target, T: str, mr: int, nr: int) -> None:
        self.fn, self.target, self.mr, self.nr = fn, target, mr, nr
        self.scalar, self.size = LLVM[T], ITEMSIZE[T]
        self.lanes = target.lanes(self.size)
        self.vt = Vector(self.scalar, self.lanes)
        self.T = T
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))

    def build(self) -> None:
        b = self.b
        a, bp, c, bias, k, lda, ldb, ldc, mode = self.fn.args
        for pointer in (a, bp, c, bias):
            pointer.add_attribute("noalias")
        left = [b.gep(a, [b.mul(lda, I64(i))]) for i in range(self.mr)]
        right = [b.gep(bp, [b.mul(ldb, I64(j))]) for j in range(self.nr)]
        zero = ir.Constant(self.vt, [0.0] * self.lanes)
        acc = [[zero] * self.nr for _ in range(self.mr)]
        whole = b.and_(k, I64(-self.lanes))
        acc = self._loop(I64(0), whole, self.lanes, acc, self.vt, left, right)
        sums = [add_lanes(b, row, self.lanes) for row in acc]
        single = [
            [b.extract_element(row, I32(j)) for j in range(self.nr)] for row in sums
        ]  # of what is left of each row, less than a vector
        single = self._loop(whole, k, 1, single, self.scalar, left, right)
        for i, row in enumerate(single):
            self._finish(row, b.gep(c, [b.mul(ldc, I64(i))]), bias, mode)
        b.ret_void()

    def _loop(
        self, begin: Any, end: Any, step: int, acc: Grid, kind: Any, left: Any, right: Any
    ) -> Grid:
        """Return the sums with the products of elements begin ... end, `step` at a time."""
        b, entry = self.b, self.b.block
        suffix = f"v{self.lanes}{self.T}" if kind == self.vt else self.T
        op = "fma" if self.target.fma else "fmuladd"
        fma = intrinsic(self.fn.module, f"llvm.{op}.{suffix}", kind, [kind] * 3)
        loop, done = self.fn.append_basic_block("loop"), self.fn.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", begin, end), loop, done)
        b.position_at_end(loop)
        at = b.phi(I64)
        live = [[b.phi(kind) for _ in row] for row in acc]
        x, y = (
            [load(b, b.gep(row, [at]), kind, self.size) for row in side] for side in (left, right)
        )
        out = [
            [b.call(fma, [x[i], y[j], old]) for j, old in enumerate(row)]
            for i, row in enumerate(live)
        ]
        after = b.add(at, I64(step))
        at.add_incoming(begin, entry)
        at.add_incoming(after, loop)
        b.cbranch(b.icmp_signed("<", after, end), loop, done)
        b.position_at_end(done)
        merged = [[b.phi(kind) for _ in row] for row in acc]
        for i, j in itertools.product(range(self.mr), range(self.nr)):
            for phi in (live[i][j], merged[i][j]):
                phi.add_incoming(acc[i][j], entry)
                phi.add_incoming(out[i][j], loop)
        return merged

    def _finish(self, values: list[Any], c: Any, bias: Any, mode: Any) -> None:
        """Store act(values (+ C) (+ bias)) in a row of C."""
        b = self.b
        vt = Vector(self.scalar, self.nr)
        value = ir.Constant(vt, ir.Undefined)
        for j, one in enumerate(values):
            value = b.insert_element(value, one, I32(j))

        def change_if(bit: int, change: Any) -> None:
            nonlocal value
            before = b.block
            with b.if_then(b.icmp_signed("!=", b.and_(mode, I64(bit)), I64(0))):
                new, inside = change(value), b.block
            phi = b.phi(vt)
            phi.add_incoming(value, before)
            phi.add_incoming(new, inside)
            value = phi

        zero = ir.Constant(vt, [0.0] * self.nr)
        change_if(ACCUMULATE, lambda v: b.fadd(v, load(b, c, vt, self.size)))
        change_if(BIAS, lambda v: b.fadd(v, load(b, bias, vt, self.size)))
        # The comparison is false for NaN, which must come through.
        change_if(RELU, lambda v: b.select(b.fcmp_ordered("<", v, zero), zero, v))
        stored = b.store(value, b.bitcast(c, vt.as_pointer()))
        stored.align = self.size
