"""Depthwise convolution: every channel has its own filter, so channels are what vectors hold.

    Y[n, o, c] = act(sum_k X[n, o s - p + k d, c] W[c, k] (+ B[c]))

dX is the same loop over dY by the phases of conv.py.  Several filters a channel are one filter a
channel of a copy of X in which each channel is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.element_types import FLOATS, ITEMSIZE
from engine.kernels.loops.window import clip
from engine.kernels.ops.conv import patches as P
from engine.kernels.ops.conv.patches import Job
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import (
    Body,
    Native,
    imax,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand
from engine.runtime.words import OPEN, Field, Words

PIXELS = 4  # outputs that share what they load
ROWS = (3, 5)  # widths of windows for which rows of taps are compiled
KINDS = tuple((T, w, s) for T in FLOATS for w in (0, *ROWS) for s in ((1, 2) if w else (0,)))


@inline
def whole(q):
    """The outputs [inner, outer) along the width whose windows read no padding."""
    step, pw = q.stride_w, q.pad_w
    inner = udiv(imax(pw, 0) + step - 1, step)
    outer = q.size_w - 1 - (q.taps_w - 1) * q.dilation_w + pw
    return inner, imin(udiv(imax(outer + step, 0), step), q.out_w)


DEPTHWISE_WORDS = Words(
    "depthwise",
    count="number of jobs",
    mode="bits: BIAS, RELU",
    jobs=Field("the jobs, whose rows are addressed as if scattered", count=OPEN, of=P.JOB),
)
COPIES_WORDS = Words("copies", n="elements of the smaller tensor", times="copies of each")


@kernel("x:T* b:T* y:T* bias:T* g:i64[]", words={"g": DEPTHWISE_WORDS}, params=KINDS)
def depthwise(target: Target, T: str, kw: int, sw: int) -> Body:
    """y[n, o, c] = act(sum_k x[n, o s - p + k d, c] w[k, c] (+ bias[c])) for every job.

    x, y: T, channels-last; b: panels [taps][channels] of `conv_pack`.  Unless kw is 0
    it is the width of all windows, which have no dilation there, and sw is their stride.  No
    aliasing.  Overwrites.
    """
    width = target.nv * target.lanes(ITEMSIZE[T])
    four, one = Native("window_dot", (T, PIXELS, kw, sw)), Native("window_dot", (T, 1))

    def body(x, b, y, bias, g, tid, nthreads):
        for job in range(g.count):
            q = off(g.jobs, job)
            c, stored, step, pw, ow = q.ldx, q.panel, q.stride_w, q.pad_w, q.out_w
            panels = udiv(c + width - 1, width)
            lines = udiv(q.rows, ow)
            xd, xh, xw = (
                q.dilation_d * q.size_h * q.size_w * c,
                q.dilation_h * q.size_w * c,
                q.dilation_w * c,
            )
            taps = q.taps_d * q.taps_h * q.taps_w
            inner, outer = whole(q)
            begin, end = share(lines * panels, tid, nthreads)
            for unit in range(begin, end):
                line = udiv(unit, panels)
                c0 = (unit - line * panels) * width
                plane = udiv(line, q.out_h)
                n = udiv(plane, q.out_d)
                od, oh = plane - n * q.out_d, line - plane * q.out_h
                kd, d, nd = clip(od, q.size_d, q.stride_d, q.pad_d, q.dilation_d, q.taps_d)
                kh, h, nh = clip(oh, q.size_h, q.stride_h, q.pad_h, q.dilation_h, q.taps_h)
                src = off(x, ((n * q.size_d + d) * q.size_h + h) * q.size_w * c + c0)
                weight = off(b, q.b_at + c0 * taps + (kd * q.taps_h + kh) * q.taps_w * stored)
                dst = off(y, q.y_at + n * q.y_step_n + od * q.y_step_d + oh * q.y_step_h + c0)
                add, nc = off(bias, c0), imin(width, c - c0)
                wd, wh = q.taps_h * q.taps_w * stored, q.taps_w * stored
                o = 0
                while o < ow:
                    # The last four of a line may be some that were computed before.
                    if o < outer and o + PIXELS > outer and outer - PIXELS >= inner:
                        o = outer - PIXELS
                    to = off(dst, o * q.y_step_w)
                    if o >= inner and o + PIXELS <= outer:
                        four(
                            off(src, (o * step - pw) * c),
                            weight,
                            to,
                            add,
                            nc,
                            nd,
                            nh,
                            q.taps_w,
                            xd,
                            xh,
                            xw,
                            wd,
                            wh,
                            stored,
                            step * c,
                            q.y_step_w,
                            g.mode,
                        )
                        o += PIXELS
                    else:
                        k, w, nw = clip(o, q.size_w, step, pw, q.dilation_w, q.taps_w)
                        one(
                            off(src, w * c),
                            off(weight, k * stored),
                            to,
                            add,
                            nc,
                            nd,
                            nh,
                            nw,
                            xd,
                            xh,
                            xw,
                            wd,
                            wh,
                            stored,
                            0,
                            0,
                            g.mode,
                        )
                        o += 1

    return body


def _middle(T: str, kw: int, sw: int) -> Any:
    """Inline function: what the outputs that see no padding give to a row of taps; returns them.

    middle(x, dy, dw, n, inner, outer, ow, c) -> [begin, end), empty where rows are not compiled
    """
    if kw == 0:

        @inline
        def none(x, dy, dw, n, inner, outer, ow, c):
            return ow, ow

        return none
    dots = Native("row_dots", (T, PIXELS, kw, sw))

    @inline
    def run(x, dy, dw, n, inner, outer, ow, c):
        if outer <= inner:
            return ow, ow
        dots(off(x, inner * sw * c), off(dy, inner * c), dw, n, outer - inner, c, c, c)
        return inner, outer

    return run


@kernel("x:T* dy:T* part:T* g:i64[]", words={"g": P.JOB}, params=KINDS)
def depthwise_dw(target: Target, T: str, kw: int, sw: int) -> Body:
    """part[p][k, c] = sum over the image rows of part p of dy[n, o, c] x[n, o s - p + k d, c].

    x, dy: T, channels-last; `mt` parts of the rows, `nt` of the channels.  kw, sw: as for
    `depthwise`.  Overwrites.
    """
    dot, zero = Native("row_dot", (T,)), Native("zero", (T,))
    middle = _middle(T, kw, sw)
    lanes = target.lanes(ITEMSIZE[T])

    def body(x, dy, part, g, tid, nthreads):
        c, mt, nt, ow, step = g.ldx, g.mt, g.nt, g.out_w, g.stride_w
        inner, outer = whole(g)
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        columns = udiv(udiv(c + lanes - 1, lanes) + nt - 1, nt) * lanes
        c0 = imin(tn * columns, c)
        nc = imin(columns, c - c0)
        lines = udiv(g.rows, ow)
        begin, end = udiv(lines * tm, mt), udiv(lines * (tm + 1), mt)
        if tm < mt and nc > 0:
            sums = off(part, tm * g.taps_d * g.taps_h * g.taps_w * c + c0)
            for k in range(g.taps_d * g.taps_h * g.taps_w):
                zero(off(sums, k * c), nc)
            for line in range(begin, end):
                plane = udiv(line, g.out_h)
                n = udiv(plane, g.out_d)
                od, oh = plane - n * g.out_d, line - plane * g.out_h
                kd, d, nd = clip(od, g.size_d, g.stride_d, g.pad_d, g.dilation_d, g.taps_d)
                kh, h, nh = clip(oh, g.size_h, g.stride_h, g.pad_h, g.dilation_h, g.taps_h)
                for i in range(nd * nh):
                    a = udiv(i, nh)
                    e = i - a * nh
                    row = (
                        (n * g.size_d + d + a * g.dilation_d) * g.size_h + h + e * g.dilation_h
                    ) * g.size_w
                    top = off(dy, line * ow * c + c0)
                    taps = off(sums, ((kd + a) * g.taps_h + kh + e) * g.taps_w * c)
                    src = off(x, (row - g.pad_w) * c + c0)
                    begin_o, end_o = middle(src, top, taps, nc, inner, outer, ow, c)
                    for k in range(g.taps_w):
                        shift = k * g.dilation_w - g.pad_w
                        o0 = imin(udiv(imax(-shift, 0) + step - 1, step), ow)
                        o1 = imin(udiv(imax(g.size_w - shift, 0) + step - 1, step), ow)
                        src, into = off(x, (row + shift) * c + c0), off(taps, k * c)
                        left, right = imin(o1, begin_o), imax(o0, end_o)
                        if left > o0:
                            at, n_left = off(src, o0 * step * c), left - o0
                            dot(at, off(top, o0 * c), into, nc, n_left, step * c, c)
                        if o1 > right:
                            at = off(src, right * step * c)
                            dot(at, off(top, right * c), into, nc, o1 - right, step * c, c)

    return body


@kernel("x:T* y:T* g:i64[]", words={"g": COPIES_WORDS})
def channels_repeat(target: Target, T: str) -> Body:
    """y[i m + j] = x[i] for i < n, j < m = `times`.  x: T[n], y: T[n m].  Overwrites."""

    def body(x, y, g, tid, nthreads):
        m = g.times
        begin, end = share(g.n, tid, nthreads)
        for i in range(begin, end):
            for j in range(m):
                y[i * m + j] = x[i]

    return body


@kernel("x:T* y:T* g:i64[]", words={"g": COPIES_WORDS})
def channels_sum(target: Target, T: str) -> Body:
    """y[i] = sum_j x[i m + j] for i < n, j < m = `times`.  x: T[n m], y: T[n].  Overwrites."""

    def body(x, y, g, tid, nthreads):
        m = g.times
        begin, end = share(g.n, tid, nthreads)
        for i in range(begin, end):
            total = x[i * m]
            for j in range(1, m):
                total += x[i * m + j]
            y[i] = total

    return body


def repeated(lowering: Lowering, x: Operand, times: int) -> Operand:
    """The tensor with each channel repeated `times` times; the tensor itself for one time."""
    if times == 1:
        return x
    images, channels, *spatial = x.type.dims
    y = lowering.temp(x.type.dtype, (x.type.size * times,))
    words = COPIES_WORDS.pack(n=x.type.size, times=times)
    lowering.call(channels_repeat(x.type.dtype), [("r", x), ("w", y)], words=words)
    shape = (images, channels * times, *spatial)
    return Operand(y.name, x.type.but(shape).as_last())


def row_of(jobs: Sequence[Job]) -> tuple[int, int]:
    """Width and stride of the windows of all jobs, (0, 0) where rows are not compiled for them."""
    kinds = {(j.taps[2], j.stride[2], j.dilation[2]) for j in jobs}
    width, stride, dilation = min(kinds)
    fit = len(kinds) == 1 and width in ROWS and stride <= 2 and dilation == 1
    return (width, stride) if fit else (0, 0)


def lower_depthwise(
    lowering: Lowering,
    x: Operand,
    b: Operand,
    y: Operand,
    bias: Operand | None,
    jobs: Sequence[Job],
    mode: int,
) -> None:
    """Call `depthwise`; an output with fewer channels than x is the sum over filters."""
    T = x.type.dtype
    times = jobs[0].ldx // y.type.dims[1]
    into = y if times == 1 else lowering.temp(T, (y.type.size * times,))
    args: list[Any] = [("r", x), ("r", b), ("w", into), ("r", bias)]
    words = DEPTHWISE_WORDS.pack(count=len(jobs), mode=mode, jobs=[j.words() for j in jobs])
    lowering.call(depthwise(T, *row_of(jobs)), args, words=words)
    if times > 1:
        words = COPIES_WORDS.pack(n=y.type.size, times=times)
        lowering.call(channels_sum(T), [("r", into), ("w", y)], words=words)


KERNELS = (depthwise, depthwise_dw, channels_repeat, channels_sum)
