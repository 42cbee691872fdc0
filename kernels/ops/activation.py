"""Activations: elementwise ops between layers, and onnxruntime's training ops for some of them.

Forward   y = f(x); the formula beside the name.  With s = sigmoid, Mish's tanh(log(1 + exp x)) is
          s (2 - s) / (1 + (1 - s)^2), and the tanh form of Gelu x s(1.596 x + 0.0714 x^3)
Backward  reads y where its sign or value gives f'(x), otherwise x; at a kink as PyTorch
Error     as of the functions in vector_ir/elementary.py; finite where |x| <= 1e12 in f32
Source    Hendrycks, Gimpel, "Gaussian error linear units", arXiv 1606.08415; Misra,
          "Mish", arXiv 1908.08681; Barron, "Continuously differentiable ELUs", arXiv 1704.07483
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from engine.base.element_types import FLOATS
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.expression import Expr, substitute
from engine.kernels.vocabulary.facts import Role, Samples
from engine.kernels.vocabulary.formula import (
    elementwise,
    fold,
    formula,
    gradient,
    infer,
    parse_attributed,
)
from engine.kernels.vocabulary.kernel import Body, kernel, share, udiv
from engine.kernels.vocabulary.op import MS, Grad, Lowering, Op, Site, TensorType, title_op
from engine.kernels.vocabulary.shape_rules import fits, normalise_axis
from engine.kernels.vocabulary.terms import Formulas

S = "sigmoid(x)"
TANH_SCALE = 2 * math.sqrt(2 / math.pi)  # tanh's argument twice: 0.5 (1 + tanh u) = sigmoid(2 u)
ROOT_HALF, DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)

GELU = f"x * (0.5 + 0.5 * erf(x * {ROOT_HALF}))"
# Forward: y = x P(x) with the normal distribution's P; so y' = P(x) + x p(x).
GELU_SLOPE = f"0.5 + 0.5 * erf(x * {ROOT_HALF}) + x * exp(x * x * -0.5) * {DENSITY}"
_GATE = f"sigmoid(x * ({TANH_SCALE} + {TANH_SCALE * 0.044715} * (x * x)))"
FAST_GELU = f"x * {_GATE}"
# Forward: y = x s(u); so y' = s + x s (1 - s) u'.
FAST_GELU_SLOPE = (
    f"{_GATE} + x * ({_GATE} * (1 - {_GATE}))"
    f" * ({TANH_SCALE} + {TANH_SCALE * 3 * 0.044715} * (x * x))"
)
_SWISH = "sigmoid(alpha * x)"
# With s = sigmoid(x): tanh(log(1 + e^x)) without the logarithm, which would overflow.
MISH = f"x * ({S} * (2 - {S}) / (1 + (1 - {S}) * (1 - {S})))"
_TANH = "Tanh(Softplus(x))"
MISH_GRAD = f"Mul(dy, Add({_TANH}, Mul(Mul(x, Sigmoid(x)), Sub(1, Mul({_TANH}, {_TANH})))))"

Rule = Callable[..., tuple[str | None, ...]]


# --- gradients that depend on attributes


def _either(is_first: Callable[[Any], bool], first: str, second: str) -> Rule:
    """Return a gradient rule: the first text, which reads y, if the attributes allow it."""
    rules = gradient(first), gradient(second)
    return lambda g, dy: rules[0 if is_first(g.site.attrs) else 1](g, dy)


# y has the sign of x, and below 0 the slope is y + gamma alpha
# Forward: y = alpha (exp x - 1) below 0; so the slope alpha exp x is y + alpha, without an exp.  A
# negative alpha breaks the sign rule, and x is read instead.
_elu = _either(
    lambda a: a["alpha"] >= 0,
    "Where(Greater(y, 0), dy, Mul(dy, Add(y, alpha)))",
    "Where(Greater(x, 0), dy, Mul(dy, Mul(Exp(x), alpha)))",
)
_selu = _either(
    lambda a: a["alpha"] >= 0 and a["gamma"] > 0,
    "Where(Greater(y, 0), Mul(dy, gamma), Mul(dy, Add(y, Mul(gamma, alpha))))",
    "Mul(Mul(dy, gamma), Where(Greater(x, 0), 1, Mul(Exp(x), alpha)))",
)
_thresholded = _either(
    lambda a: a["alpha"] >= 0,
    "Where(Greater(y, alpha), dy, 0)",
    "Where(Greater(x, alpha), dy, 0)",
)


# --- Shrink, PRelu, Gelu and their like


_SHRINK = parse_attributed("where(x < -lambd, x + bias, where(x > lambd, x - bias, 0))")


def _shrink_expr(site: Site) -> Expr:
    # The attributes are floats: integers are compared and moved as f64.
    expr = _SHRINK(site)
    if (kind := site.type(0).dtype) in FLOATS:
        return expr
    return ("cast", kind, substitute(expr, [("cast", "f64", ("in", 0))]))


def _one_way(site: Site) -> tuple[TensorType, ...]:
    """Shape rule: the second input broadcasts to the first."""
    (out,) = infer(site)
    x = site.type(0)
    if site.has(1) and not fits(site.type(1), x.shape):
        site.wrong(f"{site.type(1)} does not broadcast to {x}")
    return (out.but(x.shape),)


_GELUS = {"none": formula(GELU), "tanh": formula(FAST_GELU)}


def _gelu_expr(site: Site) -> Formulas:
    approximate = site.attrs["approximate"]
    if approximate not in _GELUS:
        site.fail(f"approximate={approximate!r}", ", ".join(_GELUS))
    return _GELUS[approximate](site)


def _gelu_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY f'(X)"""
    # onnxruntime-training's gradient ops, which read X: Y does not tell it.
    op = "FastGeluGrad" if grad.site.attrs["approximate"] == "tanh" else "GeluGrad"
    return (grad.op(op, dy, grad.x(0), domain=MS),)


