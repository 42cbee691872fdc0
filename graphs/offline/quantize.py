"""Quantisation in training graphs: pairs of ops that round values become ops with a gradient.

Ranges of values that decide scales move towards the ranges of batches, as running statistics do.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np

from engine.base.element_types import FLOATS
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import find_units, is_dequantiser
from engine.kernels.ops.quantization import QUANTISED, find_limits
from engine.kernels.vocabulary.op import OURS, TensorType

TRACKED = (OURS, "TrackedScale")
LEARNED = (OURS, "LearnedScale")
PEAK = (OURS, "PeakScale")


def join_quantizers(graph: Graph, needed: Container[str], types: Mapping[str, TensorType]) -> None:
    """Join each quantiser with the dequantiser that undoes it, in place.

    No gradient could flow through the integers between them, but it flows through the op that
    replaces both.

    needed: only quantisers that read one of these values are joined, a scale that is trained too.

    Before   q = QuantizeLinear(x, s, z); c = Clip(q, 0, 127); y = DequantizeLinear(c, s, z)
    After    y = engine::QuantizeDequantize(x, s, z) quant_min=0 quant_max=127

    Before   q, s, z = DynamicQuantizeLinear(x); y = DequantizeLinear(q, s, z)
    After    q, s, z = DynamicQuantizeLinear(x); y = engine::QuantizeDequantize(x, s, z) ...
    """
    makers = graph.find_producers()
    for node in graph.nodes:
        if not is_dequantiser(node):
            continue
        maker, bounds = _find_quantizer(graph, makers, node.inputs[0], types)
        if maker is None or not any(name in needed for name in maker.inputs[:2]):
            continue
        x, y = types[maker.inputs[0]], types[node.outputs[0]]
        if x.dtype in FLOATS and x.dtype == y.dtype and _undoes(graph, node, maker):
            kept = {k: v for k, v in node.attrs.items() if k in ("axis", "block_size")}
            node.attrs = {**kept, "quant_min": bounds[0], "quant_max": bounds[1]}
            node.op, node.domain = "QuantizeDequantize", OURS
            node.inputs = (maker.inputs[0], *node.inputs[1:])


def list_tracked(graph: Graph) -> list[Node]:
    """Return the nodes whose scales follow a range."""
    return [n for n in graph.nodes if (n.domain, n.op) == TRACKED]


def track_ranges(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Let ranges move towards the ranges of each batch in training, in place.

    Before   s, z = TrackedScale(x, range)
    After    s, z, batch = TrackedScale(x, range) training_mode=1;
             MoveStatistic(range, batch, true)
    """
    names = Names(graph)
    always = names.take_fresh("ranges_move")
    for node in nodes:
        moment = names.take_fresh(f"{node.inputs[1]}_batch")
        node.outputs = (*node.outputs[:2], moment)
        node.attrs = {**node.attrs, "training_mode": 1}
        attrs = {"momentum": node.attrs.get("momentum", 0.99)}
        title = names.take_fresh(f"{node.name}/MoveStatistic")
        flag = names.take_fresh(f"{moment}_flag")
        graph.nodes.append(
            Node("MoveStatistic", (node.inputs[1], moment, always), (flag,), attrs, OURS, title)
        )
    if nodes:
        graph.initializers[always] = np.ones(1, np.bool_)
    return graph


def _find_quantizer(
    graph: Graph, makers: Mapping[str, Node], name: str, types: Mapping[str, TensorType]
) -> tuple[Node | None, tuple[int, int]]:
    """Return the quantiser that makes a value, or None, and the bounds of its integers.

    A Clip between them narrows these bounds.
    """
    maker, low, high = makers.get(name), 0, 0
    if maker is not None and types[name].dtype in QUANTISED:
        low, high = find_limits(types[name].dtype)
        if maker.op == "Clip" and not maker.domain:
            sides = [(i, graph.initializers.get(n)) for i, n in enumerate(maker.inputs[1:]) if n]
            for i, side in sides:
                if side is None or side.size != 1:
                    return None, (low, high)
                bound = int(side.reshape(()))
                low, high = (low, min(high, bound)) if i else (max(low, bound), high)
            maker = makers.get(maker.inputs[0])
    return (maker if maker is not None and find_units(maker) else None), (low, high)


def _undoes(graph: Graph, node: Node, maker: Node) -> bool:
    """Return whether a dequantiser has the scale, zero point and axis of the quantiser `maker`."""
    pairs = [(*node.inputs[1:], "", "")[:2], find_units(maker) or ("", "")]
    settings = [(n.attrs.get("axis", 1), n.attrs.get("block_size", 0)) for n in (node, maker)]
    return settings[0] == settings[1] and all(
        a == b or _is_equal(graph, a, b) for a, b in zip(*pairs, strict=True)
    )


def _is_equal(graph: Graph, a: str, b: str) -> bool:
    """Return whether two initializers have the same type and values."""
    x, y = graph.initializers.get(a), graph.initializers.get(b)
    return x is not None and y is not None and x.dtype == y.dtype and np.array_equal(x, y)
