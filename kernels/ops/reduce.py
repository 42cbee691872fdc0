"""Reductions along axes: ReduceSum and its relatives.  fold.py has the kernels.

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

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, ONNX_CODE
from engine.base.errors import DTypeError
from engine.kernels.loops.fold import FOLD_KERNELS, FOLDS, Fold, fold_axes, lower_logsumexp
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.shape import normalise_axes, read_axes, unsqueeze, with_axes
from engine.kernels.vocabulary.facts import LayoutChoice, Samples, Storage
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Dim,
    Grad,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.row_program import start_value
from engine.kernels.vocabulary.shape_rules import make_symbol


def _lower(lowering: Lowering) -> None:
    x, y, axes = lowering.x(0), lowering.y(0), _read_axes(lowering.site)
    if y.type.size == 0:
        return
    axes = [x.type.order.index(axis) for axis in axes]
    x, y = (Operand(o.name, o.type.as_stored()) for o in (x, y))
    fold = FOLDS.get(lowering.site.op)
    if x.type.dtype == "b1":
        assert fold is not None
        x, y = (Operand(o.name, o.type.but(dtype="u8")) for o in (x, y))
        # Bools are bytes of 0 and 1; the largest and smallest byte start a fold that finds nothing,
        # and must come out as a bool.
        fold = replace(fold, after="min(total, 1)")  # of nothing: 255
    if x.type.dtype in FLOATS or (fold is not None and fold.ints):
        _reduce(lowering, fold, x, axes, y)
    else:
        # L2 and the logarithms have no meaning in integers: ONNX's reference computes in double and
        # cuts.
        wide, out = lowering.temp("f64", x.type.dims), lowering.temp("f64", y.type.dims)
        lower_map(lowering, [("cast", "f64", ("in", 0))], [x], [wide])
        _reduce(lowering, fold, wide, axes, out)
        lower_map(lowering, [("cast", y.type.dtype, ("in", 0))], [out], [y])


def _reduce(lowering: Lowering, fold: Fold | None, x: Operand, axes: list[int], y: Operand) -> None:
    # LogSumExp shifts by its maximum, so it is two folds for each group of axes.
    if fold is None:
        lower_logsumexp(lowering, x, axes, y)
    else:
        fold_axes(lowering, fold, x, axes, y)


# --- shapes and gradients


def _read_axes(site: Site) -> list[int]:
    """Return the axes to reduce, from the front; without axes all, or none if the node says so."""
    rank, axes = site.type(0).rank, read_axes(site)
    if axes is None:
        return [] if site.attrs.get("noop_with_empty_axes") else list(range(rank))
    return normalise_axes(site, axes, rank)


def _infer(site: Site) -> tuple[TensorType, ...]:
    t, keep = site.type(0), site.attrs["keepdims"]
    logical = site.op in ("ReduceMax", "ReduceMin")
    if t.dtype == "f16" or (t.dtype == "b1" and not logical):
        known = "f32, f64, integers" + (", b1" if logical else "")
        raise DTypeError(f"{site.where()}: input 0 is {t}; supported: {known}")
    # Axes are not known yet, but the rank is: each dimension may be 1.
    if site.has(1) and site.value(1) is None and keep:
        return (t.but([make_symbol(site, i) for i in range(t.rank)]),)
    axes = _read_axes(site)
    dims: list[Dim] = [
        1 if i in axes else d for i, d in enumerate(t.shape) if keep or i not in axes
    ]
    return (t.but(dims),)


def _choose_layout(site: Site, y: TensorType) -> LayoutChoice | None:
    """Return how y is stored; None if its axes, in the order in which x has them, fit no layout."""
    x, axes = site.type(0), _read_axes(site)
    if y.rank == x.rank:
        return LayoutChoice(x.last)
    kept = [axis for axis in x.order if axis not in axes]
    for as_stored in y.list_layouts():
        if [sorted(kept)[axis] for axis in as_stored.order] == kept:
            return LayoutChoice(as_stored.last)
    return None


_NUMPY: dict[str, Any] = {
    "ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min,
    "ReduceSumTraining": np.sum,
}  # fmt: skip


def _fold(site: Site) -> tuple[Array, ...]:
    x, axes = site.known(0, "the input"), tuple(_read_axes(site))
    more = {}
    if site.op in ("ReduceMax", "ReduceMin"):
        op = FOLDS[site.op].op
        # NumPy has no maximum of nothing; the kernels start from the neutral element, too.
        more["initial"] = op == "min" if x.dtype == bool else start_value(op, site.type(0).dtype)
    y = _NUMPY[site.op](x, axis=axes, keepdims=bool(site.attrs["keepdims"]), **more)
    return (np.asarray(y).astype(x.dtype),)


def _kept(grad: Grad, y: str) -> str:
    """y with the reduced axes put back as axes of size 1."""
    site = grad.site
    if site.attrs["keepdims"] or (site.attrs.get("axes") is None and not site.has(1)):
        return y
    if site.attrs.get("axes") is not None:
        return unsqueeze(grad, y, site.attrs["axes"])
    known = site.value(1)
    return y if known is not None and known.size == 0 else str(grad.op("Unsqueeze", y, grad.x(1)))


def _again(grad: Grad, op: str, x: str, since: int) -> str:
    """Return another reduction of x over the same axes, which stay as axes of size 1."""
    site = grad.site
    noop: dict[str, Any] = (
        {"noop_with_empty_axes": 1} if site.attrs.get("noop_with_empty_axes") else {}
    )
    if site.has(1):
        known = site.value(1)
        if grad.site.opset >= since:
            return str(grad.op(op, x, grad.x(1), keepdims=1, **noop))
        return with_axes(grad, op, x, list(known) if known is not None else [], since, keepdims=1)
    if site.attrs.get("axes") is not None:
        return with_axes(grad, op, x, site.attrs["axes"], since, keepdims=1)
    return str(grad.op(op, x, keepdims=1, **noop))


def _to_input(grad: Grad, dx: str) -> tuple[str | None, ...]:
    """Return a gradient of the kept shape, repeated along the reduced axes."""
    return (grad.op("Expand", dx, grad.op("Shape", grad.x(0))), None)


def _sum_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY along the reduced axes."""
    return _to_input(grad, _kept(grad, dy))


