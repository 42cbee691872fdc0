"""Kernels of pooling over 1 to 3 spatial axes, channels-last, and the calls of them."""

from __future__ import annotations

from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.window import Axes, clip, round_up
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    imax,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, Site, TensorType, find_stored
from engine.kernels.vocabulary.row_program import loop
from engine.plan.words import AXES, Field, Words

TAPS = 256  # the most taps of a window whose index is a u8
TAKEN, PADDED, ONE = range(3)  # divisors of a sum: taps in the image, in its padding too, or 1

_WINDOWS: dict[str, str | Field] = {
    "images": "images of the batch",
    "channels": "channels of an image",
    "chunk": "channels that a thread takes at once",
    "out": Field("windows along an axis", names=AXES),
    "size": Field("pixels along an axis", names=AXES),
    "stride": Field("from window to window", names=AXES),
    "pad": Field("padding before the first pixel", names=AXES, range="signed"),
    "pad_end": Field("padding after the last pixel", names=AXES, range="signed"),
    "dilation": Field("from tap to tap", names=AXES),
    "taps": Field("taps along an axis", names=AXES),
}
_PLACES: dict[str, Field] = {
    "pixel": Field("steps of the index from pixel to pixel along an axis", names=AXES),
    "tap": Field("steps of the index from tap to tap along an axis", names=AXES),
}
MAX_WORDS = Words("pool_max", **_WINDOWS, **_PLACES)
MAX_GRAD_WORDS = Words(
    "pool_max_grad",
    **_WINDOWS,
    **_PLACES,
    shared="whether windows share pixels, so that their gradients add up",
    clear="whether some pixels are in no window",
)
_DIVISOR = "the divisor of a sum: TAKEN, PADDED or ONE"
MEAN_WORDS = Words("pool_mean", **_WINDOWS, divisor=_DIVISOR)
SUMS_WORDS = Words("pool_grad_sums", **_WINDOWS, divisor=_DIVISOR)


def _pack_windows(axes: Axes, images: int, channels: int, chunk: int) -> dict[str, Any]:
    """Return the fields of `_WINDOWS`; threads share chunks of channels of images, or of rows."""
    fields = ("out", "size", "stride", "pad", "pad_end", "dilation", "taps")
    spans = {f: [getattr(a, f) for a in axes] for f in fields}
    return {"images": images, "channels": channels, "chunk": chunk, **spans}


# --- kernels

_X, _Y = "S[images, prod(size), channels]", "S[images, prod(out), channels]"
_NUMBERS = "g: i64[] where min(chunk, *stride, *dilation) >= 1"


@kernel(
    f"x: {_X}  y: out {_Y}  index: out i64[images, prod(out), channels] if indices  {_NUMBERS}",
    words={"g": MAX_WORDS},
    samples=lambda c: None if c.flag(1) else c.by_extent("images"),
)
def pool_max(target: Target, T: str, indices: int, S: str = "") -> Body:
    """y[n, o, c] = max_k x[n, o s - p + k d, c];  index: the flat NCHW place of the first maximum.

    All channels-last.  S: how x and y are stored.
    """
    return _max(Intrinsic("window_max", (T, "i64" if indices else "", S)))


@kernel(
    f"x: {_X}  y: out {_Y}  index: out u8[images, prod(out), channels]  {_NUMBERS}",
    words={"g": MAX_WORDS},
    samples="images",
)
def pool_max_taps(target: Target, T: str, S: str = "") -> Body:
    """As `pool_max`, but index: the number of the first maximum among the taps of its window.

    They are counted from the first tap that lies in the image, the last axis fastest, as if all
    did.  A window has at most `TAPS` taps.  index: u8.
    """
    return _max(Intrinsic("window_max", (T, "u8", S)))


