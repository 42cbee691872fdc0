"""Elementwise ops: one line each, one generator for all.

Forward   y = formula(x...), with ONNX's multidirectional broadcasting
Backward  the text beside the formula: ONNX nodes over dy, the inputs and the output y; it reads y
          rather than x where both would do, so that x need not be kept
Error     of the elementary functions: vector_ir/elementary.py; a fused chain rounds as its parts do

The fuser (graphs/passes/fuse.py) joins neighbours into one `Map`, whose formula is the composition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.element_types import OF_ONNX, ONNX_CODE, REALS
from engine.errors import DTypeError
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.formula import elementwise, fold, infer, one_dtype
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Lowering,
    Op,
    Site,
    TensorType,
    broadcast,
    same_as,
)

# --- ops whose formula depends on the node


def _variadic(name: str, function: str, grad: Callable[..., Any], *, mean: bool = False) -> Op:
    def expr(s: Site) -> Expr:
        out: Expr = ("in", 0)
        for i in range(1, len(s.ins)):
            out = (function, out, ("in", i))
        return ("div", out, ("const", float(len(s.ins)))) if mean else out

    return Op(name=name, infer=one_dtype, fold=fold, expr=expr, grad=grad)


def _sum_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY, un-broadcast."""
    return tuple(g.reduce_to(dy, i) if g.wants(i) else None for i in range(len(g.site.ins)))


def _mean_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY / count, un-broadcast."""
    part = g.op("Div", dy, g.like(float(len(g.site.ins)), 0))
    return _sum_grad(g, part)


def _extreme_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY [X_i = Y] / #{j: X_j = Y}: ties share the gradient equally."""
    count = len(g.site.ins)
    if count == 1:
        return (dy,)
    to = ONNX_CODE[g.site.type(0).dtype]
    hits = [g.op("Cast", g.op("Equal", g.x(i), g.y(0)), to=to) for i in range(count)]
    share_of = g.op("Div", dy, g.op("Sum", *hits))
    return tuple(
        g.reduce_to(g.op("Mul", share_of, hits[i]), i) if g.wants(i) else None for i in range(count)
    )


def dtype_of(s: Site, code: int) -> str:
    """The element type that ONNX numbers so, of an attribute of the node."""
    if code not in OF_ONNX:
        s.fail(f"ONNX type {code}", ", ".join(sorted(OF_ONNX.values())))
    return OF_ONNX[code]


def _cast_expr(s: Site) -> Expr:
    return ("cast", dtype_of(s, s.attrs["to"]), ("in", 0))


def _cast_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY cast back; nothing between types of which one is not a float."""
    source, to = g.site.type(0).dtype, OF_ONNX[g.site.attrs["to"]]
    if source not in REALS or to not in REALS:
        return (None,)
    return (g.op("Cast", dy, to=ONNX_CODE[source]),)


CLIP = ((1, "min", "max", "Less"), (2, "max", "min", "Greater"))  # input or attribute, to clip by


def _clip_expr(s: Site) -> Expr:
    out: Expr = ("in", 0)
    for i, name, function, _ in CLIP:
        if s.has(i):
            out = (function, out, ("in", i))
        elif name in s.attrs:
            out = (function, out, ("const", s.attrs[name]))
    return out


def _clip_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = 0 where X < min or X > max, else dY."""
    for i, name, _, outside in CLIP:
        if g.site.has(i) or name in g.site.attrs:
            bound = g.x(i) if g.site.has(i) else g.like(g.site.attrs[name], 0)
            dy = g.op("Where", g.op(outside, g.x(0), bound), g.like(0.0, 0), dy)
    return (dy, *[None] * (len(g.site.ins) - 1))


def _pow_infer(s: Site) -> tuple[TensorType, ...]:
    return (TensorType(s.type(0).dtype, broadcast(s, s.type(0), s.type(1))),)


def _pow_expr(s: Site) -> Expr:
    """Integer powers are computed in i64, real ones in f64, then cut to the base's type."""
    base, exponent = s.type(0).dtype, s.type(1).dtype
    power: Expr = ("in", 1)
    if base in REALS:
        return ("pow", ("in", 0), power if base == exponent else ("cast", base, power))
    kind = "f64" if exponent in REALS else "i64"
    return ("cast", base, ("pow", ("cast", kind, ("in", 0)), ("cast", kind, power)))


