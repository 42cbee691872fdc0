"""Layers that onnxruntime's optimizer has joined with what follows them, which are parted again.

    Before   y = com.microsoft::FusedConv(x, w, b, z) activation="Relu"
    After    p = Conv(x, w, b); s = Add(p, z); y = Relu(s)

Both compute the same, and planning joins again what has an epilogue.  The product can have
adapters, whose result is added before the activation.
"""

from __future__ import annotations

from collections.abc import Container

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.expand import expand
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import CONV, GEMM, MATMUL
from engine.kernels.vocabulary.op import Op

_PARTS = {product.of for product in (CONV, GEMM, MATMUL)}


def split_fused(graph: Graph, chosen: Container[str] | None = None) -> bool:
    """Part products from the sums and activations that they are joined with, in place.

    It returns whether there were any.  A product has the name of the node that it was part of.

    chosen: the names of nodes; None for all.
    """

    def is_chosen(node: Node, op: Op) -> bool:
        is_part = op.product is not None and not op.product.is_alone and op.product.of in _PARTS
        return is_part and (chosen is None or node.name in chosen)

    declared = list_ops()
    fused = [n for n in graph.nodes if (op := declared.get((n.domain, n.op))) and is_chosen(n, op)]
    if not fused:
        return False
    before = set(graph.nodes)
    expand(graph, infer(graph), is_chosen)
    made = [n for n in graph.nodes if n not in before and not n.domain and n.op in _PARTS]
    for node, product in zip(fused, made, strict=True):
        product.name = node.name
    return True