def _max(window: Intrinsic) -> Body:
    """Return the body of `pool_max` and its like."""

    def body(x, y, index, g, tid, nthreads):
        c, chunk = g.channels, g.chunk
        chunks = udiv(c + chunk - 1, chunk)
        volume = g.size_d * g.size_h * g.size_w
        begin, end = share(g.images * g.out_d * g.out_h * chunks, tid, nthreads)
        for unit in range(begin, end):
            row = udiv(unit, chunks)
            c0 = (unit - row * chunks) * chunk
            plane = udiv(row, g.out_h)
            n = udiv(plane, g.out_d)
            _, d, nd = clip(
                plane - n * g.out_d, g.size_d, g.stride_d, g.pad_d, g.dilation_d, g.taps_d
            )
            _, h, nh = clip(
                row - plane * g.out_h, g.size_h, g.stride_h, g.pad_h, g.dilation_h, g.taps_h
            )
            # `clip` leaves the first tap inside the image and the number of taps inside: no tap in
            # the padding is read or compared.  Vectors hold channels.
            for o in range(g.out_w):
                _, w, nw = clip(o, g.size_w, g.stride_w, g.pad_w, g.dilation_w, g.taps_w)
                # The index of the first tap inside; `window` adds the steps of the tap that won.
                place = (n * c + c0) * volume + d * g.pixel_d + h * g.pixel_h + w * g.pixel_w
                to = (row * g.out_w + o) * c + c0
                window(
                    off(x, (((n * g.size_d + d) * g.size_h + h) * g.size_w + w) * c + c0),
                    off(y, to),
                    off(index, to),
                    imin(chunk, c - c0),
                    nd,
                    nh,
                    nw,
                    g.dilation_d * g.size_h * g.size_w * c,
                    g.dilation_h * g.size_w * c,
                    g.dilation_w * c,
                    place,
                    g.tap_d,
                    g.tap_h,
                    g.tap_w,
                    volume,
                )

    return body


@kernel(
    f"dy: {_Y}  index: i64[images, prod(out), channels]  dx: out {_X}  {_NUMBERS}",
    words={"g": MAX_GRAD_WORDS},
)
def pool_max_grad(target: Target, T: str, S: str = "") -> Body:
    """dx = sum over windows of dy at the place index says (`pool_max`), 0 elsewhere.

    All channels-last.  S: how dy and dx are stored, of windows that share no pixels.
    """
    return _max_grad(Intrinsic("spread_max", (T, "i64", S)), _zero(T, S))


@kernel(
    f"dy: {_Y}  index: u8[images, prod(out), channels]  dx: out {_X}  {_NUMBERS}",
    words={"g": MAX_GRAD_WORDS},
    samples="images",
)
def pool_max_taps_grad(target: Target, T: str, S: str = "") -> Body:
    """As `pool_max_grad`, of an index that `pool_max_taps` has made.  index: u8."""
    return _max_grad(Intrinsic("spread_max", (T, "u8", S)), _zero(T, S))


def _zero(T: str, S: str) -> Intrinsic:
    """Return an intrinsic: zero(x, n) of elements stored as S."""
    return loop(T, "-> y:S[] = 0", S)