def _pow_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY B A^(B-1), 0 where B = 0;  dB = dY Y log A, 0 where A <= 0."""
    a, b = g.x(0), g.x(1)
    kinds = [g.site.type(i).dtype for i in (0, 1)]
    if kinds[0] != kinds[1]:
        b = g.op("Cast", b, to=ONNX_CODE[kinds[0]])
    da = db = None
    if g.wants(0):
        lower = g.op("Mul", b, g.op("Pow", a, g.op("Sub", b, g.like(1.0, 0))))
        known = g.site.value(1)
        if known is None or not np.all(known):  # 0 A^-1 is NaN at A = 0
            lower = g.op("Where", g.op("Equal", b, g.like(0.0, 0)), g.like(0.0, 0), lower)
        da = g.reduce_to(g.op("Mul", dy, lower), 0)
    if g.wants(1):
        positive = g.op("Greater", a, g.like(0.0, 0))
        logs = g.op("Log", g.op("Where", positive, a, g.like(1.0, 0)))
        db = g.reduce_to(g.op("Mul", dy, g.op("Mul", g.y(0), logs)), 1)
    return (da, db)


def _where_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY where C, dB = dY where not C, un-broadcast."""
    zero = g.like(0.0, 1)
    da = g.reduce_to(g.op("Where", g.x(0), dy, zero), 1) if g.wants(1) else None
    db = g.reduce_to(g.op("Where", g.x(0), zero, dy), 2) if g.wants(2) else None
    return (None, da, db)


def _where_infer(s: Site) -> tuple[TensorType, ...]:
    if s.type(0).dtype != "b1" or s.type(1).dtype != s.type(2).dtype:
        raise DTypeError(f"{s.where()}: expected a bool condition and two tensors of one type")
    return infer(s)


def _leaky_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY where X > 0, else alpha dY; Y has the sign of X only when alpha >= 0."""
    alpha = g.site.attrs["alpha"]
    if alpha >= 0:
        return (g.op("LeakyReluGrad", dy, g.y(0), domain=MS, alpha=alpha),)
    positive = g.op("Greater", g.x(0), g.like(0.0, 0))
    return (g.op("Where", positive, dy, g.op("Mul", dy, g.like(alpha, 0))),)


def _mod_expr(s: Site) -> Expr:
    return ("fmod" if s.attrs["fmod"] else "mod", ("in", 0), ("in", 1))


def _mod_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY, dB = -dY (A - Y)/B, the whole quotient: the derivatives between the jumps."""
    da = g.reduce_to(dy, 0) if g.wants(0) else None
    if not g.wants(1):
        return (da, None)
    quotient = g.op("Div", g.op("Sub", g.x(0), g.y(0)), g.x(1))
    return (da, g.reduce_to(g.op("Neg", g.op("Mul", dy, quotient)), 1))


def _shift_expr(s: Site) -> Expr:
    return ("shl" if s.attrs["direction"] == "LEFT" else "shr", ("in", 0), ("in", 1))


def _isinf_expr(s: Site) -> Expr:
    """True at infinities whose sign is asked for."""
    signs = s.attrs["detect_positive"], s.attrs["detect_negative"]
    if all(signs):
        return ("isinf", ("in", 0))
    limit = float("inf") if signs[0] else float("-inf")
    return ("eq", ("in", 0), ("const", limit if any(signs) else float("nan")))


def _scale_expr(s: Site) -> Expr:
    by: Expr = ("cast", s.type(0).dtype, ("in", 1))
    return ("div" if s.attrs["scale_down"] else "mul", ("in", 0), by)


# --- fused maps


def _map_exprs(s: Site) -> list[Expr]:
    operands = expression.operand_names(len(s.ins))
    return [expression.parse(t, operands) for t in s.attrs["formulas"]]


def _map_infer(s: Site) -> tuple[TensorType, ...]:
    types = [s.type(i) for i in range(len(s.ins))]
    shape = broadcast(s, *types)
    kinds = [t.dtype for t in types]
    return tuple(TensorType(expression.dtype(e, kinds) or kinds[0], shape) for e in _map_exprs(s))


def _map_lower(s: Lowering) -> None:
    count = len(s.site.ins)
    outs = [s.y(j) for j in range(s.site.n_outs)]
    lower_map(s, _map_exprs(s.site), [s.x(i) for i in range(count)], outs)


AB = "a b"

