"""Convolution as a blocked product: patches gathered into cache, weights packed into panels.

A *job* is one convolution of a tensor stored channels-last:

    Y[m, j] = sum_k P[m, k] B[k, j]        P[m, k] = X[pixel of m under tap(k), channel(k)]

with rows m over output pixels (image, depth, height, width) and k = (tap_d, tap_h, tap_w, channel),
channel fastest; taps outside X read 0.  P exists only as the block in cache.  The geometry is the
words `JOB`, which is all a kernel knows of it, so one kernel serves every shape.

Where factors have 16 bits, blocks of P and panels of B are words of two factors along k (see
`packing.py`), and images that are stored in 16 bits are multiplied where they are.

Source: Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD
architectures", arXiv 1808.05567.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.base.element_types import HALVES, ITEMSIZE
from engine.kernels.loops.contract import depth_of, same, strip, view_panel, words_of
from engine.kernels.loops.window import Axes
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    HARD_SWISH,
    Inline,
    Intrinsic,
    Samples,
    drop_same,
    imax,
    imin,
    inline,
    off,
    udiv,
)
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import AXES, Field, Packed, Words

JOB = Words(
    "job",
    rows="pixels of the output of all images",
    out=Field("pixels of the output along an axis", names=AXES),
    size=Field("pixels of the input along an axis", names=AXES),
    stride=Field("from window to window", names=AXES),
    pad=Field(
        "padding before the first pixel, negative where the first window starts inside",
        names=AXES,
        range="signed",
    ),
    dilation=Field("from tap to tap", names=AXES),
    taps=Field("taps along an axis", names=AXES),
    unit="taps in a run: taps_w when they touch in memory, otherwise 1",
    channels="channels that one group reads",
    ldx="elements from one input pixel to the next",
    depth="length of the sums, K",
    columns="channels that one group writes, N",
    direct="whether P is X itself",
    panel="columns of a panel of B as it is stored",
    b_at="where the panels of this job begin in B",
    b_group="elements from the panels of one group to the next group's",
    scatter="whether rows of Y are anything but ldy apart",
    ldy="elements from row to row of Y, unless they are scattered",
    y_at="where the first pixel is in Y, when rows are scattered",
    y_step=Field("steps in Y along images and axes, when rows are scattered", names=("n", *AXES)),
    mt="threads along rows",
    nt="threads along columns",
    mc="rows of a block of P",
    kc="depth of a block of P",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One convolution; `JOB` says what the fields mean."""

    rows: int
    out: tuple[int, int, int]
    size: tuple[int, int, int]
    stride: tuple[int, int, int]
    pad: tuple[int, int, int]
    dilation: tuple[int, int, int]
    taps: tuple[int, int, int]
    unit: int
    channels: int
    ldx: int
    depth: int
    columns: int
    direct: int
    panel: int = 0
    b_at: int = 0
    b_group: int = 0
    scatter: int = 0
    ldy: int = 0
    y_at: int = 0
    y_step: tuple[int, int, int, int] = (0, 0, 0, 0)
    mt: int = 1
    nt: int = 1
    mc: int = 96
    kc: int = 256

    def words(self) -> Packed:
        """Return the integers that kernels read."""
        return JOB.pack(**{f.name: getattr(self, f.name) for f in fields(self)})


def make_job(axes: Axes, images: int, channels: int, ldx: int, columns: int, **rest: Any) -> Job:
    """Return the job of a window over images of `ldx` channels; a group reads `channels`."""
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


def gather_job(j: Job) -> Job:
    """Return the job whose rows are gathered, where they are converted."""
    return replace(j, direct=0)


def scatter_job(j: Job) -> Job:
    """Return the job whose rows are scattered into Y, where they are converted."""
    n, d, h, w = _find_steps(j.out)
    in_order = n * j.ldy, d * j.ldy, h * j.ldy, w * j.ldy
    return replace(j, scatter=1, y_step=j.y_step if j.scatter else in_order)


