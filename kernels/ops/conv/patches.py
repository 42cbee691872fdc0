"""Convolution as a blocked product: patches gathered into cache, weights packed into panels.

A *job* is one convolution of a tensor stored channels-last:

    Y[m, j] = sum_k P[m, k] B[k, j]        P[m, k] = X[pixel of m under tap(k), channel(k)]

with rows m over output pixels (image, depth, height, width) and k = (tap_d, tap_h, tap_w, channel),
channel fastest; taps outside X read 0.  P exists only as the block in cache.  `Job.words` gives the
geometry as integers, which is all a kernel knows of it, so one kernel serves every shape.

Source: Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD
architectures", arXiv 1808.05567.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from engine.element_types import ITEMSIZE
from engine.kernels.loops.contract import strip
from engine.kernels.loops.window import Axes
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import ACCUMULATE, BIAS, Native, imax, imin, inline, off, udiv

Inline = Callable[..., Any]

# Words of a job, in the order of the fields of `Job`.
(ROWS, OD, OH, OW, ID, IH, IW, SD, SH, SW, PD, PH, PW, DD, DH, DW, KD, KH, KW,
 UNIT, C, LDX, K, N, DIRECT, PANEL, B_AT, B_GROUP,
 SCATTER, LDY, Y_AT, Y_N, Y_D, Y_H, Y_W, MT, NT, MC, KC) = range(39)  # fmt: skip
JOB_WORDS = 39


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One convolution; sizes and steps in elements."""

    rows: int  # images * out[0] * out[1] * out[2]
    out: tuple[int, int, int]
    size: tuple[int, int, int]
    stride: tuple[int, int, int]
    pad: tuple[int, int, int]  # may be negative: the first window starts inside
    dilation: tuple[int, int, int]
    taps: tuple[int, int, int]
    unit: int  # taps in a run: taps[2] when they touch in memory, else 1
    channels: int  # read by one group
    ldx: int  # from one input pixel to the next
    depth: int  # K
    columns: int  # written by one group
    direct: int  # P is X itself
    panel: int = 0  # columns of a panel of B as stored
    b_at: int = 0  # where this job's panels begin in B
    b_group: int = 0  # from one group's panels to the next
    scatter: int = 0  # whether rows of Y are anything but ldy apart
    ldy: int = 0
    y_at: int = 0  # of the first pixel, when scattered; then steps of image, depth, height, width
    y_step: tuple[int, int, int, int] = (0, 0, 0, 0)
    mt: int = 1  # threads along rows
    nt: int = 1  # threads along columns
    mc: int = 96  # rows and
    kc: int = 256  # depth of a block of P

    def words(self) -> list[int]:
        """The integers that kernels read."""
        out: list[int] = []
        for value in astuple(self):
            out.extend(value if isinstance(value, tuple) else (value,))
        return out


def job(axes: Axes, images: int, channels: int, ldx: int, columns: int, **rest: Any) -> Job:
    """The job of a window over images of `ldx` channels, of which one group reads `channels`."""
    d, h, w = axes
    touching = w.dilation == 1 and channels == ldx
    return Job(
        rows=images * d.out * h.out * w.out,
        out=(d.out, h.out, w.out),
        size=(d.size, h.size, w.size),
        stride=(d.stride, h.stride, w.stride),
        pad=(d.pad, h.pad, w.pad),
        dilation=(d.dilation, h.dilation, w.dilation),
        taps=(d.taps, h.taps, w.taps),
        unit=w.taps if touching else 1,
        channels=channels,
        ldx=ldx,
        depth=d.taps * h.taps * w.taps * channels,
        columns=columns,
        direct=int(d.plain and h.plain and w.plain),
        **rest,
    )


@inline
def pixel(i, q):
    """Image, depth, height and width of output pixel i of a job."""
    row = udiv(i, q[OW])
    plane = udiv(row, q[OH])
    n = udiv(plane, q[OD])
    return n, plane - n * q[OD], row - plane * q[OH], i - row * q[OW]


@inline
def following(n, d, h, w, q):
    """The coordinates of the next output pixel."""
    w += 1
    if w == q[OW]:
        w = 0
        h += 1
        if h == q[OH]:
            h = 0
            d += 1
            if d == q[OD]:
                d = 0
                n += 1
    return n, d, h, w


@inline
def _first_run(r, per, q):
    """Run r of taps, of which there are `per` in a row; its place along depth, height and width."""
    row = udiv(r, per)
    plane = udiv(row, q[KH])
    return r, plane, row - plane * q[KH], r - row * per


def _edge(T: str) -> Inline:
    """Inline function: a row of a block of P, taps outside the image 0.

    edge(x, dst, q, n, iz, ih, left, kh, kw, begin, kb): from element `begin` of the run of taps
    that starts at image n, depth iz, height ih, and width `left` for its first tap.
    """
    copy, zero = Native("copy", (T,)), Native("zero", (T,))

    @inline
    def run(x, dst, q, n, iz, ih, left, kh, kw, begin, kb):
        c, length, per, done = q[C], q[UNIT] * q[C], udiv(q[KW], q[UNIT]), 0
        while done < kb:
            end = imin(length, begin + kb - done)
            iw = left + kw * q[DW]
            lo = imin(imax(-iw * c, begin), end)
            hi = imax(imin((q[IW] - iw) * c, end), lo)
            if iz < 0 or iz >= q[ID] or ih < 0 or ih >= q[IH]:
                lo = hi = end
            at = off(dst, done - begin)
            if lo > begin:
                zero(off(at, begin), lo - begin)
            src = (((n * q[ID] + iz) * q[IH] + ih) * q[IW] + iw) * q[LDX]
            copy(off(at, lo), off(x, src + lo), hi - lo)
            if end > hi:
                zero(off(at, hi), end - hi)
            done += end - begin
            begin = 0
            kw += 1
            if kw == per:
                kw = 0
                kh += 1
                ih += q[DH]
                if kh == q[KH]:
                    kh = 0
                    ih -= q[KH] * q[DH]
                    iz += q[DD]

    return run