def _mean_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY Size(Y) / Size(X)."""
    to = ONNX_CODE[grad.site.type(0).dtype]
    # Forward: y = sum x / count; so dx = dy / count.  The count follows from the sizes, which may
    # be symbolic.
    sizes = [grad.op("Cast", grad.op("Size", name), to=to) for name in (grad.x(0), grad.y(0))]
    return _to_input(grad, grad.op("Div", _kept(grad, dy), grad.op("Div", *sizes)))


def _l1_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY Sign(X)."""
    return (grad.op("Mul", _kept(grad, dy), grad.op("Sign", grad.x(0))), None)


def _l2_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = X dY / Y; where Y = 0, X is 0 too."""
    y = _kept(grad, grad.y(0))
    # Forward: y = sqrt(sum x^2); so dx = x dy / y.  At 0 the slope is not defined; 0 is taken, and
    # 0 / 1 gives it.
    safe = grad.op("Where", grad.op("Equal", y, grad.like(0.0, 0)), grad.like(1.0, 0), y)
    return (grad.op("Mul", grad.x(0), grad.op("Div", _kept(grad, dy), safe)), None)


def _square_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = 2 X dY."""
    return (grad.op("Mul", grad.x(0), grad.op("Mul", _kept(grad, dy), grad.like(2.0, 0))), None)


def _log_sum_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY / exp Y along the reduced axes."""
    return _to_input(grad, _kept(grad, grad.op("Div", dy, grad.op("Exp", grad.y(0)))))


def _logsumexp_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY W / sum W, W = exp(X - Y): the sum takes back the rounding of a large Y.

    Where Y = -inf, all X are, and dX = 0.
    """
    y, zero = _kept(grad, grad.y(0)), grad.like(0.0, 0)
    # Forward: y = log sum exp x; so dx = dy exp(x - y).  An x - y of -inf - -inf would be NaN.
    finite = grad.op("Where", grad.op("Equal", y, grad.like(-np.inf, 0)), zero, y)
    weight = grad.op("Exp", grad.op("Sub", grad.x(0), finite))
    total = _again(grad, "ReduceSum", weight, 13)
    total = grad.op("Where", grad.op("Equal", total, zero), grad.like(1.0, 0), total)
    return (grad.op("Mul", weight, grad.op("Div", _kept(grad, dy), total)), None)


def _extreme_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY [X = Y] / #[X = Y]: ties share the gradient equally."""
    to = ONNX_CODE[grad.site.type(0).dtype]
    # Forward: y = max x.  All elements equal to y share dy, so that gradients do not depend on the
    # order of elements.
    hits = grad.op("Cast", grad.op("Equal", grad.x(0), _kept(grad, grad.y(0))), to=to)
    part = grad.op("Div", _kept(grad, dy), _again(grad, "ReduceSum", hits, 13))
    return (grad.op("Mul", part, hits), None)


