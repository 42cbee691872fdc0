"""Reductions along axes: ReduceSum and its kin.  The kernels are those of fold.py.

Forward   y = after(fold of before(x) over the axes): sums of x, |x|, x^2; max, min, product;
          LogSumExp = m + log sum exp(x - m) with m = max x.  Over an empty range y is the neutral
          element (0, 1, -inf, inf)
Backward  with dy and y as if the reduced axes were kept:
          Sum dx = dy       Mean dx = dy / count       L1 dx = dy sign x    SumSquare dx = 2 x dy
          L2 dx = x dy / y, 0 where y = 0    LogSum dx = dy / exp y    Prod: dy times the others
          LogSumExp dx = dy w / sum w, w = exp(x - y)    Max, Min: ties share dy equally
Integers  mean truncates; L2, LogSum and LogSumExp are computed in float64 and truncated
Error     kernels/loops/fold.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.element_types import FLOATS, ONNX_CODE
from engine.errors import DTypeError
from engine.kernels.loops.fold import FOLD_KERNELS, FOLDS, Fold, fold_axes, lower_logsumexp
from engine.kernels.loops.map import lower_map
from engine.kernels.ops.shape import axes_of, fresh, normal_axes, unsqueeze, with_axes
from engine.kernels.vocabulary.op import (
    MS,
    Array,
    Dim,
    Grad,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
)
from engine.kernels.vocabulary.row_program import start_value


def _lower(s: Lowering) -> None:
    x, y, axes = s.x(0), s.y(0), _axes(s.site)
    if y.type.size == 0:
        return
    fold = FOLDS.get(s.site.op)
    if x.type.dtype == "b1":
        assert fold is not None
        x, y = (Operand(o.name, o.type.but(dtype="u8")) for o in (x, y))
        fold = replace(fold, after="min(total, 1)")  # of nothing: 255
    if x.type.dtype in FLOATS or (fold is not None and fold.ints):
        _reduce(s, fold, x, axes, y)
    else:
        wide, out = s.temp("f64", x.type.dims), s.temp("f64", y.type.dims)
        lower_map(s, [("cast", "f64", ("in", 0))], [x], [wide])
        _reduce(s, fold, wide, axes, out)
        lower_map(s, [("cast", y.type.dtype, ("in", 0))], [out], [y])


def _reduce(s: Lowering, fold: Fold | None, x: Operand, axes: list[int], y: Operand) -> None:
    if fold is None:
        lower_logsumexp(s, x, axes, y)
    else:
        fold_axes(s, fold, x, axes, y)


# --- shapes and gradients


def _axes(s: Site) -> list[int]:
    """The axes to reduce, from the front.  If none are given: all, unless the node wants none."""
    rank, axes = s.type(0).rank, axes_of(s)
    if axes is None:
        return [] if s.attrs.get("noop_with_empty_axes") else list(range(rank))
    return normal_axes(s, axes, rank)


def _infer(s: Site) -> tuple[TensorType, ...]:
    t, keep = s.type(0), s.attrs["keepdims"]
    logical = s.op in ("ReduceMax", "ReduceMin")
    if t.dtype == "f16" or (t.dtype == "b1" and not logical):
        known = "f32, f64, integers" + (", b1" if logical else "")
        raise DTypeError(f"{s.where()}: element type {t.dtype}; supported: {known}")
    if s.has(1) and s.value(1) is None and keep:
        return (t.but([fresh(s, i) for i in range(t.rank)]),)
    axes = _axes(s)
    dims: list[Dim] = [
        1 if i in axes else d for i, d in enumerate(t.shape) if keep or i not in axes
    ]
    return (t.but(dims),)


_NUMPY: dict[str, Any] = {
    "ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min,
    "ReduceSumTraining": np.sum,
}  # fmt: skip


def _fold(s: Site) -> tuple[Array, ...]:
    x, axes = s.known(0, "the input"), tuple(_axes(s))
    more = {}
    if s.op in ("ReduceMax", "ReduceMin"):
        op = FOLDS[s.op].op
        more["initial"] = op == "min" if x.dtype == bool else start_value(op, s.type(0).dtype)
    y = _NUMPY[s.op](x, axis=axes, keepdims=bool(s.attrs["keepdims"]), **more)
    return (np.asarray(y).astype(x.dtype),)


def _kept(g: Grad, y: str) -> str:
    """y with the reduced axes put back as axes of size 1."""
    s = g.site
    if s.attrs["keepdims"] or (s.attrs.get("axes") is None and not s.has(1)):
        return y
    if s.attrs.get("axes") is not None:
        return unsqueeze(g, y, s.attrs["axes"])
    known = s.value(1)
    return y if known is not None and known.size == 0 else str(g.op("Unsqueeze", y, g.x(1)))


def _again(g: Grad, op: str, x: str, since: int) -> str:
    """Another reduction of x over the same axes, which stay as axes of size 1."""
    s = g.site
    noop: dict[str, Any] = (
        {"noop_with_empty_axes": 1} if s.attrs.get("noop_with_empty_axes") else {}
    )
    if s.has(1):
        known = s.value(1)
        if g.site.opset >= since:
            return str(g.op(op, x, g.x(1), keepdims=1, **noop))
        return with_axes(g, op, x, list(known) if known is not None else [], since, keepdims=1)
    if s.attrs.get("axes") is not None:
        return with_axes(g, op, x, s.attrs["axes"], since, keepdims=1)
    return str(g.op(op, x, keepdims=1, **noop))


def _to_input(g: Grad, dx: str) -> tuple[str | None, ...]:
    """A gradient of the kept shape, repeated along the reduced axes."""
    return (g.op("Expand", dx, g.op("Shape", g.x(0))), None)


def _sum_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY along the reduced axes."""
    return _to_input(g, _kept(g, dy))


