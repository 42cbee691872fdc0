"""Depthwise convolution: every channel has its own filter, so channels are what vectors hold.

    Y[n, o, c] = act(sum_k X[n, o s - p + k d, c] W[c, k] (+ B[c]))

dX reads dY by the same loop, with the taps in reverse where all strides are 1, otherwise *back*:
output i of it sees the inputs o with o s - p + k d = i.  Several filters a channel are one filter a
channel of a copy of X in which each channel is repeated.

Outputs are made by two lines at a time, so that what both see is read once; `slide_dots.py` has the
tile.  Threads share the lines (image, depth, height) of the output in order, thread i of n the
lines from `lines i / n` on.  Channels are shared too where there are fewer lines than threads.
Every sum is formed in the same order however the lines are shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.base.element_types import FLOATS, ITEMSIZE
from engine.kernels.loops.window import Axes, Axis, count_parts, round_up
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import patches as P
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    BIAS,
    Body,
    Inline,
    Intrinsic,
    Numbers,
    Parameters,
    imax,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, find_stored
from engine.kernels.vocabulary.signature import round_to_unit
from engine.kernels.vocabulary.tiles import TILES
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Field, Words

PIXELS = 4  # outputs of a line that share what they load
ROWS = (3, 5)  # widths of windows for which rows of taps are compiled
AHEAD = 16  # vectors between what a line computes and what it asks memory for
WEIGHTS = 16384  # bytes of weights that the tiles of a line use again and again
FORWARD = tuple((T, w, s) for T in FLOATS for w in (0, *ROWS) for s in ((1, 2) if w else (0,)))
KINDS = (*((*k, 0) for k in FORWARD), *((T, w, 2, 1) for T in FLOATS for w in ROWS))

DEPTHWISE_WORDS = Words(
    "depthwise",
    mode="bits: BIAS, RELU, SIX, HARD_SWISH",
    back="whether the window belongs to a convolution whose inputs the outputs are",
    job=Field(
        "the window; the outputs are its `out`, or when back the inputs it slides over", of=P.JOB
    ),
)
PACK_WORDS = Words(
    "depthwise_pack",
    filters="filters of all channels",
    c="channels",
    taps="taps of a window",
    f_step="step of w from filter to filter",
    c_step="step of w from channel to channel",
    back="whether taps are in reverse",
)
FOLD_WORDS = Words(
    "depthwise_fold",
    parts="number of parts",
    filters="filters of all channels",
    c="channels",
    taps="taps of a window",
    adds="whether dw is added to, unless its flag is set",
)
COPIES_WORDS = Words("copies", n="elements of the smaller tensor", times="copies of each")


on_stack = Intrinsic("on_stack", (TILES,))

# --- windows


@inline
def seen(o, back, size, stride, pad, dilation, taps):
    """Return how output o sees the inputs of an axis: tap `first + t step` at `at + t move`.

    Returns first, step, at, move, and the t in [begin, end) for which that is in [0, size).
    """
    if back == 0:
        # Tap t sees input o stride - pad + t dilation.  udiv takes no negative numbers, hence imax.
        at = o * stride - pad
        begin = udiv(imax(-at, 0) + dilation - 1, dilation)
        end = imin(udiv(imax(size - at, 0) + dilation - 1, dilation), taps)
        return 0, 1, at, dilation, begin, imax(begin, end)
    # Forward: output i of the convolution sees input o = i stride - pad + k dilation; so o gets
    # gradient from i = (o + pad - k dilation) / stride, where that is whole.  Taps for which it is
    # whole are `step` apart: the least step for which step dilation is a multiple of the stride.
    step = 1
    while udiv(step * dilation, stride) * stride != step * dilation:
        step += 1
    first, far = 0, taps * dilation  # far: udiv takes no negative numbers
    above = o + pad + far * stride
    while first < taps and udiv(above, stride) * stride != above:
        first += 1
        above -= dilation
    # From tap to tap i falls by `move`, so the bounds are the forward ones in reverse.
    at, move = udiv(above, stride) - far, udiv(step * dilation, stride)
    begin = udiv(imax(at - size + 1, 0) + move - 1, move)
    end = imin(udiv(imax(at + move, 0), move), udiv(taps - first + step - 1, step))
    return first, step, at, -move, begin, imax(begin, end)


# The words of tiles are set by functions that close over nothing, so that a process compiles them
# once for all kernels.


@inline
def place_lines(t, q, back, line, end, lanes):
    """Set in t what the tiles of a line of y share, or of two lines, before line `end`.

    Returns the number of lines.
    """
    plane_x, row_x, row_w = q.size_h * q.size_w * q.ldx, q.size_w * q.ldx, q.taps_w * lanes
    plane = udiv(line, q.out_h)
    n = udiv(plane, q.out_d)
    od, oh = plane - n * q.out_d, line - plane * q.out_h
    kd, step_d, d, move_d, d0, d1 = seen(
        od, back, q.size_d, q.stride_d, q.pad_d, q.dilation_d, q.taps_d
    )
    k0, step_h, h, move_h, h0, h1 = seen(
        oh, back, q.size_h, q.stride_h, q.pad_h, q.dilation_h, q.taps_h
    )
    # Line 0 of the tiles sees row r by tap k0 + r step_h for h0 <= r < h1, line 1 by
    # k1 + r step_h for e0 <= r < e1; neither begins or ends later than line 1.
    two, line0, line1, k1, e0, e1 = 0, line, line, k0, h1, h1
    # With a dilation neighbouring lines see different rows, so there is nothing to share.
    if oh + 1 < q.out_h and line + 1 < end and q.dilation_h == 1:
        k2, _, _, _, g0, g1 = seen(
            oh + 1, back, q.size_h, q.stride_h, q.pad_h, q.dilation_h, q.taps_h
        )
        if h0 < h1 and g0 < g1:
            if back == 0:
                # The next line sees the same rows by taps that are `stride` earlier.
                two, line1, k1 = 1, line + 1, -q.stride_h
                e0, e1 = g0 + q.stride_h, g1 + q.stride_h
            elif q.stride_h == 2 and k0 == 0:
                # Both see the same rows, one by even taps and the other by odd ones.  The
                # line of the odd taps begins no later: it is line 0.
                two, line0, k0, k1, e0, e1, h0, h1 = 1, line + 1, k2, 0, h0, h1, g0, g1
    t.taps_d, t.x_depth, t.w_depth = d1 - d0, move_d * plane_x, step_d * q.taps_h * row_w
    # The taps along the height, by the lines that see them: line 0 the rows [h0, h1), line 1 the
    # rows [e0, e1).
    t.only0_begin, t.only0_end = h0, imin(h1, e0)
    t.both_begin, t.both_end = e0, imin(h1, e1)
    t.only1_begin, t.only1_end = imax(h1, e0), e1
    t.x_row, t.w_row = move_h * row_x, step_h * row_w
    t.two, t.k0, t.k1 = two, k0, k1
    t.x_line = ((n * q.size_d + d + d0 * move_d) * q.size_h + h) * row_x
    t.w_line = (kd + d0 * step_d) * q.taps_h * row_w
    t.y_line0, t.y_line1 = line0 * q.out_w * q.ldx, line1 * q.out_w * q.ldx
    return 1 + two


@inline
def place_late(t, q, back, r):
    """Set in t the columns of the output pixels r, r + s', r + 2 s', ... of a line.

    The window is known at run time only: taps are a loop.  s' is the distance between pixels whose
    windows see the same taps: 1, or when back the stride.  Returns the first tap, the step of taps,
    and s'.
    """
    first, step, at, move, _, _ = seen(
        r, back, q.size_w, q.stride_w, q.pad_w, q.dilation_w, q.taps_w
    )
    taps = udiv(q.taps_w - first + step - 1, step)
    t.first, t.taps_w = 0, taps
    if back == 0:
        s = q.stride_w
        t.outs, t.col, t.col_tile, t.col_pixel, t.col_tap = q.out_w, at, PIXELS * s, s, move
        return 0, 1, 1
    # From the last tap to the first, and so along the columns as compiled rows of taps do, whose
    # sums have the same bits.
    t.outs = udiv(imax(q.out_w - r, 0) + q.stride_w - 1, q.stride_w)
    t.col, t.col_tile, t.col_pixel, t.col_tap = at + (taps - 1) * move, PIXELS, 1, -move
    return first + (taps - 1) * step, -step, q.stride_w


@inline
def place_early(t, q, back, kw, sw):
    """Set in t the columns of all output pixels of a line; the kernel is compiled for kw and sw."""
    t.outs, t.taps_w = q.out_w, kw
    t.first, t.col, t.col_tile, t.col_pixel, t.col_tap = 0, -q.pad_w, PIXELS * sw, sw, 1
    if back != 0:
        # Of stride 2, pixels of both phases are one tile, which sees PIXELS / 2 columns: `find_tap`
        # in slide_dots.py pairs them.  So a line is walked once, from a pixel that tap 0 meets,
        # which may be pixel -1.
        half = udiv(q.pad_w, 2)
        t.first, t.col = 2 * half - q.pad_w, half - udiv(kw - 1, 2)
        t.col_tile, t.col_pixel = PIXELS // 2, 1


@inline
def place_pixels(t, q, r, tap, step, apart, lanes):
    """Set in t the distances along the width, and where the tiles begin.

    The columns and lines must be set.  r, apart: output pixels r, r + apart, ...; tap, step: the
    taps that they see.
    """
    c = q.ldx
    t.size, t.tiles = q.size_w, udiv(t.outs - t.first + PIXELS - 1, PIXELS)
    t.w_tap, t.y_pixel = step * lanes, apart * c
    t.x_tap, t.x_pixel, t.x_tile = t.col_tap * c, t.col_pixel * c, t.col_tile * c
    t.x_at, pixel = t.x_line + t.col * c, (r + t.first * apart) * c
    t.y0_at, t.y1_at = t.y_line0 + pixel, t.y_line1 + pixel
    t.w_at, row_w = t.w_line + tap * lanes, q.taps_w * lanes
    t.w0_at, t.w1_at = t.k0 * row_w, t.k1 * row_w


@inline
def cut_channels(t, q, channels, lanes, room):
    """Set in t what depends on the channels of a walk; returns how many at most a row has.

    room: elements of the weights that stay in the first-level cache: every tile of a line reads
    them again.  Channels go in chunks of equal size.
    """
    t.taps = q.taps_d * q.taps_h * q.taps_w
    chunks = udiv(t.taps * channels + room - 1, room)
    chunk = udiv(udiv(channels + lanes - 1, lanes) + chunks - 1, imax(chunks, 1)) * lanes
    # A tile further on by so many tiles is asked for, the fewer the more channels a tile has.
    t.ahead = udiv(AHEAD * lanes + imin(chunk, q.ldx) - 1, imin(chunk, q.ldx))
    return chunk


def _walk(
    target: Target, T: str, intrinsic: str, kw: int, sw: int, mirrored: int, S: str
) -> Inline:
    """Return an inline function: an intrinsic over lines [begin, end) and channels [c0, c1) of y.

    Lines are taken two by two where they can be.  S: how x and y are stored.
    walk(x, w, y, bias, q, back, mode, begin, end, c0, c1); w: [channel / lanes][tap][lanes].
    """
    tiles = Intrinsic(intrinsic, (T, PIXELS, kw, -sw if mirrored else sw, S))
    lanes, room = target.lanes(ITEMSIZE[T]), WEIGHTS // ITEMSIZE[T]

    @inline
    def walk_rows(x, w, y, bias, t, chunk, mode, c0, c1):
        at = c0
        while at < c1:
            # One pointer for each operand and line: t has what lies between pixels, taps and tiles.
            t.channels = imin(chunk, c1 - at)
            weights = off(w, t.w_at + at * t.taps)
            tiles(
                off(x, t.x_at + at), off(weights, t.w0_at), off(weights, t.w1_at),
                off(y, t.y0_at + at), off(y, t.y1_at + at), off(bias, at), t, mode,
            )  # fmt: skip
            at += chunk

    @inline
    def walk_late(x, w, y, bias, q, back, mode, begin, end, c0, c1):
        t = on_stack()
        chunk, line = cut_channels(t, q, c1 - c0, lanes, room), begin
        while line < end:
            # One line, or two that see the same rows of x, which are then read once for both.
            lines = place_lines(t, q, back, line, end, lanes)
            # When back, pixels whose columns differ by the stride see the same taps: one walk each.
            for r in range(q.stride_w if back != 0 else 1):
                tap, step, apart = place_late(t, q, back, r)
                place_pixels(t, q, r, tap, step, apart, lanes)
                walk_rows(x, w, y, bias, t, chunk, mode, c0, c1)
            line += lines

    @inline
    def walk_early(x, w, y, bias, q, back, mode, begin, end, c0, c1):
        t = on_stack()
        chunk, line = cut_channels(t, q, c1 - c0, lanes, room), begin
        while line < end:
            lines = place_lines(t, q, back, line, end, lanes)
            place_early(t, q, back, kw, sw)
            place_pixels(t, q, 0, 0, 1, 1, lanes)
            walk_rows(x, w, y, bias, t, chunk, mode, c0, c1)
            line += lines

    return walk_early if kw else walk_late


# --- kernels


def _tiling(params: Parameters, numbers: Numbers) -> Tiling:
    """Lines of y, which the kernel finds by the number of the tile; each reads several of x."""
    job = DEPTHWISE_WORDS.place("job")
    rows, width, ldx = (int(numbers[job + P.JOB.place(n)]) for n in ("rows", "out_w", "ldx"))
    size = ITEMSIZE[str(params[4] if len(params) > 4 else params[0])]
    return Tiling(rows // width, (0, 0, size * width * ldx, 0), numbered=True)


def by_channels(c: KernelCall, q: Mapping[str, Any], lines: int, taps: int) -> dict[str, int]:
    """Return the reaches into images x and y of as many channels, and into filters of them."""
    return {
        "x": P.images_reach(c, q, 1, by_lines=True),
        "y": lines * q["out"][2] * q["ldx"],
        "w": round_to_unit(q["ldx"], c.lanes) * taps,
    }


def _reach(c: KernelCall) -> Reach:
    (job,) = c.records("job", P.JOB, 1)
    q, lines, taps = P.check_window(c, job, c.flag(1), c.flag(2))
    return {**by_channels(c, q, lines, taps), "bias": q["ldx"] if c.mode & BIAS else 0}


@kernel(
    "x: S[...]  w: T[...]  y: out S[...]  bias: T[...]  g: i64[] where mode <= BIAS | CURVES",
    words={"g": DEPTHWISE_WORDS},
    reach=_reach,
    multiply_adds=lambda c: P.count_window_products(P.list_jobs(c.job)[0], c.back),
    params=KINDS,
    tiling=_tiling,
    samples=P.cut_window(DEPTHWISE_WORDS),
    smaller=lambda T, kw, sw, mirrored, *S: (T, 0, 1, 0, *S),
)
def depthwise(target: Target, T: str, kw: int, sw: int, mirrored: int, S: str = "") -> Body:
    """y[n, o, c] = act(sum_k x[n, o s - p + k d, c] w[c, k] (+ bias[c])), or back of that.

    x, y: channels-last; w: of `depthwise_pack`.  Unless kw is 0 it is the width of the window,
    which has no dilation there, sw its stride, and mirrored whether it is back; (0, 1, 0) has the
    shortest code.  Shared by lines of y in order; by channels too where lines are less than
    threads.  S: how x and y are stored.
    """
    walk = _walk(target, T, "window_dots", kw, sw, mirrored, S)
    lanes = target.lanes(ITEMSIZE[T])
    late = int(kw == 0)  # the words say whether it is back; otherwise the compiled kind does

    def body(x, w, y, bias, g, tid, nthreads):
        q = g.job
        lines, vectors = udiv(q.rows, q.out_w), udiv(q.ldx + lanes - 1, lanes)
        ways = 1
        if lines < nthreads:  # four units a thread, for balance
            ways = imin(vectors, udiv(4 * nthreads + lines - 1, lines))
        unit, last = share(lines * ways, tid, nthreads)
        while unit < last:
            # Units are way by way, lines innermost: one walk takes all lines of a way that are this
            # thread's, two by two.
            way = udiv(unit, lines)
            begin = unit - way * lines
            end = imin(lines, begin + last - unit)
            c0 = udiv(vectors * way, ways) * lanes
            c1 = imin(udiv(vectors * (way + 1), ways) * lanes, q.ldx)
            walk(x, w, y, bias, q, g.back if late else mirrored, g.mode, begin, end, c0, c1)
            unit += end - begin

    return body


def _dw_reach(c: KernelCall) -> Reach:
    q, lines, taps = P.check_window(c, c.numbers, c.flag(1), c.flag(2))
    sizes = by_channels(c, q, lines, taps)
    return {"x": sizes["x"], "dy": sizes["y"], "part": q["mt"] * sizes["w"]}


@kernel(
    "x, dy: S[...]   part: out T[...]   g: i64[]",
    words={"g": P.JOB},
    reach=_dw_reach,
    multiply_adds=lambda c: P.count_window_products(c.numbers),
    samples=lambda c: P.part_samples(c, c.numbers, 0, c.ldx),
    params=FORWARD,
    smaller=lambda T, kw, sw, *S: (T, 0, 1, *S),
)
def depthwise_dw(target: Target, T: str, kw: int, sw: int, S: str = "") -> Body:
    """part[p][c, k] = sum over the lines of part p of dy[n, o, c] x[n, o s - p + k d, c].

    x, dy: channels-last; part: [p][c / lanes][k][lanes], `mt` parts of the lines in order; `nt`
    threads share the channels of each.  kw, sw: as for `depthwise`.  S: how x and dy are stored.
    """
    walk, zero = _walk(target, T, "tap_dots", kw, sw, 0, S), Intrinsic("zero", (T,))
    lanes = target.lanes(ITEMSIZE[T])

    def body(x, dy, part, g, tid, nthreads):
        mt, nt, taps = g.mt, g.nt, g.taps_d * g.taps_h * g.taps_w
        lines, vectors = udiv(g.rows, g.out_w), udiv(g.ldx + lanes - 1, lanes)
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        c0 = udiv(vectors * tn, nt) * lanes
        c1 = udiv(vectors * (tn + 1), nt) * lanes
        # Parts of lines by mt threads, each shared by channels among nt; a channel's weights lie
        # together, so threads write to parts of `part` that do not meet.
        if tm < mt:
            sums = off(part, tm * vectors * lanes * taps)
            zero(off(sums, c0 * taps), (c1 - c0) * taps)
            begin, end = share(lines, tm, mt)
            walk(x, sums, dy, sums, g, 0, 0, begin, end, c0, imin(c1, g.ldx))

    return body


@kernel(
    """
    w: T[(filters - 1) * f_step + (c - 1) * c_step + taps] if filters * c * taps
    b: out T[filters, up(c, lanes), taps]   g: i64[]
    """,
    words={"g": PACK_WORDS},
)
def depthwise_pack(target: Target, T: str) -> Body:
    """b[f][c / lanes][k][c % lanes] = w[f, c, k], k in reverse when `back`.

    Lanes after the last channel are 0.
    """
    lanes = target.lanes(ITEMSIZE[T])

    def body(w, b, g, tid, nthreads):
        c, taps = g.c, g.taps
        vectors = udiv(c + lanes - 1, lanes)
        begin, end = share(g.filters * vectors, tid, nthreads)
        # Taps in reverse turn the window of Y into the window of dX; see `forward_if_possible`.
        first, step = (taps - 1, -1) if g.back != 0 else (0, 1)
        for i in range(begin, end):
            f = udiv(i, vectors)
            c0 = (i - f * vectors) * lanes
            of, into = off(w, f * g.f_step + c0 * g.c_step + first), off(b, i * lanes * taps)
            for j in range(lanes):
                for k in range(taps):
                    value = w[0] * 0
                    if c0 + j < c:
                        value = of[j * g.c_step + k * step]
                    into[k * lanes + j] = value

    return body


@kernel(
    """
    part: T[max(parts, 1), filters, up(c, lanes), taps]
    dw: out T[filters, c, taps] updates if adds   keep: b1[1] if adds   g: i64[]
    """,
    words={"g": FOLD_WORDS},
    joins=FOLD_WORDS.place("parts"),
)
def depthwise_fold(target: Target, T: str) -> Body:
    """dw[f, c, k] = sum_p part[p][f][c, k], parts in order; part: vectors as `depthwise_pack` has.

    Adds to dw when `adds` and not keep[0].
    """
    lanes = target.lanes(ITEMSIZE[T])

    def body(part, dw, keep, g, tid, nthreads):
        c, taps = g.c, g.taps
        vectors = udiv(c + lanes - 1, lanes)
        size = vectors * lanes * taps
        adds = 0
        if g.adds != 0 and keep[0] == 0:
            adds = 1
        begin, end = share(g.filters * vectors, tid, nthreads)
        for i in range(begin, end):
            f = udiv(i, vectors)
            c0 = (i - f * vectors) * lanes
            of, into = off(part, i * lanes * taps), off(dw, (f * c + c0) * taps)
            for j in range(imin(lanes, c - c0)):
                for k in range(taps):
                    value = of[k * lanes + j]
                    # Parts are added in order, whatever thread made them: the sum does not depend
                    # on timing.
                    for p in range(1, g.parts):
                        value += of[p * g.filters * size + k * lanes + j]
                    if adds != 0:
                        value += into[j * taps + k]
                    into[j * taps + k] = value

    return body


@kernel("x: T[n]   y: out T[n, times]   g: i64[]", words={"g": COPIES_WORDS})
def channels_repeat(target: Target, T: str) -> Body:
    """y[i m + j] = x[i] for i < n, j < m = `times`."""

    def body(x, y, g, tid, nthreads):
        m = g.times
        begin, end = share(g.n, tid, nthreads)
        for i in range(begin, end):
            for j in range(m):
                y[i * m + j] = x[i]

    return body


@kernel("x: T[n, times]   y: out T[n]   g: i64[] where times >= 1", words={"g": COPIES_WORDS})
def channels_sum(target: Target, T: str) -> Body:
    """y[i] = sum_j x[i m + j] for i < n, j < m = `times`."""

    def body(x, y, g, tid, nthreads):
        m = g.times
        begin, end = share(g.n, tid, nthreads)
        for i in range(begin, end):
            total = x[i * m]
            for j in range(1, m):
                total += x[i * m + j]
            y[i] = total

    return body


# --- calls


def repeated(lowering: Lowering, x: Operand, times: int) -> Operand:
    """Return the tensor with each channel repeated `times` times, or as it is for once."""
    if times == 1:
        return x
    images, channels, *spatial = x.type.dims
    y = lowering.temp(x.type.dtype, (x.type.size * times,))
    words = COPIES_WORDS.pack(n=x.type.size, times=times)
    lowering.call(channels_repeat(x.type.dtype), x=x, y=y, g=words)
    shape = (images, channels * times, *spatial)
    return Operand(y.name, x.type.but(shape).as_last())


def find_row(width: Axis, back: bool) -> tuple[int, int]:
    """Return width and stride of the windows, or (0, 0) if no kernel is compiled for these."""
    fits = width.taps in ROWS and width.dilation == 1
    fits = fits and (width.stride == 2 or (width.stride == 1 and not back))
    return (width.taps, width.stride) if fits else (0, 0)


def _reverse(a: Axis) -> Axis:
    """Return the window over dY that makes dX of a window of stride 1, with the taps in reverse."""
    pad, end = ((a.taps - 1) * a.dilation - p for p in (a.pad, a.pad_end))
    return Axis(a.out, a.size, a.taps, 1, a.dilation, pad, end)


def forward_if_possible(axes: Axes, back: bool) -> tuple[Axes, bool, bool]:
    """Return the window, whether it is back, and whether its taps are reversed."""
    # Forward: y[o] = sum_k x[o - p + k d] w[k] for stride 1.  So dx[i] = sum_k dy[i + p - k d]
    # w[k], a convolution of dy with the taps in reverse.  With a stride, dx has gaps between taps:
    # back.
    if not back or any(a.stride > 1 for a in axes):
        return axes, back, False
    d, h, w = (_reverse(a) for a in axes)
    return (d, h, w), False, True


def make_window_job(axes: Axes, images: int, channels: int, back: bool) -> P.Job:
    """Return the job of all channels; `out` is the size written, `size` the size read."""
    j = P.make_job(axes, images, 1, channels, channels)
    # rows counts the pixels that are written.
    if back:
        j = replace(j, out=j.size, size=j.out, rows=images * math.prod(j.size))
    return j


def packed(
    lowering: Lowering,
    w: Operand,
    shape: tuple[int, int],
    steps: tuple[int, int],
    taps: int,
    *,
    reverse: bool,
) -> Operand:
    """Return weights as vectors of channels; shape: filters, channels; steps: theirs in w."""
    T, (filters, channels) = w.type.dtype, shape
    b = lowering.temp(T, (filters * round_up(channels, lowering.target.lanes(ITEMSIZE[T])) * taps,))
    words = PACK_WORDS.pack(
        filters=filters,
        c=channels,
        taps=taps,
        f_step=steps[0],
        c_step=steps[1],
        back=int(reverse),
    )
    lowering.call(depthwise_pack(T), w=w, b=b, g=words)
    return b


def lower_depthwise(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    *,
    back: bool = False,
    curve: int = 0,
) -> None:
    """Append the calls for y = conv(x, w) + bias; when `back`, for its transpose applied to x.

    curve: bits of what is applied to it.  An x of fewer filters than w has is repeated, such a y is
    the sum over its channel's filters.
    """
    x, w, y, bias = operands
    (T, S), co, taps = find_stored(x), w.type.dims[0], math.prod(a.taps for a in axes)
    axes, back, flipped = forward_if_possible(axes, back)
    b = packed(lowering, w, (1, co), (0, taps), taps, reverse=flipped)
    x = repeated(lowering, x, co // x.type.dims[1])
    times = co // y.type.dims[1]
    into = y if times == 1 else lowering.temp(T, (y.type.size * times,))
    j = make_window_job(axes, x.type.dims[0], co, back)
    mode = (BIAS if bias else 0) | curve
    words = DEPTHWISE_WORDS.pack(mode=mode, back=int(back), job=j.words())
    kw, sw = find_row(axes[2], back)
    kind = depthwise(T, kw, sw, int(back and kw > 0), *S)
    lowering.call(kind, x=x, w=b, y=into, bias=bias, g=words)
    if times > 1:
        # Forward each channel of y was read by `times` filters, so its dx is the sum over them.
        words = COPIES_WORDS.pack(n=y.type.size, times=times)
        lowering.call(channels_sum(T), x=into, y=y, g=words)


def lower_depthwise_weights(
    lowering: Lowering,
    operands: tuple[Operand, Operand],
    axes: Axes,
    out: Operand,
    reset: Operand | None,
) -> None:
    """Append the calls for dw of a depthwise convolution; operands are x and dy.

    out: dw; reset: the flag that says whether to overwrite it, None to do so always.
    """
    x, dy = operands
    (T, S), co, taps = find_stored(dy), dy.type.dims[1], math.prod(a.taps for a in axes)
    lanes = lowering.target.lanes(ITEMSIZE[T])
    x = repeated(lowering, x, co // x.type.dims[1])
    j = P.make_job(axes, x.type.dims[0], 1, co, co)
    # Parts are lines; threads left over share the channels of each part.
    mt = max(1, min(lowering.threads, j.rows // max(j.out[2], 1)))
    nt = max(1, min(lowering.threads // mt, count_parts(co, lanes)))
    j = replace(j, mt=mt, nt=nt)
    part = lowering.temp(T, (mt * round_up(co, lanes) * taps,))
    kind = depthwise_dw(T, *find_row(axes[2], back=False), *S)
    lowering.call(kind, x=x, dy=dy, part=part, g=j.words())
    fold(lowering, part, (mt, 1, co, taps), out, reset)


def fold(
    lowering: Lowering,
    part: Operand,
    shape: tuple[int, int, int, int],
    out: Operand,
    reset: Operand | None,
) -> None:
    """Append the call that adds up partial sums to dw; shape: parts, filters, channels, taps."""
    names = ("parts", "filters", "c", "taps")
    words = FOLD_WORDS.pack(**dict(zip(names, shape, strict=True)), adds=int(reset is not None))
    kind = depthwise_fold(part.type.dtype)
    lowering.call(kind, part=part, dw=out, keep=reset, g=words)


WINDOW_KERNELS = (
    depthwise,
    depthwise_pack,
)  # what `lower_depthwise` calls for one filter a channel
WEIGHTS_KERNELS = (depthwise_dw, depthwise_fold, channels_repeat)
KERNELS = (
    depthwise,
    depthwise_dw,
    depthwise_pack,
    depthwise_fold,
    channels_repeat,
    channels_sum,
)
