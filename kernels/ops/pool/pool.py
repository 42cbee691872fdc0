"""Pooling and its gradients, over 1 to 3 spatial axes, channels-last.

Forward   MaxPool      Y[n, o, c] = max_k X[n, o s - p + k d, c]; Indices: where in X, flat as NCHW
          AveragePool  Y[n, o, c] = sum_k X[n, o s - p + k d, c] / count(o);  SumPool without count
Backward  dX = dY at Indices, windows that share a maximum add up;  dX = sum_o dY[o] / count(o)
          MaxPool needs Indices, AveragePool nothing, GlobalMaxPool X
Error     max exact, equal values count the first, NaN wins; average that of a sum by rows of taps
Source    ONNX, with a last window under ceil_mode only where it starts before the end padding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.loops.window import Axes, Axis, in_dims, kernel_shape, out_dims, pooled, windows
from engine.kernels.ops.pool.pool_kernels import (
    ONE,
    PADDED,
    TAKEN,
    max_pool,
    max_pool_grad,
    mean_pool,
    mean_pool_grad,
    pool_max,
    pool_max_grad,
    pool_mean,
    pool_mean_grad,
)
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import OURS, Grad, Kind, Lowering, Op, Operand, Site, TensorType

SMALL = ("i8", "u8")
Rule = Callable[[Site], tuple[TensorType, ...]]
Lower = Callable[[Lowering], None]
Calls = tuple[Template, ...]


def _lower_max(s: Lowering) -> None:
    x, y = s.x(0), s.y(0)
    index = s.y(1) if s.wants(1) else None
    if not x.type.size:
        return
    axes = windows(s.site, x.type, kernel_shape(s.site))
    if x.type.dtype in SMALL:  # exact in f32, which has vectors
        wide, out = (_like(s, o) for o in (x, y))
        lower_map(s, [("cast", "f32", ("in", 0))], [x], [wide])
        max_pool(s, axes, wide, out, index)
        lower_map(s, [("cast", y.type.dtype, ("in", 0))], [out], [y])
    else:
        max_pool(s, axes, x, y, index)


def _like(s: Lowering, x: Operand) -> Operand:
    """A temporary in f32 of the shape and layout of a tensor."""
    return Operand(s.temp("f32", x.type.dims).name, x.type.but(dtype="f32").as_last(x.type.last))


def _lower_max_grad(s: Lowering) -> None:
    dx = s.y(0)
    if dx.type.size:
        max_pool_grad(s, windows(s.site, dx.type, kernel_shape(s.site)), s.x(0), s.x(1), dx)


def _count(s: Site) -> int:
    if s.op.startswith("SumPool"):
        return ONE
    return PADDED if s.attrs["count_include_pad"] else TAKEN


def _lower_mean(s: Lowering) -> None:
    x = s.x(0)
    if x.type.size:
        axes = windows(s.site, x.type, kernel_shape(s.site))
        mean_pool(s, axes, x, s.y(0), _count(s.site))


def _lower_mean_grad(s: Lowering) -> None:
    dx = s.y(0)
    if dx.type.size:
        axes = windows(s.site, dx.type, kernel_shape(s.site))
        mean_pool_grad(s, axes, s.x(0), dx, _count(s.site))


def _whole(x: TensorType) -> Axes:
    """The window that covers a whole image."""
    own = [Axis(n, 1, n) for n in x.dims[2:]]
    d, h, w = [Axis()] * (3 - len(own)) + own
    return d, h, w


def _lower_global(s: Lowering) -> None:
    x, y = s.x(0), s.y(0)
    if not x.type.size:
        return
    if s.site.op == "GlobalMaxPool":
        max_pool(s, _whole(x.type), x, y, None)
    else:
        mean_pool(s, _whole(x.type), x, y, TAKEN)


def _lower_global_grad(s: Lowering) -> None:
    dy, x, dx = s.x(0), s.x(1), s.y(0)
    if not dx.type.size:
        return
    if s.site.op == "GlobalMaxPoolGrad":
        y = s.temp(dy.type.dtype, (dy.type.size,))
        index = s.temp("i64", (dy.type.size,))
        max_pool(s, _whole(x.type), x, y, index)
        max_pool_grad(s, _whole(x.type), dy, index, dx)
    else:
        count = float(dx.type.size // dy.type.size)
        lower_map(s, [("div", ("in", 0), ("const", count))], [dy], [dx])


# --- types and gradients


def _check(s: Site, i: int) -> TensorType:
    x = s.type(i)
    if x.dtype not in SMALL or s.op != "MaxPool":
        s.real(i)
    if not 3 <= x.rank <= 5:
        s.fail(f"{x.rank - 2} spatial axes", "1, 2 or 3")
    if 0 in x.shape[2:]:
        s.wrong(f"a pool of {x}, which has no pixels")
    return x


def _infer(s: Site) -> tuple[TensorType, ...]:
    x = _check(s, 0)
    y = x.but((*x.shape[:2], *out_dims(s, x, kernel_shape(s))))
    return (y, y.but(dtype="i64"))[: s.n_outs]


def _infer_grad(s: Site) -> tuple[TensorType, ...]:
    """The type of X where it is an input, else the smallest image that pools to the shape of dY."""
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
    """Whether the shape of the input follows from the attributes and the shape of the output."""
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


def _op(name: str, infer: Rule, lower: Lower, calls: Calls, grad: Any = None, **rest: Any) -> Op:
    """An op whose first `ins` inputs and `outs` outputs are images."""
    last = (tuple(range(rest.pop("ins", 1))), tuple(range(rest.pop("outs", 1))))
    return Op(name=name, infer=infer, lower=lower, calls=calls, grad=grad, last=last, **rest)


MAX = {"auto_pad": "NOTSET", "ceil_mode": 0, "storage_order": 0}
MEAN = {"auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0}
SUM = {"auto_pad": "NOTSET", "ceil_mode": 0}
TAKES: dict[str, Kind] = {"strides": "ints", "pads": "ints", "dilations": "ints"}
WINDOW: dict[str, Any] = {"takes": TAKES, "needs": {"kernel_shape": "ints"}}
X1, X2 = frozenset((1,)), frozenset((2,))  # where gradients are told X, whose shape they return
OPS = (
    _op("MaxPool", _infer, _lower_max, (pool_max, *MAP_KERNELS), _grad_max, attrs=MAX, outs=2),
    *(
        _op(
            "MaxPoolGrad",
            _infer_grad,
            _lower_max_grad,
            (pool_max_grad,),
            domain=d,
            attrs=MAX,
            ins=2,
            typed=X2,
            **WINDOW,
        )
        for d in ("", OURS)
    ),
    _op("AveragePool", _infer, _lower_mean, (pool_mean,), _grad_mean, attrs=MEAN),
    *(
        _op(
            "AveragePoolGrad",
            _infer_grad,
            _lower_mean_grad,
            (pool_mean_grad,),
            domain=d,
            attrs=MEAN,
            typed=X1,
            **WINDOW,
        )
        for d in ("", OURS)
    ),
    _op("SumPool", _infer, _lower_mean, (pool_mean,), domain=OURS, attrs=SUM, **WINDOW),
    _op(
        "SumPoolGrad",
        _infer_grad,
        _lower_mean_grad,
        (pool_mean_grad,),
        domain=OURS,
        attrs=SUM,
        typed=X1,
        **WINDOW,
    ),
    _op("GlobalMaxPool", _infer_global, _lower_global, (pool_max,), _grad_global),
    _op(
        "GlobalMaxPoolGrad",
        _infer_global_grad,
        _lower_global_grad,
        (pool_max, pool_max_grad),
        domain=OURS,
        ins=2,
    ),
    _op("GlobalAveragePool", _infer_global, _lower_global, (pool_mean,), _grad_global),
    _op(
        "GlobalAveragePoolGrad",
        _infer_global_grad,
        _lower_global_grad,
        MAP_KERNELS,
        domain=OURS,
        typed=X1,
    ),
)
