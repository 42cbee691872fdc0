"""Heads of integers: the layer that makes scores, and what follows it, written with floats.

    Before   q, s, z = DynamicQuantizeLinear(x); t = MatMulInteger(q, w8, z, w_zero);
             y = Add(Mul(Cast(t), Mul(s, w_scale)), b)          as onnxruntime quantises dynamically
    Before   d = DequantizeLinear(DynamicQuantizeLinear(x)); e = DequantizeLinear(w8, w_scale);
             y = Add(MatMul(d, e), DequantizeLinear(DynamicQuantizeLinear(b)))
             as tf2onnx writes dynamic ranges of TensorFlow Lite
    Before   y = DequantizeLinear(QLinearMatMul(x, ...), r, p)  as onnxruntime quantises statically
    After    y = Add(MatMul(x, w), b)

Scores are no longer rounded, and neither are values that only this layer rounded to read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from engine.base.element_types import ONNX_CODE
from engine.graphs.io import reference
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import find_product, is_dequantiser, is_quantiser
from engine.graphs.passes.expand import expand_first
from engine.graphs.passes.simplify import prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import CONV, GEMM, MATMUL, Factors, Product
from engine.kernels.vocabulary.op import Array

# Ops that may lie between the last layer and the scores: they keep the number of classes.
NORMALISING = frozenset(("Softmax", "LogSoftmax"))
KEEPING = NORMALISING | {
    "Identity", "Dropout", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Relu", "Clip", "Reshape",
    "GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean",
}  # fmt: skip
MOST_FACTORS = 8  # of scaled sums: the sums, the unit of x, and scales of weights


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
    op = list_ops().get((node.domain, node.op))
    if op is None or not (op.is_of_integers and op.expands_first):
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
            if product is not None and product.factors is Factors.STATIC:
                return self.write_linear(node, product)
            if not node.domain and product in (MATMUL, GEMM, CONV):
                return self.fold_operands(node, range(len(node.inputs)))
            if is_quantiser(node):
                return bool(rounded) and self.drop_rounding(rounded[-1], node)
            match node.domain, node.op:
                case _ if is_dequantiser(node):
                    rounded.append(node)
                case "engine", "ScaledSums":
                    return self.write_scaling(node)
                case "", "Mul":
                    return self.write_sums(node)
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

    def write_linear(self, node: Node, product: Product) -> bool:
        """Replace QLinearMatMul or QLinearConv by a product of floats whose result is rounded."""
        known = self.graph.initializers
        x, scale, zero, *weights, y_scale, y_zero = (*node.inputs[:8],)
        bias = node.inputs[8] if len(node.inputs) > 8 else ""
        constants = [n for n in (scale, *weights, bias) if n]
        if any(n not in known for n in constants):
            return False
        w = self.read_weight(product, weights[0], weights[2], known[weights[1]])
        if w is None:
            return False
        ins = [self.add_node("DequantizeLinear", (x, scale, zero)), self.add(weights[0], w)]
        if bias:
            unit = known[scale] * known[weights[1]].reshape(-1)
            ins.append(self.add(bias, (known[bias] * unit).astype(np.float32)))
        y = self.add_node(product.of, tuple(ins), node)
        node.op, node.inputs, node.attrs = "QuantizeLinear", (y, y_scale, y_zero), {}
        return True

    def write_scaling(self, node: Node) -> bool:
        """Replace scaled sums of integers by the nodes that onnxruntime fuses to them."""
        total, x_scale, w_scale, bias = (*node.inputs, "")[:4]
        factor = self.add_node("Mul", (x_scale, w_scale))
        real = self.add_node("Cast", (total,))
        self.graph.nodes[-1].attrs["to"] = ONNX_CODE["f32"]
        node.domain = ""
        if bias:
            node.op, node.inputs = "Add", (self.add_node("Mul", (real, factor)), bias)
        else:
            node.op, node.inputs = "Mul", (real, factor)
        return True

    def write_sums(self, node: Node) -> bool:
        """Replace scaled sums of integers by a product of floats; return False if it is none."""
        factors = self.list_factors(node)
        sums = [f for f in factors if (m := self.makers.get(f)) is not None and m.op == "Cast"]
        total = self.makers.get(self.makers[sums[0]].inputs[0]) if len(sums) == 1 else None
        product = find_product(total) if total is not None and not total.domain else None
        if total is None or product is None or product.factors is not Factors.DYNAMIC:
            return False
        factors.remove(sums[0])
        q, w, zero, w_zero = (*total.inputs, "", "")[:4]
        maker = self.makers.get(q)
        if maker is None:
            return False
        # The unit of the integers that the layer reads; what is left are scales of weights.
        is_dynamic = maker.op == "DynamicQuantizeLinear"
        if not is_dynamic and not is_quantiser(maker):
            return False
        unit = maker.outputs[1] if is_dynamic else maker.inputs[1]
        known = self.graph.initializers
        if unit not in factors:
            return False
        factors.remove(unit)
        if any(n not in known for n in (w, *factors)) or (w_zero and w_zero not in known):
            return False
        scale = math.prod((known[n].astype(np.float32) for n in factors), start=np.float32(1))
        weight = self.read_weight(product, w, w_zero, np.asarray(scale))
        if weight is None:
            return False
        if is_dynamic:
            x = maker.inputs[0]
        else:
            x = self.add_node("DequantizeLinear", tuple(filter(None, (q, unit, zero))))
        node.op, node.inputs = product.of, (x, self.add(w, weight))
        node.attrs, node.name = dict(total.attrs), self.names.take_fresh(total.name or node.name)
        return True

    def list_factors(self, node: Node) -> list[str]:
        """Return the values that a tree of Mul nodes multiplies; of a large tree, some products."""
        factors, left = list[str](), [*reversed(node.inputs)]
        while left:
            name = left.pop()
            maker = self.makers.get(name)
            if maker is None or (maker.domain, maker.op) != ("", "Mul") or len(left) > MOST_FACTORS:
                factors.append(name)
            else:
                left += reversed(maker.inputs)
            if len(factors) > MOST_FACTORS:
                return factors + left
        return factors

    def read_weight(self, product: Product, name: str, zero: str, scale: Array) -> Array | None:
        """Return weights less their zero points, times scales; None if these do not fit."""
        w = self.graph.initializers[name]
        zeros = self.graph.initializers[zero] if zero else np.zeros(1, w.dtype)
        if w.ndim < 2:
            return None
        axis = product.find_output_axis({}, w.ndim)
        if any(v.size not in (1, w.shape[axis]) for v in (zeros, scale)):
            return None
        along = [-1 if k == axis else 1 for k in range(w.ndim)]
        centred = w.astype(np.int32) - zeros.astype(np.int32).reshape(along)
        made: Array = centred.astype(np.float32) * scale.reshape(along).astype(np.float32)
        return made

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
        maker = self.makers.get(back.inputs[0]) if back is not None else None
        if back is None or maker is None or not is_dequantiser(back):
            return name
        return maker.inputs[0] if maker.op == "DynamicQuantizeLinear" else name

    def is_foldable(self, name: str) -> bool:
        """Return whether a value is made of constants of integers, or another shape of floats."""
        maker, made = self.makers.get(name), self.list_makers(name)
        if maker is None or not made:
            return False
        if maker.op in ("Reshape", "Unsqueeze") and maker.inputs[0] in self.graph.initializers:
            return True
        return any(map(is_dequantiser, made))

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
            elif not maker.inputs:
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
        while (first := self.makers.get(root)) is not None:
            root = first.inputs[0]
        return self.add(root, values[name])

    def add(self, root: str, value: Array) -> str:
        """Add a constant that is made of another one; return its name."""
        name = self.names.take_fresh(root.removesuffix("_quantized"))
        self.graph.initializers[name] = np.ascontiguousarray(value)
        return name

    def add_node(self, op: str, inputs: tuple[str, ...], of: Node | None = None) -> str:
        """Add a node in front of its readers; return its value.

        of: the node whose attributes and name it takes.
        """
        base = of.name if of is not None else ""
        name = self.names.take_fresh(base or f"{inputs[0]}/{op}")
        value = self.names.take_fresh(f"{name}_output")
        attrs = {} if of is None else dict(of.attrs)
        self.graph.nodes.append(Node(op, inputs, (value,), attrs, "", name))
        return value
