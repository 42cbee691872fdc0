"""Pools: keeping fewer bytes for the gradient of a max pool."""

from __future__ import annotations

import math

from engine.graphs.ir.graph import Graph, Names
from engine.graphs.passes.may_add import add_by_table
from engine.kernels.ops.pool.pool_kernels import TAPS
from engine.kernels.vocabulary.op import MS, OURS, TensorType

MAY_ADD = add_by_table({"MaxPool": f"{OURS}::MaxPool"})


def keep_taps(graph: Graph, types: dict[str, TensorType]) -> Graph:
    """Keep the index of the maximum in its window, one byte, instead of its index in the image.

    This is done if only gradients read Indices and a window has few taps.  `types` is updated.

    Before   y, i = MaxPool(x); dx = MaxPoolGrad(dy, i, x)             i: i64
    After    y, i = engine::MaxPool(x); dx = MaxPoolGrad(dy, i, x)     i: u8
    """
    readers, ends = graph.find_consumers(), set(graph.outputs)
    for node in graph.nodes:
        if (node.domain, node.op) != ("", "MaxPool") or len(node.outputs) < 2:
            continue
        index = node.outputs[1]
        if not index or index in ends or math.prod(node.attrs["kernel_shape"]) > TAPS:
            continue
        nodes = readers.get(index)
        if nodes and all(n.op == "MaxPoolGrad" and n.inputs[1] == index for n in nodes):
            node.domain = OURS
            types[index] = types[index].but(dtype="u8")
    return graph


def let_relu_grads_read_pools(graph: Graph, types: dict[str, TensorType]) -> Graph:
    """Let the gradient of a Relu before a max pool read what the pool returns.

    The gradient reaches only the elements that the pool has picked, which are positive exactly
    where the result is, so the result suffices and has fewer elements than the output of the Relu.
    Either all windows that share a maximum are 0 or none is, so the sums are the same.  `types` is
    updated.

    Before   r = Relu(x); y, i = MaxPool(r); dr = MaxPoolGrad(dy, i, r); dx = ReluGrad(dr, r)
    After    r = Relu(x); y, i = MaxPool(r); d = ReluGrad(dy, y); dx = MaxPoolGrad(d, i, r)
    """
    makers, readers, names = graph.find_producers(), graph.find_consumers(), Names(graph)
    ends = set(graph.outputs)
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if (node.domain, node.op) != (MS, "ReluGrad"):
            continue
        dr, r = node.inputs
        back = makers.get(dr)
        if back is None or back.op != "MaxPoolGrad" or len(readers[dr]) > 1 or dr in ends:
            continue
        dy, index, *rest = back.inputs
        pool, relu = makers.get(index), makers.get(r)
        if pool is None or pool.op != "MaxPool" or pool.inputs[0] != r:
            continue
        if relu is None or (relu.domain, relu.op) != ("", "Relu"):
            continue
        masked = names.take_fresh(f"{dr}_masked")
        types[masked] = types[dy]
        back.inputs, back.outputs = (masked, index, *rest), node.outputs
        node.inputs, node.outputs = (dy, pool.outputs[0]), (masked,)
        places[back], places[node] = places[node], places[back]
        graph.nodes[places[back]], graph.nodes[places[node]] = back, node
        makers[masked], makers[back.outputs[0]] = node, back
    return graph
