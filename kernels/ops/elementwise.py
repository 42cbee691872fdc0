"""Elementwise ops: one line each, and one kernel generator for all.

Forward   y = formula(x...), with ONNX's multidirectional broadcasting
Backward  the text next to the formula: ONNX nodes over dy, the inputs and the output y.  It reads y
          rather than x if either would do, so that x need not be kept
Error     of the elementary functions: vector_ir/elementary.py; a fused chain rounds as its parts do

The fuser (graphs/passes/fuse.py) joins neighbours into one `Map`, whose formula is the composition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.base.element_types import OF_ONNX, ONNX_CODE, REALS, name_onnx_type
from engine.base.errors import DTypeError
from engine.kernels.loops.map import MAP_KERNELS, lower_formulas
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.facts import Layout, Movement, Storage
from engine.kernels.vocabulary.formula import elementwise, fold, infer, one_dtype
from engine.kernels.vocabulary.op import MS, OURS, Grad, Lowering, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import broadcast

# --- ops whose formula depends on the node

# Sums of more inputs than `WIDE` are made of sums of `PIECE`: a loop over so many arrays at once
# misses in the first-level cache, and each number of inputs would be a kernel of its own.  Measured
# on Zen 5, f32[64,256]: 200 inputs at once 0.72 ms, 8 at a time 0.24 ms; 16 at once are as fast.
WIDE, PIECE = 16, 8


def _in_pieces(nodes: Nodes, op: str) -> str:
    """Apply the op to all inputs, `PIECE` at a time from the left, to round as one formula."""
    left = [nodes.x(i) for i in range(len(nodes.site.ins))]
    while len(left) > 1:
        left = [str(nodes.op(op, *left[:PIECE])), *left[PIECE:]]
    return left[0]


def _variadic(name: str, function: str, grad: Callable[..., Any], *, mean: bool = False) -> Op:
    def expr(site: Site) -> Expr:
        out: Expr = ("in", 0)
        for i in range(1, len(site.ins)):
            out = (function, out, ("in", i))
        return ("div", out, ("const", float(len(site.ins)))) if mean else out

    def expand(nodes: Nodes) -> tuple[str, ...] | None:
        count = len(nodes.site.ins)
        if count <= WIDE:
            return None
        total = _in_pieces(nodes, "Sum" if mean else name)
        return (nodes.op("Div", total, nodes.like(float(count), 0)) if mean else total,)

    return Op(
        name=name,
        infer=one_dtype,
        fold=fold,
        expr=expr,
        grad=grad,
        expand=expand,
        becomes="Div Sum" if mean else name,
    )


def _sum_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY, un-broadcast."""
    return tuple(
        grad.reduce_to(dy, i) if grad.wants(i) else None for i in range(len(grad.site.ins))
    )


def _mean_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY / count, un-broadcast."""
    part = grad.op("Div", dy, grad.like(float(len(grad.site.ins)), 0))
    return _sum_grad(grad, part)


def _extreme_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = dY [X_i = Y] / #{j: X_j = Y}: ties share the gradient equally."""
    count = len(grad.site.ins)
    if count == 1:
        return (dy,)
    to = ONNX_CODE[grad.site.type(0).dtype]
    # Forward: y = max(x_i...); inputs that are equal to y share dy, whatever their order.
    hits = [grad.op("Cast", grad.op("Equal", grad.x(i), grad.y(0)), to=to) for i in range(count)]
    share_of = grad.op("Div", dy, grad.op("Sum", *hits))
    return tuple(
        grad.reduce_to(grad.op("Mul", share_of, hits[i]), i) if grad.wants(i) else None
        for i in range(count)
    )


def read_dtype(site: Site, code: int) -> str:
    """Return the element type that ONNX numbers so, of an attribute of the node."""
    if code not in OF_ONNX:
        site.fail(name_onnx_type(code), ", ".join(sorted(OF_ONNX.values())))
    return OF_ONNX[code]


