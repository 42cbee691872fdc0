"""Linear layers of a forward model: products of a value and a weight, however it is stored.

    y = MatMul(x, Transpose(w))                    w: [out, in]
    y = MatMul(x, DequantizeLinear(q, s))          q: int8 [in, out]
    y = Gemm(x, w, b) transB=1                     w: [out, in]
    y = Conv(x, w, b) group=g                      w: [out, in / g, kernel...]
    y = MatMulNBits(x, q, s)                       q: [out, in / block, bytes]

The weight is the operand that the product reads.  It depends on initializers alone; its root is the
initializer that its data come from, along the first inputs of the nodes between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.base.element_types import FLOATS
from engine.graphs.ir.graph import Graph, Node, Subgraph
from engine.graphs.ir.sites import find_product
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import CONV, GEMM, MATMUL, Factors, Role
from engine.kernels.vocabulary.op import Dim, TensorType
from engine.system.paths import Paths

_ADAPTED = tuple(product.of for product in (MATMUL, GEMM, CONV))


@dataclass(frozen=True, slots=True)
class Weight:
    """Weight of a product.

    operand: the value that the product reads.
    root: the initializer that its data come from.
    way: the ops between, with their attributes and further inputs, from the root on.
    """

    operand: str
    root: str
    way: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """Layer that can have an adapter, as one of its nodes uses it.

    x: the operand that the weight multiplies.
    side: the side of x on which a product has the weight, "right" or "left"; "conv" for a
        convolution.
    flips_x, flips_weight: the product transposes x, or the weight that it reads.
    lead: the batch axes of the weight.
    inputs, outputs: the numbers of values that the layer takes and makes; for a convolution, the
        input channels of a group and all output channels.
    factor: the factor of the product's result.
    groups, kernel: the groups and the window of a convolution.
    packed: whether the weight is the packed weight of MatMulNBits.
    """

    node: Node
    weight: Weight
    x: str
    dtype: str
    side: str
    inputs: int
    outputs: int
    flips_x: bool = False
    flips_weight: bool = False
    lead: tuple[int, ...] = ()
    factor: float = 1.0
    groups: int = 1
    kernel: tuple[int, ...] = ()
    packed: bool = False


def find_obstacle(node: Node) -> str | None:
    """Return why a product or an embedding takes no adapter: "" if it takes one.

    It is None for other nodes.
    """
    op = list_ops().get((node.domain, node.op))
    if op is None:
        return None
    if Role.TABLE in op.roles.values():
        return "an embedding, whose rows are looked up and not multiplied"
    if op.product is None:
        return None
    if Role.RECURRENT_WEIGHT in op.roles.values():
        return "a recurrent layer"
    if op.product.factors.are_integers:
        return (
            "a product of integers whose weights or scales are computed, or of rows with scales of "
            "their own: quantise the weight as DequantizeLinear or MatMulNBits"
        )
    if op.product.is_alone and op.product.of in _ADAPTED:
        return ""
    return f"the operator {node.op}; supported: {', '.join(_ADAPTED)}, MatMulNBits"


def _takes_left(node: Node) -> bool:
    """Return whether the weight of a product may be its left factor."""
    product = find_product(node)
    return product is not None and product.is_of_matrices and product.factors is Factors.FLOATS


def _is_random(node: Node) -> bool:
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.is_random


class LinearLayers:
    """Linear layers of a graph; `types` are the types of all its values.

    Nodes in bodies of control flow are left out.
    """

    def __init__(self, graph: Graph, types: Mapping[str, TensorType]) -> None:
        self.graph, self.types = graph, types
        self.makers = graph.find_producers()
        self._known: dict[str, bool] = {}

    def __iter__(self) -> Iterator[tuple[Node, Weight, LinearLayer | str]]:
        """Yield every node with a weight, the weight, and its use or the reason why it has no
        adapter.
        """
        for node in self.graph.nodes:
            obstacle = find_obstacle(node)
            place = None if obstacle is None else self.find_place(node, adapts=not obstacle)
            if place is not None:
                weight = self.find_weight(node.inputs[place])
                yield node, weight, obstacle or self.find_linear(node, weight, place)

    def find_place(self, node: Node, *, adapts: bool) -> int | None:
        """Return the number of the input that is the weight of a node; None if it has none.

        adapts: the node takes an adapter, so that just one of its two factors may be constant: the
            right one, unless both are matrices of floats.
        """
        constant = [k for k, i in enumerate(node.inputs) if i and self.is_constant(i)]
        if not adapts:
            return next((k for k in constant if self.types[node.inputs[k]].rank > 1), None)
        factors = [k for k in constant if k < 2]
        return factors[0] if factors == [1] or (factors == [0] and _takes_left(node)) else None

    def is_constant(self, name: str) -> bool:
        """Return whether a value depends on initializers alone."""
        if name not in self._known:
            maker = self.makers.get(name)
            self._known[name] = name in self.graph.initializers or (
                maker is not None
                and not any(isinstance(a, Subgraph) for a in maker.attrs.values())
                and not _is_random(maker)
                and all(self.is_constant(i) for i in maker.inputs if i)
            )
        return self._known[name]

    def find_weight(self, operand: str) -> Weight:
        """Return the weight for a constant operand."""
        name, way = operand, list[str]()
        while name in self.makers and self.makers[name].inputs:
            maker = self.makers[name]
            way.append(f"{maker.domain}:{maker.op}{sorted(maker.attrs.items())}{maker.inputs[1:]}")
            name = maker.inputs[0]
        return Weight(operand, name, tuple(reversed(way)))

    def find_linear(self, node: Node, weight: Weight, place: int) -> LinearLayer | str:
        """Return how a node uses its weight, input number `place`, or the reason why it has no
        adapter.
        """
        x = node.inputs[1 - place]
        dtype, t = self.types[x].dtype, self.types[weight.operand]
        if dtype not in FLOATS:
            return f"it computes in {dtype}; adapters are {' or '.join(FLOATS)}"
        product = find_product(node)
        assert product is not None  # since `find_obstacle` has no objection
        if product.factors is Factors.PACKED:
            sizes = (int(node.attrs["K"]), int(node.attrs["N"]))
            return LinearLayer(node, weight, x, dtype, "right", *sizes, packed=True)
        shape = _find_known(t.shape)
        if shape is None:
            return f"its weight is {t}, whose size is not known"
        if product.is_convolution:
            return self._find_convolution(node, weight, x, shape)
        if len(shape) < 2 or self.types[x].rank < 2:
            return f"a product with a vector: {self.types[x]} and {t}"
        if node.attrs.get("transBatchA") or node.attrs.get("transBatchB"):
            return "it moves batch axes"
        flips = [bool(node.attrs.get(key, 0)) for key in ("transA", "transB")]
        rows, columns = shape[-2:][::-1] if flips[place] else shape[-2:]
        inputs, outputs = (rows, columns) if place else (columns, rows)
        factor = float(node.attrs.get("alpha", 1.0))
        if factor == 0:
            return "alpha is 0"
        side = "right" if place else "left"
        return LinearLayer(
            node, weight, x, dtype, side, inputs, outputs, flips[1 - place], flips[place],
            shape[:-2], factor,
        )  # fmt: skip

    def _find_convolution(
        self, node: Node, weight: Weight, x: str, shape: tuple[int, ...]
    ) -> LinearLayer | str:
        groups = int(node.attrs.get("group", 1))
        if groups > 1 and shape[1] == 1:
            return "a depthwise convolution, whose weights are smaller than an adapter of them"
        return LinearLayer(
            node, weight, x, self.types[x].dtype, "conv", shape[1], shape[0], groups=groups,
            kernel=shape[2:],
        )  # fmt: skip


def _find_known(shape: tuple[Dim, ...]) -> tuple[int, ...] | None:
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) else None


# Names that exporters give weights.
_MADE_UP = re.compile(r"onnx::|_?v(al)?_?\d+$|\d+$|node_|/")


def name_layer(node: Node, root: str, paths: Paths) -> str:
    """Return the name of the layer that a product computes, as in the module.

    It is the name of the weight without `.weight`, or otherwise the submodule of the node:

    encoder.fc.weight, encoder.fc.weight_quantized          encoder.fc
    val_34, onnx::MatMul_7 with the path encoder.fc.weight  encoder.fc
    """
    path = paths.name_value(root)
    if path != root or not _MADE_UP.match(root):
        end = r"[._](weight|kernel)(_\w+)?$|_(quantized|Q\d\w*)$"
        return re.sub(end, "", path) or path
    return paths.find_module(node.name) or node.name.rpartition("/")[2] or root