def _lower_extreme_grad(lowering: Lowering) -> None:
    """dX = dY [X = Y] / #[X = Y], with an X that both sides have read from the same memory."""
    dy, x, y, dx = lowering.x(0), lowering.x(1), lowering.x(2), lowering.y(0)
    axes = list(lowering.site.attrs["axes"])
    kept = [1 if i in axes else d for i, d in enumerate(x.type.dims)]
    (T, stored), size = find_stored(x), x.type.size
    if not size:
        return
    if stored:  # x was rounded, and a y of before that would equal none of it
        y = lowering.temp(T, kept)
        fold_axes(lowering, FOLDS["ReduceMax" if lowering.site.attrs["largest"] else "ReduceMin"],
                  x, axes, y)  # fmt: skip
    hits, count = lowering.temp(T, x.type.dims), lowering.temp(T, kept)
    is_hit = ("where", ("eq", ("in", 0), ("in", 1)), ("const", 1.0), ("const", 0.0))
    lower_map(lowering, [is_hit], [x, y], [hits])
    fold_axes(lowering, FOLDS["ReduceSum"], hits, axes, count)
    share_of = ("mul", ("div", ("in", 0), ("in", 1)), ("in", 2))
    lower_map(lowering, [share_of], [dy, count, hits], [dx])


def _prod_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY prod of X_j, j != i: P / X without zeros, P at an only zero, 0 with more.

    P is the product of all X that are not 0.
    """
    zero, one = grad.like(0.0, 0), grad.like(1.0, 0)
    to = ONNX_CODE[grad.site.type(0).dtype]
    # Forward: y = prod x; so dx_i is the product of all others.  y / x_i would be 0 / 0 at a zero:
    # the product without zeros and their number decide instead.
    is_zero = grad.op("Equal", grad.x(0), zero)
    safe = grad.op("Where", is_zero, one, grad.x(0))
    count = _again(grad, "ReduceSum", grad.op("Cast", is_zero, to=to), 13)
    product = grad.op("Mul", _again(grad, "ReduceProd", safe, 18), _kept(grad, dy))
    none = grad.op("Where", grad.op("Equal", count, zero), product, zero)
    only = grad.op("Where", grad.op("Equal", count, one), product, zero)
    return (grad.op("Where", is_zero, only, grad.op("Div", none, safe)), None)


def _reduction(name: str, grad: Any, samples: Samples = Samples.REDUCED, **more: Any) -> Op:
    return Op(
        name=name,
        infer=_infer,
        lower=_lower,
        calls=FOLD_KERNELS,
        storage=Storage(frozenset({0}), frozenset()) if name in FOLDS else None,
        grad=grad,
        no_gradient=frozenset((1,)),
        attrs={"keepdims": 1, "noop_with_empty_axes": 0},
        layout=_choose_layout,
        fold=_fold if name in _NUMPY else None,
        by_reference=name in ("ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
        accumulates=(0,) if _NUMPY.get(name) is np.sum else (),
        samples=samples,
        **more,
    )


OPS = (
    _reduction("ReduceSum", _sum_grad, Samples.SUM),
    _reduction("ReduceMean", _mean_grad, Samples.MEAN),
    _reduction("ReduceMax", _extreme_grad),
    _reduction("ReduceMin", _extreme_grad),
    _reduction("ReduceProd", _prod_grad),
    _reduction("ReduceL1", _l1_grad),
    _reduction("ReduceL2", _l2_grad),
    _reduction("ReduceLogSum", _log_sum_grad),
    _reduction("ReduceLogSumExp", _logsumexp_grad),
    _reduction("ReduceSumSquare", _square_grad),
    Op(
        # The gradient of ReduceMax and ReduceMin in one step.  Where values are stored in 16 bits,
        # its parts would compare an x that is computed again with the y of a rounded one.
        name="ExtremeGrad",
        gradient_of="ReduceMax",
        domain=OURS,
        internal=True,
        inputs=(3, 3),
        outputs=1,
        attrs={"largest": 1},
        needs={"axes": "ints"},
        infer=lambda site: (site.type(1),),
        lower=_lower_extreme_grad,
        calls=(*FOLD_KERNELS, *MAP_KERNELS),
        storage=Storage(frozenset({1}), frozenset({0})),
    ),
    _reduction(
        "ReduceSumTraining",
        None,
        Samples.SUM,
        domain=MS,
        inputs=(2, 2),
        outputs=1,
        training_only=True,
    ),
)
