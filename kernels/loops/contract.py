"""Blocked matrix product over pluggable operands: GEMM and all convolutions are this loop.

    C[m, n] = act(sum_k A[m, k] B[k, n] (+ C[m, n]) (+ bias[n]))

Each thread owns a rectangle of C.  Per block of K it packs a block of B into panels (contiguous for
the register tile), takes or gathers a block of A, and runs the tiles of `tile.py`.  Two inline
functions decide what A and B are, so a convolution differs from a GEMM only in how it fills
its blocks: no im2col copy exists beyond the block in cache.

Source: Goto, van de Geijn, TOMS 2008; Georganas et al., "High-performance deep learning via a
single building block", arXiv 1906.06440.
"""

from __future__ import annotations

from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import FACTORS, Target
from engine.kernels.vocabulary.call import KernelCall
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Inline,
    Intrinsic,
    imin,
    inline,
    off,
    udiv,
)
from engine.kernels.vocabulary.signature import round_to_unit


def column(target: Target, T: str, a_cols: int, nv: int, P: str = "") -> Inline:
    """Inline function: one column of tiles, `mb` rows by at most nv vectors, all of a K block.

    column(a, lda, b, ldb, c, ldc, bias, k, mb, mode, tail)

    A tile of one or two rows takes as long as one of four.  Where tiles have six, two or three rows
    too many are taken together with the last six: two tiles of four, and one row.  With tile
    registers, one function takes all rows.
    """
    if P == "bf16" and target.has_tile_registers:
        tiles = Intrinsic("tile_column", (T, a_cols, nv, P))

        @inline
        def run_in_registers(a, lda, b, ldb, c, ldc, bias, k, mb, mode, tail):
            tiles(a, b, c, bias, k, lda, ldb, ldc, mb, mode, tail)

        return run_in_registers

    mr = target.mr
    whole, four, two, one = (Intrinsic("tile", (T, a_cols, n, nv, P)) for n in (mr, 4, 2, 1))

    @inline
    def run(a, lda, b, ldb, c, ldc, bias, k, mb, mode, tail):
        step = 1 if a_cols else lda
        i, end = 0, mb
        if mr == 6 and mb > 6:
            left = mb - udiv(mb, 6) * 6
            if left == 2 or left == 3:
                end = mb - 6
        while i + mr <= end:
            whole(off(a, i * step), b, off(c, i * ldc), bias, k, lda, ldb, ldc, mode, tail)
            i += mr
        while i + 4 <= mb:
            four(off(a, i * step), b, off(c, i * ldc), bias, k, lda, ldb, ldc, mode, tail)
            i += 4
        if i + 2 <= mb:
            two(off(a, i * step), b, off(c, i * ldc), bias, k, lda, ldb, ldc, mode, tail)
            i += 2
        if i < mb:
            one(off(a, i * step), b, off(c, i * ldc), bias, k, lda, ldb, ldc, mode, tail)

    return run


