"""The GEMM kernel and what lowers to it: one thread grid, one batch loop, fused epilogues.

Error     a sum of k products in k/kc partial sums, tools/dev/cases/matmul.py
Source    the loop: contract.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import block, pack_cols, pack_rows
from engine.kernels.loops.map import MAP_KERNELS, collapse, lower_map, update
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    RELU,
    Body,
    imin,
    inline,
    kernel,
    off,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, TensorType
from engine.kernels.vocabulary.signature import up
from engine.plan.words import Field, Words

# Tiles below and beside each other above which packing B pays: each packed element is then used by
# several tiles, and rows of B are so far apart that a panel lies in more pages than are known.
PACK_ROWS, PACK_COLUMNS = 4, 2
LEVELS = ("0", "1", "2")  # dimensions of a batch, the last one fastest


GEMM_WORDS = Words(
    "gemm",
    m="rows of C",
    n="columns of C",
    k="length of the sums",
    lda="elements from row to row of A as it is stored",
    ldb="elements from row to row of B as it is stored",
    ldc="elements from row to row of C",
    mode="bits: ACCUMULATE, BIAS, RELU",
    grid=Field("into how many parts threads cut the work", names=("batch", "rows", "columns")),
    kc="depth of a block",
    nc="columns of a block",
    direct="whether B is read where it is, not packed",
    batch=Field("dimensions of the batch", names=LEVELS),
    a_step=Field("strides of A along them, 0 where it is broadcast", names=LEVELS),
    b_step=Field("strides of B along them, 0 where it is broadcast", names=LEVELS),
)


def _reach(c: KernelCall) -> Reach:
    m, n, k = c.m, c.n, c.k
    trans_a, trans_b = c.flag(1), c.flag(2)
    count = math.prod(c.batch)
    direct = not trans_b and c.direct
    if direct and (n % c.lanes or c.nc % c.lanes):
        c.refuse(f"B of {n} columns, {c.nc} at a time, is read where it is, by {c.lanes}")
    if not m * n * k * count:
        return {}
    a = ((k, c.lda), (m, 1)) if trans_a else ((m, c.lda), (k, 1))
    b = ((n, c.ldb), (k, 1)) if trans_b else ((k, c.ldb), (n, 1))
    panels = min(c.kc, k) * up(min(c.nc, n), c.tile_columns)
    return {
        "a": c.span(0, *zip(c.batch, c.a_step, strict=True), *a),
        "b": c.span(0, *zip(c.batch, c.b_step, strict=True), *b),
        "c": (count - 1) * m * n + c.span(0, (m, c.ldc), (n, 1)),
        "work": 0 if direct else c.scratch(c.per_thread, panels, math.prod(c.grid)),
    }


@kernel(
    """
    a, b: T[...]   c: out T[...] updates if resets   bias: T[n] if mode & BIAS
    reset: b1[1] if resets   work: scratch T[...]   resets, per_thread: i64
    g: i64[] where min(kc, nc, min(grid)) >= 1 and mode <= ACCUMULATE | BIAS | RELU
    """,
    words={"g": GEMM_WORDS},
    reach=_reach,
    multiply_adds="prod(batch) * m * n * k",
)
def gemm(target: Target, T: str, trans_a: int, trans_b: int) -> Body:
    """C = act(op(A) op(B) (+ C) (+ bias)), for each matrix of a batch.

    op(A): [m, k], op(B): [k, n], C: [m, n] row-major; bias: [n].  C overlaps no input.
    Overwrites C, or adds to it when mode has ACCUMULATE or when `resets` and not reset[0].
    """
    pack = pack_cols(target, T) if trans_b else pack_rows(target, T)
    width = target.nv * target.lanes(ITEMSIZE[T])

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        lda = g.lda
        if trans_a:
            return off(a, k0 * lda + i0), lda
        return off(a, i0 * lda + k0), lda

    @inline
    def pack_b(b, into, g, k0, kb, j0, nb):
        ldb = g.ldb
        if trans_b:
            pack(off(b, j0 * ldb + k0), ldb, into, kb, nb)
        else:
            if g.direct != 0:
                return off(b, k0 * ldb + j0), width, ldb
            pack(off(b, k0 * ldb + j0), ldb, into, kb, nb)
        return into, kb * width, width

    run = block(target, T, trans_a, fill_a, pack_b)

    def body(a, b, c, bias, reset, work, resets, per_thread, g, tid, nthreads):
        m, n, k, mode = g.m, g.n, g.k, g.mode
        bt, mt, nt = g.grid_batch, g.grid_rows, g.grid_columns
        if resets != 0 and reset[0] == 0:
            mode = mode | ACCUMULATE
        if tid < bt * mt * nt:
            tb = udiv(tid, mt * nt)
            tm = udiv(tid, nt) - tb * mt
            tn = tid - udiv(tid, nt) * nt
            rows = udiv(m + mt - 1, mt)
            columns = udiv(udiv(n + width - 1, width) + nt - 1, nt) * width
            m0, n0 = imin(tm * rows, m), imin(tn * columns, n)
            m1, n1 = imin(m0 + rows, m), imin(n0 + columns, n)
            d1, d2 = g.batch_1, g.batch_2
            count = g.batch_0 * d1 * d2
            mine = off(work, tid * per_thread)
            for i in range(udiv(count * tb, bt), udiv(count * (tb + 1), bt)):
                i01 = udiv(i, d2)
                i0, i1, i2 = udiv(i01, d1), i01 - udiv(i01, d1) * d1, i - i01 * d2
                ai = off(a, i0 * g.a_step_0 + i1 * g.a_step_1 + i2 * g.a_step_2)
                bi = off(b, i0 * g.b_step_0 + i1 * g.b_step_1 + i2 * g.b_step_2)
                ci = off(c, i * m * n)
                run(ai, bi, ci, g.ldc, bias, mine, g, m0, m1, n0, n1, k, g.kc, g.nc, mode)

    return body


def thread_grid(m: int, n: int, batch: int, threads: int, width: int) -> tuple[int, int, int]:
    """Split of the threads over (batch, rows, columns).

    Columns first: then no two threads pack the same part of B.
    """
    if batch >= threads:
        return threads, 1, 1
    panels = max(1, -(-n // width))
    best = (1, 1, 1)
    cost = math.inf
    for bt in (b for b in range(1, threads + 1) if b <= batch):
        for nt in range(1, min(panels, threads // bt) + 1):
            mt = min(m, threads // (bt * nt))
            share = -(-batch // bt) * -(-m // mt) * (-(-panels // nt) * width)
            share += -(-batch // bt) * (-(-panels // nt) * width) * 2  # packing, in rows of work
            if share < cost:
                best, cost = (bt, mt, nt), share
    return best


def balanced(size: int, most: int, unit: int) -> int:
    """The length of blocks that are as few as can be and alike: a multiple of `unit`, or `size`."""
    if size <= most:
        return size
    blocks = -(-size // most)
    return min(-(-size // (blocks * unit)) * unit, size)


def lower_gemm(
    lowering: Lowering,
    a: Operand,
    b: Operand,
    y: Operand,
    *,
    mnk: tuple[int, int, int],
    trans: tuple[bool, bool] = (False, False),
    bias: Operand | None = None,
    relu: bool = False,
    reset: Operand | None = None,
    batch: tuple[Sequence[int], Sequence[int], Sequence[int]] = ((), (), ()),
    ld: tuple[int, int] = (0, 0),
) -> None:
    """Call `gemm`.  `batch`: dimensions and strides in A and B, at most three after collapsing.

    `ld`: elements from row to row of A and B as they are stored, 0 where nothing lies between.
    """
    m, n, k = mnk
    kind, target = y.type.dtype, lowering.target
    lanes = target.lanes(ITEMSIZE[kind])
    width = target.nv * lanes
    dims, (sa, sb) = collapse(batch[0], batch[1:], range(len(batch[0])))
    if len(dims) > len(LEVELS):
        lowering.site.fail(
            f"batch dimensions {tuple(dims)} broadcast in turns", "at most 3 alternations"
        )
    pad = len(LEVELS) - len(dims)
    if m == 0 or n == 0 or math.prod(dims) == 0:
        return
    if k == 0:
        zero: Expr = ("const", 0.0)
        if reset is not None:  # the sum of nothing is added, or takes the place of what is there
            flag = Operand(reset.name, TensorType("b1", ()))
            update(lowering, ("where", ("in", 1), zero, ("in", 0)), [y, flag], y)
            return
        ins = [] if bias is None else [bias]
        formula: Expr = ("in", 0) if ins else zero
        lower_map(lowering, [("max", formula, zero) if relu else formula], ins, [y])
        return
    grid = thread_grid(m, n, math.prod(dims), lowering.threads, width)
    panels = -(-n // width)
    columns = -(-panels // grid[2]) * width
    kc, nc = balanced(k, target.kc, lanes), balanced(columns, target.nc, width)
    few = m <= PACK_ROWS * target.mr or n <= PACK_COLUMNS * width
    direct = not trans[1] and n % lanes == 0 and few
    words = GEMM_WORDS.pack(
        m=m,
        n=n,
        k=k,
        lda=ld[0] or (m if trans[0] else k),
        ldb=ld[1] or (k if trans[1] else n),
        ldc=n,
        mode=(BIAS if bias else 0) | (RELU if relu else 0),
        grid=grid,
        kc=kc,
        nc=nc,
        direct=int(direct),
        batch=[1] * pad + dims,
        a_step=[0] * pad + sa,
        b_step=[0] * pad + sb,
    )
    per_thread = kc * nc
    work = lowering.temp(kind, (per_thread * lowering.threads,))
    lowering.call(
        gemm(kind, int(trans[0]), int(trans[1])),
        a=a, b=b, c=y, bias=bias, reset=reset, work=work,
        resets=int(reset is not None), per_thread=per_thread, g=words,
    )  # fmt: skip


GEMM_KERNELS = (gemm, *MAP_KERNELS)  # what `lower_gemm` calls
KERNELS = (gemm,)