def _max_grad(spread: Intrinsic, zero: Intrinsic) -> Body:
    """Return the body of `pool_max_grad` and its like."""

    def body(dy, index, dx, g, tid, nthreads):
        c, chunk = g.channels, g.chunk
        chunks = udiv(c + chunk - 1, chunk)
        volume = g.size_d * g.size_h * g.size_w
        # Windows of neighbouring rows may share pixels: a thread has all rows of an image, so that
        # no two threads add to one pixel, and sums are in the order of windows.
        begin, end = share(g.images * chunks, tid, nthreads)
        for unit in range(begin, end):
            n = udiv(unit, chunks)
            c0 = (unit - n * chunks) * chunk
            nc = imin(chunk, c - c0)
            # Forward: y = x at the index; so dx at the index += dy, and other pixels get 0.  If
            # every pixel is in exactly one window each is written once, and nothing is cleared
            # before.
            if g.clear != 0:
                for i in range(n * volume, (n + 1) * volume):
                    zero(off(dx, i * c + c0), nc)
            for row in range(g.out_d * g.out_h):
                plane = udiv(row, g.out_h)
                _, d, nd = clip(plane, g.size_d, g.stride_d, g.pad_d, g.dilation_d, g.taps_d)
                _, h, nh = clip(
                    row - plane * g.out_h, g.size_h, g.stride_h, g.pad_h, g.dilation_h, g.taps_h
                )
                for o in range(g.out_w):
                    _, w, nw = clip(o, g.size_w, g.stride_w, g.pad_w, g.dilation_w, g.taps_w)
                    place = (n * c + c0) * volume + d * g.pixel_d + h * g.pixel_h + w * g.pixel_w
                    at = ((n * g.out_d * g.out_h + row) * g.out_w + o) * c + c0
                    spread(
                        off(dx, (((n * g.size_d + d) * g.size_h + h) * g.size_w + w) * c + c0),
                        off(dy, at),
                        off(index, at),
                        nc,
                        nd,
                        nh,
                        nw,
                        g.dilation_d * g.size_h * g.size_w * c,
                        g.dilation_h * g.size_w * c,
                        g.dilation_w * c,
                        place,
                        g.tap_d,
                        g.tap_h,
                        g.tap_w,
                        volume,
                        g.shared,
                    )

    return body


@inline
def _count(o, size, pad, pad_end, stride, dilation, taps):
    """Taps of window o along an axis that lie in the image or its padding."""
    return clip(o, size + pad + pad_end, stride, 0, dilation, taps)[2]


@inline
def _divisor(g, od, oh, ow, taken):
    """Return the divisor of the sum of a window; `taken` of its taps lie in the image."""
    count = taken
    if g.divisor == PADDED:
        count = _count(od, g.size_d, g.pad_d, g.pad_end_d, g.stride_d, g.dilation_d, g.taps_d)
        count *= _count(oh, g.size_h, g.pad_h, g.pad_end_h, g.stride_h, g.dilation_h, g.taps_h)
        count *= _count(ow, g.size_w, g.pad_w, g.pad_end_w, g.stride_w, g.dilation_w, g.taps_w)
    elif g.divisor == ONE:
        count = 1
    return count


@kernel(f"x: {_X}  y: out {_Y}  {_NUMBERS}", words={"g": MEAN_WORDS}, samples="images")
def pool_mean(target: Target, T: str, S: str = "") -> Body:
    """y[n, o, c] = sum_k x[n, o s - p + k d, c] / count.

    Both channels-last.  S: how x and y are stored.
    """
    window, cast = Intrinsic("window_mean", (T, S)), Intrinsic("cast", (T, "i64"))

    def body(x, y, g, tid, nthreads):
        c, chunk = g.channels, g.chunk
        chunks = udiv(c + chunk - 1, chunk)
        begin, end = share(g.images * g.out_d * g.out_h * chunks, tid, nthreads)
        for unit in range(begin, end):
            row = udiv(unit, chunks)
            c0 = (unit - row * chunks) * chunk
            plane = udiv(row, g.out_h)
            n = udiv(plane, g.out_d)
            od, oh = plane - n * g.out_d, row - plane * g.out_h
            _, d, nd = clip(od, g.size_d, g.stride_d, g.pad_d, g.dilation_d, g.taps_d)
            _, h, nh = clip(oh, g.size_h, g.stride_h, g.pad_h, g.dilation_h, g.taps_h)
            for o in range(g.out_w):
                _, w, nw = clip(o, g.size_w, g.stride_w, g.pad_w, g.dilation_w, g.taps_w)
                count = _divisor(g, od, oh, o, nd * nh * nw)
                window(
                    off(x, (((n * g.size_d + d) * g.size_h + h) * g.size_w + w) * c + c0),
                    off(y, (row * g.out_w + o) * c + c0),
                    imin(chunk, c - c0),
                    nd,
                    nh,
                    nw,
                    g.dilation_d * g.size_h * g.size_w * c,
                    g.dilation_h * g.size_w * c,
                    g.dilation_w * c,
                    cast(count),
                )

    return body