OPS = (
    elementwise("Abs", "abs(x)", "Mul(dy, Sign(x))"),
    elementwise("Neg", "-x", "Neg(dy)"),
    elementwise("Exp", "exp(x)", "Mul(dy, y)"),
    elementwise("Log", "log(x)", "Div(dy, x)"),
    elementwise("Sqrt", "sqrt(x)", "Div(Mul(dy, 0.5), y)"),
    elementwise("Reciprocal", "1 / x", "Neg(Mul(dy, Mul(y, y)))"),
    elementwise("Relu", "where(x < 0, 0, x)", "ReluGrad(dy, y)"),
    elementwise("LeakyRelu", "where(x < 0, alpha * x, x)", attrs={"alpha": 0.01}, rule=_leaky_grad),
    elementwise("Sigmoid", "sigmoid(x)", "SigmoidGrad(dy, y)"),
    elementwise("Tanh", "tanh(x)", "TanhGrad(dy, y)"),
    elementwise(
        "Erf", "erf(x)", "Mul(dy, Mul(Exp(Neg(Mul(x, x))), 1.1283791670955126))"
    ),  # 2/sqrt(pi)
    elementwise("Sign", "sign(x)"),
    elementwise("Floor", "floor(x)"),
    elementwise("Ceil", "ceil(x)"),
    elementwise("Round", "round(x)"),
    elementwise("Not", "not_(x)"),
    elementwise("IsNaN", "isnan(x)"),
    Op(
        name="IsInf", infer=infer, fold=fold, expr=_isinf_expr, stop=frozenset((0,)),
        attrs={"detect_positive": 1, "detect_negative": 1},
    ),
    elementwise("BitwiseNot", "~x"),
    elementwise("BitwiseAnd", "a & b", inputs=AB),
    elementwise("BitwiseOr", "a | b", inputs=AB),
    elementwise("BitwiseXor", "a ^ b", inputs=AB),
    Op(name="BitShift", infer=one_dtype, fold=fold, expr=_shift_expr),
    Op(name="Mod", attrs={"fmod": 0}, infer=one_dtype, fold=fold, expr=_mod_expr, grad=_mod_grad),
    elementwise("Add", "a + b", "dy", "dy", inputs=AB),
    elementwise("Sub", "a - b", "dy", "Neg(dy)", inputs=AB),
    elementwise("Mul", "a * b", "Mul(dy, b)", "Mul(dy, a)", inputs=AB),
    elementwise("Div", "a / b", "Div(dy, b)", "Neg(Div(Mul(dy, y), b))", inputs=AB),
    elementwise("Less", "a < b", inputs=AB),
    elementwise("LessOrEqual", "a <= b", inputs=AB),
    elementwise("Greater", "a > b", inputs=AB),
    elementwise("GreaterOrEqual", "a >= b", inputs=AB),
    elementwise("Equal", "a == b", inputs=AB),
    elementwise("And", "and_(a, b)", inputs=AB),
    elementwise("Or", "or_(a, b)", inputs=AB),
    elementwise("Xor", "xor(a, b)", inputs=AB),
    elementwise(
        "Where", "where(c, a, b)", inputs="c a b", rule=_where_grad, infer=_where_infer, stop=(0,)
    ),
    _variadic("Sum", "add", _sum_grad),
    _variadic("Mean", "add", _mean_grad, mean=True),
    _variadic("Max", "max", _extreme_grad),
    _variadic("Min", "min", _extreme_grad),
    Op(name="Pow", infer=_pow_infer, fold=fold, expr=_pow_expr, grad=_pow_grad),
    Op(
        name="Clip", infer=infer, fold=fold, expr=_clip_expr, grad=_clip_grad,
        stop=frozenset((1, 2)),
    ),
    Op(name="Cast", infer=infer, fold=fold, expr=_cast_expr, grad=_cast_grad),
    elementwise("ReluGrad", "where(y > 0, dy, 0)", inputs="dy y", domain=MS),
    elementwise("SigmoidGrad", "dy * (y * (1 - y))", inputs="dy y", domain=MS),
    elementwise("TanhGrad", "dy * (1 - y * y)", inputs="dy y", domain=MS),
    elementwise(
        "LeakyReluGrad",
        "where(y > 0, dy, alpha * dy)",
        inputs="dy y",
        domain=MS,
        attrs={"alpha": 0.01},
    ),
    Op(
        name="Scale",
        domain=MS,
        attrs={"scale_down": 0},
        infer=same_as(0),
        fold=fold,
        expr=_scale_expr,
    ),
    Op(name="Map", domain=OURS, internal=True,
    infer=_map_infer, lower=_map_lower, calls=MAP_KERNELS),
)  # fmt: skip
