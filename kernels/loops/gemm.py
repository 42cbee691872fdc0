"""The GEMM kernel and what lowers to it: one thread grid, one batch loop, fused epilogues.

Error     a sum of k products in k/kc partial sums, tests/cases/matmul.py
Source    the loop: contract.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.element_types import ITEMSIZE
from engine.kernels.loops.contract import block, pack_cols, pack_rows
from engine.kernels.loops.map import MAP, collapse, lower_map
from engine.kernels.target import Target
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
from engine.kernels.vocabulary.op import Lowering, Operand

# Rows of A above which packing B pays: each packed element is then used by several tiles.
PACK_ROWS = 4


@kernel("a:T* b:T* c:T* bias:T* reset:b1* work:T* resets:i64 per_thread:i64 g:i64[]")
def gemm(target: Target, T: str, trans_a: int, trans_b: int) -> Body:
    """C = act(op(A) op(B) (+ C) (+ bias)), for each matrix of a batch.

    op(A): [m, k], op(B): [k, n], C: [m, n] row-major; bias: [n].  C overlaps no input.
    Overwrites C, or adds to it when mode has ACCUMULATE or when `resets` and not reset[0].
    g: m n k lda ldb ldc mode, thread grid (batch, rows, columns), kc nc, direct B, then three
    batch dimensions and their strides in A and in B (elements, 0 where broadcast).
    """
    pack = pack_cols(target, T) if trans_b else pack_rows(target, T)
    width = target.nv * target.lanes(ITEMSIZE[T])

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        lda = g[3]
        if trans_a:
            return off(a, k0 * lda + i0), lda
        return off(a, i0 * lda + k0), lda

    @inline
    def pack_b(b, into, g, k0, kb, j0, nb):
        ldb = g[4]
        if trans_b:
            pack(off(b, j0 * ldb + k0), ldb, into, kb, nb)
        else:
            if g[12] != 0:
                return off(b, k0 * ldb + j0), width, ldb
            pack(off(b, k0 * ldb + j0), ldb, into, kb, nb)
        return into, kb * width, width

    run = block(target, T, trans_a, fill_a, pack_b)

    def body(a, b, c, bias, reset, work, resets, per_thread, g, tid, nthreads):
        m, n, k, mode = g[0], g[1], g[2], g[6]
        bt, mt, nt = g[7], g[8], g[9]
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
            d1, d2 = g[14], g[15]
            count = g[13] * d1 * d2
            mine = off(work, tid * per_thread)
            for i in range(udiv(count * tb, bt), udiv(count * (tb + 1), bt)):
                i01 = udiv(i, d2)
                i0, i1, i2 = udiv(i01, d1), i01 - udiv(i01, d1) * d1, i - i01 * d2
                ai = off(a, i0 * g[16] + i1 * g[17] + i2 * g[18])
                bi = off(b, i0 * g[19] + i1 * g[20] + i2 * g[21])
                ci = off(c, i * m * n)
                run(ai, bi, ci, g[5], bias, mine, g, m0, m1, n0, n1, k, g[10], g[11], mode)

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


def lower_gemm(
    s: Lowering,
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
    kind, target = y.type.dtype, s.target
    width = target.nv * target.lanes(ITEMSIZE[kind])
    dims, (sa, sb) = collapse(batch[0], batch[1:], range(len(batch[0])))
    if len(dims) > 3:
        s.site.fail(f"batch dimensions {tuple(dims)} broadcast in turns", "at most 3 alternations")
    pad = 3 - len(dims)
    levels = [[1] * pad + dims, [0] * pad + sa, [0] * pad + sb]
    if m == 0 or n == 0 or math.prod(dims) == 0:
        return
    if k == 0:
        zero: Expr = ("const", 0.0)
        if reset is None:
            ins = [] if bias is None else [bias]
            formula: Expr = ("in", 0) if ins else zero
            lower_map(s, [("max", formula, zero) if relu else formula], ins, [y])
        return
    bt, mt, nt = thread_grid(m, n, math.prod(dims), s.threads, width)
    panels = -(-n // width)
    columns = -(-panels // nt) * width
    kc, nc = min(target.kc, k), min(target.nc, columns)
    direct = not trans[1] and n % target.lanes(ITEMSIZE[kind]) == 0 and m <= PACK_ROWS * target.mr
    mode = (BIAS if bias else 0) | (RELU if relu else 0)
    lda, ldb = ld[0] or (m if trans[0] else k), ld[1] or (k if trans[1] else n)
    per_thread = kc * nc
    work = s.temp(kind, (per_thread * s.threads,))
    consts = [m, n, k, lda, ldb, n, mode, bt, mt, nt, kc, nc, int(direct)]
    s.call(
        gemm(kind, int(trans[0]), int(trans[1])),
        [
            ("r", a), ("r", b), ("w" if reset is None else "u", y), ("r", bias), ("r", reset),
            ("s", work),
        ],
        [int(reset is not None), per_thread, *consts, *(x for level in levels for x in level)],
    )  # fmt: skip


GEMM = (gemm, *MAP)  # what `lower_gemm` calls
KERNELS = (gemm,)
