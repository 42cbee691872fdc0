"""Quantised weights: products and row gathers read them without dequantising them first."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from engine.base.element_types import FLOATS, NUMPY
from engine.graphs.ir.graph import Graph, KnownTypes, Names, Node
from engine.graphs.ir.sites import is_dequantiser
from engine.graphs.passes.may_add import add_by_table
from engine.kernels.ops.quantised_weights import PACKED
from engine.kernels.vocabulary.op import MS, OURS
from engine.kernels.vocabulary.sizes import make_array

_PRODUCT, _CONV, _GATHER = (f"{OURS}::Quantized{name}" for name in ("MatMul", "Conv", "Gather"))
PACKED_WEIGHTS = OURS, "DequantizePacked"
MAY_ADD = add_by_table(
    {
        f"{maker} {reader}": made
        for maker in ("DequantizeLinear", f"{MS}::DequantizeLinear", f"{OURS}::DequantizePacked")
        for reader, made in (
            ("MatMul", _PRODUCT),
            (f"{MS}::FusedMatMul", f"{_PRODUCT} Mul"),
            ("Gemm", f"{_PRODUCT} Add Mul"),
            ("Conv", _CONV),
            (f"{MS}::ConvGrad", _CONV),
            ("Gather", _GATHER),
        )
    }
)


def read_quantised(graph: Graph, types: KnownTypes) -> bool:
    """Let products read quantised weights themselves, in place; return whether any does.

    Weights are values that no node makes: constants and inputs.  If another node reads them as
    floats too, they are dequantised for that node.  If any product was changed, the types must be
    inferred again.

    Before   d = DequantizeLinear(q, s, z); y = MatMul(x, d); dx = FusedMatMul(dy, d) transB=1
    After    y = engine::QuantizedMatMul(x, q, s, z) rows=... columns=...
             dx = engine::QuantizedMatMul(dy, q, s, z) rows=... columns=... trans=1
    """
    work = _Reading(graph, types)
    for node in graph.nodes:
        work.visit(node)
    changed = len(work.made) != len(graph.nodes) or any(
        new is not old for new, old in zip(work.made, graph.nodes, strict=True)
    )
    graph.nodes = _move_dequantising(work.made, work.weights) if changed else work.made
    return changed


def _move_dequantising(nodes: list[Node], weights: Container[str]) -> list[Node]:
    """Return nodes that dequantise weights just before these are first read as floats: products in
    front of that may read the integers.

    weights: the names of dequantised weights.
    """
    first: dict[str, Node] = {}
    for node in nodes:
        for name in node.list_reads():
            first.setdefault(name, node)
    late: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.outputs[0] in weights and node.outputs[0] in first:
            late.setdefault(first[node.outputs[0]], []).append(node)
    moved = {node for makers in late.values() for node in makers}

    def place(node: Node) -> Iterator[Node]:
        for maker in late.get(node, ()):  # a Transpose follows what it reads
            yield from place(maker)
        yield node

    return [each for node in nodes if node not in moved for each in place(node)]


class _Reading:
    """Walk over the nodes in topological order.

    made: the nodes that replace the ones visited so far.
    weights: for the name of dequantised weights, the inputs and attributes with which ops read them
        as integers, and whether the value is their transpose.
    """

    def __init__(self, graph: Graph, types: KnownTypes) -> None:
        self.graph, self.types = graph, types
        self.names = Names(graph)
        self.produced = {o for n in graph.nodes for o in n.outputs}
        self.weights: dict[str, tuple[tuple[str, ...], dict[str, Any], bool]] = {}
        self.made: list[Node] = []

    def visit(self, node: Node) -> None:
        """Keep a node, or replace it."""
        if is_dequantiser(node):
            self.note(node)
        elif (node.domain, node.op) == PACKED_WEIGHTS:
            self.note_packed(node)
        elif (node.domain, node.op) == ("", "Transpose") and self.is_matrix(node.inputs[0]):
            ins, attrs, is_transposed = self.weights[node.inputs[0]]
            self.weights[node.outputs[0]] = ins, attrs, not is_transposed
        made = self.read_node(node)
        self.made += [node] if made is None else made

    def is_matrix(self, name: str) -> bool:
        return name in self.weights and self.types[name].rank == 2

    def note(self, node: Node) -> None:
        """Note the weights that a node dequantises, if it does."""
        q, scale = (self.types[name] for name in node.inputs[:2])
        out = self.types[node.outputs[0]]
        matrix = q.rank == 2 or (q.rank > 2 and set(q.shape[2:]) == {1})
        if (
            node.inputs[0] in self.produced
            or q.dtype not in PACKED
            or not matrix
            or not all(isinstance(d, int) for d in (*q.shape, *scale.shape))
            or out.dtype not in FLOATS
            or scale.dtype != out.dtype
            or 0 in q.shape
        ):
            return
        rows, columns = q.dims[:2]
        block = [0, 0]
        if scale.rank > 0 and scale.shape != (1,):
            axis = int(node.attrs.get("axis", 1)) % q.rank
            size = int(node.attrs.get("block_size", 0))
            if axis > 1:
                return
            block = [1, 1] if size else [0, 0]
            block[axis] = size or 1
        attrs = {
            "rows": rows,
            "columns": columns,
            "block_rows": block[0],
            "block_columns": block[1],
        }
        self.weights[node.outputs[0]] = tuple(node.inputs), attrs, False

    def note_packed(self, node: Node) -> None:
        """Note weights with several integers in a byte."""
        shape = node.attrs["shape"]
        if node.inputs[0] not in self.produced and len(shape) > 1 and set(shape[2:]) <= {1}:
            own = ("shape", "axis", "block_size")
            attrs = {k: v for k, v in node.attrs.items() if k not in own}
            self.weights[node.outputs[0]] = tuple(node.inputs), attrs, False

    def read_node(self, node: Node) -> list[Node] | None:
        """Return nodes that read quantised weights, to replace a node; None if the node stays."""
        match node.domain, node.op:
            case "", "MatMul":
                return self.read_product(node)
            case "com.microsoft", "FusedMatMul":
                attrs = node.attrs
                if any(attrs.get(k, 0) for k in ("transA", "transBatchA", "transBatchB")):
                    return None
                return self.read_product(
                    node, trans=attrs.get("transB", 0), alpha=attrs.get("alpha", 1)
                )
            case "", "Gemm":
                return None if node.attrs.get("transA", 0) else self.read_gemm(node)
            case "", "Gather" if self.is_matrix(node.inputs[0]):
                ins, attrs, is_transposed = self.weights[node.inputs[0]]
                if int(node.attrs.get("axis", 0)) not in (0, -2) or is_transposed:
                    return None
                return [self.replace_node(node, "QuantizedGather", (node.inputs[1], *ins), attrs)]
            case "", "Conv":
                return self.replace_conv(node, 1)
            case "com.microsoft", "ConvGrad":
                return None if any(node.outputs[1:]) else self.replace_conv(node, 2)
        return None

    def replace_node(
        self,
        node: Node,
        op: str,
        inputs: tuple[str, ...],
        attrs: Mapping[str, Any],
        output: str = "",
    ) -> Node:
        """Return a node that replaces another, and makes its output unless another is given."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        return Node(op, inputs, (output or node.outputs[0],), dict(attrs), OURS, node.name)

    def read_product(
        self, node: Node, *, trans: int = 0, alpha: float = 1, bias: str = ""
    ) -> list[Node] | None:
        a, b = node.inputs[:2]
        if not self.is_matrix(b) or self.types[a].rank < 2:
            return None
        ins, attrs, is_transposed = self.weights[b]
        ins = (*ins, *[""] * (3 - len(ins)))
        attrs = {**attrs, "trans": int(bool(trans) != is_transposed)}
        if alpha == 1:
            return [self.replace_node(node, "QuantizedMatMul", (a, *ins, bias), attrs)]
        raw = self.names.take_fresh(f"{node.outputs[0]}_product")
        first = self.replace_node(node, "QuantizedMatMul", (a, *ins, bias), attrs, raw)
        return [first, self.scale_value(node, raw, alpha, node.outputs[0])]

    def scale_value(self, node: Node, value: str, factor: float, output: str) -> Node:
        """Return a value times a number."""
        name = self.names.take_fresh(f"{output}_factor")
        self.graph.initializers[name] = make_array(factor, NUMPY[self.types[node.inputs[0]].dtype])
        title = self.names.take_fresh(f"{node.name}/Mul")
        return Node("Mul", (value, name), (output,), {}, "", title)

    def read_gemm(self, node: Node) -> list[Node] | None:
        attrs = node.attrs
        alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
        trans, c = attrs.get("transB", 0), node.inputs[2] if len(node.inputs) > 2 else ""
        c = c if beta != 0 else ""
        row = self.types[node.outputs[0]].shape[1:]
        plain = bool(c) and alpha == 1 == beta and self.types[c].shape == row
        if not c or plain:
            return self.read_product(node, trans=trans, alpha=alpha, bias=c)
        raw = self.names.take_fresh(f"{node.outputs[0]}_product")
        bare = Node(node.op, node.inputs[:2], (raw,), {}, node.domain, node.name)
        nodes = self.read_product(bare, trans=trans, alpha=alpha)
        if nodes is None:
            return None
        if beta != 1:
            part = self.names.take_fresh(f"{node.outputs[0]}_bias")
            nodes.append(self.scale_value(node, c, beta, part))
            c = part
        title = self.names.take_fresh(f"{node.name}/Add")
        return [*nodes, Node("Add", (raw, c), node.outputs, {}, "", title)]

    def replace_conv(self, node: Node, at: int) -> list[Node] | None:
        """Replace a 1x1 convolution or its gradient; `at` is the index of the weights among its
        inputs.
        """
        attrs, w = node.attrs, node.inputs[at]
        plain = attrs.get("group", 1) == 1 and not any(attrs.get("pads", ()))
        plain = plain and all(s == 1 for s in attrs.get("strides", ()))
        if w not in self.weights or self.types[w].rank < 3 or not plain:
            return None
        ins, how, _ = self.weights[w]
        ins = (*ins, *[""] * (3 - len(ins)))
        bias = node.inputs[2] if at == 1 and len(node.inputs) > 2 else ""
        trans = int(at == 1)
        return [
            self.replace_node(
                node, "QuantizedConv", (node.inputs[0], *ins, bias), {**how, "trans": trans}
            )
        ]