@kernel(f"dy: {_Y}  dx: out {_X}  {_NUMBERS}", words={"g": MEAN_WORDS}, samples="images")
def pool_mean_grad(target: Target, T: str, S: str = "") -> Body:
    """dx[n, i, c] = sum of dy[n, o, c] / count(o) over the windows o that see i.

    Both channels-last.  S: how dy and dx are stored, of windows that share no pixels.
    """
    spread, zero = Intrinsic("spread_mean", (T, S)), _zero(T, S)
    cast = Intrinsic("cast", (T, "i64"))

    def body(dy, dx, g, tid, nthreads):
        c, chunk = g.channels, g.chunk
        chunks = udiv(c + chunk - 1, chunk)
        volume = g.size_d * g.size_h * g.size_w
        begin, end = share(g.images * chunks, tid, nthreads)
        for unit in range(begin, end):
            n = udiv(unit, chunks)
            c0 = (unit - n * chunks) * chunk
            nc = imin(chunk, c - c0)
            # Forward: y[o] = sum_k x[...] / count(o); so dx of every pixel that o saw += dy[o] /
            # count(o).
            for i in range(n * volume, (n + 1) * volume):
                zero(off(dx, i * c + c0), nc)
            for row in range(g.out_d * g.out_h):
                od = udiv(row, g.out_h)
                oh = row - od * g.out_h
                _, d, nd = clip(od, g.size_d, g.stride_d, g.pad_d, g.dilation_d, g.taps_d)
                _, h, nh = clip(oh, g.size_h, g.stride_h, g.pad_h, g.dilation_h, g.taps_h)
                for o in range(g.out_w):
                    _, w, nw = clip(o, g.size_w, g.stride_w, g.pad_w, g.dilation_w, g.taps_w)
                    count = _divisor(g, od, oh, o, nd * nh * nw)
                    spread(
                        off(dx, (((n * g.size_d + d) * g.size_h + h) * g.size_w + w) * c + c0),
                        off(dy, ((n * g.out_d * g.out_h + row) * g.out_w + o) * c + c0),
                        nc,
                        nd,
                        nh,
                        nw,
                        g.dilation_d * g.size_h * g.size_w * c,
                        g.dilation_h * g.size_w * c,
                        g.dilation_w * c,
                        cast(count),
                    )

    return body


# --- gradients of windows that share pixels, stored in 16 bits: each is one sum, rounded once


@inline
def _find_meeting(i, out, stride, pad, taps):
    """Return the windows that see pixel i along an axis: the first, and the one after the last."""
    first = udiv(imax(i + pad - taps + stride, 0), stride)
    return first, imin(udiv(imax(i + pad + stride, 0), stride), out)