def _mean_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY Size(Y) / Size(X)."""
    to = ONNX_CODE[g.site.type(0).dtype]
    sizes = [g.op("Cast", g.op("Size", name), to=to) for name in (g.x(0), g.y(0))]
    return _to_input(g, g.op("Div", _kept(g, dy), g.op("Div", *sizes)))


def _l1_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY Sign(X)."""
    return (g.op("Mul", _kept(g, dy), g.op("Sign", g.x(0))), None)


def _l2_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = X dY / Y; where Y = 0, X is 0 too."""
    y = _kept(g, g.y(0))
    safe = g.op("Where", g.op("Equal", y, g.like(0.0, 0)), g.like(1.0, 0), y)
    return (g.op("Mul", g.x(0), g.op("Div", _kept(g, dy), safe)), None)


def _square_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = 2 X dY."""
    return (g.op("Mul", g.x(0), g.op("Mul", _kept(g, dy), g.like(2.0, 0))), None)


def _log_sum_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY / exp Y along the reduced axes."""
    return _to_input(g, _kept(g, g.op("Div", dy, g.op("Exp", g.y(0)))))


def _logsumexp_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY W / sum W, W = exp(X - Y): the sum takes back the rounding of a large Y.

    Where Y = -inf, all X are, and dX = 0.
    """
    y, zero = _kept(g, g.y(0)), g.like(0.0, 0)
    finite = g.op("Where", g.op("Equal", y, g.like(-np.inf, 0)), zero, y)
    weight = g.op("Exp", g.op("Sub", g.x(0), finite))
    total = _again(g, "ReduceSum", weight, 13)
    total = g.op("Where", g.op("Equal", total, zero), g.like(1.0, 0), total)
    return (g.op("Mul", weight, g.op("Div", _kept(g, dy), total)), None)


def _extreme_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY [X = Y] / #[X = Y]: ties share the gradient equally."""
    to = ONNX_CODE[g.site.type(0).dtype]
    hits = g.op("Cast", g.op("Equal", g.x(0), _kept(g, g.y(0))), to=to)
    part = g.op("Div", _kept(g, dy), _again(g, "ReduceSum", hits, 13))
    return (g.op("Mul", part, hits), None)


def _prod_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY prod of X_j, j != i: P / X without zeros, P at an only zero, else 0.

    P is the product of all X that are not 0.
    """
    zero, one = g.like(0.0, 0), g.like(1.0, 0)
    to = ONNX_CODE[g.site.type(0).dtype]
    is_zero = g.op("Equal", g.x(0), zero)
    safe = g.op("Where", is_zero, one, g.x(0))
    count = _again(g, "ReduceSum", g.op("Cast", is_zero, to=to), 13)
    product = g.op("Mul", _again(g, "ReduceProd", safe, 18), _kept(g, dy))
    none = g.op("Where", g.op("Equal", count, zero), product, zero)
    only = g.op("Where", g.op("Equal", count, one), product, zero)
    return (g.op("Where", is_zero, only, g.op("Div", none, safe)), None)


def _reduction(name: str, grad: Any, domain: str = "") -> Op:
    return Op(
        name=name, domain=domain, infer=_infer, lower=_lower, calls=FOLD_KERNELS, grad=grad,
        stop=frozenset((1,)), attrs={"keepdims": 1, "noop_with_empty_axes": 0},
        fold=_fold if name in _NUMPY else None,
        accumulates=(0,) if _NUMPY.get(name) is np.sum else (),
    )  # fmt: skip


OPS = (
    _reduction("ReduceSum", _sum_grad),
    _reduction("ReduceMean", _mean_grad),
    _reduction("ReduceMax", _extreme_grad),
    _reduction("ReduceMin", _extreme_grad),
    _reduction("ReduceProd", _prod_grad),
    _reduction("ReduceL1", _l1_grad),
    _reduction("ReduceL2", _l2_grad),
    _reduction("ReduceLogSum", _log_sum_grad),
    _reduction("ReduceLogSumExp", _logsumexp_grad),
    _reduction("ReduceSumSquare", _square_grad),
    _reduction("ReduceSumTraining", None, MS),
)