def strip(target: Target, T: str, a_cols: int, P: str = "") -> Inline:
    """Inline function: `mb` rows by `w` <= nv vectors of columns, as columns of 4, 2 and 1 vectors.

    strip(a, lda, b, ldb, c, ldc, bias, k, mb, w, mode)

    P: as of `tile`.
    """
    lanes, nv = target.lanes(ITEMSIZE[T]), target.nv
    wide = column(target, T, a_cols, nv, P)
    half = column(target, T, a_cols, max(nv // 2, 1), P)
    single = column(target, T, a_cols, 1, P)
    width = nv * lanes

    @inline
    def run(a, lda, b, ldb, c, ldc, bias, k, mb, w, mode):
        if w > width - lanes:
            wide(a, lda, b, ldb, c, ldc, bias, k, mb, mode, w - (width - lanes))
        else:
            j = 0
            if nv > 2 and w > lanes:
                tail = imin(w - lanes, lanes)
                half(a, lda, b, ldb, c, ldc, bias, k, mb, mode, tail)
                j = 2 * lanes
            if j < w:
                p, q, r = off(b, j), off(c, j), off(bias, j)
                single(a, lda, p, ldb, q, ldc, r, k, mb, mode, w - j)

    return run


def block(
    target: Target,
    T: str,
    a_cols: int,
    fill_a: Inline,
    pack_b: Inline,
    *,
    mc: int | None = None,
    P: str = "",
    C: str = "",
    room: int = 0,
) -> Inline:
    """Return an inline function: one thread's rectangle [m0, m1) x [n0, n1) of C.

    block(a, b, c, ldc, bias, work, g, m0, m1, n0, n1, k, kc, nc, mode)

    `fill_a(a, into, g, i0, mb, k0, kb)` returns (pointer, lda) of A[i0:i0+mb, k0:k0+kb];
    `pack_b(b, into, g, k0, kb, j0, nb)` returns (pointer, panel stride, ldb) of the panels of
    B[k0:k0+kb, j0:j0+nb].  `work` holds kc x nc elements for B, then mc x kc for A.
    `mode`: the tile's, ACCUMULATE for the first K block, the rest for the last.

    P: as of `tile`; `work` holds words of two factors then (`words_of`).
    C: the type of 16 bits in which C is stored.  Sums are float32, after the `room` rows of kc for
        A in `work`: of a panel, or where K has several blocks of all rows and nc columns.  They
        are rounded once.  `mode` has no ACCUMULATE, and the rectangle at most nc columns if K has
        several blocks.
    """
    rows = strip(target, T, a_cols, P)
    width = target.nv * target.lanes(ITEMSIZE[T])
    mc_ = mc or target.mc
    words = words_of(P)

    if C:
        narrow = Intrinsic("convert", (C, T))

        @inline
        def panel_rows(
            left, lda, b, ldb, c, ldc, bias, work, i, j, k, kc, nc, kb, mb, w, step, end
        ):
            sums, lds = off(work, words(kc) * (nc + room)), width
            if kc < k:
                sums, lds = off(sums, i * nc + j), nc
            rows(left, lda, b, ldb, sums, lds, bias, kb, mb, w, step)
            if end != 0:
                for r in range(mb):
                    narrow(off(c, r * ldc), off(sums, r * lds), w)

    else:

        @inline
        def panel_rows(
            left, lda, b, ldb, c, ldc, bias, work, i, j, k, kc, nc, kb, mb, w, step, end
        ):
            rows(left, lda, b, ldb, c, ldc, bias, kb, mb, w, step)

    @inline
    def run(a, b, c, ldc, bias, work, g, m0, m1, n0, n1, k, kc, nc, mode):
        k0 = 0
        while k0 < k:
            kb = imin(kc, k - k0)
            end = 1 if k0 + kb == k else 0
            # The sums of a block of K are added to those before it, in C.  Bias and activation wait
            # for the last block: only then are the sums whole.
            step = mode if end != 0 else mode & ACCUMULATE
            if k0 > 0:
                step = step | ACCUMULATE
            j0 = n0
            while j0 < n1:
                nb = imin(nc, n1 - j0)
                # Goto's order: a block of B is packed once for all rows.  It and the block of A
                # stay in the second-level cache, and a panel of B, kb x width, in the first-level
                # cache while all tiles of the block of A use it.
                panels, stride, ldb = pack_b(b, work, g, k0, kb, j0, nb)
                i0 = m0
                while i0 < m1:
                    mb = imin(mc_, m1 - i0)
                    left, lda = fill_a(a, off(work, words(kc) * nc), g, i0, mb, k0, kb)
                    j = 0
                    while j < nb:
                        w = imin(width, nb - j)
                        into = off(c, i0 * ldc + j0 + j)
                        panel = off(panels, udiv(j, width) * stride)
                        panel_rows(
                            left, lda, panel, ldb, into, ldc, off(bias, j0 + j), work,
                            i0 - m0, j0 - n0 + j, k, kc, nc, kb, mb, w, step, end,
                        )  # fmt: skip
                        j += width
                    i0 += mc_
                j0 += nc
            k0 += kc

    return run


def panels_reach(c: KernelCall, n: int, depth: int, panel: int, unit: int = 0) -> int:
    """Return the reach into panels of B [depth, n], whose rows are `panel` elements apart.

    unit: columns that are touched together; 0: a vector of them, as tiles read.
    """
    if not n * depth:
        return 0
    last = (n - 1) // c.tile_columns * c.tile_columns
    ends = [last * depth + (depth - 1) * panel + round_to_unit(n - last, unit or c.lanes)]
    if last:
        ends.append((last - c.tile_columns) * depth + (depth - 1) * panel + c.tile_columns)
    return max(ends)


@inline
def same(x):
    """The pointer itself."""
    return x


def count_in_row(P: str) -> int:
    """Return the steps of K that a row of a panel has: two of pairs.  P: as of `tile`."""
    return FACTORS.get(P, 1)


def depth_of(P: str) -> Inline:
    """Return an inline function: the rows of a panel of so many steps of K.

    P: as of `tile`.
    """

    @inline
    def one_each(k):
        return k

    return one_each if count_in_row(P) == 1 else _halve


def words_of(P: str) -> Inline:
    """Return an inline function: the elements of scratch memory that so many steps of K take.

    P: as of `tile`: of one column of a panel, as float32 or as words of two factors of 16 bits.
    """
    return _halve if P else depth_of(P)


@inline
def _halve(k):
    return (k + 1) >> 1


def view_panel(P: str) -> Any:
    """Return a function: where a panel is in scratch memory, as a pointer to its elements.

    P: as of `tile`: to words of pairs, or to factors.
    """
    return Intrinsic("halves", (P,)) if P and count_in_row(P) == 1 else same


def line(target: Target, T: str, S: str = "", P: str = "") -> Inline:
    """Return an inline function: n elements of row r of a panel, of rows stored as S.

    line(into, x, ldx, r, j, k, n)

    They are columns j ... of rows r, or for pairs 2 r and 2 r + 1 of k, of x.  S: "" for T.  P: as
    of `tile`.
    """
    if count_in_row(P) == 2:
        both, single = (Intrinsic("pair", (P, S or T, flag)) for flag in (1, 0))

        @inline
        def run(into, x, ldx, r, j, k, n):
            at = off(x, 2 * r * ldx + j)
            if 2 * r + 1 < k:
                both(into, at, off(at, ldx), n)
            else:
                single(into, at, at, n)

        return run
    is_same = not P and S in ("", T)
    move = Intrinsic("copy", (T,)) if is_same else Intrinsic("convert", (P or T, S or T))

    @inline
    def moved(into, x, ldx, r, j, k, n):
        move(into, off(x, r * ldx + j), n)

    return moved


def pack_rows(target: Target, T: str, S: str = "", P: str = "") -> Inline:
    """Return an inline function: panels of B[kb, nb] stored row-major: b[k ldb + j].

    pack_rows(b, ldb, into, kb, nb)

    S, P: as of `line`.
    """
    width = target.nv * target.lanes(ITEMSIZE[T])
    depth, row = depth_of(P), line(target, T, S, P)

    @inline
    def run(b, ldb, into, kb, nb):
        j = 0
        while j < nb:
            w = imin(width, nb - j)
            panel = off(into, j * depth(kb))
            for r in range(depth(kb)):
                row(off(panel, r * width), b, ldb, r, j, kb, w)
            j += width

    return run


def pack_cols(target: Target, T: str, S: str = "", P: str = "") -> Inline:
    """Inline function: panels of B[kb, nb] stored column-major: b[j ldb + k], by block transposes.

    pack_cols(b, ldb, into, kb, nb)

    S, P: as of `line`.
    """
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    depth, each = depth_of(P), count_in_row(P)
    element = line(target, T, S, P)
    if P or S not in ("", T):
        transpose = Intrinsic("turn", (P or T, S or T))

        @inline
        def one(panel, at, b, ldb, j, k, kb):
            element(off(panel, at), b, 1, k, j * ldb, kb, 1)

    else:
        transpose = Intrinsic("transpose", (T,))

        @inline
        def one(panel, at, b, ldb, j, k, kb):
            panel[at] = b[j * ldb + k]

    @inline
    def run(b, ldb, into, kb, nb):
        j = 0
        while j < nb:
            panel = off(into, udiv(j, width) * width * depth(kb) + (j - udiv(j, width) * width))
            k = 0
            if j + lanes <= nb:
                while (k + lanes) * each <= kb:
                    transpose(off(panel, k * width), width, off(b, j * ldb + k * each), ldb)
                    k += lanes
            for jj in range(imin(lanes, nb - j)):
                for kk in range(k, depth(kb)):
                    one(panel, kk * width + jj, b, ldb, j + jj, kk, kb)
            j += lanes

    return run
