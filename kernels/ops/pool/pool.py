"""Pooling and its gradients, over 1 to 3 spatial axes, channels-last.

Forward   MaxPool      Y[n, o, c] = max_k X[n, o s - p + k d, c]; Indices: where in X, flat as NCHW
          AveragePool  Y[n, o, c] = sum_k X[n, o s - p + k d, c] / count(o);  SumPool without count
Backward  dX = dY at Indices, windows that share a maximum add up;  dX = sum_o dY[o] / count(o)
          MaxPool needs Indices, AveragePool nothing, GlobalMaxPool X.  Of engine::MaxPool, which
          plans use instead of MaxPool, Indices are u8 that count the taps of a window
Error     max exact, equal values count the first, NaN wins; average as a sum by rows of taps
Source    ONNX, with a last window under ceil_mode only where it starts before the end padding
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.loops.window import (
    Axes,
    Axis,
    find_windows,
    infer_in_dims,
    infer_out_dims,
    pooled,
    read_kernel_shape,
)
from engine.kernels.ops.pool.pool_kernels import (
    ONE,
    PADDED,
    TAKEN,
    are_apart,
    can_gather,
    max_pool,
    max_pool_grad,
    mean_pool,
    mean_pool_grad,
    pool_grad_sums,
    pool_max,
    pool_max_grad,
    pool_max_taps,
    pool_max_taps_grad,
    pool_mean,
    pool_mean_grad,
)
from engine.kernels.vocabulary.facts import ALIKE, ChannelsLast, Samples, Storage
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Kind,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
)

SMALL = ("i8", "u8")
Rule = Callable[[Site], tuple[TensorType, ...]]
Lower = Callable[[Lowering], None]
Calls = tuple[Template, ...]


def _lower_max(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    index = lowering.y(1) if lowering.wants(1) else None
    if not x.type.size:
        return
    axes = find_windows(lowering.site, x.type, read_kernel_shape(lowering.site))
    if x.type.dtype in SMALL:  # exact in f32, which has vectors
        wide, out = (_like(lowering, o) for o in (x, y))
        lower_map(lowering, [("cast", "f32", ("in", 0))], [x], [wide])
        max_pool(lowering, axes, wide, out, index)
        lower_map(lowering, [("cast", y.type.dtype, ("in", 0))], [out], [y])
    else:
        max_pool(lowering, axes, x, y, index)


def _like(lowering: Lowering, x: Operand) -> Operand:
    """Return a temporary in f32 of the shape and layout of a tensor."""
    return Operand(
        lowering.temp("f32", x.type.dims).name, x.type.but(dtype="f32").as_last(x.type.last)
    )


def _lower_max_grad(lowering: Lowering) -> None:
    dx = lowering.y(0)
    if dx.type.size:
        max_pool_grad(
            lowering,
            find_windows(lowering.site, dx.type, read_kernel_shape(lowering.site)),
            lowering.x(0),
            lowering.x(1),
            dx,
        )


def _count(site: Site) -> int:
    if site.op.startswith("SumPool"):
        return ONE
    return PADDED if site.attrs["count_include_pad"] else TAKEN


def _lower_mean(lowering: Lowering) -> None:
    x = lowering.x(0)
    if x.type.size:
        axes = find_windows(lowering.site, x.type, read_kernel_shape(lowering.site))
        mean_pool(lowering, axes, x, lowering.y(0), _count(lowering.site))


def _lower_mean_grad(lowering: Lowering) -> None:
    dx = lowering.y(0)
    if dx.type.size:
        axes = find_windows(lowering.site, dx.type, read_kernel_shape(lowering.site))
        mean_pool_grad(lowering, axes, lowering.x(0), dx, _count(lowering.site))


def _choose_storage(site: Site) -> Storage | None:
    """Return the images, unless windows share pixels and have gaps, or i64 Indices: then what adds
    up their gradients does so in dx, in float32.
    """
    (dx,) = _infer_grad(site)
    axes = find_windows(site, dx, read_kernel_shape(site))
    # A model has Indices of i64, which count pixels of an image; plans have u8 instead.
    gathers = can_gather(axes) and (site.op != "MaxPoolGrad" or site.type(1).dtype == "u8")
    return ALIKE if gathers or are_apart(axes) else None


def _cover(x: TensorType) -> Axes:
    """Return the window that covers a whole image."""
    # A window of the whole image; axes that the image lacks are of size 1.
    own = [Axis(n, 1, n) for n in x.dims[2:]]
    d, h, w = [Axis()] * (3 - len(own)) + own
    return d, h, w


def _lower_global(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if not x.type.size:
        return
    if lowering.site.op == "GlobalMaxPool":
        max_pool(lowering, _cover(x.type), x, y, None)
    else:
        mean_pool(lowering, _cover(x.type), x, y, TAKEN)


def _lower_global_grad(lowering: Lowering) -> None:
    dy, x, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    if dx.type.size:
        # Forward keeps no Indices: the maxima are searched again, which costs a pass over X but
        # spares an i64 for each window of one image until the backward pass.
        y = lowering.temp(dy.type.dtype, (dy.type.size,))
        index = lowering.temp("i64", (dy.type.size,))
        max_pool(lowering, _cover(x.type), x, y, index)
        max_pool_grad(lowering, _cover(x.type), dy, index, dx)


# --- types and gradients


def _check(site: Site, i: int) -> TensorType:
    x = site.type(i)
    if x.dtype not in SMALL or (site.domain, site.op) != ("", "MaxPool"):
        site.real(i)
    if not 3 <= x.rank <= 5:
        site.fail(f"X has {x.rank - 2} spatial axes", "1, 2 or 3")
    if 0 in x.shape[2:]:
        site.wrong(f"X is {x}, which has no pixels to pool")
    return x


def _infer(site: Site) -> tuple[TensorType, ...]:
    x = _check(site, 0)
    # Indices: i64 in the model, as in ONNX; u8 in plans, an eighth of the memory to keep for
    # the backward pass.
    y = x.but((*x.shape[:2], *infer_out_dims(site, x, read_kernel_shape(site))))
    return (y, y.but(dtype="u8" if site.domain == OURS else "i64"))[: site.n_outs]


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    """Return the type of X if it is an input, otherwise the smallest that pools to dY's shape."""
    dy = _check(site, 0)
    # Without X the size of dX is not known exactly: several image sizes pool to one output.
    if site.op == "MaxPoolGrad":
        site.shaped(1, dy.shape)
    if site.has(given := 2 if site.op == "MaxPoolGrad" else 1):
        return (pooled(site, given),)
    return (dy.but((*dy.shape[:2], *infer_in_dims(site, dy, read_kernel_shape(site)))),)


