"""Declaring elementwise ops: a scalar formula, and the gradient as text or rule.

The fuser (graphs/passes/fuse.py) joins neighbours into one `Map`, whose formula is the
composition.  The nodes of a gradient text are a tree, so they become one map with the nodes around
them, in which equal sub-expressions are computed once: a gradient may name Sigmoid(x) as often as
it likes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.element_types import NUMPY
from engine.errors import DTypeError
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.op import MS, Array, Grad, Kind, Op, Site, TensorType, broadcast

# Training ops of com.microsoft that gradient texts may name.
_MS_OPS = {
    "ReluGrad", "SigmoidGrad", "TanhGrad", "LeakyReluGrad", "GeluGrad", "QuickGeluGrad",
}  # fmt: skip


def fold(site: Site) -> tuple[Array, ...]:
    """The output by numpy when all inputs are constant."""
    (out,) = infer(site)
    value = expression.evaluate(site.formula(), site.values)
    return (np.broadcast_to(np.asarray(value), out.dims).astype(NUMPY[out.dtype]),)


def infer(site: Site) -> tuple[TensorType, ...]:
    """Shape rule: the inputs broadcast, of the formula's element type."""
    needed = {e[1] for e in expression.walk(site.formula()) if e[0] == "in"}
    places = sorted(needed | {i for i in range(len(site.ins)) if site.has(i)})
    types = [site.type(i) for i in places]
    dtype = (
        expression.dtype(site.formula(), [t.dtype if t else "" for t in site.ins]) or types[0].dtype
    )
    return (TensorType(dtype, broadcast(site, *types)),)


def one_dtype(site: Site) -> tuple[TensorType, ...]:
    """Shape rule: the inputs broadcast, all of one element type."""
    types = {site.type(i).dtype for i in range(len(site.ins))}
    if len(types) > 1:
        raise DTypeError(f"{site.where()}: all inputs must have one element type")
    return infer(site)


def formula(text: str, inputs: str = "x") -> Callable[[Site], Expr]:
    """Parse a formula; names that are no inputs are attributes of the node."""
    names = inputs.split()
    plain = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    attributes = plain - {*names, *expression.FUNCTIONS, *NUMPY, "const", "cast"}
    parsed = expression.parse(text, [*names, *sorted(attributes)])
    if not attributes:
        return lambda site: parsed

    def expr(site: Site) -> Expr:
        values: list[Expr] = [("in", i) for i in range(len(names))]
        values += [("const", site.attrs[a]) for a in sorted(attributes)]
        return expression.substitute(parsed, values)

    return expr


def gradient(*texts: str, inputs: str = "x") -> Callable[..., tuple[str | None, ...]]:
    """Gradient rule from texts such as `"Mul(dy, y)"`, one an input.

    They name ONNX nodes over dy, the output y, the inputs, numbers and attributes.
    """
    trees = [ast.parse(t, mode="eval").body for t in texts]
    names = inputs.split()

    def emit(grad: Grad, node: ast.expr, dy: str, i: int) -> str:
        match node:
            case ast.Name(id="dy"):
                return dy
            case ast.Name(id="y"):
                return grad.y(0)
            case ast.Name(id=name) if name in names:
                return grad.x(names.index(name))
            case ast.Name(id=name):
                return grad.like(float(grad.site.attrs[name]), i)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=name)):
                return grad.like(-float(grad.site.attrs[name]), i)
            case ast.Constant(value=int() | float() as value):
                return grad.like(float(value), i)
            case ast.Call(func=ast.Name(id=op), args=args, keywords=keywords):
                attrs = {k.arg: grad.site.attrs[k.arg] for k in keywords if k.arg}
                parts = [emit(grad, a, dy, i) for a in args]
                return str(grad.op(op, *parts, domain=MS if op in _MS_OPS else "", **attrs))
        raise ValueError(ast.unparse(node))

    def rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
        out: list[str | None] = []
        for i, tree in enumerate(trees):
            wanted = grad.wants(i)
            out.append(grad.reduce_to(emit(grad, tree, dy, i), i) if wanted else None)
        return tuple(out)

    return rule


def elementwise(
    name: str,
    text: str,
    *grads: str,
    inputs: str = "x",
    domain: str = "",
    attrs: Mapping[str, Any] | None = None,
    needs: Mapping[str, Kind] | None = None,
    infer: Callable[[Site], tuple[TensorType, ...]] = one_dtype,
    rule: Callable[..., tuple[str | None, ...]] | None = None,
    stop: Sequence[int] = (),
) -> Op:
    """Declare an elementwise op: its formula, and one gradient text an input (or a rule).

    Without either no gradient flows through any input.
    """
    grad = rule or (gradient(*grads, inputs=inputs) if grads else None)
    silent = stop if grad else range(len(inputs.split()))
    return Op(
        name=name,
        domain=domain,
        attrs=attrs or {},
        needs=needs or {},
        infer=infer,
        grad=grad,
        fold=fold,
        expr=formula(text, inputs),
        stop=frozenset(silent),
    )
