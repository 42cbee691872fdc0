"""Gradients of convolution weights: a matrix product whose long side, the pixels, is summed over.

    dW[co, k] = sum_m dY[m, co] P[m, k]        dB[co] = sum_m dY[m, co]

dY is read as it is stored, columns of P are gathered into cache (`patches.py`).  Threads share the
columns when there are enough; else each sums a part of the pixels, and the parts are added in
order, so the result depends on the number of threads but never on their timing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from engine.element_types import ITEMSIZE
from engine.kernels.loops.contract import strip
from engine.kernels.loops.window import Axes, Axis, parts, round_up
from engine.kernels.ops.conv import patches as P
from engine.kernels.ops.conv.convolution import is_depthwise
from engine.kernels.ops.conv.depthwise import channels_repeat, depthwise_dw, repeated, row_of
from engine.kernels.ops.conv.patches import Job
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Native,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand
from engine.kernels.vocabulary.row_program import loop


def _row_sums(T: str) -> Any:
    """Inline function: into[c] += sum of y[i co + c], begin <= i < end, in blocks of mc rows.

    row_sums(y, into, work, begin, end, co, mc)
    """
    add = loop(T, "x[] y[] -> x[] = x + y")
    zero = Native("zero", (T,))

    @inline
    def run(y, into, work, begin, end, co, mc):
        while begin < end:
            zero(work, co)
            for i in range(begin, imin(begin + mc, end)):
                add(work, off(y, i * co), work, co)
            add(into, work, into, co)
            begin += mc

    return run


@kernel("x:T* dy:T* dw:T* db:T* keep_w:b1* keep_b:b1* work:T* g:i64[]")
def conv_dw(target: Target, T: str) -> Body:
    """dw[part][co][k] = sum_m dy[m, co] P[m, k];  db[part][co] = sum_m dy[m, co].

    x, dy: T, channels-last; m over the pixels of one of MT parts; dw or db may be null.
    work: g[3] elements a thread.  g: groups, Co, Co of a group, work stride, column block,
    whether there is dw, whether there is db, whether dw and db are added to (then each is unless
    its flag is set), whether dw is [part][group][k][co of a group], then the job.  No aliasing.
    Overwrites unless told to add.
    """
    fill, rows = P.gather(T), strip(target, T, 1)
    lanes = target.lanes(ITEMSIZE[T])
    width, sums, zero = target.nv * lanes, _row_sums(T), Native("zero", (T,))

    def body(x, dy, dw, db, keep_w, keep_b, work, g, tid, nthreads):
        groups, co, cog, crossed, q = g[0], g[1], g[2], g[9], off(g, 10)
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
        if m == 0 and start == 0 and tid == 0:  # no images: a sum of nothing
            zero(dw, co * n * g[5])
        for group in range(groups * g[5]):
            j0 = n0
            while j0 < n1:
                nb = imin(g[4], n1 - j0)
                at = (tm * groups + group) * cog * n + (j0 * cog if crossed != 0 else j0)
                m0, mode = begin, start
                while m0 < end:
                    mb = imin(mc, end - m0)
                    right, ldb = off(x, m0 * q[P.LDX] + group * c + j0), q[P.LDX]
                    if q[P.DIRECT] == 0:
                        right, ldb = mine, udiv(nb + lanes - 1, lanes) * lanes
                        fill(off(x, group * c), mine, ldb, q, m0, mb, j0, nb)
                    left, into = off(dy, m0 * co + group * cog), off(dw, at)
                    a, lda, b, step, ldc, high, wide = left, co, right, ldb, n, cog, nb
                    if crossed != 0:
                        a, lda, b, step, ldc, high, wide = right, ldb, left, co, cog, nb, cog
                    j = 0
                    while j < wide:
                        w = imin(width, wide - j)
                        rows(a, lda, off(b, j), step, off(into, j), ldc, dw, mb, high, w, mode)
                        j += width
                    mode = ACCUMULATE
                    m0 += mb
                j0 += nb
        if g[6] != 0 and tn == 0 and tm < mt:
            into = off(db, tm * co)
            if g[8] == 0 or keep_b[0] != 0:
                zero(into, co)
            sums(dy, into, mine, begin, end, co, mc)

    return body


@kernel("part:T* dbs:T* dw:T* db:T* keep_w:b1* keep_b:b1* g:i64[]")
def conv_fold(target: Target, T: str) -> Body:
    """dw[co, c, tap] = sum_p part[p][co][tap, c];  db[co] = sum_p dbs[p][co], parts in order.

    g: parts, Co, channels of a group, taps, whether there is dw, whether there is db, whether dw
    and db are added to (then each is unless its flag is set), and, unless 0, Co of a group where
    part is [p][group][tap, c][co].  Uses up part.  dw or db may be null.
    """
    add = loop(T, "x[] y[] -> x[] = x + y")

    def body(part, dbs, dw, db, keep_w, keep_b, g, tid, nthreads):
        count, co, c, taps, per = g[0], g[1], g[2], g[3], g[8]
        keep = 0
        if g[6] != 0 and keep_w[0] == 0:
            keep = 1
        begin, end = share(co * g[4], tid, nthreads)
        for i in range(begin, end):
            n, step, into = c * taps, 1, off(dw, i * c * taps)
            first = off(part, i * n)
            if per > 0:
                group, step = udiv(i, per), per
                first = off(part, group * per * n + i - group * per)
            for p in range(1, count):
                more = off(first, p * co * n)
                if step == 1:
                    add(first, more, first, n)
                else:
                    for k in range(n):
                        first[k * step] += more[k * step]
            for j in range(c):
                for t in range(taps):
                    value = first[(t * c + j) * step]
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


def lower_weights(
    s: Lowering,
    operands: tuple[Operand, Operand, Operand],
    axes: Axes,
    groups: int,
    dw: int | None,
    db: int | None,
) -> None:
    """Calls for the outputs dW and dB of the node, where they are wanted; operands are x, dy, w."""
    x, dy, w = operands
    images, ci = x.type.dims[:2]
    volume, co = math.prod(a.taps for a in axes), w.type.dims[0]
    weights, bias = _Sum.of(s, dw), _Sum.of(s, db)
    if weights.have and is_depthwise(w, groups):
        _depthwise_weights(s, x, dy, P.job(axes, images, 1, co, co), weights)
        weights = _Sum()
    if weights.have or bias.have:
        j = P.job(axes, images, ci // groups, ci, volume * (ci // groups))
        _weights(s, x, dy, j, groups, weights, bias)


def lower_bias(s: Lowering, dy: Operand, db: int) -> None:
    """Calls for the output dB of the node where it is wanted: the sum of dY over the pixels."""
    bias = _Sum.of(s, db)
    if bias.have:
        d, h, w = [Axis()] * (5 - dy.type.rank) + [Axis(n, n) for n in dy.type.dims[2:]]
        images, co = dy.type.dims[:2]
        _weights(s, dy, dy, P.job((d, h, w), images, co, co, co), 1, _Sum(), bias)


def _cost(rows: int, columns: int, lanes: int) -> float:
    """The cost of a product, in vectors; a single left-over vector costs one and a half."""
    vectors = parts(columns, lanes)
    return rows * (vectors + 0.5 * (vectors % 2))


def _weights(s: Lowering, x: Operand, dy: Operand, j: Job, groups: int, dw: _Sum, db: _Sum) -> None:
    """Partial sums over parts of the pixels, then their sum in ONNX's order.

    Weights of one tap that one thread sums are in ONNX's order as they come.
    """
    T, co = x.type.dtype, dy.type.dims[1]
    lanes, per = s.target.lanes(ITEMSIZE[T]), co // groups
    whole = dw.have and per % lanes == 0
    crossed = whole and _cost(j.columns, per, lanes) < 0.8 * _cost(per, j.columns, lanes)
    n, taps = j.columns if dw.have else 0, math.prod(j.taps)

    def busiest(nt: int) -> int:
        mt = s.threads // nt
        return parts(j.rows, mt) * (parts(parts(n, lanes), nt) * lanes + 8) + 2 * n * (mt - 1)

    nt = min(range(1, s.threads + 1), key=busiest)
    mt = max(1, min(s.threads // nt, j.rows))
    columns = max(parts(parts(n, lanes), nt), 1) * lanes
    block = round_up(parts(columns, parts(columns, 512)), s.target.nv * lanes)
    # No row of the factor that is read by vectors may end inside one.
    direct = int(j.direct and (crossed or x.type.dims[1] % lanes == 0))
    j = replace(j, mt=mt, nt=nt, mc=128, direct=direct)
    stride = round_up(max(j.mc * block, co), 16)
    work = s.temp(T, (stride * s.threads,))
    outs, flags = [dw.out, db.out, dw.reset, db.reset], [dw.have, db.have]
    keep = [dw.keep, db.keep]
    head = [groups, co, per, stride, block, *flags]
    sources: list[Any] = [("r", x), ("r", dy)]
    if mt == taps == 1 and not crossed:
        s.call(conv_dw(T), [*sources, *outs, ("s", work)], [*head, *keep, 0, *j.words()])
        return
    part = s.temp(T, (mt * co * n,)) if dw.have else None
    dbs = s.temp(T, (mt * co,)) if db.have else None
    args = [*sources, ("w", part), ("w", dbs), ("r", None), ("r", None), ("s", work)]
    s.call(conv_dw(T), args, [*head, 0, 0, int(crossed), *j.words()])
    consts = [mt, co, j.channels, taps, *flags, *keep, per if crossed else 0]
    s.call(conv_fold(T), [("u", part), ("r", dbs), *outs], consts)


def _depthwise_weights(s: Lowering, x: Operand, dy: Operand, j: Job, dw: _Sum) -> None:
    """As `_weights`, of a depthwise convolution."""
    T, taps, co = dy.type.dtype, j.depth, j.columns
    x = repeated(s, x, co // x.type.dims[1])
    nt = min(s.threads, parts(co, s.target.lanes(ITEMSIZE[T])))
    j = replace(j, mt=s.threads // nt, nt=nt)
    part = s.temp(T, (j.mt * taps * co,))
    s.call(depthwise_dw(T, *row_of([j])), [("r", x), ("r", dy), ("w", part)], j.words())
    none = _Sum()
    args: list[Any] = [("u", part), ("r", None), dw.out, none.out, dw.reset, none.reset]
    s.call(conv_fold(T), args, [j.mt, 1, co, taps, 1, 0, dw.keep, 0, 0])


@dataclass(frozen=True, slots=True)
class _Sum:
    """A gradient output as kernels take it: its operand and its flag to overwrite."""

    out: tuple[Any, Operand | None] = ("w", None)
    reset: tuple[Any, Operand | None] = ("r", None)

    @classmethod
    def of(cls, s: Lowering, i: int | None) -> _Sum:
        """Output i of the node; without an operand when nobody reads it."""
        if i is None or not s.wants(i):
            return cls()
        reset = s.reset(i)
        return cls(("u" if reset else "w", s.y(i)), ("r", reset))

    @property
    def have(self) -> int:
        return int(self.out[1] is not None)

    @property
    def keep(self) -> int:
        return int(self.reset[1] is not None)


# What `lower_weights` calls, and `lower_bias`.
WEIGHTS_KERNELS = (conv_dw, conv_fold, depthwise_dw, channels_repeat)
KERNELS = (conv_dw, conv_fold)
