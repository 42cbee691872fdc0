"""Kernels of pooling over 1 to 3 spatial axes, channels-last, and the calls of them."""

from __future__ import annotations

from typing import Any

from engine.element_types import ITEMSIZE
from engine.kernels.loops.window import Axes, clip, round_up
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import Body, Native, imin, inline, kernel, off, share, udiv
from engine.kernels.vocabulary.op import Lowering, Operand, Site, TensorType

# Words of a window over images.  PLACE: steps of the place in Indices with depth, height, width.
(IMAGES, C, CHUNK, OD, OH, OW, ID, IH, IW, SD, SH, SW, PD, PH, PW, ED, EH, EW,
 DD, DH, DW, KD, KH, KW, QD, QH, QW, OPTION, CLEAR) = range(29)  # fmt: skip


TAKEN, PADDED, ONE = range(3)  # what a sum is divided by: taps in the image, in its padding too, 1


def _words(axes: Axes, images: int, channels: int, chunk: int) -> list[int]:
    """The words up to KW; threads share chunks of channels of images (or of rows of them)."""
    fields = ("out", "size", "stride", "pad", "pad_end", "dilation", "taps")
    return [images, channels, chunk, *(getattr(a, f) for f in fields for a in axes)]


# --- kernels


@kernel("x:T* y:T* index:i64* g:i64[]")
def pool_max(target: Target, T: str, indices: int) -> Body:
    """y[n, o, c] = max_k x[n, o s - p + k d, c];  index: the flat NCHW place of the first maximum.

    x, y: T, index: i64 (null unless `indices`), channels-last.  No aliasing.  Overwrites.
    """
    window = Native("window_max", (T, indices))

    def body(x, y, index, g, tid, nthreads):
        c, chunk = g[C], g[CHUNK]
        chunks = udiv(c + chunk - 1, chunk)
        volume = g[ID] * g[IH] * g[IW]
        begin, end = share(g[IMAGES] * g[OD] * g[OH] * chunks, tid, nthreads)
        for unit in range(begin, end):
            row = udiv(unit, chunks)
            c0 = (unit - row * chunks) * chunk
            plane = udiv(row, g[OH])
            n = udiv(plane, g[OD])
            _, d, nd = clip(plane - n * g[OD], g[ID], g[SD], g[PD], g[DD], g[KD])
            _, h, nh = clip(row - plane * g[OH], g[IH], g[SH], g[PH], g[DH], g[KH])
            for o in range(g[OW]):
                _, w, nw = clip(o, g[IW], g[SW], g[PW], g[DW], g[KW])
                place = (n * c + c0) * volume + d * g[QD] + h * g[QH] + w * g[QW]
                to = (row * g[OW] + o) * c + c0
                window(
                    off(x, (((n * g[ID] + d) * g[IH] + h) * g[IW] + w) * c + c0), off(y, to),
                    off(index, to), imin(chunk, c - c0), nd, nh, nw,
                    g[DD] * g[IH] * g[IW] * c, g[DH] * g[IW] * c, g[DW] * c,
                    place, g[DD] * g[QD], g[DH] * g[QH], g[DW] * g[QW], volume,
                )  # fmt: skip

    return body