def gather(T: str) -> Inline:
    """Inline function: into[i lda + k] = P[i0 + i, k0 + k] for i < mb, k < kb.

    gather(x, into, lda, q, i0, mb, k0, kb)
    """
    edge, block = _edge(T), Native("copy_rows", (T,))

    @inline
    def run(x, into, lda, q, i0, mb, k0, kb):
        n, od, oh, ow = pixel(i0, q)
        length, per = q[UNIT] * q[C], udiv(q[KW], q[UNIT])
        r0, kd0, kh0, kw0 = _first_run(udiv(k0, length), per, q)
        # Whole runs that differ in their row alone: a block, for the pixels that see no padding.
        rows = 0
        if per == 1 and q[KD] == 1 and r0 * length == k0 and udiv(kb, length) * length == kb:
            rows = udiv(kb, length)
        i = 0
        while i < mb:
            dst = off(into, i * lda)
            iz = od * q[SD] - q[PD] + kd0 * q[DD]
            ih = oh * q[SH] - q[PH] + kh0 * q[DH]
            left = ow * q[SW] - q[PW]
            below = q[IH] - 1 - ih - (rows - 1) * q[DH]
            right = q[IW] - 1 - left - (q[KW] - 1) * q[DW]
            inside = imin(imin(left, right), imin(ih, below))
            if rows > 0 and imin(inside, imin(iz, q[ID] - 1 - iz)) >= 0:
                # The pixels behind it in the line see none either, until their windows end it.
                many = imin(imin(udiv(right, q[SW]) + 1, q[OW] - ow), mb - i)
                src = (((n * q[ID] + iz) * q[IH] + ih) * q[IW] + left) * q[LDX]
                for t in range(many):
                    at = off(x, src + t * q[SW] * q[LDX])
                    block(off(dst, t * lda), at, length, q[DH] * q[IW] * q[LDX], rows, length)
                i += many - 1
                ow += many - 1
            else:
                edge(x, dst, q, n, iz, ih, left, kh0, kw0, k0 - r0 * length, kb)
            n, od, oh, ow = following(n, od, oh, ow, q)
            i += 1

    return run


def scatter(T: str) -> Inline:
    """Inline function: rows [i0, i0 + mb) of Y from a contiguous block c[mb, N].

    scatter(c, y, bias, q, i0, mb, j0, nb, mode); when K = 0 the rows are the bias, or 0 without.
    """
    copy, zero = Native("copy", (T,)), Native("zero", (T,))

    @inline
    def run(c, y, bias, q, i0, mb, j0, nb, mode):
        for i in range(i0, i0 + mb):
            n, od, oh, ow = pixel(i, q)
            at = q[Y_AT] + n * q[Y_N] + od * q[Y_D] + oh * q[Y_H] + ow * q[Y_W] + j0
            if q[K] != 0:
                copy(off(y, at), off(c, (i - i0) * nb), nb)
            elif mode & BIAS != 0:
                copy(off(y, at), off(bias, j0), nb)
            else:
                zero(off(y, at), nb)

    return run


def sweep(target: Target, T: str) -> Inline:
    """Inline function: one thread's rectangle [m0, m1) x [n0, n1) of a job's Y for one group.

    sweep(x, b, y, bias, work, q, m0, m1, n0, n1, mode)

    B is in panels; n0 is a multiple of the panel's columns.  `work` holds MC x (KC + N) elements:
    the block of P, then rows of Y on their way to be scattered.  `mode`: the tile's BIAS and RELU.
    """
    fill, spread, rows = gather(T), scatter(T), strip(target, T, 0)
    width = target.nv * target.lanes(ITEMSIZE[T])

    @inline
    def run(x, b, y, bias, work, q, m0, m1, n0, n1, mode):
        mc, depth = q[MC], q[K]
        i0 = m0
        while i0 < m1:
            mb = imin(mc, m1 - i0)
            into, ldc = off(y, i0 * q[LDY]), q[LDY]
            if q[SCATTER] != 0:
                into, ldc = off(work, mc * q[KC] - n0), n1 - n0
            k0 = 0
            while k0 < depth:
                kb = imin(q[KC], depth - k0)
                step = mode if k0 + kb == depth else 0
                if k0 > 0:
                    step = step | ACCUMULATE
                left, lda = off(x, i0 * q[LDX] + k0), q[LDX]
                if q[DIRECT] == 0:
                    left, lda = work, kb
                    fill(x, work, kb, q, i0, mb, k0, kb)
                j = n0
                while j < n1:
                    panel = off(b, j * depth + k0 * q[PANEL])
                    w = imin(width, n1 - j)
                    rows(
                        left, lda, panel, q[PANEL], off(into, j), ldc, off(bias, j), kb, mb, w, step
                    )
                    j += width
                k0 += kb
            if q[SCATTER] != 0:
                spread(off(into, n0), y, bias, q, i0, mb, n0, n1 - n0, mode)
            i0 += mb

    return run