def _biased(text: str, x: int = 0) -> Callable[[Site], Expr]:
    """Return a formula with input x + input x + 1 for x; the bias may be absent."""
    parsed = parse_attributed(text, "dy x" if x else "x")

    def expr(site: Site) -> Expr:
        total: Expr = ("add", ("in", x), ("in", x + 1)) if site.has(x + 1) else ("in", x)
        return substitute(parsed(site), [("in", 0), total] if x else [total])

    return expr


def _biased_gelu(name: str, least: int, text: str, plain: str, biased: str) -> Op:
    """f(X + B), of `least` inputs or more."""

    def grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
        """dX = dY f'(X + B), dB its sum."""
        # Without a bias the plain gradient op, which onnxruntime has too.
        if not grad.site.has(1):
            return (grad.op(plain, dy, grad.x(0), domain=MS),)
        dx = grad.op(biased, dy, grad.x(0), grad.x(1), domain=MS)
        return (dx, grad.reduce_to(dx, 1) if grad.wants(1) else None)

    return Op(
        name=name,
        roles={1: Role.BIAS},
        domain=MS,
        inputs=(least, 2),
        outputs=1,
        infer=_one_way,
        fold=fold,
        expr=_biased(text),
        grad=grad,
    )


def _slope(of: str, text: str, **attrs: float) -> Op:
    """Return a training op: dX = dY f'(X), `text` being f'(x)."""
    return elementwise(
        f"{of}Grad",
        f"dy * ({text})",
        inputs="dy x",
        domain=MS,
        attrs=attrs,
        gradient_of=title_op(MS, of),
    )


def _biased_slope(name: str, of: str, text: str) -> Op:
    return Op(
        name=name,
        domain=MS,
        inputs=(3, 3),
        outputs=1,
        infer=infer,
        fold=fold,
        expr=_biased(f"dy * ({text})", 1),
        no_gradient=frozenset((0, 1, 2)),
        gradient_of=title_op(MS, of),
    )


# --- Hardmax


@kernel(
    """
    x: T[outer, n, inner]   y: out T[outer, n, inner] may alias x
    outer: i64   n: i64 where n >= 1   inner: i64
    """
)
def hardmax(target: Target, T: str) -> Body:
    """y[a, c, j] = 1 for the first c of the largest x[a, c, j], 0 for all others."""

    def body(x, y, outer, n, inner, tid, nthreads):
        first, last = share(outer * inner, tid, nthreads)
        for i in range(first, last):
            a = udiv(i, inner)
            at = a * n * inner + i - a * inner
            best = at
            for c in range(1, n):
                # Strictly larger: the first of equals stays.
                if x[at + c * inner] > x[best]:
                    best = at + c * inner
            for c in range(n):
                y[at + c * inner] = 0
            y[best] = 1

    return body


def _hardmax_infer(site: Site) -> tuple[TensorType, ...]:
    _read_hardmax_axis(site)
    return (site.real(0).but(),)


def _read_hardmax_axis(site: Site) -> int:
    """Return the axis; before opset 13 it and all after it were one."""
    default = 1 if site.opset < 13 else -1
    rank = site.type(0).rank
    axis = site.attrs.get("axis", default)
    return rank if site.opset < 13 and axis == rank else normalise_axis(site, axis, rank)