@kernel("dy:T* index:i64* dx:T* g:i64[]")
def pool_max_grad(target: Target, T: str) -> Body:
    """dx = sum over windows of dy at the place index says (`pool_max`), 0 elsewhere.

    dy, dx: T, index: i64, channels-last.  g: the words; OPTION: windows share inputs, so add;
    CLEAR: some inputs are in no window.  No aliasing.  Overwrites.
    """
    spread, zero = Native("spread_max", (T,)), Native("zero", (T,))

    def body(dy, index, dx, g, tid, nthreads):
        c, chunk = g[C], g[CHUNK]
        chunks = udiv(c + chunk - 1, chunk)
        volume = g[ID] * g[IH] * g[IW]
        begin, end = share(g[IMAGES] * chunks, tid, nthreads)
        for unit in range(begin, end):
            n = udiv(unit, chunks)
            c0 = (unit - n * chunks) * chunk
            nc = imin(chunk, c - c0)
            if g[CLEAR] != 0:
                for i in range(n * volume, (n + 1) * volume):
                    zero(off(dx, i * c + c0), nc)
            for row in range(g[OD] * g[OH]):
                plane = udiv(row, g[OH])
                _, d, nd = clip(plane, g[ID], g[SD], g[PD], g[DD], g[KD])
                _, h, nh = clip(row - plane * g[OH], g[IH], g[SH], g[PH], g[DH], g[KH])
                for o in range(g[OW]):
                    _, w, nw = clip(o, g[IW], g[SW], g[PW], g[DW], g[KW])
                    place = (n * c + c0) * volume + d * g[QD] + h * g[QH] + w * g[QW]
                    at = ((n * g[OD] * g[OH] + row) * g[OW] + o) * c + c0
                    spread(
                        off(dx, (((n * g[ID] + d) * g[IH] + h) * g[IW] + w) * c + c0),
                        off(dy, at), off(index, at), nc, nd, nh, nw,
                        g[DD] * g[IH] * g[IW] * c, g[DH] * g[IW] * c, g[DW] * c,
                        place, g[DD] * g[QD], g[DH] * g[QH], g[DW] * g[QW], volume, g[OPTION],
                    )  # fmt: skip

    return body


@inline
def _count(g, o, axis):
    """Taps of window o along an axis that lie in the image or its padding."""
    size = g[ID + axis] + g[PD + axis] + g[ED + axis]
    return clip(o, size, g[SD + axis], 0, g[DD + axis], g[KD + axis])[2]


@inline
def _divisor(g, od, oh, ow, taken):
    """What the sum of a window, `taken` taps of which lie in the image, is divided by."""
    count = taken
    if g[OPTION] == PADDED:
        count = _count(g, od, 0) * _count(g, oh, 1) * _count(g, ow, 2)
    elif g[OPTION] == ONE:
        count = 1
    return count


@kernel("x:T* y:T* g:i64[]")
def pool_mean(target: Target, T: str) -> Body:
    """y[n, o, c] = sum_k x[n, o s - p + k d, c] / count.

    x, y: T, channels-last.  g: the words; OPTION: what the count is.  No aliasing.  Overwrites.
    """
    window, cast = Native("window_mean", (T,)), Native("cast", (T, "i64"))

    def body(x, y, g, tid, nthreads):
        c, chunk = g[C], g[CHUNK]
        chunks = udiv(c + chunk - 1, chunk)
        begin, end = share(g[IMAGES] * g[OD] * g[OH] * chunks, tid, nthreads)
        for unit in range(begin, end):
            row = udiv(unit, chunks)
            c0 = (unit - row * chunks) * chunk
            plane = udiv(row, g[OH])
            n = udiv(plane, g[OD])
            od, oh = plane - n * g[OD], row - plane * g[OH]
            _, d, nd = clip(od, g[ID], g[SD], g[PD], g[DD], g[KD])
            _, h, nh = clip(oh, g[IH], g[SH], g[PH], g[DH], g[KH])
            for o in range(g[OW]):
                _, w, nw = clip(o, g[IW], g[SW], g[PW], g[DW], g[KW])
                count = _divisor(g, od, oh, o, nd * nh * nw)
                window(
                    off(x, (((n * g[ID] + d) * g[IH] + h) * g[IW] + w) * c + c0),
                    off(y, (row * g[OW] + o) * c + c0), imin(chunk, c - c0), nd, nh, nw,
                    g[DD] * g[IH] * g[IW] * c, g[DH] * g[IW] * c, g[DW] * c, cast(count),
                )  # fmt: skip

    return body