def _infer_global(site: Site) -> tuple[TensorType, ...]:
    x = _check(site, 0)
    return (x.but((*x.shape[:2], *[1] * (x.rank - 2))),)


def _infer_global_grad(site: Site) -> tuple[TensorType, ...]:
    site.shaped(0, (*_check(site, 1).shape[:2], *[1] * (site.type(1).rank - 2)))
    return (site.type(1).but(),)


def _has_pixels(x: TensorType) -> bool:
    """Return whether the number of pixels along each axis is known.

    onnxruntime-training takes the shape of dX from the type that the file gives dX, which must then
    be known.  `give_pool_grads_input` tells it to us.
    """
    return all(isinstance(d, int) for d in x.shape[2:])


def _grad_max(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = MaxPoolGrad(dY, Indices), with X for its shape where the number of pixels is open."""
    # Forward: y = x[index]; so dx is dy at the index, 0 elsewhere: X itself is not needed.
    ins, attrs = (dy, grad.y(1, "_mask")), grad.site.attrs
    if _has_pixels(grad.site.type(0)):
        return (grad.op("MaxPoolGrad", *ins, **attrs),)
    return (grad.op("MaxPoolGrad", *ins, grad.x(0), domain=OURS, **attrs),)


def _grad_mean(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = AveragePoolGrad(dY), with X for its shape where the number of pixels is open."""
    attrs = dict(grad.site.attrs)
    # onnxruntime-training's AveragePoolGrad knows neither; such a pool gets our own op.
    newer = attrs.get("ceil_mode") or any(d != 1 for d in attrs.get("dilations", ()))
    if _has_pixels(grad.site.type(0)) and not newer:
        kept = {k: v for k, v in attrs.items() if k not in ("ceil_mode", "dilations")}
        return (grad.op("AveragePoolGrad", dy, **kept),)
    return (grad.op("AveragePoolGrad", dy, grad.x(0), domain=OURS, **attrs),)


def _grad_global_max(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = GlobalMaxPoolGrad(dY, X)."""
    return (grad.op("GlobalMaxPoolGrad", dy, grad.x(0), domain=OURS),)


def _grad_global_mean(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = Expand(dY / pixels, Shape(X)), as in onnxruntime-training."""
    if _has_pixels(grad.site.type(0)):
        # Forward: y = sum x / pixels for each channel; so every pixel gets dy / pixels.
        count = grad.like(math.prod(int(d) for d in grad.site.type(0).shape[2:]), 0)
    else:
        count = grad.op("Div", grad.op("Size", grad.x(0)), grad.op("Size", grad.y(0)))
    mean = grad.op("Scale", dy, count, domain=MS, scale_down=1)
    return (grad.op("Expand", mean, grad.op("Shape", grad.x(0))),)


def _op(name: str, infer: Rule, lower: Lower, calls: Calls, grad: Any = None, **rest: Any) -> Op:
    """Return an op whose first `ins` inputs and `outs` outputs are images."""
    layout = ChannelsLast(tuple(range(rest.pop("ins", 1))), tuple(range(rest.pop("outs", 1))))
    return Op(name=name, infer=infer, lower=lower, calls=calls, grad=grad, layout=layout, **rest)


MAX = {"auto_pad": "NOTSET", "ceil_mode": 0, "storage_order": 0}
MEAN = {"auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0}
SUM = {"auto_pad": "NOTSET", "ceil_mode": 0}
TAKES: dict[str, Kind] = {"strides": "ints", "pads": "ints", "dilations": "ints"}
WINDOW: dict[str, Any] = {"takes": TAKES, "needs": {"kernel_shape": "ints"}}
X1, X2 = frozenset((1,)), frozenset((2,))  # where gradients get X, whose shape they return
OPS = (
    _op(
        "MaxPool",
        _infer,
        _lower_max,
        (pool_max, *MAP_KERNELS),
        _grad_max,
        attrs=MAX,
        outs=2,
        keeps_units=True,
        samples=Samples.FIRST_AXIS,
        storage=ALIKE,
    ),
    _op(
        "MaxPool",
        _infer,
        _lower_max,
        (pool_max_taps,),
        domain=OURS,
        attrs=MAX,
        outs=2,
        no_gradient=frozenset((0,)),
        internal=True,
        storage=ALIKE,
        **WINDOW,
    ),
    *(
        _op(
            "MaxPoolGrad",
            _infer_grad,
            _lower_max_grad,
            (pool_max_grad, pool_max_taps_grad, pool_grad_sums),
            domain=d,
            inputs=(3 if d else 2, 3),
            outputs=1,
            gradient_of="MaxPool",
            attrs=MAX,
            ins=2,
            type_only=X2,
            storage=_choose_storage,
            **WINDOW,
        )
        for d in ("", OURS)
    ),
    _op(
        "AveragePool",
        _infer,
        _lower_mean,
        (pool_mean,),
        _grad_mean,
        attrs=MEAN,
        samples=Samples.FIRST_AXIS,
        storage=ALIKE,
    ),
    *(
        _op(
            "AveragePoolGrad",
            _infer_grad,
            _lower_mean_grad,
            (pool_mean_grad, pool_grad_sums),
            domain=d,
            inputs=(2 if d else 1, 2),
            outputs=1,
            gradient_of="AveragePool",
            attrs=MEAN,
            type_only=X1,
            storage=_choose_storage,
            **WINDOW,
        )
        for d in ("", OURS)
    ),
    _op(
        "SumPool",
        _infer,
        _lower_mean,
        (pool_mean,),
        domain=OURS,
        inputs=(1, 1),
        outputs=1,
        attrs=SUM,
        storage=ALIKE,
        **WINDOW,
    ),
    _op(
        "SumPoolGrad",
        _infer_grad,
        _lower_mean_grad,
        (pool_mean_grad, pool_grad_sums),
        domain=OURS,
        inputs=(2, 2),
        outputs=1,
        gradient_of=f"{OURS}::SumPool",
        attrs=SUM,
        type_only=X1,
        storage=_choose_storage,
        **WINDOW,
    ),
    _op(
        "GlobalMaxPool",
        _infer_global,
        _lower_global,
        (pool_max,),
        _grad_global_max,
        samples=Samples.FIRST_AXIS,
        storage=ALIKE,
    ),
    _op(
        "GlobalMaxPoolGrad",
        _infer_global_grad,
        _lower_global_grad,
        (pool_max, pool_max_grad),
        domain=OURS,
        inputs=(2, 2),
        outputs=1,
        gradient_of="GlobalMaxPool",
        ins=2,
    ),
    _op(
        "GlobalAveragePool",
        _infer_global,
        _lower_global,
        (pool_mean,),
        _grad_global_mean,
        samples=Samples.FIRST_AXIS,
        storage=ALIKE,
    ),
)
