"""Pooling and its gradients, over 1 to 3 spatial axes, channels-last.

Forward   MaxPool      Y[n, o, c] = max_k X[n, o s - p + k d, c]; Indices: where in X, flat as NCHW
          AveragePool  Y[n, o, c] = sum_k X[n, o s - p + k d, c] / count(o)
Backward  dX = dY at Indices, windows that share a maximum add up;  dX = sum_o dY[o] / count(o)
          MaxPool needs Indices, AveragePool nothing, GlobalMaxPool X
Error     max exact, equal values count the first, NaN wins; average that of a sum by rows of taps
Source    ONNX, with a last window under ceil_mode only where it starts before the end padding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.kernels._kernel import SIZE, Body, Native, imin, inline, kernel, off, share, udiv
from engine.kernels._map import lower_map
from engine.kernels._op import OURS, Grad, Lowering, Op, Operand, Site, TensorType
from engine.kernels._target import Target
from engine.kernels._window import (
    Axes,
    Axis,
    clip,
    in_dims,
    kernel_shape,
    out_dims,
    pooled,
    round_up,
    windows,
)

Rule = Callable[[Site], tuple[TensorType, ...]]
Lower = Callable[[Lowering], None]

# Words of a window over images.  PLACE: steps of the place in Indices with depth, height, width.
(IMAGES, C, CHUNK, OD, OH, OW, ID, IH, IW, SD, SH, SW, PD, PH, PW, ED, EH, EW,
 DD, DH, DW, KD, KH, KW, QD, QH, QW, OPTION, CLEAR) = range(29)  # fmt: skip


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


@kernel("x:T* y:T* g:i64[]")
def pool_mean(target: Target, T: str) -> Body:
    """y[n, o, c] = sum_k x[n, o s - p + k d, c] / count.

    x, y: T, channels-last.  g: the words; OPTION: count taps in the padding too.  No aliasing.
    Overwrites.
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
                count = nd * nh * nw
                if g[OPTION] != 0:
                    count = _count(g, od, 0) * _count(g, oh, 1) * _count(g, o, 2)
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
                    count = nd * nh * nw
                    if g[OPTION] != 0:
                        count = _count(g, od, 0) * _count(g, oh, 1) * _count(g, o, 2)
                    spread(
                        off(dx, (((n * g[ID] + d) * g[IH] + h) * g[IW] + w) * c + c0),
                        off(dy, ((n * g[OD] * g[OH] + row) * g[OW] + o) * c + c0),
                        nc, nd, nh, nw,
                        g[DD] * g[IH] * g[IW] * c, g[DH] * g[IW] * c, g[DW] * c, cast(count),
                    )  # fmt: skip

    return body


# --- lowering


