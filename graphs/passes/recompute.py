"""Recomputation: the backward pass computes cheap values again, so that they need not be kept."""

from __future__ import annotations

from engine.element_types import ITEMSIZE
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.passes.fuse import is_cheap
from engine.graphs.passes.narrow import joins
from engine.graphs.passes.simplify import acts, forward_part
from engine.kernels.vocabulary.op import OURS, TensorType

LARGE = 1 << 16  # bytes from which a value is worth being computed twice


def recompute(graph: Graph, types: dict[str, TensorType]) -> Graph:
    """Compute large values of cheap maps a second time, for their readers in the backward pass.

    This is done only where the inputs of the map are kept until then anyway, or are joins of
    parameters, which `join_again` makes a second time.

    Before   z = Map(x, m, s); y = Conv(z, w); ...; dw = ConvGrad(dy, z, w); r = ChannelSums(dz, x)
    After    z = Map(x, m, s); y = Conv(z, w); ...; z_again = Map(x, m, s);
             dw = ConvGrad(dy, z_again, w); r = ChannelSums(dz, x)
    """
    forward, there = forward_part(graph), {*graph.inputs, *joins(graph)}
    updated = {n.inputs[0] for n in graph.nodes if acts(n)}
    names = Names(graph)
    readers: dict[str, list[int]] = {}  # value -> places of the nodes that read it
    for place, node in enumerate(graph.nodes):
        for name in node.reads():
            readers.setdefault(name, []).append(place)
    again: dict[int, list[Node]] = {}  # place -> nodes to put before it
    for node in graph.nodes:
        if not _is_cheap(node) or not updated.isdisjoint(node.inputs):
            continue
        (z,) = node.outputs
        late = [p for p in readers.get(z, []) if graph.nodes[p] not in forward]
        if not late or len(late) == len(readers[z]) or node not in forward:
            continue
        if types[z].size * ITEMSIZE[types[z].dtype] < LARGE:
            continue
        gone = [n for n in node.inputs if n not in there and readers[n][-1] < late[0]]
        if any(types[n].size * 8 > types[z].size for n in gone):
            continue  # an input would have to be kept in place of the result
        copy = names.fresh(f"{z}_again")
        types[copy] = types[z]
        title = names.fresh(f"{node.name}/again")
        twin = Node(node.op, node.inputs, (copy,), dict(node.attrs), node.domain, title)
        again.setdefault(late[0], []).append(twin)
        for p in late:
            reader = graph.nodes[p]
            reader.inputs = tuple(copy if i == z else i for i in reader.inputs)
        readers[z] = [p for p in readers[z] if p not in late]
        for n in node.inputs:
            readers[n] = sorted((*readers[n], late[0]))
    nodes: list[Node] = []
    for place, node in enumerate(graph.nodes):
        nodes += (*again.get(place, ()), node)
    graph.nodes = nodes
    return graph


def _is_cheap(node: Node) -> bool:
    """Whether a node is a map by a cheap formula."""
    return (node.domain, node.op) == (OURS, "Map") and is_cheap(node.attrs["formulas"])
