"""Products whose results are scaled by constants: the scales become part of the weights.

    Before   y = Mul(MatMul(x, Transpose(Cast(w8))), s)                s: of columns, or one
    After    y = MatMul(x, Transpose(DequantizeLinear(w8, s)))

    Before   y = Mul(MatMul(x, w), s)
    After    y = MatMul(x, w')                                         w' = w s

So torchao writes layers whose weights alone are integers; its exporter computes the Cast where the
weights are small.  Only then the layer is one that makes scores or has an adapter: in front of the
scales, an adapter would learn by a hundredth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Movement

CHANNELS_OPSET = 13  # the first one whose DequantizeLinear has an axis
_INTEGERS = (np.dtype(np.int8), np.dtype(np.uint8))


def join_scales(graph: Graph) -> bool:
    """Join constant scales with the weights of the products before them, in place.

    It returns whether there were any.
    """
    work = _ScaleJoining(graph)
    candidates = [pair for node in graph.nodes if (pair := work.find_product(node)) is not None]
    if not candidates:
        return False
    inferred = infer(graph.copy())
    joined = [work.join(*pair, inferred) for pair in candidates]
    if any(joined):
        prune(graph.sort())
    return any(joined)


def find_movement(node: Node) -> Movement:
    """Return where the elements of the result of a node come from."""
    op = list_ops().get((node.domain, node.op))
    return Movement.COMPUTED if op is None else op.movement


def is_transposing(node: Node) -> bool:
    """Return whether a node transposes what it reads."""
    return find_movement(node) is Movement.TRANSPOSED


@dataclass(frozen=True, slots=True)
class _Weights:
    """Constant weights of a product: the initializer, and the nodes between, the last one first."""

    name: str
    way: tuple[Node, ...]


class _ScaleJoining:
    """Walk over the products of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph)
        self.makers, self.readers = graph.find_producers(), graph.find_consumers()

    def find_product(self, node: Node) -> tuple[Node, Node, str] | None:
        """Return the product that a Mul alone reads, the Mul, and its other factor."""
        if (node.domain, node.op) != ("", "Mul"):
            return None
        for name, factor in (node.inputs, node.inputs[::-1]):
            maker = self.makers.get(name)
            is_product = maker is not None and not maker.domain and maker.op == "MatMul"
            is_only = len(self.readers[name]) == 1 and name not in self.graph.outputs
            if maker is not None and is_product and is_only and name != factor:
                return maker, node, factor
        return None

    def join(self, product: Node, mul: Node, factor: str, inferred: Inferred) -> bool:
        """Join the scales of one product with its weights; return whether they fit."""
        scales, weights = inferred.constants.get(factor), self.find_weights(product.inputs[1])
        if scales is None or weights is None or scales.dtype.kind != "f":
            return False
        axis = 1 - sum(map(is_transposing, weights.way)) % 2
        columns = self.graph.initializers[weights.name].shape[axis]
        # The weights have no place for scales of rows or of several products.
        shape = scales.shape
        is_row = scales.size in (1, columns) and shape[-1:] in ((), (1,), (columns,))
        is_row &= scales.size == 1 or shape[-1] == columns
        if not is_row or len(shape) > inferred.types[product.outputs[0]].rank:
            return False
        made = self.scale_weights(product, weights, scales.reshape(-1), axis)
        if made:
            product.inputs = (product.inputs[0], made)
            product.outputs = mul.outputs
            self.graph.nodes.remove(mul)
        return bool(made)

    def find_weights(self, name: str) -> _Weights | None:
        """Return constant weights [rows, columns] made by Cast and Transpose; None if not so."""
        way = list[Node]()
        while (maker := self.makers.get(name)) is not None:
            if find_movement(maker) not in (Movement.CONVERTED, Movement.TRANSPOSED):
                return None
            way.append(maker)
            name = maker.inputs[0]
        value = self.graph.initializers.get(name)
        return _Weights(name, tuple(way)) if value is not None and value.ndim == 2 else None

    def scale_weights(self, product: Node, weights: _Weights, scales: Array, axis: int) -> str:
        """Return weights with their scales; "" if they have another element type.

        axis: along which the weights, as they are stored, have the scales.
        """
        value, single = self.graph.initializers[weights.name], scales.size == 1
        has_axis = self.graph.opsets.get("", 1) >= CHANNELS_OPSET
        if value.dtype in _INTEGERS:
            if not (single or has_axis):
                return ""
            scale = self.graph.add_constant(
                f"{weights.name}_scale", scales.reshape(() if single else -1), self.names
            )
            attrs: dict[str, Any] = {} if single else {"axis": axis}
            inputs, op = (weights.name, scale), "DequantizeLinear"
            made = self.append(product, op, inputs, f"{weights.name}_dequantized", attrs)
        elif value.dtype == scales.dtype:
            scaled = value * scales.reshape((-1, 1) if axis == 0 else (1, -1))
            names = (weights.name, *(node.outputs[0] for node in weights.way))
            if all(len(self.readers[name]) == 1 for name in names):  # it keeps its name
                self.graph.initializers[weights.name] = scaled
                return product.inputs[1]
            made = self.graph.add_constant(weights.name, scaled, self.names)
        else:
            return ""
        for node in reversed(weights.way):
            if is_transposing(node):
                made = self.append(product, node.op, (made,), f"{made}_transposed", node.attrs)
        return made

    def append(
        self, product: Node, op: str, inputs: tuple[str, ...], output: str, attrs: Mapping[str, Any]
    ) -> str:
        """Append a node for the weights of a product; return the value that it makes."""
        output = self.names.take_fresh(output)
        title = self.names.take_fresh(f"{product.name or output}/{op}")
        self.graph.nodes.append(Node(op, inputs, (output,), dict(attrs), "", title))
        return output