def _chunk(s: Lowering, t: TensorType, units: int) -> int:
    """Channels of one unit of work: all, or fewer where there are fewer `units` than threads."""
    channels = t.dims[1]
    pieces = -(-s.threads // max(units, 1))
    return round_up(-(-channels // pieces), s.target.lanes(SIZE[t.dtype]))


def _places(s: Site, axes: Axes) -> list[int]:
    """Steps of the flat place in an image: row-major, or column-major by storage_order."""
    d, h, w = (a.size for a in axes)
    return [1, d, d * h] if s.attrs.get("storage_order") else [h * w, w, 1]


def _max(s: Lowering, axes: Axes, x: Operand, y: Operand, index: Operand | None) -> None:
    images, channels = x.type.dims[:2]
    chunk = _chunk(s, x.type, images * axes[0].out * axes[1].out)
    consts = [*_words(axes, images, channels, chunk), *_places(s.site, axes)]
    args: list[Any] = [("r", x), ("w", y), ("w", index)]
    s.call(pool_max(x.type.dtype, int(index is not None)), args, consts)


def _max_grad(s: Lowering, axes: Axes, dy: Operand, index: Operand, dx: Operand) -> None:
    images, channels = dx.type.dims[:2]
    apart = all(a.dilation == 1 and a.stride >= a.taps for a in axes)
    covered = all(
        a.dilation == 1 and a.stride <= a.taps and (a.out - 1) * a.stride + a.taps >= a.size + a.pad
        for a in axes
    )
    words = _words(axes, images, channels, _chunk(s, dx.type, images))
    consts = [*words, *_places(s.site, axes), int(not apart), int(not (apart and covered))]
    s.call(pool_max_grad(dx.type.dtype), [("r", dy), ("r", index), ("w", dx)], consts)


def _mean(s: Lowering, axes: Axes, x: Operand, y: Operand) -> None:
    images, channels = x.type.dims[:2]
    chunk = _chunk(s, x.type, images * axes[0].out * axes[1].out)
    include = s.site.attrs.get("count_include_pad", 0)
    consts = [*_words(axes, images, channels, chunk), 0, 0, 0, include]
    s.call(pool_mean(x.type.dtype), [("r", x), ("w", y)], consts)


def _lower_max(s: Lowering) -> None:
    x = s.x(0)
    index = s.y(1) if s.wants(1) else None
    if x.type.size:
        _max(s, windows(s.site, x.type, kernel_shape(s.site)), x, s.y(0), index)


def _lower_max_grad(s: Lowering) -> None:
    dx = s.y(0)
    if dx.type.size:
        _max_grad(s, windows(s.site, dx.type, kernel_shape(s.site)), s.x(0), s.x(1), dx)


def _lower_mean(s: Lowering) -> None:
    x = s.x(0)
    if x.type.size:
        _mean(s, windows(s.site, x.type, kernel_shape(s.site)), x, s.y(0))


def _lower_mean_grad(s: Lowering) -> None:
    dy, dx = s.x(0), s.y(0)
    if not dx.type.size:
        return
    axes = windows(s.site, dx.type, kernel_shape(s.site))
    images, channels = dx.type.dims[:2]
    words = _words(axes, images, channels, _chunk(s, dx.type, images))
    consts = [*words, 0, 0, 0, s.site.attrs.get("count_include_pad", 0)]
    s.call(pool_mean_grad(dx.type.dtype), [("r", dy), ("w", dx)], consts)


def _whole(x: TensorType) -> Axes:
    """One window over all of an image."""
    own = [Axis(n, 1, n) for n in x.dims[2:]]
    d, h, w = [Axis()] * (3 - len(own)) + own
    return d, h, w


def _lower_global(s: Lowering) -> None:
    x, y = s.x(0), s.y(0)
    if not x.type.size:
        return
    if s.site.op == "GlobalMaxPool":
        _max(s, _whole(x.type), x, y, None)
    else:
        _mean(s, _whole(x.type), x, y)


def _lower_global_grad(s: Lowering) -> None:
    dy, x, dx = s.x(0), s.x(1), s.y(0)
    if not dx.type.size:
        return
    if s.site.op == "GlobalMaxPoolGrad":
        y = s.temp(dy.type.dtype, (dy.type.size,))
        index = s.temp("i64", (dy.type.size,))
        _max(s, _whole(x.type), x, y, index)
        _max_grad(s, _whole(x.type), dy, index, dx)
    else:
        count = float(dx.type.size // dy.type.size)
        lower_map(s, [("div", ("in", 0), ("const", count))], [dy], [dx])


# --- types and gradients


def _check(s: Site, i: int) -> TensorType:
    x = s.real(i)
    if not 3 <= x.rank <= 5:
        s.fail(f"{x.rank - 2} spatial axes", "1, 2 or 3")
    return x


def _infer(s: Site) -> tuple[TensorType, ...]:
    x = _check(s, 0)
    y = x.but((*x.shape[:2], *out_dims(s, x, kernel_shape(s))))
    return (y, y.but(dtype="i64"))[: s.n_outs]


def _infer_grad(s: Site) -> tuple[TensorType, ...]:
    """Of X where it is an input, else the least image whose pool has the shape of dY."""
    dy = _check(s, 0)
    if s.has(given := 2 if s.op == "MaxPoolGrad" else 1):
        return (pooled(s, given),)
    return (dy.but((*dy.shape[:2], *in_dims(s, dy, kernel_shape(s)))),)


def _infer_global(s: Site) -> tuple[TensorType, ...]:
    x = _check(s, 0)
    return (x.but((*x.shape[:2], *[1] * (x.rank - 2))),)


def _infer_global_grad(s: Site) -> tuple[TensorType, ...]:
    s.shaped(0, (*_check(s, 1).shape[:2], *[1] * (s.type(1).rank - 2)))
    return (s.type(1).but(),)


def _says_shape(s: Site, x: TensorType) -> bool:
    """Whether the attributes and the shape of the output tell that of the input."""
    if not all(isinstance(d, int) for d in x.shape[2:]):
        return False
    y = x.but((*x.shape[:2], *out_dims(s, x, kernel_shape(s))))
    return in_dims(s, y, kernel_shape(s)) == x.shape[2:]


def _grad_max(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = MaxPoolGrad(dY, Indices), with X for its shape where the attributes do not tell it."""
    x = g.site.type(0)
    plain = _says_shape(g.site, x)
    ins = (dy, g.y(1, "_mask")) if plain else (dy, g.y(1, "_mask"), g.x(0))
    return (g.op("MaxPoolGrad", *ins, domain="" if plain else OURS, **g.site.attrs),)


def _grad_mean(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = AveragePoolGrad(dY), with X for its shape where the attributes do not tell it."""
    x, attrs = g.site.type(0), dict(g.site.attrs)
    plain = _says_shape(g.site, x)
    newer = attrs.get("ceil_mode") or any(d != 1 for d in attrs.get("dilations", ()))
    if plain and not newer:
        kept = {k: v for k, v in attrs.items() if k not in ("ceil_mode", "dilations")}
        return (g.op("AveragePoolGrad", dy, **kept),)
    return (g.op("AveragePoolGrad", dy, g.x(0), domain=OURS, **attrs),)


def _grad_global(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = GlobalAveragePoolGrad(dY, X) or GlobalMaxPoolGrad(dY, X)."""
    return (g.op(f"{g.site.op}Grad", dy, g.x(0), domain=OURS),)


def _op(name: str, infer: Rule, lower: Lower, grad: Any = None, **rest: Any) -> Op:
    """An op whose first `ins` inputs and `outs` outputs are images."""
    last = (tuple(range(rest.pop("ins", 1))), tuple(range(rest.pop("outs", 1))))
    return Op(name=name, infer=infer, lower=lower, grad=grad, last=last, **rest)


MAX = {"auto_pad": "NOTSET", "ceil_mode": 0, "storage_order": 0}
MEAN = {"auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0}
X1, X2 = frozenset((1,)), frozenset((2,))  # where gradients are told X, whose shape they return
OPS = (
    _op("MaxPool", _infer, _lower_max, _grad_max, attrs=MAX, outs=2),
    *(
        _op("MaxPoolGrad", _infer_grad, _lower_max_grad, domain=d, attrs=MAX, ins=2, typed=X2)
        for d in ("", OURS)
    ),
    _op("AveragePool", _infer, _lower_mean, _grad_mean, attrs=MEAN),
    *(
        _op("AveragePoolGrad", _infer_grad, _lower_mean_grad, domain=d, attrs=MEAN, typed=X1)
        for d in ("", OURS)
    ),
    _op("GlobalMaxPool", _infer_global, _lower_global, _grad_global),
    _op("GlobalMaxPoolGrad", _infer_global_grad, _lower_global_grad, domain=OURS, ins=2),
    _op("GlobalAveragePool", _infer_global, _lower_global, _grad_global),
    _op("GlobalAveragePoolGrad", _infer_global_grad, _lower_global_grad, domain=OURS, typed=X1),
)
KERNELS = (pool_max, pool_max_grad, pool_mean, pool_mean_grad)
