"""LpPool and GlobalLpPool: the p-norm of each window.

Forward   Y = (sum_k |X_k|^p)^(1/p): a SumPool, or a reduction, of |X|^p
Backward  dX = sign(X) |X|^(p-1) sum over the windows of dY Y^(1-p), 0 where Y = 0; needs X and Y
Error     as of the sum, and some ulps
"""

from __future__ import annotations

from typing import Any

from engine.kernels.loops.window import infer_out_dims, read_kernel_shape
from engine.kernels.ops.shape import with_axes
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.op import OURS, Grad, Nodes, Op, Site, TensorType


def _infer(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    if site.op == "GlobalLpPool":
        return (x.but((*x.shape[:2], *[1] * (x.rank - 2))),)
    return (x.but((*x.shape[:2], *infer_out_dims(site, x, read_kernel_shape(site)))),)


def _power(nodes: Nodes, x: str, p: float) -> str:
    """x^p for x >= 0."""
    if p == 1:
        return x
    return str(nodes.op("Mul", x, x) if p == 2 else nodes.op("Pow", x, nodes.like(p, 0)))


def _read_window(nodes: Nodes) -> dict[str, Any]:
    return {k: v for k, v in nodes.site.attrs.items() if k != "p"}


def _expand(nodes: Nodes) -> tuple[str, ...]:
    p = float(nodes.site.attrs["p"])
    if p < 1:
        nodes.site.fail(f"p is {p:g}", "1 or more")
    # x^2 needs no absolute value.
    x = nodes.x(0) if p == 2 else nodes.op("Abs", nodes.x(0))
    powers = _power(nodes, x, p)
    if nodes.site.op == "LpPool":
        total = nodes.op("SumPool", powers, domain=OURS, **_read_window(nodes))
    else:
        axes = range(2, nodes.site.type(0).rank)
        total = with_axes(nodes, "ReduceSum", powers, axes, 13, keepdims=1)
    if p == 1:
        return (total,)
    return (nodes.op("Sqrt", total) if p == 2 else nodes.op("Pow", total, nodes.like(1 / p, 0)),)


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = X |X|^(p-2) SumPoolGrad(dY / Y^(p-1))."""
    # Forward: s = sum_k |x_k|^p, y = s^(1/p); so dx_k = sign(x_k) |x_k|^(p-1) y^(1-p) dy.
    p, x = float(grad.site.attrs["p"]), grad.x(0)
    if p > 1:
        y = grad.y(0)
        # y = 0 only where all of the window is 0; the factor |x|^(p-1) then gives 0, so any y does.
        safe = grad.op("Where", grad.op("Equal", y, grad.like(0.0, 0)), grad.like(1.0, 0), y)
        dy = grad.op("Div", dy, _power(grad, safe, p - 1))
    if grad.site.op == "LpPool":
        dy = grad.op("SumPoolGrad", dy, x, domain=OURS, **_read_window(grad))
    # sign(x) |x| is x.
    if p == 2:
        return (grad.op("Mul", x, dy),)
    slope = grad.op("Sign", x)
    if p > 1:
        slope = grad.op("Mul", slope, _power(grad, grad.op("Abs", x), p - 1))
    return (grad.op("Mul", slope, dy),)


OPS = (
    Op(
        name="LpPool",
        infer=_infer,
        expand=_expand,
        grad=_grad,
        becomes=f"Abs Mul Pow Sqrt {OURS}::SumPool",
        attrs={"p": 2, "auto_pad": "NOTSET", "ceil_mode": 0},
        samples=Samples.FIRST_AXIS,
    ),
    Op(
        name="GlobalLpPool",
        infer=_infer,
        expand=_expand,
        grad=_grad,
        becomes="Abs Mul Pow ReduceSum Sqrt",
        attrs={"p": 2},
        samples=Samples.FIRST_AXIS,
    ),
)
