"""Patterns of nodes into which exporters decompose an op; the op replaces them.

So the op has one gradient and one kernel, whichever exporter wrote the model.  The ops are the
results of onnxruntime's own fusions, in the same domains, so it can load the artifacts.  Logarithms
of functions that round to 0 or overflow become ops that do not, and roots of sums of squares become
norms, whose gradient is finite at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.base.element_types import NUMPY, ONNX_CODE
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes import grouped
from engine.graphs.passes.rewrite import Match, Rule, is_same, list_added, rewrite
from engine.kernels.vocabulary.op import MS, Dim

# --- normalisation over the last axes


def _find_tail(m: Match, rule: str, *reductions: str) -> int | None:
    """Return the first axis of reductions that all extend to the last axis; None if their axes
    differ.
    """
    rank = m.get_type("x").rank
    kept = {name: m.get_node(name).attrs.get("keepdims", 1) for name in reductions}
    spans = {tuple(m.list_axes(name)) if keep else () for name, keep in kept.items()}
    (axes, *others) = spans
    if others or not axes or list(axes) != list(range(axes[0], rank)):
        m.refuse(rule, f"means over {sorted(spans)} of {m.get_type('x')}, not over the last axes")
        return None
    return axes[0]


def _has_affine_shape(m: Match, rule: str, name: str, axis: int) -> bool:
    """Return whether a factor or offset has the shape of the normalised axes."""
    want, t = m.get_type("x").shape[axis:], m.get_type(name)
    if t.shape == want and all(isinstance(d, int) for d in want):
        return True
    return m.refuse(rule, f"{name} is {t}; expected the shape {list(want)}")


def _match_layer_norm(m: Match) -> bool:
    """Before   d = x - mean(x); y = d / sqrt(mean(d^2) + eps) * scale + bias
    After    y = LayerNormalization(x, scale, bias)
    """
    axis, eps = _find_tail(m, "LayerNormalization", "mean", "variance"), m.get_scalar("eps")
    if axis is None or eps is None:
        return False
    parts = [n for n in ("scale", "bias") if n in m.values]
    if not all(_has_affine_shape(m, "LayerNormalization", n, axis) for n in parts):
        return False
    m.add_op(
        "LayerNormalization",
        m.values["x"],
        *(m.values[n] for n in parts),
        axis=axis - m.get_type("x").rank,
        epsilon=eps,
    )
    return True


def _match_rms_norm(m: Match) -> bool:
    """Before   y = x / sqrt(mean(x^2) + eps) * scale
    After    y = SimplifiedLayerNormalization(x, scale)
    """
    rule = "SimplifiedLayerNormalization"
    axis, eps = _find_tail(m, rule, "square"), m.get_scalar("eps")
    if axis is None or eps is None or not _has_affine_shape(m, rule, "scale", axis):
        return False
    m.add_op(rule, m.values["x"], m.values["scale"], axis=axis - m.get_type("x").rank, epsilon=eps)
    return True


_DEVIATION = "(d := Sub(x, mean := ReduceMean(x)))"
_NORMALS = tuple(
    form.format(d=_DEVIATION, v=f"(variance := ReduceMean({square}))")
    for square in ("Pow(d, 2)", "Mul(d, d)")
    for form in (
        "Div({d}, Sqrt(Add({v}, eps)))",
        "Mul({d}, Reciprocal(Sqrt(Add({v}, eps))))",
        "Mul({d}, Div(1, Sqrt(Add({v}, eps))))",
    )
)
_ROOTS = tuple(
    form.format(v=f"(square := ReduceMean({square}))")
    for square in ("Pow(x, 2)", "Mul(x, x)")
    for form in (
        "Div(x, Sqrt(Add({v}, eps)))",
        "Mul(x, Reciprocal(Sqrt(Add({v}, eps))))",
        "Mul(x, Div(1, Sqrt(Add({v}, eps))))",
    )
)

# --- activations


def _match_quick_gelu(m: Match) -> bool:
    """Before   y = x * sigmoid(alpha * x)            alpha = 1: SiLU
    After    y = QuickGelu(x)
    """
    alpha = m.get_scalar("alpha") if "alpha" in m.values else 1.0
    if alpha is None:
        return m.refuse("QuickGelu", "the factor is not a constant")
    m.add_op("QuickGelu", m.values["x"], domain=MS, alpha=alpha)
    return True


def _match_hard_swish(m: Match) -> bool:
    """Before   y = x * clip(x + 3, 0, 6) / 6
    After    y = HardSwish(x)
    """
    if m.graph.opsets.get("", 1) < 14:
        return m.refuse("HardSwish", "the model's opset is below 14")
    if "h" in m.values:
        attrs = m.get_node("h").attrs
        if not (is_same(attrs.get("alpha", 0.2), 1 / 6) and is_same(attrs.get("beta", 0.5), 0.5)):
            return m.refuse("HardSwish", f"HardSigmoid with {attrs}")
    m.add_op("HardSwish", m.values["x"])
    return True


_ERF = ("Add(Erf(Div(x, 1.4142135)), 1)", "Add(Erf(Mul(x, 0.7071068)), 1)")
_ROOT = math.sqrt(2 / math.pi)
_TANH = (
    f"Add(Tanh(Mul(Add(x, Mul(Pow(x, 3), 0.044715)), {_ROOT})), 1)",
    f"Add(Tanh(Mul(Add(x, Mul(Mul(x, Mul(x, x)), 0.044715)), {_ROOT})), 1)",
    f"Add(Tanh(Mul(Mul(x, {_ROOT}), Add(1, Mul(Mul(x, x), 0.044715)))), 1)",
)


def _list_halved(inner: str) -> tuple[str, ...]:
    """Return the ways to write 0.5 * x * inner."""
    return (
        f"Mul(Mul(x, {inner}), 0.5)",
        f"Mul(Mul(x, 0.5), {inner})",
        f"Mul(x, Mul({inner}, 0.5))",
        f"Div(Mul(x, {inner}), 2)",
        f"Mul(Div(x, 2), {inner})",
    )


# --- logarithms of values that round to 0 or overflow


def _log_sigmoid(m: Match) -> bool:
    """Before   y = log(sigmoid(x))                     -inf where sigmoid(x) rounds to 0
    After    y = -softplus(-x)
    """
    m.add_op("Neg", m.add_op("Softplus", m.add_op("Neg", m.values["x"])))
    return True


def _log_sigmoid_of_negative(m: Match) -> bool:
    """Before   y = log(1 - sigmoid(x))                 -inf where sigmoid(x) rounds to 1
    After    y = -softplus(x)
    """
    m.add_op("Neg", m.add_op("Softplus", m.values["x"]))
    return True


def _log_softmax(m: Match) -> bool:
    """Before   y = log(softmax(x))                     -inf where softmax(x) rounds to 0
    After    y = LogSoftmax(x)
    """
    m.add_op("LogSoftmax", m.values["x"], **m.get_node("p").attrs)
    return True


def _log_sum_exp(m: Match) -> bool:
    """Before   y = log(sum(exp(x)))                    inf where exp(x) overflows
    After    y = ReduceLogSumExp(x), squeezed if the sum has dropped its axes
    """
    node = m.get_node("s")
    axes = m.found.constants[node.inputs[1]].reshape(-1) if len(node.inputs) > 1 else None
    if axes is None or not axes.size:
        return m.refuse("ReduceLogSumExp", "the sum is over all axes, or none")
    if m.graph.opsets.get("", 1) < 18:
        y = m.add_op("ReduceLogSumExp", m.values["x"], axes=[int(a) for a in axes], keepdims=1)
    else:
        y = m.add_op("ReduceLogSumExp", m.values["x"], node.inputs[1], keepdims=1)
    if not node.attrs.get("keepdims", 1):
        m.add_op("Squeeze", y, node.inputs[1])
    return True


def _match_root_before_view(m: Match) -> bool:
    """Before   y = sqrt(Expand(x, shape))              so that a root directly follows its sum
    After    y = Expand(sqrt(x), shape)
    """
    view = m.get_node("view")
    m.add_op(view.op, m.add_op("Sqrt", m.values["x"]), *view.inputs[1:], **view.attrs)
    return True


def _add_norm(m: Match, total: str, name: str) -> tuple[str, list[Dim]] | None:
    """Add the norm of a value with the same axes as `total`, the name of its sum or mean of
    squares.

    Returns the norm and the sizes of the axes, or None if there are no axes.
    """
    node, t = m.get_node(total), m.get_type(name)
    axes = m.list_axes(total)
    if not axes:
        return None
    keepdims = node.attrs.get("keepdims", 1)
    if m.graph.opsets.get("", 1) < 18:
        y = m.add_op("ReduceL2", m.values[name], axes=axes, keepdims=keepdims)
    else:
        y = m.add_op("ReduceL2", m.values[name], m.add_constant(np.array(axes)), keepdims=keepdims)
    return y, [t.shape[a] for a in axes]


def _match_root_of_squares(m: Match) -> bool:
    """Before   y = sqrt(sum(x^2) n / m)                its gradient is 0 / 0 where all x are 0
    After    y = ReduceL2(x) sqrt(n / m)

    n, m: numbers, 1 if the pattern has none.  For a mean, the number of its elements is a further
        factor of m.  Norms and deviations are written this way; PyTorch sets their gradient to 0
        there.
    """
    if any(set(m.get_type(name).shape) - {1} for name in "nm" if name in m.values):
        return m.refuse("ReduceL2", "the sum is scaled by more than one number")
    norm = _add_norm(m, "s", "x")
    if norm is None:
        return m.refuse("ReduceL2", "the sum is over no axes")
    y, dims = norm
    below = [m.values["m"]] if "m" in m.values else []
    if m.get_node("s").op == "ReduceMean":
        below.append(_count(m, y, dims))
    if below:
        scale = m.values.get("n") or m.add_constant(np.ones((), NUMPY[m.get_type("x").dtype]))
        for factor in below:
            scale = m.add_op("Div", scale, factor)
        m.add_op("Mul", y, m.add_op("Sqrt", scale))
    return True


def _match_root_of_two_sums(m: Match) -> bool:
    """Before   y = sqrt(sum(x^2) sum(z^2))             as in cosine similarities
    After    y = ReduceL2(x) ReduceL2(z)
    """
    norms = _add_norm(m, "s", "x"), _add_norm(m, "t", "z")
    if norms[0] is None or norms[1] is None:
        return m.refuse("ReduceL2", "a sum is over no axes")
    m.add_op("Mul", norms[0][0], norms[1][0])
    return True


def _count(m: Match, y: str, dims: Sequence[Dim]) -> str:
    """Return the number of elements of x, whose axes have these sizes, for each element of y."""
    dtype = m.get_type("x").dtype
    if all(isinstance(d, int) for d in dims):
        return m.add_constant(np.array(math.prod(map(int, dims)), NUMPY[dtype]))
    sizes = [m.add_op("Cast", m.add_op("Size", v), to=ONNX_CODE[dtype]) for v in (m.values["x"], y)]
    return m.add_op("Div", *sizes)


_SQUARES, _HALF_POWERS = ("Mul(x, x)", "Pow(x, 2)"), ("Sqrt({})", "Pow({}, 0.5)")
_SIGMOIDS = (
    "Sigmoid(x)",
    "Div(1, Add(Exp(Neg(x)), 1))",
    "Reciprocal(Add(Exp(Neg(x)), 1))",
)

RULES = (
    *(
        Rule("LayerNormalization", f"Add(Mul({n}, scale), bias)", _match_layer_norm)
        for n in _NORMALS
    ),
    *(Rule("LayerNormalization", f"Mul({n}, scale)", _match_layer_norm) for n in _NORMALS),
    *(Rule("SimplifiedLayerNormalization", f"Mul({n}, scale)", _match_rms_norm) for n in _ROOTS),
    *(Rule(f"{MS}::Gelu", p) for inner in _ERF for p in _list_halved(inner)),
    *(Rule(f"{MS}::FastGelu", p) for inner in _TANH for p in _list_halved(inner)),
    Rule("HardSwish", "Mul(x, h := HardSigmoid(x))", _match_hard_swish),
    Rule("HardSwish", "Mul(x, Div(Clip(Add(x, 3), 0, 6), 6))", _match_hard_swish),
    Rule("HardSwish", "Div(Mul(x, Clip(Add(x, 3), 0, 6)), 6)", _match_hard_swish),
    Rule(f"{MS}::QuickGelu", "Mul(x, Sigmoid(x))", _match_quick_gelu),
    Rule(f"{MS}::QuickGelu", "Mul(x, Sigmoid(Mul(x, alpha)))", _match_quick_gelu),
    *(Rule("Neg Softplus", f"Log({s})", _log_sigmoid, shares=True) for s in _SIGMOIDS),
    *(
        Rule("Neg Softplus", f"Log(Sub(1, {s}))", _log_sigmoid_of_negative, shares=True)
        for s in _SIGMOIDS
    ),
    Rule("LogSoftmax", "Log(p := Softmax(x))", _log_softmax, shares=True),
    Rule("Softplus", "Log(Add(Exp(x), 1))", shares=True),
    Rule("ReduceLogSumExp Squeeze", "Log(s := ReduceSum(Exp(x)))", _log_sum_exp, shares=True),
    *(
        Rule(f"{view} Sqrt", f"Sqrt(view := {view}(x, {to}))", _match_root_before_view, shares=True)
        for view, to in (("Expand", "shape"), ("Reshape", "shape"), ("Unsqueeze", "front"))
    ),
    *(
        Rule(
            f"ReduceL2{more}", root.format(scaled.format(sum_)), _match_root_of_squares, shares=True
        )
        for root in _HALF_POWERS
        for square in _SQUARES
        for sum_, scaled, more in (
            (f"s := ReduceSum({square})", "{}", ""),
            (f"s := ReduceSum({square})", "Div({}, m)", " Div Mul Sqrt"),
            (f"s := ReduceMean({square})", "{}", " Cast Div Mul Size Sqrt"),
            (f"s := ReduceMean({square})", "Div(Mul({}, n), m)", " Cast Div Mul Size Sqrt"),
        )
    ),
    *(
        Rule("ReduceL2", r.format("s := ReduceSumSquare(x)"), _match_root_of_squares, shares=True)
        for r in _HALF_POWERS
    ),
    *(
        Rule(
            "ReduceL2 Mul",
            f"Sqrt(Mul(s := ReduceSum({square}), t := ReduceSum({square.replace('x', 'z')})))",
            _match_root_of_two_sums,
            shares=True,
        )
        for square in _SQUARES
    ),
)
MAY_ADD = list_added((*RULES, *grouped.RULES))


def fuse_patterns(graph: Graph, found: Inferred) -> bool:
    """Replace nodes that match a rule of this file or of grouped.py; return whether there were any.

    If so, the types of the graph must be inferred again.  Each rule shows what it replaces.

    Before   s = Sigmoid(x); y = Mul(x, s)
    After    y = com.microsoft::QuickGelu(x) alpha=1.0
    """
    return rewrite(graph, found, (*RULES, *grouped.RULES))