@kernel("dy:T* dx:T* g:i64[]")
def pool_mean_grad(target: Target, T: str) -> Body:
    """dx[n, i, c] = sum of dy[n, o, c] / count(o) over the windows o that see i.

    dy, dx: T, channels-last.  g: as for `pool_mean`.  No aliasing.  Overwrites.
    """
    spread, zero = Native("spread_mean", (T,)), Native("zero", (T,))
    cast = Native("cast", (T, "i64"))

    def body(dy, dx, g, tid, nthreads):
        c, chunk = g[C], g[CHUNK]
        chunks = udiv(c + chunk - 1, chunk)
        volume = g[ID] * g[IH] * g[IW]
        begin, end = share(g[IMAGES] * chunks, tid, nthreads)
        for unit in range(begin, end):
            n = udiv(unit, chunks)
            c0 = (unit - n * chunks) * chunk
            nc = imin(chunk, c - c0)
            for i in range(n * volume, (n + 1) * volume):
                zero(off(dx, i * c + c0), nc)
            for row in range(g[OD] * g[OH]):
                od = udiv(row, g[OH])
                oh = row - od * g[OH]
                _, d, nd = clip(od, g[ID], g[SD], g[PD], g[DD], g[KD])
                _, h, nh = clip(oh, g[IH], g[SH], g[PH], g[DH], g[KH])
                for o in range(g[OW]):
                    _, w, nw = clip(o, g[IW], g[SW], g[PW], g[DW], g[KW])
                    count = _divisor(g, od, oh, o, nd * nh * nw)
                    spread(
                        off(dx, (((n * g[ID] + d) * g[IH] + h) * g[IW] + w) * c + c0),
                        off(dy, ((n * g[OD] * g[OH] + row) * g[OW] + o) * c + c0),
                        nc, nd, nh, nw,
                        g[DD] * g[IH] * g[IW] * c, g[DH] * g[IW] * c, g[DW] * c, cast(count),
                    )  # fmt: skip

    return body


# --- lowering


def _chunk(s: Lowering, t: TensorType, units: int) -> int:
    """Channels of a unit of work: all, or fewer when there are fewer `units` than threads."""
    channels = t.dims[1]
    pieces = -(-s.threads // max(units, 1))
    return round_up(-(-channels // pieces), s.target.lanes(ITEMSIZE[t.dtype]))


def _places(s: Site, axes: Axes) -> list[int]:
    """Steps of the flat place in an image: row-major, or column-major by storage_order."""
    d, h, w = (a.size for a in axes)
    return [1, d, d * h] if s.attrs.get("storage_order") else [h * w, w, 1]


def max_pool(s: Lowering, axes: Axes, x: Operand, y: Operand, index: Operand | None) -> None:
    """Call for y and, unless it is None, index."""
    images, channels = x.type.dims[:2]
    chunk = _chunk(s, x.type, images * axes[0].out * axes[1].out)
    consts = [*_words(axes, images, channels, chunk), *_places(s.site, axes)]
    args: list[Any] = [("r", x), ("w", y), ("w", index)]
    s.call(pool_max(x.type.dtype, int(index is not None)), args, consts)


def max_pool_grad(s: Lowering, axes: Axes, dy: Operand, index: Operand, dx: Operand) -> None:
    """Call for dx."""
    images, channels = dx.type.dims[:2]
    apart = all(a.dilation == 1 and a.stride >= a.taps for a in axes)
    covered = all(
        a.dilation == 1 and a.stride <= a.taps and (a.out - 1) * a.stride + a.taps >= a.size + a.pad
        for a in axes
    )
    words = _words(axes, images, channels, _chunk(s, dx.type, images))
    consts = [*words, *_places(s.site, axes), int(not apart), int(not (apart and covered))]
    s.call(pool_max_grad(dx.type.dtype), [("r", dy), ("r", index), ("w", dx)], consts)


def mean_pool(s: Lowering, axes: Axes, x: Operand, y: Operand, count: int) -> None:
    """Call for y; `count` is TAKEN, PADDED or ONE."""
    images, channels = x.type.dims[:2]
    chunk = _chunk(s, x.type, images * axes[0].out * axes[1].out)
    consts = [*_words(axes, images, channels, chunk), 0, 0, 0, count]
    s.call(pool_mean(x.type.dtype), [("r", x), ("w", y)], consts)


def mean_pool_grad(s: Lowering, axes: Axes, dy: Operand, dx: Operand, count: int) -> None:
    """Call for dx; `count` is TAKEN, PADDED or ONE."""
    images, channels = dx.type.dims[:2]
    words = _words(axes, images, channels, _chunk(s, dx.type, images))
    s.call(pool_mean_grad(dx.type.dtype), [("r", dy), ("w", dx)], [*words, 0, 0, 0, count])


KERNELS = (pool_max, pool_max_grad, pool_mean, pool_mean_grad)