@kernel(
    f"""
    dy: {_Y}  index: u8[images, prod(out), channels] if maxima  dx: out {_X}
    work: scratch T[threads, chunk]  {_NUMBERS}
    """,
    words={"g": SUMS_WORDS},
    samples="images",
)
def pool_grad_sums(target: Target, T: str, maxima: int, S: str = "") -> Body:
    """dx[n, i, c] = sum over the windows o that see i of what they give it, rounded once.

    maxima: dy[n, o, c] where index has i (`pool_max_taps`), otherwise dy[n, o, c] / count(o).  All
    channels-last, without dilation.  S: how dy and dx are stored.
    """
    zero, store = Intrinsic("zero", (T,)), loop(T, "x[] -> y:S[] = x", S)
    hit = loop(T, "x[] y:S[] at:u8[] tap:u8 -> x[] = x + where(at == tap, y, 0)", S)
    share_out = loop(T, "x[] y:S[] count -> x[] = x + y / count", S)
    cast, short = Intrinsic("cast", (T, "i64")), Intrinsic("cast", ("u8", "i64"))

    @inline
    def add_hit(work, dy, index, g, od, oh, ow, d, h, w, n):
        # Taps are counted from the first in the image: from the first pixel of it that is seen.
        tap = d - imax(od * g.stride_d - g.pad_d, 0)
        tap = tap * g.taps_h + h - imax(oh * g.stride_h - g.pad_h, 0)
        tap = tap * g.taps_w + w - imax(ow * g.stride_w - g.pad_w, 0)
        hit(work, dy, index, short(tap), work, n)

    @inline
    def add_share(work, dy, index, g, od, oh, ow, d, h, w, n):
        nd = clip(od, g.size_d, g.stride_d, g.pad_d, 1, g.taps_d)[2]
        nh = clip(oh, g.size_h, g.stride_h, g.pad_h, 1, g.taps_h)[2]
        nw = clip(ow, g.size_w, g.stride_w, g.pad_w, 1, g.taps_w)[2]
        share_out(work, dy, cast(_divisor(g, od, oh, ow, nd * nh * nw)), work, n)

    add = add_hit if maxima else add_share

    def body(dy, index, dx, work, g, tid, nthreads):
        c, chunk = g.channels, g.chunk
        chunks = udiv(c + chunk - 1, chunk)
        mine = off(work, tid * chunk)
        begin, end = share(g.images * g.size_d * g.size_h * chunks, tid, nthreads)
        for unit in range(begin, end):
            row = udiv(unit, chunks)
            c0 = (unit - row * chunks) * chunk
            nc = imin(chunk, c - c0)
            plane = udiv(row, g.size_h)
            n = udiv(plane, g.size_d)
            d, h = plane - n * g.size_d, row - plane * g.size_h
            d0, d1 = _find_meeting(d, g.out_d, g.stride_d, g.pad_d, g.taps_d)
            h0, h1 = _find_meeting(h, g.out_h, g.stride_h, g.pad_h, g.taps_h)
            for w in range(g.size_w):
                w0, w1 = _find_meeting(w, g.out_w, g.stride_w, g.pad_w, g.taps_w)
                # Forward: y[o] = x at index[o], or sum_k x[...] / count(o); so dx[i] sums dy[o]
                # over the windows o that see i.  Adding in place, as float32 kernels do, would
                # round a sum as often as windows share the pixel: so every pixel asks its windows
                # instead, is summed here in float32, in the order of windows, and is written
                # once.  Threads share all rows, since no two write to one pixel.
                zero(mine, nc)
                for od in range(d0, d1):
                    for oh in range(h0, h1):
                        for ow in range(w0, w1):
                            at = (((n * g.out_d + od) * g.out_h + oh) * g.out_w + ow) * c + c0
                            add(mine, off(dy, at), off(index, at), g, od, oh, ow, d, h, w, nc)
                store(mine, off(dx, (row * g.size_w + w) * c + c0), nc)

    return body


# --- lowering