def _cast_expr(site: Site) -> Expr:
    return ("cast", read_dtype(site, site.attrs["to"]), ("in", 0))


def _cast_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY cast back; nothing unless both types are floats."""
    source, to = grad.site.type(0).dtype, OF_ONNX[grad.site.attrs["to"]]
    # A gradient passes only where small changes of the input do.
    if source not in REALS or to not in REALS:
        return (None,)
    return (grad.op("Cast", dy, to=ONNX_CODE[source]),)


CLIP = ((1, "min", "max", "Less"), (2, "max", "min", "Greater"))  # input or attribute, to clip by


def _clip_expr(site: Site) -> Expr:
    out: Expr = ("in", 0)
    for i, name, function, _ in CLIP:
        if site.has(i):
            out = (function, out, ("in", i))
        elif name in site.attrs:
            out = (function, out, ("const", site.attrs[name]))
    return out


def _clip_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY where min <= X <= max, 0 elsewhere."""
    for i, name, _, outside in CLIP:
        if grad.site.has(i) or name in grad.site.attrs:
            bound = grad.x(i) if grad.site.has(i) else grad.like(grad.site.attrs[name], 0)
            dy = grad.op("Where", grad.op(outside, grad.x(0), bound), grad.like(0.0, 0), dy)
    return (dy, *[None] * (len(grad.site.ins) - 1))


def _pow_infer(site: Site) -> tuple[TensorType, ...]:
    return (TensorType(site.type(0).dtype, broadcast(site, site.type(0), site.type(1))),)


def _pow_expr(site: Site) -> Expr:
    """Integer powers are computed in i64, real ones in f64, then cut to the base's type."""
    base, exponent = site.type(0).dtype, site.type(1).dtype
    power: Expr = ("in", 1)
    if base in REALS:
        return ("pow", ("in", 0), power if base == exponent else ("cast", base, power))
    kind = "f64" if exponent in REALS else "i64"
    return ("cast", base, ("pow", ("cast", kind, ("in", 0)), ("cast", kind, power)))


def _pow_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY B A^(B-1), 0 where B = 0;  dB = dY Y log A, 0 where A <= 0."""
    a, b = grad.x(0), grad.x(1)
    kinds = [grad.site.type(i).dtype for i in (0, 1)]
    if kinds[0] != kinds[1]:
        b = grad.op("Cast", b, to=ONNX_CODE[kinds[0]])
    da = db = None
    if grad.wants(0):
        # Forward: y = a^b; so da = b a^(b-1) dy.
        lower = grad.op("Mul", b, grad.op("Pow", a, grad.op("Sub", b, grad.like(1.0, 0))))
        known = grad.site.value(1)
        if known is None or not np.all(known):  # 0 A^-1 is NaN at A = 0
            lower = grad.op(
                "Where", grad.op("Equal", b, grad.like(0.0, 0)), grad.like(0.0, 0), lower
            )
        da = grad.reduce_to(grad.op("Mul", dy, lower), 0)
    if grad.wants(1):
        # Forward: y = a^b = exp(b log a); so db = y log a dy, for a > 0.
        positive = grad.op("Greater", a, grad.like(0.0, 0))
        logs = grad.op("Log", grad.op("Where", positive, a, grad.like(1.0, 0)))
        db = grad.reduce_to(grad.op("Mul", dy, grad.op("Mul", grad.y(0), logs)), 1)
    return (da, db)


def _where_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY where C, dB = dY where not C, un-broadcast."""
    # Forward: y = c ? a : b; so da = c ? dy : 0, db = c ? 0 : dy.
    zero = grad.like(0.0, 1)
    da = grad.reduce_to(grad.op("Where", grad.x(0), dy, zero), 1) if grad.wants(1) else None
    db = grad.reduce_to(grad.op("Where", grad.x(0), zero, dy), 2) if grad.wants(2) else None
    return (None, da, db)


