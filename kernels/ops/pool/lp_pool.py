"""LpPool and GlobalLpPool: the p-norm of each window.

Forward   Y = (sum_k |X_k|^p)^(1/p): a SumPool, or a reduction, of |X|^p
Backward  dX = sign(X) |X|^(p-1) sum over the windows of dY Y^(1-p), 0 where Y = 0; needs X and Y
Error     that of the sum, and some ulps
"""

from __future__ import annotations

from typing import Any

from engine.kernels.loops.window import kernel_shape, out_dims
from engine.kernels.ops.shape import with_axes
from engine.kernels.vocabulary.op import OURS, Grad, Nodes, Op, Site, TensorType


def _infer(s: Site) -> tuple[TensorType, ...]:
    x = s.real(0)
    if s.op == "GlobalLpPool":
        return (x.but((*x.shape[:2], *[1] * (x.rank - 2))),)
    return (x.but((*x.shape[:2], *out_dims(s, x, kernel_shape(s)))),)


def _power(g: Nodes, x: str, p: float) -> str:
    """x^p for x >= 0."""
    if p == 1:
        return x
    return str(g.op("Mul", x, x) if p == 2 else g.op("Pow", x, g.like(p, 0)))


def _window(g: Nodes) -> dict[str, Any]:
    return {k: v for k, v in g.site.attrs.items() if k != "p"}


def _expand(g: Nodes) -> tuple[str, ...]:
    p = float(g.site.attrs["p"])
    x = g.x(0) if p == 2 else g.op("Abs", g.x(0))
    powers = _power(g, x, p)
    if g.site.op == "LpPool":
        total = g.op("SumPool", powers, domain=OURS, **_window(g))
    else:
        axes = range(2, g.site.type(0).rank)
        total = with_axes(g, "ReduceSum", powers, axes, 13, keepdims=1)
    if p == 1:
        return (total,)
    return (g.op("Sqrt", total) if p == 2 else g.op("Pow", total, g.like(1 / p, 0)),)


def _grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = X |X|^(p-2) SumPoolGrad(dY / Y^(p-1))."""
    p, x = float(g.site.attrs["p"]), g.x(0)
    if p > 1:
        y = g.y(0)
        safe = g.op("Where", g.op("Equal", y, g.like(0.0, 0)), g.like(1.0, 0), y)
        dy = g.op("Div", dy, _power(g, safe, p - 1))
    if g.site.op == "LpPool":
        dy = g.op("SumPoolGrad", dy, x, domain=OURS, **_window(g))
    if p == 2:
        return (g.op("Mul", x, dy),)
    slope = g.op("Sign", x)
    if p > 1:
        slope = g.op("Mul", slope, _power(g, g.op("Abs", x), p - 1))
    return (g.op("Mul", slope, dy),)


OPS = (
    Op(
        name="LpPool", infer=_infer, expand=_expand, grad=_grad,
        becomes=f"Abs Mul Pow Sqrt {OURS}::SumPool",
        attrs={"p": 2, "auto_pad": "NOTSET", "ceil_mode": 0},
    ),
    Op(
        name="GlobalLpPool", infer=_infer, expand=_expand, grad=_grad,
        becomes="Abs Mul Pow ReduceSum Sqrt", attrs={"p": 2},
    ),
)  # fmt: skip