def _find_steps(out: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return the pixels from image to image, and from pixel to pixel along each axis."""
    return math.prod(out), out[1] * out[2], out[2], 1


def is_plain(q: Mapping[str, Any]) -> bool:
    """Return whether rows of P are rows of X."""
    ones = *q["taps"], *q["stride"]
    return q["out"] == q["size"] and set(ones) == {1} and not any(q["pad"])


def is_spread_in_order(q: Mapping[str, Any]) -> bool:
    """Return whether rows that are scattered into Y lie there one after another."""
    steps = tuple(step * q["ldy"] for step in _find_steps(q["out"]))
    return not q["y_at"] and q["y_step"] == steps


# --- reach


def list_jobs(words: Sequence[int]) -> list[dict[str, Any]]:
    """Return the jobs that lie one after another in some words."""
    return [JOB.unpack(words[at : at + JOB.size]) for at in range(0, len(words), JOB.size)]


def count_window_products(q: Mapping[str, Any], back: bool = False) -> int:
    """Return the multiply-adds of windows over each channel; back: over the pixels read."""
    pixels = q["rows"]
    if back:
        pixels = pixels // math.prod(q["out"]) * math.prod(q["size"])
    return int(pixels * q["ldx"] * math.prod(q["taps"]))


def check_job(c: KernelCall, q: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job after refusing divisors that are 0; without taps it reads nothing."""
    # The numbers of a plan from a file are not trusted: a 0 here would divide by zero in the
    # kernel.
    divisors = "out", "stride", "dilation", "mt", "nt", "mc"
    for name in (*divisors, *(("taps", "unit", "channels", "kc") if q["depth"] else ())):
        value = q[name]
        if (min(value) if isinstance(value, tuple) else value) < 1:
            c.refuse(f"{name} of a job is {value}; expected 1 at least")
    if q["depth"] and q["unit"] > q["taps"][2]:
        c.refuse(f"runs of {q['unit']} taps in a line of {q['taps'][2]}")
    return q


def check_window(
    c: KernelCall, q: Mapping[str, Any], kw: int = 0, sw: int = 0
) -> tuple[Mapping[str, Any], int, int]:
    """Return a job that is walked by lines, with the numbers of its lines and of its taps.

    kw, sw: the taps of a line and their stride that the kernel is compiled for; 0 for any.
    """
    check_job(c, q)
    lines = q["rows"] // q["out"][2]
    if lines < 1 or not q["ldx"]:
        c.refuse(f"{q['rows']} pixels of {q['ldx']} channels, lines of {q['out'][2]}")
    taps = q["taps"][2], q["stride"][2], q["dilation"][2]
    if kw and taps != (kw, sw, 1):
        c.refuse(f"taps, stride and dilation {taps} of a line; compiled for {(kw, sw, 1)}")
    return q, lines, math.prod(q["taps"])


def count_images(q: Mapping[str, Any], by_lines: bool = False) -> int:
    """Return the number of images that the rows of a job belong to, or its lines."""
    rows = q["rows"] // q["out"][2] if by_lines else q["rows"]
    return -int(-rows // (math.prod(q["out"][:2]) * (1 if by_lines else q["out"][2])))


def images_reach(c: KernelCall, q: Mapping[str, Any], groups: int, by_lines: bool = False) -> int:
    """Return the reach into the images that a window slides over; taps outside are not read."""
    channels = q["ldx"] if by_lines else q["channels"]
    apart = q["channels"] > q["ldx"] or (q["unit"] > 1 and q["channels"] != q["ldx"])
    if apart and not by_lines:
        c.refuse(f"{q['channels']} channels of pixels {q['ldx']} apart")
    pixels = count_images(q, by_lines) * math.prod(q["size"])
    return (pixels - 1) * q["ldx"] + channels * groups if pixels else 0


# --- samples


def count_whole_images(q: Mapping[str, Any]) -> int:
    """Return the number of images of a job; 0 if it has no pixels."""
    pixels = math.prod(q["out"])
    return int(q["rows"]) // pixels if pixels else 0


def find_image_step(q: Mapping[str, Any]) -> int:
    """Return the elements from image to image of those that a job reads."""
    return int(math.prod(q["size"]) * q["ldx"])


def run_alone(at: int) -> dict[int, int]:
    """Return the numbers of a job at this position for a call that one thread runs."""
    return {at + JOB.place("mt"): 1, at + JOB.place("nt"): 1}


def cut_window(layout: Words, filters: str = "") -> Samples:
    """Return how a kernel of one job is cut into images.

    filters: the number that says how many channels y has, if it has others than x.
    """

    def rule(c: KernelCall) -> Tiling | None:
        q, at = JOB.unpack(c.job), layout.place("job")
        y = math.prod(q["out"]) * (c.numbers[filters] if filters else q["ldx"])
        steps = {"x": find_image_step(q), "y": y}
        return c.cut(count_whole_images(q), steps, counts=(at + JOB.place("rows"),))

    return rule


def part_samples(c: KernelCall, q: Mapping[str, Any], at: int, channels: int) -> Tiling | None:
    """Return how a kernel that makes parts of sums is cut into images, each with its part.

    at: the position of the job q.  channels: of dy.
    """
    return c.cut(
        count_whole_images(q),
        {"x": find_image_step(q), "dy": math.prod(q["out"]) * channels},
        counts=(at + JOB.place("rows"),),
        fixed=run_alone(at),
        parts=(2, c.elements["part"] * c.itemsizes["part"] // q["mt"]),
    )


# --- parts of kernels


@inline
def pixel(i, q):
    """Image, depth, height and width of output pixel i of a job."""
    row = udiv(i, q.out_w)
    plane = udiv(row, q.out_h)
    n = udiv(plane, q.out_d)
    return n, plane - n * q.out_d, row - plane * q.out_h, i - row * q.out_w


@inline
def following(n, d, h, w, q):
    """The coordinates of the next output pixel."""
    w += 1
    if w == q.out_w:
        w = 0
        h += 1
        if h == q.out_h:
            h = 0
            d += 1
            if d == q.out_d:
                d = 0
                n += 1
    return n, d, h, w


@inline
def _first_run(r, per, q):
    """Run r of taps, `per` in a row, and its place along depth, height and width."""
    # Runs lie along the width, then the height, then the depth, as taps of w do.
    row = udiv(r, per)
    plane = udiv(row, q.taps_h)
    return r, plane, row - plane * q.taps_h, r - row * per


def _copier(T: str, S: str) -> Inline:
    """Return an intrinsic: copy(into, x, n) of elements stored as S, T if empty, as T."""
    return Intrinsic("convert", (T, S or T)) if S or T in HALVES else Intrinsic("copy", (T,))


def _edge(T: str, S: str) -> Inline:
    """Return an inline function: a row of a block of P, taps outside the image 0.

    edge(x, dst, q, n, iz, ih, left, kh, kw, begin, kb): from element `begin` of the run of taps
    that starts at image n, depth iz, height ih, and width `left` for its first tap.
    """
    copy, zero = _copier(T, S), Intrinsic("zero", (T,))

    @inline
    def run(x, dst, q, n, iz, ih, left, kh, kw, begin, kb):
        c, length, per, done = q.channels, q.unit * q.channels, udiv(q.taps_w, q.unit), 0
        while done < kb:
            end = imin(length, begin + kb - done)
            iw = left + kw * q.dilation_w
            lo = imin(imax(-iw * c, begin), end)
            hi = imax(imin((q.size_w - iw) * c, end), lo)
            if iz < 0 or iz >= q.size_d or ih < 0 or ih >= q.size_h:
                lo = hi = end
            at = off(dst, done - begin)
            if lo > begin:
                zero(off(at, begin), lo - begin)
            src = (((n * q.size_d + iz) * q.size_h + ih) * q.size_w + iw) * q.ldx
            copy(off(at, lo), off(x, src + lo), hi - lo)
            if end > hi:
                zero(off(at, hi), end - hi)
            done += end - begin
            begin = 0
            kw += 1
            if kw == per:
                kw = 0
                kh += 1
                ih += q.dilation_h
                if kh == q.taps_h:
                    kh = 0
                    ih -= q.taps_h * q.dilation_h
                    iz += q.dilation_d

    return run


def _copier_of_rows(T: str, S: str) -> Inline:
    """Return an inline function: copy_rows(into, x, ld, ldx, rows, n) of rows stored as S."""
    if not S and T not in HALVES:
        return Intrinsic("copy_rows", (T,))
    copy = _copier(T, S)

    @inline
    def run(into, x, ld, ldx, rows, n):
        for r in range(rows):
            copy(off(into, r * ld), off(x, r * ldx), n)

    return run


def gather(T: str, S: str = "") -> Inline:
    """Return an inline function: into[i lda + k] = P[i0 + i, k0 + k] for i < mb, k < kb.

    gather(x, into, lda, q, i0, mb, k0, kb)

    S: how x is stored; T if empty.
    """
    edge, block = _edge(T, S), _copier_of_rows(T, S)

    @inline
    def run(x, into, lda, q, i0, mb, k0, kb):
        n, od, oh, ow = pixel(i0, q)
        length, per = q.unit * q.channels, udiv(q.taps_w, q.unit)
        r0, kd0, kh0, kw0 = _first_run(udiv(k0, length), per, q)
        # Whole runs that differ in their row alone, or a part of one run: a block, for the pixels
        # that see no padding.
        rows, begin, wide, step = 0, k0 - r0 * length, length, q.stride_w * q.ldx
        if per == 1 and q.taps_d == 1:
            if begin == 0 and udiv(kb, length) * length == kb:
                rows = udiv(kb, length)
            elif begin + kb <= length:
                rows, wide = 1, kb
        i = 0
        while i < mb:
            dst = off(into, i * lda)
            iz = od * q.stride_d - q.pad_d + kd0 * q.dilation_d
            ih = oh * q.stride_h - q.pad_h + kh0 * q.dilation_h
            # How far the window is inside the image on each side; negative where it looks into
            # padding.
            left = ow * q.stride_w - q.pad_w
            below = q.size_h - 1 - ih - (rows - 1) * q.dilation_h
            right = q.size_w - 1 - left - (q.taps_w - 1) * q.dilation_w
            inside = imin(imin(left, right), imin(ih, below))
            # Inside: a block of runs, one a row of taps, copied without tests.
            if rows > 0 and imin(inside, imin(iz, q.size_d - 1 - iz)) >= 0:
                # The next pixels of the line see none either, until a window reaches its end.
                many = imin(imin(udiv(right, q.stride_w) + 1, q.out_w - ow), mb - i)
                src = (((n * q.size_d + iz) * q.size_h + ih) * q.size_w + left) * q.ldx
                at, below_at = off(x, src + begin), q.dilation_h * q.size_w * q.ldx
                if rows == 1 and wide == step and wide == lda:
                    # Pixels that touch in memory, as they do in 1x1 windows, are one run.
                    block(dst, at, wide, below_at, 1, many * wide)
                else:
                    for t in range(many):
                        block(off(dst, t * lda), off(at, t * step), wide, below_at, rows, wide)
                i += many - 1
                ow += many - 1
            else:
                edge(x, dst, q, n, iz, ih, left, kh0, kw0, begin, kb)
            n, od, oh, ow = following(n, od, oh, ow, q)
            i += 1

    return run


def scatter(T: str, S: str = "") -> Inline:
    """Return an inline function: rows [i0, i0 + mb) of Y from a contiguous block c[mb, N].

    scatter(c, y, bias, q, i0, mb, j0, nb, mode); when K = 0 the rows are the bias, or 0 without.

    S: how y is stored; T if empty.
    """
    copy, zero = _copier(S, T) if S else _copier(T, ""), Intrinsic("zero", (T,))

    @inline
    def clear(into, c, n):
        zero(into, n)

    @inline
    def clear_stored(into, c, n):
        zero(c, n)
        copy(into, c, n)

    empty = clear_stored if S else clear

    @inline
    def run(c, y, bias, q, i0, mb, j0, nb, mode):
        n, od, oh, ow = pixel(i0, q)
        i = 0
        while i < mb:
            at = q.y_at + n * q.y_step_n + od * q.y_step_d + oh * q.y_step_h + ow * q.y_step_w + j0
            many = 1
            # A residue class of dX that no tap reaches has sums of nothing.
            if q.depth != 0:
                # Pixels of a line that touch in memory are one run.
                if q.y_step_w == nb:
                    many = imin(q.out_w - ow, mb - i)
                copy(off(y, at), off(c, i * nb), many * nb)
            elif mode & BIAS != 0:
                copy(off(y, at), off(bias, j0), nb)
            else:
                empty(off(y, at), off(c, i * nb), nb)
            i += many
            ow += many - 1
            n, od, oh, ow = following(n, od, oh, ow, q)

    return run


def sweep(target: Target, T: str, X: str, Y: str, F: str) -> Inline:
    """Return an inline function: a rectangle [m0, m1) x [n0, n1) of a job's Y for one group.

    sweep(x, b, y, bias, work, q, m0, m1, n0, n1, mode)

    B is in panels; n0 is a multiple of the panel's columns.  `work` holds MC x (KC + N) elements:
    the block of P, then rows of Y on their way to be scattered.  `mode`: the tile's BIAS, RELU
    and SIX, and HARD_SWISH.

    X, Y: how x and y are stored.  F: P of `tile`; if there is one, KC and the depth are even, and
    `work` and B hold words of two factors.  If X is not the type of the factors the job is of
    `gather_job`; if Y is not T, of `scatter_job`.
    """
    factor = F or T
    fill, spread = gather(factor, drop_same(X, factor)), scatter(T, drop_same(Y, T))
    rows, in_words = strip(target, T, 0, F), words_of(F)
    depth_of_panel, panel_at = depth_of(F), view_panel(F)
    bend, as_factors = Intrinsic("bend", (T,)), Intrinsic("halves", (F,)) if F else same
    width = target.nv * target.lanes(ITEMSIZE[T])

    # A strided dX: rows of the block are pixels apart in Y, so the block is computed in `work` and
    # spread.  Its rows are then as long as the columns of this thread alone.
    @inline
    def place_block(y, work, q, i0, n0, n1):
        into, ldc = off(y, i0 * q.ldy), q.ldy
        if q.scatter != 0:
            into, ldc = off(work, q.mc * in_words(q.kc) - n0), n1 - n0
        return into, ldc

    @inline
    def place_in_work(y, work, q, i0, n0, n1):
        return off(work, q.mc * in_words(q.kc) - n0), n1 - n0

    # 1x1 windows of stride 1: rows of X are rows of P already.
    @inline
    def take_block(x, work, q, i0, mb, k0, kb):
        left, lda = off(x, i0 * q.ldx + k0), q.ldx
        if q.direct == 0:
            left, lda = as_factors(work), kb
            fill(x, left, kb, q, i0, mb, k0, kb)
        return left, lda

    @inline
    def take_converted(x, work, q, i0, mb, k0, kb):
        left = as_factors(work)
        fill(x, left, kb, q, i0, mb, k0, kb)
        return left, kb

    place = place_block if Y == T else place_in_work
    take = take_block if factor == X else take_converted

    @inline
    def run(x, b, y, bias, work, q, m0, m1, n0, n1, mode):
        mc, depth = q.mc, q.depth
        i0 = m0
        # A block of P [MC, KC] is gathered into the second-level cache and multiplied with all
        # panels of B; so P, which repeats each pixel of X once a tap, is never whole in memory.
        while i0 < m1:
            mb = imin(mc, m1 - i0)
            into, ldc = place(y, work, q, i0, n0, n1)
            k0 = 0
            while k0 < depth:
                kb = imin(q.kc, depth - k0)
                # Bias and activation apply to the finished sum: with the last block of K.  Earlier
                # blocks leave partial sums in Y, which the next add to.
                step = mode if k0 + kb == depth else 0
                if k0 > 0:
                    step = step | ACCUMULATE
                left, lda = take(x, work, q, i0, mb, k0, kb)
                j = n0
                while j < n1:
                    row = depth_of_panel(k0)
                    panel = off(panel_at(b), j * depth_of_panel(depth) + row * q.panel)
                    w = imin(width, n1 - j)
                    c = off(into, j)
                    rows(left, lda, panel, q.panel, c, ldc, off(bias, j), kb, mb, w, step)
                    # Not in the tile, where products would have its code, too.  The columns are
                    # still in the first-level cache.
                    if step & HARD_SWISH != 0:
                        bend(c, ldc, mb, w)
                    j += width
                k0 += kb
            if q.scatter != 0:
                spread(off(into, n0), y, bias, q, i0, mb, n0, n1 - n0, mode)
            i0 += mb

    return run
