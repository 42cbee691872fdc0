"""Heads of integers: the layer that makes scores, and what follows it, with weights of floats.

    Before   d = DequantizeLinear(DynamicQuantizeLinear(x)); e = DequantizeLinear(w8, w_scale);
             y = Add(MatMul(d, e), DequantizeLinear(DynamicQuantizeLinear(b)))
             as tf2onnx writes dynamic ranges of TensorFlow Lite
    Before   y = DequantizeLinear(QuantizeLinear(Add(MatMul(x, e), b), r, p), r, p)
    After    y = Add(MatMul(x, w), b)

Layers that onnxruntime's quantisers write as products of integers become such ones first, see
`integer_layers.py`.  Scores are no longer rounded, and neither are values that only this layer
rounded to read them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, OF_ONNX
from engine.graphs.io import reference
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import find_product, find_units, is_dequantiser, is_quantiser
from engine.graphs.offline.integer_layers import IntegerLayers, is_expanded
from engine.graphs.offline.packed_weights import write_product_in_floats
from engine.graphs.passes.expand import expand_first
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.facts import CONV, GEMM, MATMUL, Factors

# Ops that may lie between the last layer and the scores: they keep the number of classes.
NORMALISING = frozenset(("Softmax", "LogSoftmax"))
KEEPING = NORMALISING | {
    "Identity", "Dropout", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Relu", "Clip", "Reshape",
    "GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean",
}  # fmt: skip


def write_head_in_floats(graph: Graph, output: str) -> None:
    """Write the last layer with floats, in place, as far as it is one of integers.

    output: the value of scores that it makes.  Layers in front of it stay as they are.
    """
    work = _Head(graph, output)
    while work.change_node():
        pass
    prune(graph.sort())


def find_quantiser(node: Node, makers: Mapping[str, Node]) -> Node | None:
    """Return the QuantizeLinear whose integers a node makes floats again, if it does this."""
    maker = makers.get(node.inputs[0]) if is_dequantiser(node) else None
    return maker if maker is not None and is_quantiser(maker) else None


def expand_integers(graph: Graph, node: Node) -> bool:
    """Write an operator on integers as what it stands for, in place; return whether it is one.

    Before   y = com.microsoft::QLinearSoftmax(x, s, z, r, p)
    After    y = QuantizeLinear(Softmax(DequantizeLinear(x, s, z)), r, p)
    """
    if not is_expanded(node):
        return False
    expand_first(graph, lambda other: other is node)
    return True


class _Head:
    """Walk from scores to the layer that makes them; each walk changes one node at most."""

    def __init__(self, graph: Graph, output: str) -> None:
        self.graph, self.output = graph, output
        self.names = Names(graph)
        self.makers = graph.find_producers()

    def change_node(self) -> bool:
        """Change the first node that is of integers; return False if there is none."""
        self.makers = self.graph.find_producers()
        value, rounded = self.output, list[Node]()  # what is rounded is a DequantizeLinear
        while (node := self.makers.get(value)) is not None:
            if expand_integers(self.graph, node):
                return True
            product = find_product(node)
            if product is not None and product.factors is Factors.PACKED:
                return write_product_in_floats(self.graph, node)
            if product is not None and product.factors is Factors.STATIC:
                return IntegerLayers(self.graph).write_rounded(node, product)
            if not node.domain and product in (MATMUL, GEMM, CONV):
                return self.fold_operands(node, range(len(node.inputs)))
            if is_quantiser(node):
                return bool(rounded) and self.drop_rounding(rounded[-1], node)
            match node.domain, node.op:
                case _ if is_dequantiser(node):
                    rounded.append(node)
                case ("engine", "ScaledSums") | ("", "Mul"):
                    return IntegerLayers(self.graph).write_sums(node)
                case "", "Add":
                    if self.fold_operands(node, range(2)):
                        return True
                case "", op if op in KEEPING:
                    pass
                case _:
                    return False
            value = next((i for i in node.inputs if i not in self.graph.initializers), "")
        return False

    def drop_rounding(self, after: Node, before: Node) -> bool:
        """Make values floats between a QuantizeLinear and the DequantizeLinear that follows it.

        It returns False if these have different scales.
        """
        pairs = zip(before.inputs[1:], after.inputs[1:], strict=False)
        if not all(a == b or self.is_equal(a, b) for a, b in pairs):
            return False
        for node in (after, before):
            node.op, node.domain, node.inputs, node.attrs = "Identity", "", node.inputs[:1], {}
        # The values between them were integers.
        self.graph.types = {n: t for n, t in self.graph.types.items() if n in self.graph.outputs}
        return True

    def is_equal(self, a: str, b: str) -> bool:
        """Return whether two names have the same constant."""
        known = self.graph.initializers
        return a in known and b in known and np.array_equal(known[a], known[b])

    def fold_operands(self, node: Node, places: range) -> bool:
        """Make operands floats that only this node rounds, or that are made of constant integers.

        It returns whether there are any.
        """
        inputs = list(node.inputs)
        for i in places:
            inputs[i] = self.skip_rounding(inputs[i])
            if self.is_foldable(inputs[i]):
                inputs[i] = self.fold(inputs[i]) or inputs[i]
        changed = tuple(inputs) != node.inputs
        node.inputs = tuple(inputs)
        return changed

    def skip_rounding(self, name: str) -> str:
        """Return what a value was before it was rounded in a range of its own."""
        back = self.makers.get(name)
        if back is None or not is_dequantiser(back):
            return name
        maker = self.makers.get(back.inputs[0])
        if maker is None:
            return name
        # A scale that is computed with the integers has the range of these numbers alone.
        units = find_units(maker) or ("", "")
        is_own = units[0] in maker.outputs and units == (*back.inputs[1:], "")[:2]
        return maker.inputs[0] if is_own else name

    def is_foldable(self, name: str) -> bool:
        """Return whether a value is made of constants of integers, or another shape of floats."""
        maker, made = self.makers.get(name), self.list_makers(name)
        if maker is None or not made:
            return False
        if maker.op in ("Reshape", "Unsqueeze") and maker.inputs[0] in self.graph.initializers:
            return True
        return any(is_dequantiser(node) or self.is_converted(node) for node in made)

    def is_converted(self, node: Node) -> bool:
        """Return whether a node makes floats of integers, as torchao writes a dequantiser."""
        target = OF_ONNX.get(node.attrs.get("to", 0)) if node.op == "Cast" else None
        return not node.domain and target in (*FLOATS, "f16")

    def list_makers(self, name: str) -> list[Node]:
        """Return the nodes that make a value, in their order; none if it needs more than constants.

        Each is visited once, so that graphs of any depth take linear time.
        """
        order, known = dict[int, Node](), self.graph.initializers
        left = [(name, False)]
        while left:
            value, is_ready = left.pop()
            maker = self.makers.get(value)
            if maker is None or id(maker) in order:
                if maker is None and value and value not in known:
                    return []
            elif is_ready:
                order[id(maker)] = maker
            elif not maker.inputs and maker.op != "Constant":
                return []
            else:
                left += [(value, True), *((i, False) for i in maker.inputs)]
        return list(order.values())

    def fold(self, name: str) -> str:
        """Add a value that is made of constants as an initializer; return its name.

        It is empty if the value cannot be computed.
        """
        made, values = self.list_makers(name), dict(self.graph.initializers)
        for maker in made:
            plain = Node(maker.op, maker.inputs, maker.outputs, maker.attrs, "", maker.name)
            is_known = is_dequantiser(maker) or not maker.domain
            given = [values.get(i) for i in maker.inputs]
            outputs = reference.evaluate(plain if is_known else maker, self.graph.opsets, given)
            if not outputs:
                return ""
            values |= zip(maker.outputs, map(np.asarray, outputs), strict=False)
        root = name
        while (first := self.makers.get(root)) is not None and first.inputs:
            root = first.inputs[0]
        return self.add(root, values[name])

    def add(self, root: str, value: Array) -> str:
        """Add a constant that is made of another one; return its name."""
        name = self.names.take_fresh(root.removesuffix("_quantized"))
        self.graph.initializers[name] = np.ascontiguousarray(value)
        return name