def _where_infer(site: Site) -> tuple[TensorType, ...]:
    if site.type(0).dtype != "b1" or site.type(1).dtype != site.type(2).dtype:
        raise DTypeError(f"{site.where()}: expected a bool condition and two tensors of one type")
    return infer(site)


def _leaky_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY where X > 0, alpha dY elsewhere; Y has the sign of X only when alpha >= 0."""
    # y tells the sign of x, so x need not be kept.
    alpha = grad.site.attrs["alpha"]
    if alpha >= 0:
        return (grad.op("LeakyReluGrad", dy, grad.y(0), domain=MS, alpha=alpha),)
    positive = grad.op("Greater", grad.x(0), grad.like(0.0, 0))
    return (grad.op("Where", positive, dy, grad.op("Mul", dy, grad.like(alpha, 0))),)


def _div_grad_nodes(nodes: Nodes) -> tuple[str, ...]:
    """dA = dY / B, dB = -(dY / B) (A / B), each summed to the shape of its operand."""
    dy, a, b = (nodes.x(i) for i in range(3))
    # Forward: y = a / b; so da = dy / b and db = -(dy / b) (a / b).
    quotient = nodes.op("Div", dy, b)
    shapes = [nodes.op("Shape", x) for x in (a, b)]
    axes = nodes.op("BroadcastGradientArgs", *shapes, domain=MS, outputs=2)
    made = []
    for i, shape in enumerate(shapes):
        if not nodes.wants(i):
            made.append("")
            continue
        d = nodes.op("Neg", nodes.op("Mul", quotient, nodes.op("Div", a, b))) if i else quotient
        # An operand that was not broadcast has no axes to sum.
        flags = {"keepdims": 1, "noop_with_empty_axes": 1}
        total = nodes.op("ReduceSumTraining", d, axes[i], domain=MS, **flags)
        made.append(nodes.op("Reshape", total, shape))
    return tuple(made)


def _mod_expr(site: Site) -> Expr:
    return ("fmod" if site.attrs["fmod"] else "mod", ("in", 0), ("in", 1))


def _mod_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY, dB = -dY (A - Y)/B, the whole quotient: the derivatives between the jumps."""
    da = grad.reduce_to(dy, 0) if grad.wants(0) else None
    if not grad.wants(1):
        return (da, None)
    quotient = grad.op("Div", grad.op("Sub", grad.x(0), grad.y(0)), grad.x(1))
    return (da, grad.reduce_to(grad.op("Neg", grad.op("Mul", dy, quotient)), 1))


def _shift_expr(site: Site) -> Expr:
    return ("shl" if site.attrs["direction"] == "LEFT" else "shr", ("in", 0), ("in", 1))


def _isinf_expr(site: Site) -> Expr:
    """True at infinities whose sign is asked for."""
    signs = site.attrs["detect_positive"], site.attrs["detect_negative"]
    if all(signs):
        return ("isinf", ("in", 0))
    limit = float("inf") if signs[0] else float("-inf")
    return ("eq", ("in", 0), ("const", limit if any(signs) else float("nan")))


def _scale_infer(site: Site) -> tuple[TensorType, ...]:
    x, by = site.type(0), site.type(1)
    if broadcast(site, x, by) != x.shape:
        site.wrong(f"the scale is {by}; expected one that broadcasts to {x}")
    return (x.but(),)


def _scale_expr(site: Site) -> Expr:
    # The scale may be of another type; the result is of X's.
    by: Expr = ("cast", site.type(0).dtype, ("in", 1))
    return ("div" if site.attrs["scale_down"] else "mul", ("in", 0), by)


# --- fused maps


def _map_infer(site: Site) -> tuple[TensorType, ...]:
    types = [site.type(i) for i in range(len(site.ins))]
    shape = broadcast(site, *types)
    kinds = [t.dtype for t in types]
    made = site.attrs["formulas"].infer_results(kinds)
    return tuple(TensorType(dtype or kinds[0], shape) for dtype in made)


