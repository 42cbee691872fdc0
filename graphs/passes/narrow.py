"""Narrowing: the gradient of a part of a weight is computed only from that part of the input.

If the first input channels of a weight are trained and the others are frozen, the weight is a
concatenation of two parts (graphs/offline/sparse.py).  By the rules of differentiation, the
gradient of the first part is a slice of the gradient of the whole weight.

Source: "On-device training under 256 KB memory", Lin et al. 2022, section 3.2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.graphs.ir.graph import Constants, Graph, Names, Node, Types, find_type
from engine.graphs.passes.may_add import add_by_table
from engine.graphs.passes.movement import is_plain_product
from engine.graphs.passes.simplify import find_ancestors, prune
from engine.kernels.vocabulary.op import MS
from engine.kernels.vocabulary.sizes import make_array

# For a product of op(A) and op(B), the flag that says that the operand is transposed.
_FLAGS = ("transA", "transB")
MAY_ADD = add_by_table({"Slice": "Slice Reshape"})


def narrow(graph: Graph, types: Types, constants: Constants) -> Graph:
    """Slice the operand of a product instead of its result, in place; every shape must be known.

    The forward pass then keeps only a slice of the input, and the product is smaller by the same
    factor.

    Before   w = Concat(t, f) axis=1; y = Conv(x, w); ...
             dx, dw = ConvGrad(dy, x, w); dt = Slice(dw, [0], [8], [1])
    After    w = Concat(t, f) axis=1; y = Conv(x, w); x' = Slice(x, [0], [8], [1]); ...
             dx = ConvGrad(dy, x, w); _, dt = ConvGrad(dy, x', t)

    Before   dw = Gemm(dy, x) transA=1; dt = Slice(dw, [0], [8], [1])
    After    x' = Slice(x, [0], [8], [1]); ...; dt = Gemm(dy, x') transA=1
    """
    job = _Narrowing(graph, types, constants)
    narrowed = [node for node in graph.nodes if job.visit(node)]
    if narrowed:
        job.finish()
    return prune(graph) if narrowed else graph


class _Narrowing:
    """The state of one pass.

    early: for each sliced value, its slices, which are made immediately after it.
    made: the names of parts, by the value, the axis, and where they begin and end.
    wholes: for each part, the value and where it begins in it.
    """

    def __init__(self, graph: Graph, types: Types, constants: Constants) -> None:
        self.graph, self.types, self.constants = graph, types, constants
        self.makers, self.readers = graph.find_producers(), graph.find_consumers()
        self.ends = set(graph.outputs)
        self.names = Names(graph)
        self.early: dict[str, list[Node]] = {}
        self.made: dict[tuple[str, int, int, int], str] = {}
        self.wholes: dict[str, tuple[str, int]] = {}

    def visit(self, node: Node) -> bool:
        """Replace a slice of a product by a product of a slice; return whether that was done."""
        if node.domain or node.op != "Slice":
            return False
        window = self.find_window(node)
        maker = self.makers.get(node.inputs[0])
        if window is None or maker is None or node.inputs[0] in self.ends:
            return False
        axis, begin, end = window
        if (maker.domain, maker.op) == (MS, "ConvGrad"):
            return self.narrow_convolution(node, maker, axis, begin, end)
        if len(self.readers[node.inputs[0]]) == 1 and is_plain_product(maker):
            return self.narrow_product(node, maker, axis, begin, end)
        return False

    def find_window(self, node: Node) -> tuple[int, int, int] | None:
        """Return (axis, start, end) of a slice of one axis in steps of 1; None for any other."""
        limits = [self.constants.get(name) for name in node.inputs[1:]]
        values = [int(v.flat[0]) for v in limits if isinstance(v, np.ndarray) and v.size == 1]
        if len(values) < len(limits) or len(values) not in (3, 4):
            return None
        begin, end, axis = values[:3]
        shape = self.types[node.inputs[0]].shape
        axis %= len(shape)
        length = shape[axis]
        if values[3:] not in ([], [1]) or not isinstance(length, int):
            return None
        return (axis, begin, end) if 0 <= begin < end <= length else None

    def narrow_convolution(self, node: Node, maker: Node, axis: int, begin: int, end: int) -> bool:
        """Replace a slice of dW by input channels: compute the gradient of a convolution with fewer
        channels.
        """
        if list(maker.outputs).index(node.inputs[0]) != 1 or axis != 1:
            return False
        if maker.attrs.get("group", 1) != 1:
            return False
        dy, x, w = maker.inputs
        part = self.find_part(w, axis, begin, end)
        if part is None:
            return False
        node.op, node.domain, node.attrs = "ConvGrad", MS, dict(maker.attrs)
        node.inputs = (dy, self.slice(x, 1, begin, end), part)
        node.outputs = ("", node.outputs[0])
        return True

    def find_part(self, joined: str, axis: int, begin: int, end: int) -> str | None:
        """Return the value that is this part of a join, or None."""
        maker, at = self.makers.get(joined), 0
        if maker is None or maker.domain or maker.op != "Concat":
            return None
        rank = self.types[joined].rank
        for name in maker.inputs:
            length = self.types[name].dims[axis]
            if maker.attrs["axis"] % rank == axis and (at, at + length) == (begin, end):
                return name
            at += length
        return None

    def narrow_product(self, node: Node, maker: Node, axis: int, begin: int, end: int) -> bool:
        """Replace a slice of a product by rows or columns: compute a product of fewer of them."""
        inputs = list(maker.inputs)
        if any(self.types[name].rank != 2 for name in (*inputs, *maker.outputs)):
            return False
        flag = bool(maker.attrs.get(_FLAGS[axis], 0))
        inputs[axis] = self.slice(inputs[axis], axis ^ int(flag), begin, end)
        node.op, node.domain, node.attrs = maker.op, maker.domain, dict(maker.attrs)
        node.inputs = tuple(inputs)
        return True

    def slice(self, name: str, axis: int, begin: int, end: int) -> str:
        """Return the name of a part of a value, which is sliced as soon as the value is computed.

        If a reshape has kept the last axis, the part is taken from the value before the reshape,
        which can then be dropped.  A part of a part is taken from the whole value, because an
        operand is always sliced along the same axis.
        """
        name, start = self.wholes.get(name, (name, 0))
        begin, end = start + begin, start + end
        key = name, axis, begin, end
        if key in self.made:
            return self.made[key]
        shape = self.types[name].shape
        counts = [*shape]
        counts[axis] = end - begin
        out = self.made[key] = self.names.take_fresh(f"{name}_part")
        self.wholes[out] = name, begin
        self.types[out] = self.types[name].but(counts)
        # A shape with 0 would copy a length of the operand.
        whole = self.find_reshaped(name) if axis == len(shape) - 1 and 0 not in counts else ""
        if whole:
            part = self.slice(whole, self.types[whole].rank - 1, begin, end)
            inputs = [part, self.add_constant(f"{out}#shape", counts)]
        else:
            window = {"begin": begin, "end": end, "axis": axis}
            inputs = [name, *(self.add_constant(f"{out}#{t}", [n]) for t, n in window.items())]
        op = "Reshape" if whole else "Slice"
        title = self.names.take_fresh(f"{out}/{op}")
        node = Node(op, tuple(inputs), (out,), {}, "", title)
        self.early.setdefault(name, []).append(node)
        return out

    def find_reshaped(self, name: str) -> str:
        """Return the value that was reshaped to this one with the same last axis; "" if there is
        none.
        """
        maker = self.makers.get(name)
        if maker is None or maker.domain or maker.op != "Reshape":
            return ""
        shapes = [self.types[n].shape for n in (maker.inputs[0], name)]
        return maker.inputs[0] if shapes[0][-1:] == shapes[1][-1:] else ""

    def add_constant(self, name: str, value: Sequence[Any]) -> str:
        """Add a constant of integers; return its name."""
        made = make_array(value, np.int64)
        self.graph.initializers[name] = self.constants[name] = made
        self.types[name] = find_type(made)
        return name

    def finish(self) -> None:
        """Insert the slices after the nodes that make the sliced values."""
        given = (*self.graph.inputs, *self.graph.initializers)
        nodes = [node for name in given for node in self.early.get(name, ())]
        for node in self.graph.nodes:
            nodes.append(node)
            nodes += (part for o in node.outputs for part in self.early.get(o, ()))
        self.graph.nodes = nodes


def join_again(graph: Graph, types: Types) -> Graph:
    """Join parameters a second time for the backward pass, so that the join need not be kept.

    Before   w = Concat(t, f); y = Conv(x, w); ...; dx = ConvGrad(dy, x, w)
    After    w = Concat(t, f); y = Conv(x, w); ...; w' = Concat(t, f); dx = ConvGrad(dy, x, w')
    """
    known = find_joins(graph)
    if not known:
        return graph
    forward, names = find_ancestors(graph), Names(graph)
    again: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in forward:
            for name in [i for i in node.inputs if i in known and i not in again]:
                join = known[name]
                again[name] = out = names.take_fresh(f"{name}_again")
                types[out] = types[name]
                nodes.append(replace(join, outputs=(out,), attrs=dict(join.attrs), again=True))
            node.inputs = tuple(again.get(i, i) for i in node.inputs)
        nodes.append(node)
    graph.nodes = nodes
    return prune(graph)


def find_joins(graph: Graph) -> dict[str, Node]:
    """Return the values that are joins of parameters alone, which can be made at any time."""
    inputs = graph.inputs.keys()
    concats = (n for n in graph.nodes if n.op == "Concat" and not n.domain)
    return {node.outputs[0]: node for node in concats if inputs >= {*node.inputs}}


def slice_late(graph: Graph) -> Graph:
    """Slice a value just before its slice is read if the whole value is kept until then anyway.

    Before   x' = Slice(x); ...; dz = ReluGrad(dx, x); dt = Gemm(dy, x')
    After    ...; dz = ReluGrad(dx, x); x' = Slice(x); dt = Gemm(dy, x')
    """
    forward, made = find_ancestors(graph), set(graph.inputs)
    readers: dict[str, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        made.update(node.outputs if node in forward else ())
        for name in node.list_reads():
            readers.setdefault(name, []).append(place)
    late: dict[int, list[Node]] = {}
    for node in graph.nodes:
        x, out = node.inputs[0] if node.inputs else "", node.outputs[0]
        if node.domain or node.op != "Slice" or node in forward or x not in made:
            continue
        first = readers[out][0]
        if x in graph.inputs or readers[x][-1] >= first:
            late.setdefault(first, []).append(node)
    moved = {node for moved_nodes in late.values() for node in moved_nodes}
    nodes: list[Node] = []
    for place, node in enumerate(graph.nodes):
        nodes += late.get(place, ())
        nodes += () if node in moved else (node,)
    graph.nodes = nodes
    return graph