def _hardmax_lower(lowering: Lowering) -> None:
    x, y, axis = lowering.x(0), lowering.y(0), _read_hardmax_axis(lowering.site)
    dims = x.type.dims
    # Before opset 13 all axes from `axis` on count as one.
    inner = math.prod(dims[axis + 1 :]) if lowering.site.opset >= 13 else 1
    n = dims[axis] if lowering.site.opset >= 13 else math.prod(dims[axis:])
    if not x.type.size:
        return
    outer = math.prod(dims[:axis])
    lowering.call(hardmax(x.type.dtype), x=x, y=y, outer=outer, n=n, inner=inner)


OPS = (
    elementwise("Elu", "where(x < 0, alpha * expm1(x), x)", attrs={"alpha": 1.0}, rule=_elu),
    elementwise(
        "Celu",
        "where(x < 0, alpha * expm1(x / alpha), x)",
        "Where(Greater(y, 0), dy, Mul(dy, Add(Div(y, alpha), 1)))",
        attrs={"alpha": 1.0},
    ),
    elementwise(
        "Selu",
        "gamma * where(x < 0, alpha * expm1(x), x)",
        rule=_selu,
        attrs={"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    ),
    elementwise("Softplus", "softplus(x)", "Mul(dy, Sigmoid(x))"),
    elementwise("Softsign", "x / (1 + abs(x))", "Mul(dy, Mul(Sub(1, Abs(y)), Sub(1, Abs(y))))"),
    elementwise("Mish", MISH, MISH_GRAD),
    elementwise(
        "HardSigmoid",
        "min(1, max(0, alpha * x + beta))",
        "Where(And(Greater(y, 0), Less(y, 1)), Mul(dy, alpha), 0)",
        attrs={"alpha": 0.2, "beta": 0.5},
    ),
    elementwise(
        "HardSwish",
        "x * min(1, max(0, x / 6 + 0.5))",
        "Mul(dy, Where(Less(Abs(x), 3), Add(Div(x, 3), 0.5), Where(Greater(x, 0), 1, 0)))",
    ),
    elementwise(
        "PRelu",
        "where(x < 0, slope * x, x)",
        "Where(Greater(x, 0), dy, Mul(dy, slope))",
        "Where(Greater(x, 0), 0, Mul(dy, x))",
        inputs="x slope",
        infer=_one_way,
        roles={1: Role.WEIGHT},
    ),
    elementwise(
        "ThresholdedRelu", "where(x > alpha, x, 0)", attrs={"alpha": 1.0}, rule=_thresholded
    ),
    Op(
        name="Shrink",
        attrs={"lambd": 0.5, "bias": 0.0},
        infer=infer,
        fold=fold,
        expr=_shrink_expr,
        grad=gradient("Where(Or(Less(x, -lambd), Greater(x, lambd)), dy, 0)"),
    ),
    elementwise(
        "Swish",
        f"x * {_SWISH}",
        "com.microsoft.QuickGeluGrad(dy, x, alpha=alpha)",
        attrs={"alpha": 1.0},
    ),
    Op(
        name="Gelu",
        attrs={"approximate": "none"},
        infer=infer,
        fold=fold,
        expr=_gelu_expr,
        grad=_gelu_grad,
    ),
    elementwise("Gelu", GELU, "com.microsoft.GeluGrad(dy, x)", domain=MS),
    elementwise(
        "QuickGelu",
        f"x * {_SWISH}",
        "com.microsoft.QuickGeluGrad(dy, x, alpha=alpha)",
        domain=MS,
        attrs={"alpha": 1.702},
    ),
    _biased_gelu("FastGelu", 1, FAST_GELU, "FastGeluGrad", "BiasFastGeluGrad_dX"),
    _biased_gelu("BiasGelu", 2, GELU, "GeluGrad", "BiasGeluGrad_dX"),
    _slope("Gelu", GELU_SLOPE),
    _slope("FastGelu", FAST_GELU_SLOPE),
    _slope("QuickGelu", f"{_SWISH} + alpha * x * ({_SWISH} * (1 - {_SWISH}))", alpha=1.702),
    _biased_slope("BiasGeluGrad_dX", "BiasGelu", GELU_SLOPE),
    _biased_slope("BiasFastGeluGrad_dX", "FastGelu", FAST_GELU_SLOPE),
    Op(
        name="Hardmax",
        infer=_hardmax_infer,
        lower=_hardmax_lower,
        calls=(hardmax,),
        no_gradient=frozenset((0,)),
        samples=Samples.AXIS_APART,
    ),
)
KERNELS = (hardmax,)