def _map_lower(lowering: Lowering) -> None:
    count = len(lowering.site.ins)
    outs = [lowering.y(j) for j in range(lowering.site.n_outs)]
    ins = [lowering.x(i) for i in range(count)]
    lower_formulas(lowering, lowering.site.attrs["formulas"], ins, outs)


AB = "a b"

OPS = (
    elementwise("Abs", "abs(x)", "Mul(dy, Sign(x))"),
    elementwise("Neg", "-x", "Neg(dy)"),
    elementwise("Exp", "exp(x)", "Mul(dy, y)"),
    elementwise("Log", "log(x)", "Div(dy, x)"),
    elementwise("Sqrt", "sqrt(x)", "Div(Mul(dy, 0.5), y)"),
    elementwise("Reciprocal", "1 / x", "Neg(Mul(dy, Mul(y, y)))"),
    elementwise("Relu", "where(x < 0, 0, x)", "com.microsoft.ReluGrad(dy, y)"),
    elementwise("LeakyRelu", "where(x < 0, alpha * x, x)", attrs={"alpha": 0.01}, rule=_leaky_grad),
    elementwise("Sigmoid", "sigmoid(x)", "com.microsoft.SigmoidGrad(dy, y)"),
    elementwise("Tanh", "tanh(x)", "com.microsoft.TanhGrad(dy, y)"),
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
        name="IsInf",
        infer=infer,
        fold=fold,
        expr=_isinf_expr,
        no_gradient=frozenset((0,)),
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
        "Where",
        "where(c, a, b)",
        inputs="c a b",
        rule=_where_grad,
        infer=_where_infer,
        no_gradient=(0,),
    ),
    _variadic("Sum", "add", _sum_grad),
    _variadic("Mean", "add", _mean_grad, mean=True),
    _variadic("Max", "max", _extreme_grad),
    _variadic("Min", "min", _extreme_grad),
    Op(name="Pow", infer=_pow_infer, fold=fold, expr=_pow_expr, grad=_pow_grad),
    Op(
        name="Clip",
        infer=infer,
        fold=fold,
        expr=_clip_expr,
        grad=_clip_grad,
        no_gradient=frozenset((1, 2)),
    ),
    Op(
        name="Cast",
        infer=infer,
        fold=fold,
        expr=_cast_expr,
        grad=_cast_grad,
        movement=Movement.CONVERTED,
    ),
    elementwise("ReluGrad", "where(y > 0, dy, 0)", inputs="dy y", domain=MS, gradient_of="Relu"),
    elementwise(
        "SigmoidGrad", "dy * (y * (1 - y))", inputs="dy y", domain=MS, gradient_of="Sigmoid"
    ),
    elementwise("TanhGrad", "dy * (1 - y * y)", inputs="dy y", domain=MS, gradient_of="Tanh"),
    elementwise(
        "LeakyReluGrad",
        "where(y > 0, dy, alpha * dy)",
        inputs="dy y",
        domain=MS,
        gradient_of="LeakyRelu",
        attrs={"alpha": 0.01},
    ),
    Op(
        name="Scale",
        domain=MS,
        inputs=(2, 2),
        outputs=1,
        training_only=True,
        attrs={"scale_down": 0},
        infer=_scale_infer,
        fold=fold,
        expr=_scale_expr,
    ),
    Op(
        name="DivGrad",
        domain=MS,
        inputs=(3, 3),
        outputs=2,
        infer=lambda site: (site.type(1).but(), site.type(2).but()),
        expand=_div_grad_nodes,
        becomes=f"Div Mul Neg Reshape Shape {MS}::BroadcastGradientArgs {MS}::ReduceSumTraining",
        no_gradient=frozenset(range(3)),
        gradient_of="Div",
    ),
    Op(
        name="Map",
        domain=OURS,
        internal=True,
        infer=_map_infer,
        lower=_map_lower,
        calls=MAP_KERNELS,
        storage=Storage(),
        layout=Layout.ANY_BROADCAST,
    ),
)