def _choose_chunk(lowering: Lowering, t: TensorType, units: int) -> int:
    """Return the channels of a unit of work: fewer than all if `units` are fewer than threads."""
    channels = t.dims[1]
    # Channels are cut at whole vectors, into just as many pieces as give every thread a unit.
    pieces = -(-lowering.threads // max(units, 1))
    return round_up(-(-channels // pieces), lowering.target.lanes(ITEMSIZE[t.dtype]))


def _find_places(site: Site, axes: Axes, index: Operand | None) -> dict[str, list[int]]:
    """Return the steps of an index: of a flat place by storage_order, or of taps."""
    d, h, w = (a.size for a in axes)
    pixel = [1, d, d * h] if site.attrs.get("storage_order") else [h * w, w, 1]
    tap = [a.dilation * step for a, step in zip(axes, pixel, strict=True)]
    if index is not None and index.type.dtype == "u8":
        _, h, w = (a.taps for a in axes)
        # Taps count from 0 in every window.
        pixel, tap = [0, 0, 0], [h * w, w, 1]
    return {"pixel": pixel, "tap": tap}


def max_pool(lowering: Lowering, axes: Axes, x: Operand, y: Operand, index: Operand | None) -> None:
    """Append the call for y and, unless it is None, index: i64 or u8."""
    images, channels = x.type.dims[:2]
    chunk = _choose_chunk(lowering, x.type, images * axes[0].out * axes[1].out)
    words = MAX_WORDS.pack(
        **_pack_windows(axes, images, channels, chunk), **_find_places(lowering.site, axes, index)
    )
    T, S = find_stored(x)
    kernel = pool_max(T, int(index is not None), *S)
    if index is not None and index.type.dtype == "u8":
        kernel = pool_max_taps(T, *S)
    lowering.call(kernel, x=x, y=y, index=index, g=words)


def are_apart(axes: Axes) -> bool:
    """Return whether no two windows share a pixel, so that no gradient of one is a sum."""
    return all(a.dilation == 1 and a.stride >= a.taps for a in axes)


def can_gather(axes: Axes) -> bool:
    """Return whether `pool_grad_sums` can add up the gradients of windows."""
    return all(a.dilation == 1 for a in axes)


def _sum_grads(
    lowering: Lowering, axes: Axes, dy: Operand, index: Operand | None, dx: Operand, count: int
) -> None:
    """Append the call that makes each pixel of dx, stored in 16 bits, one sum."""
    (T, S), (images, channels) = find_stored(dy), dx.type.dims[:2]
    chunk = _choose_chunk(lowering, dx.type, images * axes[0].size * axes[1].size)
    words = SUMS_WORDS.pack(**_pack_windows(axes, images, channels, chunk), divisor=count)
    work = lowering.temp(T, (lowering.threads, chunk))
    kernel = pool_grad_sums(T, int(index is not None), *S)
    lowering.call(kernel, dy=dy, index=index, dx=dx, work=work, g=words)


def max_pool_grad(lowering: Lowering, axes: Axes, dy: Operand, index: Operand, dx: Operand) -> None:
    """Append the call for dx."""
    images, channels = dx.type.dims[:2]
    # Windows that neither overlap nor leave gaps write each pixel once.
    apart, (T, S) = are_apart(axes), find_stored(dy)
    if S and not apart:
        _sum_grads(lowering, axes, dy, index, dx, ONE)
        return
    covered = all(
        a.dilation == 1 and a.stride <= a.taps and (a.out - 1) * a.stride + a.taps >= a.size + a.pad
        for a in axes
    )
    words = MAX_GRAD_WORDS.pack(
        **_pack_windows(axes, images, channels, _choose_chunk(lowering, dx.type, images)),
        **_find_places(lowering.site, axes, index),
        shared=int(not apart),
        clear=int(not (apart and covered)),
    )
    kernel = pool_max_taps_grad if index.type.dtype == "u8" else pool_max_grad
    lowering.call(kernel(T, *S), dy=dy, index=index, dx=dx, g=words)


def mean_pool(lowering: Lowering, axes: Axes, x: Operand, y: Operand, count: int) -> None:
    """Append the call for y; `count` is TAKEN, PADDED or ONE."""
    images, channels = x.type.dims[:2]
    chunk = _choose_chunk(lowering, x.type, images * axes[0].out * axes[1].out)
    words = MEAN_WORDS.pack(**_pack_windows(axes, images, channels, chunk), divisor=count)
    T, S = find_stored(x)
    lowering.call(pool_mean(T, *S), x=x, y=y, g=words)


def mean_pool_grad(lowering: Lowering, axes: Axes, dy: Operand, dx: Operand, count: int) -> None:
    """Append the call for dx; `count` is TAKEN, PADDED or ONE."""
    T, S = find_stored(dy)
    if S and not are_apart(axes):
        _sum_grads(lowering, axes, dy, None, dx, count)
        return
    images, channels = dx.type.dims[:2]
    chunk = _choose_chunk(lowering, dx.type, images)
    words = MEAN_WORDS.pack(**_pack_windows(axes, images, channels, chunk), divisor=count)
    lowering.call(pool_mean_grad(T, *S), dy=dy, dx=dx, g=words)


KERNELS = (
    pool_max,
    pool_max_taps,
    pool_max_grad,
    pool_max_taps_grad,
    pool_mean,
    pool_mean_grad,
    pool_grad_sums,
)
