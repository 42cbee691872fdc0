"""Gradients of convolution weights: a matrix product whose long side, the pixels, is summed over.

    dW[co, k] = sum_m dY[m, co] P[m, k]        dB[co] = sum_m dY[m, co]

dY is read as it is stored, columns of P are gathered into cache (`_patches.py`).  Threads share the
columns when there are enough; else each sums a part of the pixels, and the parts are added in
order, so the result depends on the number of threads but never on their timing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from engine.kernels import _patches as P
from engine.kernels._contract import strip
from engine.kernels._kernel import Body, Native, imin, kernel, off, share, udiv
from engine.kernels._op import Lowering
from engine.kernels._patches import Job
from engine.kernels._rows import Input, Program
from engine.kernels._target import Target
from engine.kernels._tile import ACCUMULATE, SIZE
from engine.kernels._window import parts, round_up

_SUM = ("add", ("in", 0), ("in", 1))


@kernel("x:T* dy:T* dw:T* db:T* keep_w:b1* keep_b:b1* work:T* g:i64[]")
def conv_dw(target: Target, T: str) -> Body:
    """dw[part][co][k] = sum_m dy[m, co] P[m, k];  db[part][co] = sum_m dy[m, co].

    x, dy: T, channels-last; m over the pixels of one of MT parts; dw or db may be null.
    work: g[3] elements a thread.  g: groups, Co, Co of a group, work stride, column block,
    whether there is dw, whether there is db, whether dw and db are added to (then each is unless
    its flag is set), then the job.  No aliasing.  Overwrites unless told to add.
    """
    fill, rows = P.gather(T), strip(target, T, 1)
    lanes = target.lanes(SIZE[T])
    width = target.nv * lanes
    add = Native("rows", (Program((Input(T), Input(T)), ((T, _SUM),)),))
    zero = Native("zero", (T,))

    def body(x, dy, dw, db, keep_w, keep_b, work, g, tid, nthreads):
        groups, co, cog, q = g[0], g[1], g[2], off(g, 9)
        mine = off(work, tid * g[3])
        m, n, c, mt, nt, mc = q[P.ROWS], q[P.N], q[P.C], q[P.MT], q[P.NT], q[P.MC]
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        begin, end = udiv(m * tm, mt), udiv(m * (tm + 1), mt)
        nstep = udiv(udiv(n + lanes - 1, lanes) + nt - 1, nt) * lanes
        n0 = imin(tn * nstep, n)
        n1 = imin(n0 + nstep, n)
        if tm >= mt:
            end = begin
        start = 0
        if g[7] != 0 and keep_w[0] == 0:
            start = ACCUMULATE
        for group in range(groups * g[5]):
            j0 = n0
            while j0 < n1:
                nb = imin(g[4], n1 - j0)
                m0, mode = begin, start
                while m0 < end:
                    mb = imin(mc, end - m0)
                    right, ldb = off(x, m0 * q[P.LDX] + group * c + j0), q[P.LDX]
                    if q[P.DIRECT] == 0:
                        right, ldb = mine, udiv(nb + lanes - 1, lanes) * lanes
                        fill(off(x, group * c), mine, ldb, q, m0, mb, j0, nb)
                    left = off(dy, m0 * co + group * cog)
                    into = off(dw, (tm * groups + group) * cog * n + j0)
                    j = 0
                    while j < nb:
                        w = imin(width, nb - j)
                        to = off(into, j)
                        rows(left, co, off(right, j), ldb, to, n, dw, mb, cog, w, mode)
                        j += width
                    mode = ACCUMULATE
                    m0 += mb
                j0 += nb
        if g[6] != 0 and tn == 0 and tm < mt:
            into = off(db, tm * co)
            if g[8] == 0 or keep_b[0] != 0:
                zero(into, co)
            m0 = begin
            while m0 < end:
                zero(mine, co)
                for i in range(m0, imin(m0 + mc, end)):
                    add(mine, off(dy, i * co), mine, co)
                add(into, mine, into, co)
                m0 += mc

    return body


@kernel("part:T* dbs:T* dw:T* db:T* keep_w:b1* keep_b:b1* g:i64[]")
def conv_fold(target: Target, T: str) -> Body:
    """dw[co, c, tap] = sum_p part[p][co][tap, c];  db[co] = sum_p dbs[p][co], parts in order.

    g: parts, Co, channels of a group, taps, whether there is dw, whether there is db, whether dw
    and db are added to (then each is unless its flag is set).  Uses up part.  dw or db may be null.
    """
    add = Native("rows", (Program((Input(T), Input(T)), ((T, _SUM),)),))

    def body(part, dbs, dw, db, keep_w, keep_b, g, tid, nthreads):
        count, co, c, taps = g[0], g[1], g[2], g[3]
        keep = 0
        if g[6] != 0 and keep_w[0] == 0:
            keep = 1
        begin, end = share(co * g[4], tid, nthreads)
        for i in range(begin, end):
            n = c * taps
            first, into = off(part, i * n), off(dw, i * n)
            for p in range(1, count):
                add(first, off(part, (p * co + i) * n), first, n)
            for j in range(c):
                for t in range(taps):
                    value = first[t * c + j]
                    if keep != 0:
                        value += into[j * taps + t]
                    into[j * taps + t] = value
        begin, end = share(co * g[5], tid, nthreads)
        for i in range(begin, end):
            value = dbs[i]
            for p in range(1, count):
                value += dbs[p * co + i]
            if g[7] != 0 and keep_b[0] == 0:
                value += db[i]
            db[i] = value

    return body


def lower_weights(s: Lowering, j: Job, groups: int) -> None:
    """Calls for dW and dB: partial sums over parts of the pixels, then their sum in ONNX's order.

    Weights of one tap that one thread sums are in ONNX's order as they come.
    """
    dy, x, w = s.x(0), s.x(1), s.x(2)
    T, co = x.type.dtype, w.type.dims[0]
    lanes = s.target.lanes(SIZE[T])
    n, taps = j.columns, math.prod(j.taps)

    def busiest(nt: int) -> int:
        mt = s.threads // nt
        return parts(j.rows, mt) * (parts(parts(n, lanes), nt) * lanes + 8) + 2 * n * (mt - 1)

    nt = min(range(1, s.threads + 1), key=busiest)
    mt, columns = s.threads // nt, parts(parts(n, lanes), nt) * lanes
    block = round_up(parts(columns, parts(columns, 512)), s.target.nv * lanes)
    direct = int(
        j.direct and x.type.dims[1] % lanes == 0
    )  # rows of whole vectors: none ends outside
    j = replace(j, mt=mt, nt=nt, mc=128, direct=direct)
    stride = round_up(max(j.mc * block, co), 16)
    work = s.temp(T, (stride * s.threads,))
    dw, db = (s.y(i) if s.wants(i) else None for i in (1, 2))
    keep_w, keep_b = (s.reset(i) if s.wants(i) else None for i in (1, 2))
    have, keep = (
        [int(o is not None) for o in (dw, db)],
        [int(k is not None) for k in (keep_w, keep_b)],
    )
    outs: list[Any] = [("u" if k else "w", o) for k, o in zip(keep, (dw, db), strict=True)]
    resets: list[Any] = [("r", keep_w), ("r", keep_b)]
    head = [groups, co, co // groups, stride, block, *have]
    if mt == taps == 1:
        args: list[Any] = [("r", x), ("r", dy), *outs, *resets, ("s", work)]
        s.call(conv_dw(T), args, [*head, *keep, *j.words()])
        return
    part = s.temp(T, (mt * co * n,)) if dw else None
    dbs = s.temp(T, (mt * co,)) if db else None
    args = [("r", x), ("r", dy), ("w", part), ("w", dbs), ("r", None), ("r", None), ("s", work)]
    s.call(conv_dw(T), args, [*head, 0, 0, *j.words()])
    args = [("u", part), ("r", dbs), *outs, *resets]
    s.call(conv_fold(T), args, [mt, co, j.channels, taps, *have, *keep])


KERNELS = (conv_dw, conv_fold)
