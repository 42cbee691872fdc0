"""Fusion: neighbours that one kernel computes become one node."""

from __future__ import annotations

from collections.abc import Callable

from engine.graphs.ir import Graph, Node
from engine.graphs.sites import site_of
from engine.kernels import _expr, ops
from engine.kernels._expr import Expr
from engine.kernels._map import constant_inputs
from engine.kernels._op import MS, OURS, Array, TensorType

MAX_OPERANDS = 8  # of one fused map: more pointers than this spill registers

_EPILOGUES = {"Gemm": "FusedGemm", "Conv": "FusedConv"}

Constants = dict[str, Array]
Types = dict[str, TensorType]


def fuse_epilogues(graph: Graph) -> Graph:
    """A Relu behind a Gemm or Conv moves into its last store.

    Before   a = Conv(x, w, b); y = Relu(a)          nothing else reads a
    After    y = FusedConv(x, w, b) activation="Relu"
    """
    makers, readers = graph.producers(), graph.consumers()
    gone = set()
    for node in graph.nodes:
        if node.op != "Relu" or node.domain:
            continue
        source = node.inputs[0]
        maker = makers.get(source)
        if maker is None or maker.domain or maker.op not in _EPILOGUES:
            continue
        if len(readers[source]) > 1 or source in graph.outputs:
            continue
        maker.op, maker.domain = _EPILOGUES[maker.op], MS
        maker.attrs = {**maker.attrs, "activation": "Relu"}
        maker.outputs = node.outputs
        makers[node.outputs[0]] = maker
        gone.add(id(node))
    graph.nodes = [n for n in graph.nodes if id(n) not in gone]
    return graph


def fuse_maps(graph: Graph, types: Types, constants: Constants) -> Graph:
    """Elementwise nodes become `Map`s, and a chain of them of one shape becomes one.

    Before   a = Sub(x, t); b = Mul(a, a); c = Div(b, n)      n a constant scalar
    After    c = engine::Map(x, t) formulas=("div(mul(sub(i0,i1),sub(i0,i1)),8.0)",)
    """
    readers = graph.consumers()
    outputs = set(graph.outputs)
    maps: dict[str, Node] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        formula_of = _formula_of(node)
        if formula_of is None:
            continue
        site = site_of(graph, node, types, constants)
        formula, kept = constant_inputs(site, formula_of(site))
        inputs = [node.inputs[i] for i in kept]
        formula, inputs = _normal(formula, inputs)
        (out,) = node.outputs
        for name in list(inputs):
            source = maps.get(name)
            if source is None or len(readers[name]) > 1 or name in outputs:
                continue
            if types[name].shape != types[out].shape:
                continue
            joined, operands = _inline(formula, inputs, name, source)
            if len(operands) <= MAX_OPERANDS:
                formula, inputs = joined, operands
                gone.add(id(source))
        node.op, node.domain = "Map", OURS
        node.inputs, node.attrs = tuple(inputs), {"formulas": (_expr.text(formula),)}
        maps[out] = node
    graph.nodes = [n for n in graph.nodes if id(n) not in gone]
    return graph


def _formula_of(node: Node) -> Callable[..., Expr] | None:
    op = ops().get((node.domain, node.op))
    return op.expr if op is not None and len([o for o in node.outputs if o]) == 1 else None


def _normal(formula: Expr, inputs: list[str]) -> tuple[Expr, list[str]]:
    """Number the operands by first use; an operand that is not read, or twice the same, goes."""
    order: list[str] = []
    for e in _expr.walk(formula):
        if e[0] == "in" and inputs[e[1]] not in order:
            order.append(inputs[e[1]])
    places: list[Expr] = [
        ("in", order.index(name)) if name in order else ("const", 0) for name in inputs
    ]
    return _expr.substitute(formula, places), order


def _inline(formula: Expr, inputs: list[str], name: str, source: Node) -> tuple[Expr, list[str]]:
    """Put the formula of map `source`, which makes `name`, into a formula that reads it."""
    inner = _expr.parse(source.attrs["formulas"][0])
    operands = [*inputs, *source.inputs]
    shifted = _expr.substitute(inner, [("in", len(inputs) + i) for i in range(len(source.inputs))])
    places: list[Expr] = [shifted if n == name else ("in", i) for i, n in enumerate(inputs)]
    return _normal(_expr.substitute(formula, places), operands)
