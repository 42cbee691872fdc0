"""Declaring elementwise ops: a scalar formula, and the gradient as text or rule.

The fuser (graphs/passes/fuse.py) joins neighbours into one `Map`, whose formula is the
composition.  The nodes of a gradient text are a tree, so they become one map with the nodes around
them, in which equal sub-expressions are computed once: a gradient may name Sigmoid(x) as often as
it likes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import DTypeError
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.facts import Role
from engine.kernels.vocabulary.op import Grad, Kind, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import broadcast
from engine.kernels.vocabulary.terms import Formulas


def fold(site: Site) -> tuple[Array, ...]:
    """Return the output by numpy when all inputs are constant."""
    (out,) = infer(site)
    (value,) = site.formula().evaluate(site.values)
    return (np.broadcast_to(np.asarray(value), out.dims).astype(NUMPY[out.dtype]),)


def infer(site: Site) -> tuple[TensorType, ...]:
    """Return a shape rule: the inputs broadcast, the formula decides the element type."""
    formula = site.formula()
    places = sorted({*formula.list_reads(), *(i for i in range(len(site.ins)) if site.has(i))})
    types = [site.type(i) for i in places]
    (dtype,) = formula.infer_results([t.dtype if t else "" for t in site.ins])
    return (TensorType(dtype or types[0].dtype, broadcast(site, *types)),)


def one_dtype(site: Site) -> tuple[TensorType, ...]:
    """Return a shape rule: the inputs broadcast, and have one element type."""
    types = {site.type(i).dtype for i in range(len(site.ins))}
    if len(types) > 1:
        raise DTypeError(f"{site.where()}: all inputs must have one element type")
    return infer(site)


@dataclass(frozen=True, slots=True, eq=False)
class Attributed:
    """An expression over the inputs of a node, and after them its attributes `names`."""

    expr: Expr
    count: int
    names: tuple[str, ...]

    def of(self, values: Sequence[Any]) -> Expr:
        """Return the expression over the inputs, for these values of the attributes."""
        operands: list[Expr] = [("in", i) for i in range(self.count)]
        return expression.substitute(self.expr, [*operands, *(("const", v) for v in values)])

    def __call__(self, site: Site) -> Expr:
        """Return the expression at a node."""
        return self.of([site.attrs[name] for name in self.names])


def parse_attributed(text: str, inputs: str = "x") -> Attributed:
    """Parse a formula; names that are not inputs are attributes of the node."""
    names = inputs.split()
    plain = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    attributes = tuple(sorted(plain - {*names, *expression.FUNCTIONS, *NUMPY, "const", "cast"}))
    return Attributed(expression.parse(text, [*names, *attributes]), len(names), attributes)


def formula(text: str, inputs: str = "x") -> Callable[[Site], Formulas]:
    """Parse a formula as `parse_attributed` does, once for all nodes of the same attributes."""
    parsed = parse_attributed(text, inputs)

    @functools.lru_cache(maxsize=64)
    def made(values: tuple[Any, ...], texts: tuple[str, ...]) -> Formulas:
        return Formulas.of(parsed.of(values))

    def at(site: Site) -> Formulas:
        values = tuple(site.attrs[name] for name in parsed.names)
        return made(values, tuple(map(repr, values)))  # texts tell 0.0 from -0.0

    return at


def gradient(*texts: str, inputs: str = "x") -> Callable[..., tuple[str | None, ...]]:
    """Return the gradient rule from texts such as `"Mul(dy, y)"`, one an input.

    They name ONNX nodes over dy, the output y, the inputs, numbers and attributes.  Nodes of other
    domains have these before their names, as in `com.microsoft.ReluGrad(dy, y)`.
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
            case ast.Call(func=function, args=args, keywords=keywords):
                domain, _, op = ast.unparse(function).rpartition(".")
                attrs = {k.arg: grad.site.attrs[k.arg] for k in keywords if k.arg}
                parts = [emit(grad, a, dy, i) for a in args]
                return str(grad.op(op, *parts, domain=domain, **attrs))
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
    no_gradient: Sequence[int] = (),
    gradient_of: str = "",
    roles: Mapping[int, Role] | None = None,
) -> Op:
    """Declare an elementwise op: its formula, and one gradient text an input (or a rule).

    Without either no gradient flows through any input.
    """
    grad = rule or (gradient(*grads, inputs=inputs) if grads else None)
    count = len(inputs.split())
    silent = no_gradient if grad else range(count)
    return Op(
        name=name,
        domain=domain,
        inputs=(count, count),
        outputs=1,
        attrs=attrs or {},
        needs=needs or {},
        roles=roles or {},
        infer=infer,
        grad=grad,
        fold=fold,
        expr=formula(text, inputs),
        no_gradient=frozenset(silent),
        gradient_of=gradient_of,
    )
