"""Vector IR of the GEMM register tile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import FACTORS, Target
from engine.kernels.vector_ir import f16
from engine.kernels.vector_ir.curves import at_least, at_most_six
from engine.kernels.vector_ir.scalars import BFloat
from engine.kernels.vector_ir.vectors import (
    I16,
    I32,
    I64,
    LINE,
    LLVM,
    NUMBA,
    Grid,
    Vector,
    call_outlined,
    edge_copy,
    get_internal,
    intrinsic,
    load,
    load_part,
    opaque,
    splat,
    store,
    store_part,
)
from engine.kernels.vocabulary.kernel import ACCUMULATE, BIAS, RELU, SIX

RUN = 96  # products of f16 that are summed in f16, in two sums by turns
AHEAD = 16  # rows of a transposed A between what is multiplied and what is asked for
TURN = 4  # products of each sum in a turn of the loop, where instructions keep their order
CHAINS = 8  # sums that do not wait for each other: two multiply-adds a cycle of four cycles each
# LLVM's intrinsics, by architecture: each lane of the sum gains the products of two pairs.
_DOTS = {
    "x86_64": "llvm.x86.avx512bf16.dpbf16ps.{bits}",
    "aarch64": "llvm.aarch64.neon.bfdot.v{lanes}f32.v8bf16",
}
Row = tuple[Any, Any]  # pointer to the first row of something, elements to the next


def tile(target: Target, T: str, a_cols: int, mr: int, nv: int, P: str = "") -> Any:
    """tile(a, b, c, bias, k, lda, ldb, ldc, mode, tail): C = act(A B (+ C) (+ bias)).

    C is mr rows by nv vectors, accumulators in registers across the K loop.  A[i, p] is
    a[i lda + p], or a[p lda + i] when `a_cols`; B[p, j] is b[p ldb + j]; C[i, j] is c[i ldc + j].
    `tail` columns (1..lanes) of the last vector are stored.  K >= 1.  `mode` adds up ACCUMULATE,
    BIAS (one value a column), RELU and SIX.  C must not overlap A, B or bias.

    P: the element type of the factors, if that is not T: one of `Target.products`.  Of bf16, B, and
    A where `a_cols`, are words of pairs (packing.py), the last with 0 where k is odd; p counts the
    words.  Otherwise pointers are to the factors themselves, and lda and ldb count them.
    Error: products are exact; of f16, runs of `RUN` of them are summed in f16, see `_RunTile`.
    Source: Goto, van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 2008.
    """
    lanes = target.lanes(ITEMSIZE[T])
    name = f"tile_{P}{T}_{'t' if a_cols else 'n'}_{mr}x{nv}x{lanes}"
    writer = _choose_writer(target, P, mr)
    emit = call_outlined(name, lambda fn: writer(fn, target, T, a_cols, mr, nv).build())

    def op(typingctx, a, b, c, bias, k, lda, ldb, ldc, mode, tail):
        right = NUMBA[P if FACTORS.get(P) == 1 else T]
        left = NUMBA[P] if P and not a_cols else right
        pointers = [types.CPointer(t) for t in (left, right, *[NUMBA[T]] * 2)]
        return types.void(*pointers, *[types.int64] * 6), emit

    return op


def _choose_writer(target: Target, P: str, mr: int) -> type[RegisterTile]:
    """Return the class that writes a tile of so many rows."""
    own = target.multiplies(P)
    if P == "f16":
        return _HalfTile if own else _RunTile
    if P == "bf16":
        has_squares = own and target.arch == "aarch64" and target.by_lane
        return _SquareTile if has_squares and mr % 2 == 0 else _PairTile
    return RegisterTile


class RegisterTile:
    """Writes the body of one register tile."""

    def __init__(self, fn: Any, target: Target, T: str, a_cols: int, mr: int, nv: int) -> None:
        self.fn, self.target, self.T = fn, target, T
        self.a_cols, self.mr, self.nv = a_cols, mr, nv
        self.scalar, self.size = LLVM[T], ITEMSIZE[T]
        self.lanes = target.lanes(self.size)
        self.align = self.size  # of a row of A
        self.vt = Vector(self.scalar, self.lanes)
        self.suffix = f"v{self.lanes}{T}"
        op = "fma" if target.fma else "fmuladd"
        self.fma = intrinsic(fn.module, f"llvm.{op}.{self.suffix}", self.vt, [self.vt] * 3)
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))

    def build(self) -> None:
        b = self.b
        a, bp, c, bias, k, lda, ldb, ldc, mode, tail = self.fn.args
        for pointer in (a, bp, c, bias):
            pointer.add_attribute("noalias")
        ragged = b.icmp_signed("!=", tail, I64(self.lanes))
        if not self.target.masks:
            with b.if_then(ragged):
                b.call(self._make_part(), self.fn.args)
                b.ret_void()
        if self.target.prefetch:
            rows = [b.gep(c, [b.mul(ldc, I64(i))]) for i in range(self.mr)]
            self._prefetch(rows, self.nv * self.lanes, write=True)
        values = self._k_loop(a, bp, k, lda, ldb)
        if not self.target.masks:
            self.finish(values, (c, ldc), bias, mode, None)
            b.ret_void()
            return
        full, part = self.fn.append_basic_block("full"), self.fn.append_basic_block("part")
        b.cbranch(ragged, part, full)
        for block, masked in ((full, False), (part, True)):
            b.position_at_end(block)
            mask = self.mask_tail(tail) if masked else None
            self.finish(values, (c, ldc), bias, mode, mask)
            b.ret_void()

    def _k_loop(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any) -> Grid:
        """Return the products summed over K; see `Target.by_lane`, `prefetch` and `in_order`.

        With `prefetch` A in rows is asked for a tile before, a line of each row at a time, and A in
        columns `AHEAD` steps before.  The lines asked for may lie outside A.
        """
        b = self.b
        zero = ir.Constant(self.vt, [0.0] * self.lanes)
        acc = [[zero] * self.nv for _ in range(self.mr)]
        rows = [a if self.a_cols else b.gep(a, [b.mul(lda, I64(i))]) for i in range(self.mr)]

        def one(kk: Any, acc: Grid) -> Grid:
            right = self.load_right(b.gep(bp, [b.mul(kk, ldb)]))
            if not self.a_cols:
                left = [splat(b, self._factor(row, kk), self.lanes) for row in rows]
                return self._multiply(left, right, acc)
            if self.target.prefetch:
                later = b.add(b.mul(b.add(kk, I64(AHEAD)), lda), I64(self.mr - 1))
                self._prefetch([b.gep(a, [later])], 1, write=False)
            vectors = self._vectors(b.gep(a, [b.mul(kk, lda)]), self.mr)
            return self._multiply(self._factors(vectors), right, acc)

        def line(k0: Any, acc: Grid) -> Grid:
            below = b.add(self._place(k0), b.mul(lda, I64(self.mr)))
            self._prefetch([b.gep(row, [below]) for row in rows], 1, write=False)
            end = b.add(k0, I64(LINE // self.size))
            return self._loop(k0, b.select(b.icmp_signed("<", end, k), end, k), 1, acc, one)

        if self.target.keeps_order and self.mr > 2:  # of fewer rows all factors fit
            return self._by_row(a, bp, k, lda, ldb, acc)
        if self.target.by_lane:
            acc, done = self._by_lane(a, bp, k, lda, ldb, acc)
            return self._loop(done, k, 1, acc, one)
        if self.target.prefetch and not self.a_cols:
            return self._loop(I64(0), k, LINE // self.size, acc, line)
        return self._loop(I64(0), k, 1, acc, one)

    def _by_lane(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any, acc: Grid) -> tuple[Grid, Any]:
        """Return the sums of several products of each turn, and up to which k.

        A small tile sums in `chains`, which do not wait for each other, and adds them at the end.
        In order, all of a turn is loaded before its first product, from addresses that are
        not made from each other: among products each of these instructions would stop the pipeline.
        """
        b, in_order = self.b, self.target.in_order
        # Of A in columns several products are that much more code, which only order pays for.
        many = in_order or not self.a_cols
        chains = min(self.lanes, max(1, CHAINS // (self.mr * self.nv))) if many else 1
        step = self.lanes if many else 1
        whole = b.and_(k, I64(-step))

        def apart(pointer: Any, by: Any, n: int) -> list[Any]:
            """n pointers, `by` elements from one to the next."""
            first = opaque(b, [pointer], "r")[0] if in_order else pointer
            return [b.gep(first, [b.mul(by, I64(i))]) for i in range(n)]

        def turn(kk: Any, acc: Grid) -> Grid:
            if self.a_cols:
                columns = apart(b.gep(a, [b.mul(kk, lda)]), lda, step)
                left = [self._vectors(p, self.mr) for p in columns]
            else:
                rows = apart(b.gep(a, [self._place(kk)]), lda, self.mr)
                left = [[load(b, p, self.vt, self.align) for p in rows]]
            right = [self.load_right(p) for p in apart(b.gep(bp, [b.mul(kk, ldb)]), ldb, step)]
            if in_order:
                loaded = self._together([*left, *right])
                left, right = loaded[: len(left)], loaded[len(left) :]
            out = list(acc)
            for p in range(step):
                mine = slice(p % chains * self.mr, (p % chains + 1) * self.mr)
                factors = (
                    self._factors(left[p])
                    if self.a_cols
                    else [self._lane([row], p) for row in left[0]]
                )
                out[mine] = self._multiply(factors, right[p], out[mine])
            return out

        acc = self._loop(I64(0), whole, step, acc * chains, turn)
        while len(acc) > self.mr:
            half = len(acc) // 2
            pairs = zip(acc[:half], acc[half:], strict=True)
            acc = [[b.fadd(x, y) for x, y in zip(*pair, strict=True)] for pair in pairs]
        return acc, whole

    def _by_row(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any, acc: Grid) -> Grid:
        """Return the sums, `TURN` products of each in a turn, row by row of the tile.

        An engine for WebAssembly keeps the order of instructions, and LLVM's would have all factors
        of A in registers at once.  So no load moves before the products of the row above.  A turn
        begins with pointers that LLVM does not know to move in steps: it would make a pointer of
        each distance from them, where a load has room for a distance.
        """
        b = self.b
        whole = b.and_(k, I64(-TURN))

        def apart(pointer: Any, by: Any, n: int) -> list[Any]:
            """n pointers, `by` elements from one to the next."""
            out = opaque(b, [pointer], "r")
            while len(out) < n:
                out.append(b.gep(out[-1], [by], inbounds=True))
            return out

        def turn(step: int, kk: Any, acc: Grid) -> Grid:
            out = list(acc)
            rights = apart(b.gep(bp, [b.mul(kk, ldb)]), ldb, step)
            left = b.gep(a, [b.mul(kk, lda) if self.a_cols else self._place(kk)])
            lefts = apart(left, lda, step if self.a_cols else self.mr)
            for p in range(step):
                right = self.load_right(rights[p])
                for i in range(self.mr):
                    pointer, n = (lefts[p], i) if self.a_cols else (lefts[i], p)
                    factor = splat(b, self._factor(pointer, I64(n)), self.lanes)
                    (sums,) = self._multiply([factor], right, [out[i]])
                    out[i] = opaque(b, sums, "r", is_fence=True)
            return out

        acc = self._loop(I64(0), whole, TURN, acc, partial(turn, TURN))
        return self._loop(whole, k, 1, acc, partial(turn, 1))

    def _place(self, kk: Any) -> Any:
        """Return the elements before factor, or word, kk of a row of A."""
        return kk

    def _factor(self, row: Any, kk: Any) -> Any:
        """Return factor, or word, kk of a row of A."""
        return self.b.load(self.b.gep(row, [self._place(kk)], inbounds=True), typ=self.scalar)

    def load_right(self, row: Any) -> list[Any]:
        """Return the vectors of a row of B."""
        return [load(self.b, p, self.vt, self.size) for p in self._beside(row)]

    def _beside(self, row: Any) -> list[Any]:
        """Return the pointers to the vectors of a row, as constant distances of a load or store."""
        return [self.b.gep(row, [I64(j * self.lanes)], inbounds=True) for j in range(self.nv)]

    def _factors(self, vectors: list[Any]) -> list[Any]:
        """Return each element of a column of A, in all lanes of a vector."""
        return [self._lane(vectors, i) for i in range(self.mr)]

    def _multiply(self, left: list[Any], right: list[Any], acc: Grid) -> Grid:
        """Return the sums and the products of a column of A and a row of B."""
        return [
            [self.b.call(self.fma, [x, y, z]) for y, z in zip(right, row, strict=True)]
            for x, row in zip(left, acc, strict=True)
        ]

    def _together(self, loaded: Grid) -> Grid:
        """Return the vectors, all loaded before the first is used: no load moves past this."""
        values = [v for row in loaded for v in row if v.type == self.vt]
        held = iter(opaque(self.b, values, "w"))
        return [[next(held) if v.type == self.vt else v for v in row] for row in loaded]

    def _prefetch(self, rows: list[Any], elements: int, *, write: bool) -> None:
        """Ask for the lines that hold so many elements of each row; any address will do."""
        b, byte = self.b, ir.IntType(8).as_pointer()
        params = [byte, I32, I32, I32]
        fetch = intrinsic(self.fn.module, "llvm.prefetch.p0", ir.VoidType(), params)
        for row in rows:
            for j in range(0, elements, LINE // self.size):
                at = b.bitcast(b.gep(row, [I64(j)]), byte)
                b.call(fetch, [at, I32(int(write)), I32(3), I32(1)])

    def _vectors(self, pointer: Any, n: int) -> list[Any]:
        """`n` elements: by vectors, as far as they fill one, where a lane can be a factor."""
        b, step = self.b, min(n, self.lanes) if self.target.by_lane else 1
        vt = Vector(self.scalar, step)
        return [load(b, b.gep(pointer, [I64(i)]), vt, self.size) for i in range(0, n, step)]

    def _lane(self, vectors: list[Any], i: int) -> Any:
        """Element i of consecutive vectors, in all lanes."""
        step = vectors[0].type.count
        undef = ir.Constant(vectors[0].type, ir.Undefined)
        mask = ir.Constant(Vector(I32, self.lanes), [i % step] * self.lanes)
        return self.b.shuffle_vector(vectors[i // step], undef, mask)

    def _loop(
        self, begin: Any, end: Any, step: int, acc: Grid, advance: Callable[[Any, Grid], Grid]
    ) -> Grid:
        """acc after `acc = advance(k, acc)` for k in range(begin, end, step)."""
        b, entry = self.b, self.b.block
        loop, done = self.fn.append_basic_block("loop"), self.fn.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", begin, end), loop, done)
        b.position_at_end(loop)
        kk = b.phi(I64)
        live = [[b.phi(v.type) for v in row] for row in acc]
        out = advance(kk, live)
        after, latch = b.add(kk, I64(step)), b.block
        kk.add_incoming(begin, entry)
        kk.add_incoming(after, latch)
        b.cbranch(b.icmp_signed("<", after, end), loop, done)
        b.position_at_end(done)
        merged = [[b.phi(v.type) for v in row] for row in acc]
        for i, j in itertools.product(range(len(acc)), range(len(acc[0]))):
            live[i][j].add_incoming(acc[i][j], entry)
            live[i][j].add_incoming(out[i][j], latch)
            merged[i][j].add_incoming(acc[i][j], entry)
            merged[i][j].add_incoming(out[i][j], latch)
        return merged

    def mask_tail(self, tail: Any) -> Any:
        """Return the mask of the first `tail` lanes."""
        iota = ir.Constant(Vector(I64, self.lanes), list(range(self.lanes)))
        return self.b.icmp_signed("<", iota, splat(self.b, tail, self.lanes))

    def _make_part(self) -> Any:
        """Return a function of the arguments of the tile that does its work where it is ragged.

        Without masks a tile has all its columns, and these are of copies of C and bias.  It is a
        function of its own, called before there are sums: across a call all of them would lie in
        memory.
        """
        params = [argument.type for argument in self.fn.args]
        fn, _ = get_internal(self.fn.module, f"{self.fn.name}_part", params)
        for attribute in ("noinline", "minsize", "optsize"):
            fn.attributes.add(attribute)
        a, bp, c, bias, k, lda, ldb, ldc, mode, tail = fn.args
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        wide = self.nv * self.lanes
        size, width = I64((self.mr + 1) * self.nv), I64(wide)
        spare = b.bitcast(b.alloca(self.vt, size=size), self.scalar.as_pointer())
        bias_spare = b.gep(spare, [I64(self.mr * wide)])
        columns = b.add(tail, I64(wide - self.lanes))
        copy = edge_copy(self.fn.module, self.T)

        def rows_if(bit: int, n: int) -> Any:
            return b.select(b.icmp_signed("!=", b.and_(mode, I64(bit)), I64(0)), I64(n), I64(0))

        b.call(copy, [spare, width, c, ldc, rows_if(ACCUMULATE, self.mr), columns])
        b.call(copy, [bias_spare, width, bias, width, rows_if(BIAS, 1), columns])
        whole = [a, bp, spare, bias_spare, k, lda, ldb, width, mode, I64(self.lanes)]
        b.call(self.fn, whole)
        b.call(copy, [c, ldc, spare, width, I64(self.mr), columns])
        b.ret_void()
        return fn

    def finish(self, values: Grid, c: Row, bias: Any, mode: Any, mask: Any) -> None:
        """C = act(values (+ C) (+ bias)); mask: of the last vector of each row, None for all."""
        b, end = self.b, self.nv - 1
        rows = [b.gep(c[0], [b.mul(c[1], I64(i))]) for i in range(self.mr)]
        at = [self._beside(row) for row in rows]

        def read(pointer: Any, j: int) -> Any:
            if mask is None or j < end:
                return load(b, pointer, self.vt, self.size)
            return load_part(b, pointer, self.vt, self.size, mask)

        def emit_if(bit: int, change: Callable[[Any, int, int], Any]) -> None:
            nonlocal values
            before = b.block
            with b.if_then(b.icmp_signed("!=", b.and_(mode, I64(bit)), I64(0))):
                new = [[change(v, i, j) for j, v in enumerate(r)] for i, r in enumerate(values)]
                inside = b.block
            merged: Grid = []
            for old_row, new_row in zip(values, new, strict=True):
                merged.append([])
                for old, changed in zip(old_row, new_row, strict=True):
                    phi = b.phi(self.vt)
                    phi.add_incoming(old, before)
                    phi.add_incoming(changed, inside)
                    merged[-1].append(phi)
            values = merged

        zero = ir.Constant(self.vt, [0.0] * self.lanes)
        if self.target.keeps_order:  # a zero that LLVM knows is compared with, and then masked
            (zero,) = opaque(b, [zero], "r")
        emit_if(ACCUMULATE, lambda v, i, j: b.fadd(v, read(at[i][j], j)))
        biases: dict[int, Any] = {}

        def add_bias(v: Any, i: int, j: int) -> Any:
            if i == 0:
                biases[j] = read(self._beside(bias)[j], j)
            return b.fadd(v, biases[j])

        emit_if(BIAS, add_bias)
        emit_if(RELU, lambda v, i, j: at_least(b, v, zero))
        emit_if(SIX, lambda v, i, j: at_most_six(b, v))
        for i, row in enumerate(values):
            for j, v in enumerate(row):
                if mask is None or j < end:
                    store(b, v, at[i][j], self.size)
                else:
                    store_part(b, v, at[i][j], self.size, mask)


class _PairTile(RegisterTile):
    """Writes the body of a tile whose factors are pairs of bf16.

    A target without an instruction for them, which no plan multiplies pairs for, multiplies float32
    of them: the portable variant, in the same order.
    """

    def __init__(self, fn: Any, target: Target, T: str, a_cols: int, mr: int, nv: int) -> None:
        super().__init__(fn, target, T, a_cols, mr, nv)
        self.align = self.size if a_cols else self.size // 2
        if target.multiplies("bf16"):
            pairs = Vector(BFloat(), 2 * self.lanes)
            name = _DOTS[target.arch].format(bits=8 * target.vector, lanes=self.lanes)
            self.dot = intrinsic(fn.module, name, self.vt, [self.vt, pairs, pairs])

    def _k_loop(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any) -> Grid:
        b, one = self.b, I64(1)
        words = b.lshr(b.add(k, one) if self.a_cols else k, one)
        acc = super()._k_loop(a, bp, words, lda, ldb)
        if self.a_cols:
            return acc
        rows = [b.gep(a, [b.mul(lda, I64(i))]) for i in range(self.mr)]

        def last(kk: Any, acc: Grid) -> Grid:
            """Return the last factor together with 0: the row of A may end after it."""
            left = []
            for row in rows:
                low = load(b, b.gep(row, [self._place(kk)]), I16, 2)
                left.append(splat(b, b.bitcast(b.zext(low, I32), self.scalar), self.lanes))
            return self._multiply(left, self.load_right(b.gep(bp, [b.mul(kk, ldb)])), acc)

        return self._loop(words, b.lshr(b.add(k, one), one), 1, acc, last)

    def _place(self, kk: Any) -> Any:
        return kk if self.a_cols else self.b.shl(kk, I64(1))

    def _factor(self, row: Any, kk: Any) -> Any:
        at = self.b.gep(row, [self._place(kk)], inbounds=True)
        return load(self.b, at, self.scalar, self.align)

    def _multiply(self, left: list[Any], right: list[Any], acc: Grid) -> Grid:
        b = self.b
        if not self.target.multiplies("bf16"):
            for part in (self._widen_second, self._widen_first):
                acc = super()._multiply([*map(part, left)], [*map(part, right)], acc)
            return acc
        pairs = self.dot.args[1].type
        left, right = ([b.bitcast(v, pairs) for v in side] for side in (left, right))
        return [
            [b.call(self.dot, [z, y, x]) for y, z in zip(right, row, strict=True)]
            for x, row in zip(left, acc, strict=True)
        ]

    def _widen_first(self, words: Any) -> Any:
        """Return the float32 of the lower factors of a vector of words."""
        wide = Vector(I32, self.lanes)
        by = ir.Constant(wide, [16] * self.lanes)
        return self.b.bitcast(self.b.shl(self.b.bitcast(words, wide), by), self.vt)

    def _widen_second(self, words: Any) -> Any:
        """Return the float32 of the upper factors of a vector of words."""
        wide = Vector(I32, self.lanes)
        upper = ir.Constant(wide, [0xFFFF0000] * self.lanes)
        return self.b.bitcast(self.b.and_(self.b.bitcast(words, wide), upper), self.vt)


class _SquareTile(_PairTile):
    """Writes the body of a tile of pairs for Arm's `bfmmla`, with an even number of rows.

    One instruction adds to a square of two rows by two columns of C the products of four factors
    of each of them, twice as many as `bfdot`.  Words that are left over are multiplied by that.
    """

    LOW, HIGH = (0, 1, 4, 5), (2, 3, 6, 7)  # halves of two vectors
    FIRST, SECOND = (0, 4, 1, 5), (2, 6, 3, 7)  # their elements, by turns

    def _by_lane(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any, acc: Grid) -> tuple[Grid, Any]:
        """Return the sums of all words in whole turns, and how many words these are."""
        b, step = self.b, 2 if self.a_cols else self.lanes
        whole = b.and_(k, I64(-step))
        pairs = self.dot.args[1].type
        kinds = [self.vt, pairs, pairs]
        square = intrinsic(self.fn.module, "llvm.aarch64.neon.bfmmla", self.vt, kinds)

        def turn(kk: Any, acc: Grid) -> Grid:
            lefts = self._turn_rows(a, kk, lda, step)
            rows = [
                self.load_right(b.gep(bp, [b.mul(b.add(kk, I64(p)), ldb)])) for p in range(step)
            ]
            for p, left in enumerate(lefts):
                right = self._interleave(rows[2 * p], rows[2 * p + 1])
                left, right = ([b.bitcast(v, pairs) for v in side] for side in (left, right))
                acc = [
                    [b.call(square, [z, x, y]) for y, z in zip(right, row, strict=True)]
                    for x, row in zip(left, acc, strict=True)
                ]
            return acc

        zero = ir.Constant(self.vt, [0.0] * self.lanes)
        squares = [[zero] * (2 * self.nv) for _ in range(self.mr // 2)]
        squares = self._loop(I64(0), whole, step, squares, turn)
        sums: Grid = []
        for row in squares:
            beside = list(zip(row[::2], row[1::2], strict=True))
            sums += ([self._pick(x, y, half) for x, y in beside] for half in (self.LOW, self.HIGH))
        return sums, whole

    def _turn_rows(self, a: Any, kk: Any, lda: Any, step: int) -> Grid:
        """Return for every two words from word kk on the factors of each pair of rows of A."""
        b = self.b
        if self.a_cols:
            words = [b.add(kk, I64(p)) for p in range(step)]
            columns = [self._vectors(b.gep(a, [b.mul(w, lda)]), self.mr) for w in words]
            return [self._interleave(*columns)]
        at = [b.gep(a, [b.add(self._place(kk), b.mul(lda, I64(i)))]) for i in range(self.mr)]
        rows = [load(b, p, self.vt, self.align) for p in at]
        beside = list(zip(rows[::2], rows[1::2], strict=True))
        return [[self._pick(x, y, half) for x, y in beside] for half in (self.LOW, self.HIGH)]

    def _interleave(self, first: list[Any], second: list[Any]) -> list[Any]:
        """Return vectors that hold a word of the first and of the second list by turns."""
        if first[0].type.count == 2:  # a column of two rows
            return [self._pick(first[0], second[0], (0, 2, 1, 3))]
        return [
            self._pick(x, y, order)
            for x, y in zip(first, second, strict=True)
            for order in (self.FIRST, self.SECOND)
        ]

    def _pick(self, x: Any, y: Any, elements: tuple[int, ...]) -> Any:
        """Return these elements of two vectors as one."""
        mask = ir.Constant(Vector(I32, len(elements)), list(elements))
        return self.b.shuffle_vector(x, y, mask)


class _RunTile(RegisterTile):
    """Writes the body of a tile of factors of f16, for CPUs that add products of f16 to f16.

    Vectors of f16 have twice the lanes of float32.  So runs of `RUN` products are summed in f16,
    and the sum of a run is added to a sum of float32.  A run has two sums that take products by
    turns and are added at its end: short chains of roundings, that do not wait for each other.

    Error: a product takes part in at most RUN / 2 roundings of its sum, 3 more where products are
    left over, and one that adds the two sums.  Each is by 2^-11 at most: together they are
    (RUN / 2 + 4) 2^-11 sum |a b| to first order, and 2^-25 for each product where sums are smaller
    than a normal f16.  A sum of a run beyond 65504 is infinite.

    This is the portable variant, for targets without such an instruction, which no plan multiplies
    f16 for: it rounds sums of float64 that hold a product and a sum of f16 exactly enough to round
    once, so that it has the bits of `_HalfTile`.
    Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1; Blanchard,
    Higham, Mary, "A class of fast and accurate summation algorithms", SIAM J. Sci. Comput. 2020.
    """

    def __init__(self, fn: Any, target: Target, T: str, a_cols: int, mr: int, nv: int) -> None:
        super().__init__(fn, target, T, a_cols, mr, nv)
        self.wide = self.vt  # of a vector of factors, or of sums of a run
        self.align = self.size // 2

    def _k_loop(self, a: Any, bp: Any, k: Any, lda: Any, ldb: Any) -> Grid:
        b = self.b
        zeros, sums = (
            [[ir.Constant(kind, [0.0] * kind.count)] * (self.nv * self.lanes // kind.count)] * rows
            for kind, rows in ((self.wide, 2 * self.mr), (self.vt, self.mr))
        )
        step = 4 if self.a_cols else 8

        def turn(step: int, kk: Any, acc: Grid) -> Grid:
            """Return two sums of a run for each of C, by turns, after `step` more products."""
            out = list(acc)
            if self.a_cols:
                columns = [b.gep(a, [b.mul(b.add(kk, I64(p)), lda)]) for p in range(step)]
                left = [self._spread(p, self.mr) for p in columns]
            else:
                rows = [b.gep(a, [b.add(kk, b.mul(lda, I64(i)))]) for i in range(self.mr)]
                left = [*map(list, zip(*(self._spread(p, step) for p in rows), strict=True))]
            for p in range(step):
                right = self.load_right(b.gep(bp, [b.mul(b.add(kk, I64(p)), ldb)]))
                mine = slice(p % 2 * self.mr, (p % 2 + 1) * self.mr)
                out[mine] = self._multiply(left[p], right, out[mine])
            return out

        def run(k0: Any, sums: Grid) -> Grid:
            end = b.add(k0, I64(RUN))
            end = b.select(b.icmp_signed("<", end, k), end, k)
            whole = b.add(k0, b.and_(b.sub(end, k0), I64(-step)))
            made = self._loop(k0, whole, step, zeros, partial(turn, step))
            made = self._loop(whole, end, 1, made, partial(turn, 1))
            halves = zip(made[: self.mr], made[self.mr :], strict=True)
            joined = [[*map(self._join, *both)] for both in halves]
            return [
                [b.fadd(x, y) for x, y in zip(row, self._widen(more), strict=True)]
                for row, more in zip(sums, joined, strict=True)
            ]

        return self._loop(I64(0), k, RUN, sums, run)

    def load_right(self, row: Any) -> list[Any]:
        size = self.wide.count
        return [
            self._load_factors(self.b.gep(row, [I64(j)]), size)
            for j in range(0, self.nv * self.lanes, size)
        ]

    def _spread(self, pointer: Any, n: int) -> list[Any]:
        """Return each of n factors in all lanes of a vector."""
        vector = self._load_factors(pointer, n)
        undef = ir.Constant(vector.type, ir.Undefined)
        kind = Vector(I32, self.wide.count)
        return [
            self.b.shuffle_vector(vector, undef, ir.Constant(kind, [i] * kind.count))
            for i in range(n)
        ]

    def _load_factors(self, pointer: Any, n: int) -> Any:
        """Return n factors as a vector of what is computed with."""
        return f16.unpack(self.b, load(self.b, pointer, Vector(I16, n), self.align))

    def _join(self, x: Any, y: Any) -> Any:
        """Return the sum of two sums of a run."""
        return self._round(self.b.fadd(x, y))

    def _round(self, v: Any) -> Any:
        """Return the nearest f16, as float32."""
        return f16.unpack(self.b, f16.pack(self.b, v))

    def _multiply(self, left: list[Any], right: list[Any], acc: Grid) -> Grid:
        b, double = self.b, Vector(ir.DoubleType(), self.lanes)

        def add_product(x: Any, y: Any, z: Any) -> Any:
            x, y, z = (b.fpext(v, double) for v in (x, y, z))
            return self._round(f16.narrow(b, b.fadd(b.fmul(x, y), z)))

        return [
            [add_product(x, y, z) for y, z in zip(right, row, strict=True)]
            for x, row in zip(left, acc, strict=True)
        ]

    def _widen(self, row: list[Any]) -> list[Any]:
        """Return sums of a run, of a row of the tile, as vectors of float32."""
        return row


class _HalfTile(_RunTile):
    """Writes the body of a tile of factors of f16 by multiply-adds of f16."""

    def __init__(self, fn: Any, target: Target, T: str, a_cols: int, mr: int, nv: int) -> None:
        super().__init__(fn, target, T, a_cols, mr, nv)
        self.wide = Vector(ir.HalfType(), nv * self.lanes)
        name = f"llvm.fma.v{self.wide.count}f16"
        self.fma = intrinsic(fn.module, name, self.wide, [self.wide] * 3)

    def _load_factors(self, pointer: Any, n: int) -> Any:
        return load(self.b, pointer, Vector(ir.HalfType(), n), self.align)

    def _multiply(self, left: list[Any], right: list[Any], acc: Grid) -> Grid:
        return RegisterTile._multiply(self, left, right, acc)

    def _join(self, x: Any, y: Any) -> Any:
        return self.b.fadd(x, y)

    def _widen(self, row: list[Any]) -> list[Any]:
        b, (halves,) = self.b, row
        wide = b.fpext(halves, Vector(self.scalar, halves.type.count))
        undef = ir.Constant(wide.type, ir.Undefined)
        parts = (range(j * self.lanes, (j + 1) * self.lanes) for j in range(self.nv))
        kind = Vector(I32, self.lanes)
        return [b.shuffle_vector(wide, undef, ir.Constant(kind, list(part))) for part in parts]
