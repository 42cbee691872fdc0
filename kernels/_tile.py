"""Vector IR of dense blocks: the GEMM register tile, block copies and transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels._kernel import ACCUMULATE, BIAS, RELU, SIZE
from engine.kernels._target import Target

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)

_NUMBA = {"f32": types.float32, "f64": types.float64}
_LLVM = {"f32": ir.FloatType(), "f64": ir.DoubleType()}


def splat(b: Any, value: Any, lanes: int) -> Any:
    """A vector of `lanes` copies of a scalar."""
    undef = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    one = b.insert_element(undef, value, I32(0))
    return b.shuffle_vector(one, undef, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def load(b: Any, pointer: Any, vt: Any, align: int) -> Any:
    """An unaligned vector load; `pointer` is to elements."""
    value = b.load(b.bitcast(pointer, vt.as_pointer()), typ=vt)
    value.align = align
    return value


def store(b: Any, value: Any, pointer: Any, align: int) -> None:
    """An unaligned vector store; `pointer` is to elements."""
    b.store(value, b.bitcast(pointer, value.type.as_pointer())).align = align


def intrinsic(module: Any, name: str, result: Any, params: list[Any]) -> Any:
    """Get or declare an LLVM intrinsic."""
    found = module.globals.get(name)
    return found or ir.Function(module, ir.FunctionType(result, params), name)


def _internal(module: Any, name: str, params: list[Any]) -> tuple[Any, bool]:
    """Get or make an internal function of this module; the flag says it still needs a body."""
    found = module.globals.get(name)
    if found is not None:
        return found, False
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), params), name)
    fn.linkage = "internal"
    return fn, True


def _call_internal(name: str, body: Callable[[Any], None], *, inline: bool) -> Any:
    """Emit a call of an internal function of all arguments, building it on first use."""

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        fn, fresh = _internal(b.module, name, [a.type for a in args])
        if fresh:
            fn.attributes.add("alwaysinline" if inline else "noinline")
            body(fn)
        b.call(fn, args)
        return context.get_dummy_value()

    return emit


def tile(target: Target, T: str, a_cols: int, mr: int, nv: int) -> Any:
    """tile(a, b, c, bias, k, lda, ldb, ldc, mode, tail): C = act(A B (+ C) (+ bias)).

    C is mr rows by nv vectors, accumulators in registers across the K loop.  A[i, p] is
    a[i lda + p], or a[p lda + i] when `a_cols`; B[p, j] is b[p ldb + j]; C[i, j] is c[i ldc + j].
    `tail` columns (1..lanes) of the last vector are stored.  K >= 1.  `mode` adds up ACCUMULATE,
    BIAS (one value a column) and RELU.  C must not overlap A, B or bias.
    Source: Goto, van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 2008.
    """
    lanes = target.lanes(SIZE[T])
    name = f"tile_{T}_{'t' if a_cols else 'n'}_{mr}x{nv}x{lanes}"
    P = types.CPointer(_NUMBA[T])
    emit = _call_internal(
        name, lambda fn: _Tile(fn, target, T, a_cols, mr, nv).build(), inline=False
    )

    def op(typingctx, a, b, c, bias, k, lda, ldb, ldc, mode, tail):
        return types.void(P, P, P, P, *[types.int64] * 6), emit

    return op


class _Tile:
    """Writes the body of one register tile."""

    def __init__(self, fn: Any, target: Target, T: str, a_cols: int, mr: int, nv: int) -> None:
        self.fn, self.a_cols, self.mr, self.nv = fn, a_cols, mr, nv
        self.scalar, self.size = _LLVM[T], SIZE[T]
        self.lanes = target.lanes(self.size)
        self.vt = ir.VectorType(self.scalar, self.lanes)
        self.suffix = f"v{self.lanes}{T}"
        op = "fma" if target.fma else "fmuladd"
        self.fma = intrinsic(fn.module, f"llvm.{op}.{self.suffix}", self.vt, [self.vt] * 3)
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))

    def build(self) -> None:
        b = self.b
        a, bp, c, bias, k, lda, ldb, ldc, mode, tail = self.fn.args
        for pointer in (a, bp, c, bias):
            pointer.add_attribute("noalias")
        values = self._k_loop(a, bp, k, lda, ldb)
        full, ragged = self.fn.append_basic_block("full"), self.fn.append_basic_block("ragged")
        b.cbranch(b.icmp_signed("==", tail, I64(self.lanes)), full, ragged)
        for block, masked in ((full, False), (ragged, True)):
            b.position_at_end(block)
            self._finish(values, c, bias, ldc, mode, self._mask(tail) if masked else None)
            b.ret_void()

    def _k_loop(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any) -> list[list[Any]]:
        b, mr, nv = self.b, self.mr, self.nv
        entry = b.block
        rows = [a if self.a_cols else b.gep(a, [b.mul(lda, I64(i))]) for i in range(mr)]
        loop, done = self.fn.append_basic_block("loop"), self.fn.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        kk = b.phi(I64)
        kk.add_incoming(I64(0), entry)
        acc = [[b.phi(self.vt) for _ in range(nv)] for _ in range(mr)]
        brow = b.gep(bp, [b.mul(kk, ldb)])
        bv = [load(b, b.gep(brow, [I64(j * self.lanes)]), self.vt, self.size) for j in range(nv)]
        acol = b.gep(a, [b.mul(kk, lda)])
        out = []
        for i in range(mr):
            p = b.gep(acol, [I64(i)]) if self.a_cols else b.gep(rows[i], [kk])
            av = splat(b, b.load(p, typ=self.scalar), self.lanes)
            out.append([b.call(self.fma, [av, bv[j], acc[i][j]]) for j in range(nv)])
        k1 = b.add(kk, I64(1))
        kk.add_incoming(k1, loop)
        zero = ir.Constant(self.vt, [0.0] * self.lanes)
        for i in range(mr):
            for j in range(nv):
                acc[i][j].add_incoming(zero, entry)
                acc[i][j].add_incoming(out[i][j], loop)
        b.cbranch(b.icmp_signed("<", k1, k), loop, done)
        b.position_at_end(done)
        return out

    def _mask(self, tail: Any) -> Any:
        iota = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        return self.b.icmp_signed("<", iota, splat(self.b, tail, self.lanes))

    def _finish(
        self, values: list[list[Any]], c: Any, bias: Any, ldc: Any, mode: Any, mask: Any
    ) -> None:
        b = self.b
        rows = [b.gep(c, [b.mul(ldc, I64(i))]) for i in range(self.mr)]
        at = [[b.gep(r, [I64(j * self.lanes)]) for j in range(self.nv)] for r in rows]

        def read(pointer: Any, j: int) -> Any:
            if mask is None or j < self.nv - 1:
                return load(b, pointer, self.vt, self.size)
            return self._masked("load", self.vt, [pointer, I32(self.size), mask, zero])

        def optional(bit: int, change: Callable[[Any, int, int], Any]) -> None:
            nonlocal values
            before = b.block
            with b.if_then(b.icmp_signed("!=", b.and_(mode, I64(bit)), I64(0))):
                new = [[change(v, i, j) for j, v in enumerate(r)] for i, r in enumerate(values)]
                inside = b.block
            merged: list[list[Any]] = []
            for old_row, new_row in zip(values, new, strict=True):
                merged.append([])
                for old, changed in zip(old_row, new_row, strict=True):
                    phi = b.phi(self.vt)
                    phi.add_incoming(old, before)
                    phi.add_incoming(changed, inside)
                    merged[-1].append(phi)
            values = merged

        zero = ir.Constant(self.vt, [0.0] * self.lanes)
        optional(ACCUMULATE, lambda v, i, j: b.fadd(v, read(at[i][j], j)))
        biases: dict[int, Any] = {}

        def add_bias(v: Any, i: int, j: int) -> Any:
            if i == 0:
                biases[j] = read(b.gep(bias, [I64(j * self.lanes)]), j)
            return b.fadd(v, biases[j])

        optional(BIAS, add_bias)
        # The comparison is false for NaN, which must come through.
        optional(RELU, lambda v, i, j: b.select(b.fcmp_ordered("<", v, zero), zero, v))
        for i, row in enumerate(values):
            for j, v in enumerate(row):
                if mask is None or j < self.nv - 1:
                    store(b, v, at[i][j], self.size)
                else:
                    self._masked("store", ir.VoidType(), [v, at[i][j], I32(self.size), mask])

    def _masked(self, what: str, result: Any, args: list[Any]) -> Any:
        fn = intrinsic(
            self.fn.module, f"llvm.masked.{what}.{self.suffix}.p0", result, [a.type for a in args]
        )
        return self.b.call(fn, args)


def counted(b: Any, begin: Any, end: Any, step: int, body: Callable[[Any], None]) -> Any:
    """A loop `for i in range(begin, end - step + 1, step): body(i)`; returns i after the loop."""
    head, inside, done = (b.append_basic_block(n) for n in ("head", "body", "done"))
    entry = b.block
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(begin, entry)
    b.cbranch(b.icmp_signed("<=", b.add(i, I64(step)), end), inside, done)
    b.position_at_end(inside)
    body(i)
    i.add_incoming(b.add(i, I64(step)), b.block)
    b.branch(head)
    b.position_at_end(done)
    return i


def copy(target: Target, T: str) -> Any:
    """copy(dst, src, n): dst[i] = src[i] for n elements; the ranges do not overlap."""
    lanes, vt = target.lanes(SIZE[T]), ir.VectorType(_LLVM[T], target.lanes(SIZE[T]))
    P = types.CPointer(_NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, src, n = fn.args

        def vector(i: Any) -> None:
            store(b, load(b, b.gep(src, [i]), vt, SIZE[T]), b.gep(dst, [i]), SIZE[T])

        def scalar(i: Any) -> None:
            b.store(b.load(b.gep(src, [i]), typ=_LLVM[T]), b.gep(dst, [i]))

        counted(b, counted(b, I64(0), n, lanes, vector), n, 1, scalar)
        b.ret_void()

    emit = _call_internal(f"copy_{T}_{lanes}", body, inline=True)

    def op(typingctx, dst, src, n):
        return types.void(P, P, types.int64), emit

    return op


def zero(target: Target, T: str) -> Any:
    """zero(dst, n): dst[i] = 0 for n elements."""
    lanes, vt = target.lanes(SIZE[T]), ir.VectorType(_LLVM[T], target.lanes(SIZE[T]))
    P = types.CPointer(_NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, n = fn.args
        nil = ir.Constant(vt, [0.0] * lanes)
        done = counted(b, I64(0), n, lanes, lambda i: store(b, nil, b.gep(dst, [i]), SIZE[T]))
        counted(b, done, n, 1, lambda i: b.store(_LLVM[T](0.0), b.gep(dst, [i])) and None)
        b.ret_void()

    emit = _call_internal(f"zero_{T}_{lanes}", body, inline=True)

    def op(typingctx, dst, n):
        return types.void(P, types.int64), emit

    return op


def transpose(target: Target, T: str) -> Any:
    """transpose(dst, ldd, src, lds): dst[j ldd + i] = src[i lds + j], lanes x lanes elements.

    log2(lanes) rounds of two-row interleaves (Eklundh 1972); the ranges do not overlap.
    """
    lanes, vt = target.lanes(SIZE[T]), ir.VectorType(_LLVM[T], target.lanes(SIZE[T]))
    P = types.CPointer(_NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, ldd, src, lds = fn.args
        rows = [load(b, b.gep(src, [b.mul(lds, I64(i))]), vt, SIZE[T]) for i in range(lanes)]
        width = 1
        while width < lanes:
            rows = _exchange(b, rows, width, lanes)
            width *= 2
        for j, row in enumerate(rows):
            store(b, row, b.gep(dst, [b.mul(ldd, I64(j))]), SIZE[T])
        b.ret_void()

    emit = _call_internal(f"transpose_{T}_{lanes}", body, inline=False)

    def op(typingctx, dst, ldd, src, lds):
        return types.void(P, types.int64, P, types.int64), emit

    return op


def _exchange(b: Any, rows: list[Any], width: int, lanes: int) -> list[Any]:
    """Swap the off-diagonal blocks of size `width` of each 2 width x 2 width block."""
    out = list(rows)
    low = [i if not i & width else i - width + lanes for i in range(lanes)]
    high = [i + width if not i & width else i + lanes for i in range(lanes)]
    mask_low, mask_high = (ir.Constant(ir.VectorType(I32, lanes), m) for m in (low, high))
    for i in range(lanes):
        if not i & width:
            x, y = rows[i], rows[i + width]
            out[i] = b.shuffle_vector(x, y, mask_low)
            out[i + width] = b.shuffle_vector(x, y, mask_high)
    return out
