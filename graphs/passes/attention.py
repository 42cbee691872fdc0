"""Fusion of attention: its products, its softmax and the nodes between them become one op.

Exporters write attention as two products with a softmax between them, and gradient rules write its
gradient as four more products.  This pass recognises both in the planner's graph, whatever wrote
them, and replaces them together by ops whose kernels never hold the whole matrix of scores.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.attention_match import LAYOUTS, AttentionMatch, AttentionParts
from engine.graphs.passes.attention_scores import Refused
from engine.graphs.passes.attention_values import ORDERS, MatrixProduct, Values
from engine.graphs.passes.may_add import add_by_table
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.op import MS, OURS, Dim
from engine.kernels.vocabulary.sizes import make_array
from engine.system.config import switch

_OPS = f"{OURS}::Attention {OURS}::AttentionGrad"
MAY_ADD = add_by_table(
    {f"Softmax {op}": f"{_OPS} Add Reshape" for op in ("MatMul", f"{MS}::FusedMatMul")}
)


def fuse_attention(graph: Graph, found: Inferred) -> bool:
    """Replace every attention by one op, in place; return whether there was any.

    If so, the types of the graph must be inferred again.  Training graphs have the gradient too,
    which is replaced with it.  An attention stays as it is if other nodes read its probabilities,
    or if a part of its gradient is not recognised; EDGEGRAD_DEBUG prints why.

    Before   s = MatMul(Mul(q, c), kT); p = Softmax(Add(s, mask)); y = MatMul(p, v)
             dp = FusedMatMul(dy, v) transB=1; dv = FusedMatMul(p, dy) transA=1
             ds = SoftmaxGrad_13(dp, p); dq = ...; dk = ...
    After    y, lse = engine::Attention(q, k, v, mask) scale=c
             dq, dk, dv = engine::AttentionGrad(q, k, v, mask, y, lse, dy) scale=c
    """
    if not any(n.op == "Softmax" and not n.domain for n in graph.nodes):
        return False
    values, names = Values(graph, found), Names(graph)
    made: dict[Node, list[Node]] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        if node.op != "Softmax" or node.domain:
            continue
        try:
            match = AttentionMatch(graph, values, node).run()
            new = _Writer(graph, values, names, match).write()
        except Refused as why:
            if switch("DEBUG") in ("1", "2"):
                print(f"not fused to Attention: Softmax {node.name!r}: {why}", file=sys.stderr)
            continue
        made |= new
        gone |= match.inner
    if not made:
        return False
    graph.nodes = [m for n in graph.nodes for m in (*made.get(n, ()), *(() if n in gone else (n,)))]
    prune(graph)
    return True


class _Writer:
    """Writer of the nodes that replace an attention."""

    def __init__(self, graph: Graph, values: Values, names: Names, found: AttentionParts) -> None:
        self.graph, self.values, self.names, self.found = graph, values, names, found
        self.title = names.take_fresh(f"{found.softmax.name or found.softmax.outputs[0]}/Attention")
        self.nodes: list[Node] = []

    def write(self) -> dict[Node, list[Node]]:
        """Return the new nodes, by the node whose place they take."""
        match, scores = self.found, self.found.scores
        attrs: dict[str, Any] = {"scale": scores.scale}
        for order, attribute in zip(ORDERS[1:], ("by_rows", "rows_first"), strict=True):
            placed = {**match.operands, **match.results}
            names = [n for n, o in placed.items() if o.order == order]
            if names:
                attrs[attribute] = " ".join(sorted(names))
        if scores.cap:
            attrs["cap"] = scores.cap
        if scores.mask:
            attrs |= {"fill": scores.fill, "keep": scores.keep}
        if match.guard:
            attrs["guard"] = match.guard
        if scores.low is not None:
            attrs["low"] = scores.low
        if scores.high is not None:
            attrs["high"] = scores.high
        if match.drop is not None:
            attrs |= {"ratio": match.ratio, "draw": match.drop.name}
            if "seed" in match.drop.attrs:
                attrs["seed"] = match.drop.attrs["seed"]
        ins = [self._write_operand(n) for n in ("q", "k", "v")]
        ins += [self._sum([self._make_four(b) for b in scores.biases])]
        ins += [self._make_four(scores.mask) if scores.mask else ""]
        y = match.results["y"]
        whole = y.name if y.is_whole else self.names.take_fresh(f"{self.title}_y")
        lse = self.names.take_fresh(f"{self.title}_lse") if match.backward else ""
        trimmed = list(ins)
        while not trimmed[-1]:
            trimmed.pop()
        self.nodes.append(Node("Attention", tuple(trimmed), (whole, lse), attrs, OURS, self.title))
        if not y.is_whole:
            self._reshape(whole, y.name)
        assert match.forward is not None
        made = {match.forward: self.nodes}
        if not match.backward:
            return made
        self.nodes = []
        dy = self._write_operand("dy")
        outs: list[str] = []
        views: list[tuple[str, str]] = []
        for what in ("dq", "dk", "dv"):
            operand = match.results.get(what)
            name = "" if operand is None else operand.name
            if operand is not None and not operand.is_whole:
                name = self.names.take_fresh(f"{self.title}_{what}")
                views.append((name, operand.name))
            outs.append(name)
        outs.append(match.dbias)
        title = self.names.take_fresh(f"{self.title}_Grad")
        attrs = attrs | ({"together": match.together} if match.dbias else {})
        grad = Node("AttentionGrad", (*ins, whole, lse, dy), tuple(outs), attrs, OURS, title)
        self.nodes.append(grad)
        for view in views:
            self._reshape(*view)
        products = {n for n in match.inner if MatrixProduct.of(n)}
        made[self._find_first_reader_of_dy(products)] = self.nodes
        return made

    def _find_first_reader_of_dy(self, products: set[Node]) -> Node:
        """Return the first node of the gradient, before which everything that the new node reads
        has been made.
        """
        match = self.found
        before = {match.forward, match.scores.product.node}
        return next(n for n in self.graph.nodes if n in products and n not in before)

    def _write_operand(self, what: str) -> str:
        """Return the value of a matrix operand, with its four dimensions."""
        operand = self.found.operands[what]
        if operand.is_whole:
            return operand.name
        name = self.names.take_fresh(f"{self.title}_{what}")
        layout = LAYOUTS["y" if what == "dy" else what]
        self._reshape(operand.name, name, self.values.list_dims(operand.order, *layout))
        return name

    def _reshape(self, x: str, y: str, shape: tuple[Dim, ...] | None = None) -> None:
        """Add y = Reshape(x), by default to the shape that y had before."""
        shape = self.values.find_shape(y) if shape is None else shape
        wanted = self.names.take_fresh(f"{y}#shape")
        self.graph.initializers[wanted] = make_array(shape, np.int64)
        self.nodes.append(
            Node("Reshape", (x, wanted), (y,), {}, "", self.names.take_fresh(f"{y}/view"))
        )

    def _make_four(self, name: str) -> str:
        """Return a bias or a mask with separate dimensions for batch and heads where it has one for
        both.
        """
        shape = self.values.pad_to_four(name, self.found.scores.ranks[name])
        assert shape is not None
        if len(self.values.find_shape(name)) != 3 or shape[1] == 1:
            return name
        view = self.names.take_fresh(f"{self.title}_four")
        self._reshape(name, view, shape)
        return view

    def _sum(self, biases: list[str]) -> str:
        """Return the sum of the biases, which all broadcast to the scores."""
        if not biases:
            return ""
        total = biases[0]
        for other in biases[1:]:
            name = self.names.take_fresh(f"{self.title}_bias")
            title = self.names.take_fresh(f"{self.title}/Add")
            self.nodes.append(Node("Add", (total, other), (name,), {}, "", title))
            total = name
        return total
