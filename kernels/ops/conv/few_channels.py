"""Convolutions that write few channels: vectors hold the channels that are read.

    Y[n, o, j] = act(sum_{k, c} X[n, o s - p + k d, c] W[j, k, c] (+ B[j]))

The last layer of a network that makes images, and dX of the first layer of one that reads them,
fill a corner of a vector with what they write.  Here a pixel's channels are a vector, multiplied
with the weights of two filters at a time, and what the sums have in their lanes is added at the
end.  The gradient by the weights multiplies the same pixels with dY.  Windows are walked as
depthwise ones are (`depthwise.py`), back as well; `slide_dots.py` has the tiles.

Threads share the lines (image, depth, height) of the output in order, thread i of n the lines from
`lines i / n` on, where lines are fewer than threads also the tiles of each.  Every sum is formed in
the same order however the lines are shared.
"""

from __future__ import annotations

import math
from dataclasses import replace

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.window import Axes, round_up
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import depthwise as D
from engine.kernels.ops.conv import patches as P
from engine.kernels.ops.conv.depthwise import (
    AHEAD,
    PIXELS,
    on_stack,
    place_late,
    place_lines,
    place_pixels,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    BIAS,
    RELU,
    Body,
    Inline,
    Intrinsic,
    drop_same,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, find_each_stored
from engine.plan.words import Field, Words

MOST = 4  # channels written for which this is the better way
LEAST = 8  # channels read that fill enough of a vector

FEW_WORDS = Words(
    "conv_few",
    mode="bits: BIAS, RELU",
    back="whether the window belongs to a convolution whose inputs the outputs are",
    filters="channels of y",
    job=Field("the window; the outputs are its `out`, the inputs its `size`", of=P.JOB),
)
FEW_DW_WORDS = Words(
    "conv_few_dw",
    filters="channels of dy",
    job=Field("the convolution; `mt` parts of the lines", of=P.JOB),
)


def _walk(target: Target, T: str, intrinsic: str, X: str, Y: str) -> Inline:
    """Return an inline function: an intrinsic over part `way` of `ways` of a line's tiles.

    walk(x, w, y, bias, q, filters, back, mode, line, way, ways);
    w: [filter][channel / lanes][tap][lanes].  X, Y: how x and y are stored.
    """
    tiles = Intrinsic(intrinsic, (T, PIXELS, 0, 0, drop_same(X, T), drop_same(Y, T)))
    lanes = target.lanes(ITEMSIZE[T])

    @inline
    def walk(x, w, y, bias, q, filters, back, mode, line, way, ways):
        # As depthwise.py walks a line, but a tile's two "lines" are two filters of one line:
        # vectors hold channels of x, and their sums are added across lanes at the end.
        t = on_stack()
        t.channels, t.taps = q.ldx, q.taps_d * q.taps_h * q.taps_w
        t.ahead = udiv(AHEAD * lanes + q.ldx - 1, q.ldx)
        size = udiv(q.ldx + lanes - 1, lanes) * lanes * t.taps
        place_lines(t, q, back, line, line + 1, lanes)
        h0, h1 = t.only0_begin, t.only0_end
        # When back, pixels whose columns differ by the stride see the same taps: one walk each.
        for r in range(q.stride_w if back != 0 else 1):
            tap, step, apart = place_late(t, q, back, r)
            place_pixels(t, q, r, tap, step, apart, lanes)
            t.y_pixel = apart * filters
            # Where lines are fewer than threads, `ways` threads share the tiles of each.
            t0, t1 = udiv(t.tiles * way, ways), udiv(t.tiles * (way + 1), ways)
            t.tiles, t.first = t1 - t0, t0 * PIXELS
            t.col += t0 * t.col_tile
            pixel = line * q.out_w + r + t.first * apart
            for j in range(0, filters, 2):
                # Two filters share every load of x; the last of an odd number is alone.
                t.two = imin(filters - j - 1, 1)
                # "Lines" are two filters of one line here, so both see all rows, or there is one.
                t.only0_end = t.both_begin = h1 - t.two * (h1 - h0)
                t.both_end = t.only1_begin = t.only1_end = h1
                weights, into = off(w, j * size + t.w_at + t.w0_at), off(y, pixel * filters + j)
                tiles(
                    off(x, t.x_at + t0 * t.x_tile), weights, off(weights, t.two * size),
                    into, off(into, t.two), off(bias, j), t, mode,
                )  # fmt: skip

    return walk


def _reach(c: KernelCall) -> Reach:
    (job,) = c.records("job", P.JOB, 1)
    q, lines, taps = P.check_window(c, job)
    sizes = D.by_channels(c, q, lines, taps)
    pixels = lines * q["out"][2]
    return {"x": sizes["x"], "w": c.filters * sizes["w"], "y": pixels * c.filters}


@kernel(
    """
    x: X[...]   w: T[...]   y: out Y[...]   bias: T[filters] if mode & BIAS
    g: i64[] where mode <= BIAS | RELU
    """,
    words={"g": FEW_WORDS},
    reach=_reach,
    multiply_adds=lambda c: c.filters * P.count_window_products(P.list_jobs(c.job)[0], c.back),
    samples=P.cut_window(FEW_WORDS, "filters"),
)
def conv_few(target: Target, T: str, X: str = "", Y: str = "") -> Body:
    """y[n, o, j] = act(sum_{k, c} x[n, o s - p + k d, c] w[j, c, k] (+ bias[j])), or back of that.

    x, y: channels-last; w: of `depthwise_pack`.  Shared by lines of y in order; by tiles too where
    lines are few.  X, Y: how x and y are stored.
    """
    walk = _walk(target, T, "filter_dots", X, Y)

    def body(x, w, y, bias, g, tid, nthreads):
        q = g.job
        lines, ways = udiv(q.rows, q.out_w), 1
        if lines < nthreads:  # four units a thread, for balance
            ways = udiv(4 * nthreads + lines - 1, lines)
        begin, end = share(lines * ways, tid, nthreads)
        for unit in range(begin, end):
            line = udiv(unit, ways)
            walk(x, w, y, bias, q, g.filters, g.back, g.mode, line, unit - line * ways, ways)

    return body


def _dw_reach(c: KernelCall) -> Reach:
    (job,) = c.records("job", P.JOB, 1)
    q, lines, taps = P.check_window(c, job)
    sizes = D.by_channels(c, q, lines, taps)
    pixels = lines * q["out"][2]
    part = q["mt"] * c.filters * sizes["w"]
    return {"x": sizes["x"], "dy": pixels * c.filters, "part": part}


@kernel(
    "x: X[...]   dy: Y[...]   part: out T[...]   g: i64[]",
    words={"g": FEW_DW_WORDS},
    reach=_dw_reach,
    multiply_adds=lambda c: c.filters * P.count_window_products(P.list_jobs(c.job)[0]),
    samples=lambda c: P.part_samples(c, P.JOB.unpack(c.job), FEW_DW_WORDS.place("job"), c.filters),
)
def conv_few_dw(target: Target, T: str, X: str = "", Y: str = "") -> Body:
    """part[p][j][c, k] = sum over the lines of part p of dy[n, o, j] x[n, o s - p + k d, c].

    x, dy: channels-last; part: [p][j][c / lanes][k][lanes], `mt` parts of the lines in order.
    X, Y: how x and dy are stored.
    """
    walk, zero = _walk(target, T, "filter_tap_dots", X, Y), Intrinsic("zero", (T,))
    lanes = target.lanes(ITEMSIZE[T])

    def body(x, dy, part, g, tid, nthreads):
        q = g.job
        lines, taps = udiv(q.rows, q.out_w), q.taps_d * q.taps_h * q.taps_w
        size = g.filters * udiv(q.ldx + lanes - 1, lanes) * lanes * taps
        # Each thread sums its lines into a part of its own, which `depthwise_fold` adds up in
        # order.
        if tid < q.mt:
            sums = off(part, tid * size)
            zero(sums, size)
            begin, end = share(lines, tid, q.mt)
            for line in range(begin, end):
                walk(x, sums, dy, sums, q, g.filters, 0, 0, line, 0, 1)

    return body


def is_few(channels: int, filters: int, groups: int) -> bool:
    """Return whether a convolution of these sizes is faster here than in `convolution.py`."""
    # With few filters a vector of filters, which the matrix product of patch_product.py works with,
    # would be mostly empty; here vectors hold the channels that are read.
    return groups == 1 and filters <= MOST and channels >= LEAST


def lower_few(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    *,
    back: bool = False,
    relu: bool = False,
) -> None:
    """Append the calls for y = conv(x, w) + bias; when `back`, for its transpose applied to x."""
    x, w, y, bias = operands
    (T, kinds), filters, channels = find_each_stored(x, y), y.type.dims[1], x.type.dims[1]
    taps = math.prod(a.taps for a in axes)
    # W is [filters][channels][taps] forward; back it is read transposed, [channels][filters][taps].
    steps = (taps, filters * taps) if back else (channels * taps, taps)
    axes, back, flipped = D.forward_if_possible(axes, back)
    b = D.packed(lowering, w, (filters, channels), steps, taps, reverse=flipped)
    j = D.make_window_job(axes, x.type.dims[0], channels, back)
    mode = (BIAS if bias else 0) | (RELU if relu else 0)
    words = FEW_WORDS.pack(mode=mode, back=int(back), filters=filters, job=j.words())
    lowering.call(conv_few(T, *kinds), x=x, w=b, y=y, bias=bias, g=words)


def lower_few_weights(
    lowering: Lowering,
    operands: tuple[Operand, Operand],
    axes: Axes,
    out: Operand,
    reset: Operand | None,
) -> None:
    """Append the calls for dw; operands are x and dy, `out` and `reset` as of depthwise weights."""
    x, dy = operands
    (T, kinds), filters, channels = find_each_stored(x, dy), dy.type.dims[1], x.type.dims[1]
    taps, lanes = math.prod(a.taps for a in axes), lowering.target.lanes(ITEMSIZE[T])
    j = D.make_window_job(axes, x.type.dims[0], channels, back=False)
    # A part is whole lines, so there are at most as many parts as lines.
    mt = max(1, min(lowering.threads, j.rows // max(j.out[2], 1)))
    part = lowering.temp(T, (mt * filters * round_up(channels, lanes) * taps,))
    words = FEW_DW_WORDS.pack(filters=filters, job=replace(j, mt=mt).words())
    lowering.call(conv_few_dw(T, *kinds), x=x, dy=dy, part=part, g=words)
    D.fold(lowering, part, (mt, filters, channels, taps), out, reset)


FEW_KERNELS = (conv_few, D.depthwise_pack)
FEW_WEIGHTS_KERNELS = (conv_few_dw, D.depthwise_fold)
KERNELS = (conv_few, conv_few_dw)
