"""Quantisation in training graphs: pairs of ops that round values become ops with a gradient.

Ranges of values that decide scales move towards the ranges of batches, as running statistics do.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from engine.base.element_types import FLOATS
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import find_units, is_dequantiser
from engine.graphs.offline.buffers import Mover
from engine.kernels.ops.quantization import QUANTISED, find_limits
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS, TensorType

TRACKED = (OURS, "TrackedScale")
LEARNED = (OURS, "LearnedScale")
PEAK = (OURS, "PeakScale")


def join_quantizers(
    graph: Graph, needed: Container[str], types: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """Join each quantiser with the dequantiser that undoes it, in place; return new values' types.

    No gradient could flow through the integers between them, but it flows through the op that
    replaces both.  Where a Resize makes means of the integers, these are computed as they are, and
    the gradient passes through a Resize of floats.

    needed: only quantisers that read one of these values are joined, a scale that is trained too.

    Before   q = QuantizeLinear(x, s, z); c = Clip(q, 0, 127); y = DequantizeLinear(c, s, z)
    After    y = engine::QuantizeDequantize(x, s, z) quant_min=0 quant_max=127

    Before   q, s, z = DynamicQuantizeLinear(x); y = DequantizeLinear(q, s, z)
    After    q, s, z = DynamicQuantizeLinear(x); y = engine::QuantizeDequantize(x, s, z) ...

    Before   q = QuantizeLinear(x, s, z); r = Resize(q, ...); y = DequantizeLinear(r, s, z)
    After    q = QuantizeLinear(x, s, z); r = Resize(q, ...); v = DequantizeLinear(r, s, z)
             f = Resize(engine::QuantizeDequantize(x, s, z), ...)   y is v, its gradient is f's
             w = StopGradient(v); d = Cotangent(w); y = Redirect(w, d, f, d)
    """
    work = _QuantizerJoining(graph, types)
    for node in list(graph.nodes):
        if is_dequantiser(node):
            work.join(node, needed)
    graph.sort()
    return work.made


class _QuantizerJoining:
    """Joining of quantisers with dequantisers.  made: the types of new values."""

    def __init__(self, graph: Graph, types: Mapping[str, TensorType]) -> None:
        self.graph, self.types, self.names = graph, types, Names(graph)
        self.makers = graph.find_producers()
        self.made: dict[str, TensorType] = {}

    def join(self, node: Node, needed: Container[str]) -> None:
        """Join a dequantiser with the quantiser that it undoes, if there is one."""
        between = self.list_between(node)
        start = between[0].inputs[0] if between else node.inputs[0]
        maker, bounds = _find_quantizer(self.graph, self.makers, start, self.types)
        if maker is None or not any(name in needed for name in maker.inputs[:2]):
            return
        x, y = self.types[maker.inputs[0]], self.types[node.outputs[0]]
        is_one = self.types[node.inputs[1]].size == 1
        if x.dtype not in FLOATS or x.dtype != y.dtype or (between and not is_one):
            return
        if not _undoes(self.graph, node, maker):
            return
        kept = {k: v for k, v in node.attrs.items() if k in ("axis", "block_size")}
        attrs = {**kept, "quant_min": bounds[0], "quant_max": bounds[1]}
        inputs = (maker.inputs[0], *node.inputs[1:])
        if between:
            rounded = self.append(node, "QuantizeDequantize", inputs, x, OURS, **attrs)
            self.pass_around(node, between, rounded)
        else:
            node.op, node.domain, node.inputs, node.attrs = (
                "QuantizeDequantize", OURS, inputs, attrs
            )  # fmt: skip

    def list_between(self, node: Node) -> list[Node]:
        """Return the nodes that compute integers of integers in front of a dequantiser, in order.

        They keep the scale and zero point.
        """
        known, between, name = list_ops(), list[Node](), node.inputs[0]
        while (maker := self.makers.get(name)) is not None:
            op = known.get((maker.domain, maker.op))
            if op is None or not op.keeps_units:
                break
            between.insert(0, maker)
            name = maker.inputs[0]
        return between

    def pass_around(self, node: Node, between: Sequence[Node], value: str) -> None:
        """Let the gradient of a dequantiser's result pass through floats, from a rounded value.

        between: the nodes that compute integers in front of the dequantiser.
        """
        y, kind = node.outputs[0], self.types[node.outputs[0]]
        for each in between:
            shape = self.types[each.outputs[0]].shape
            inputs = (value, *each.inputs[1:])
            value = self.append(
                each, each.op, inputs, kind.but(shape=shape), each.domain, **each.attrs
            )
        node.outputs = (self.names.take_fresh(f"{y}_exact"),)
        self.made[node.outputs[0]] = kind
        still = self.append(node, "StopGradient", node.outputs, kind, OURS)
        of_y = self.append(node, "Cotangent", (still,), kind, OURS)
        title = self.names.take_fresh(f"{node.name}/Redirect")
        inputs = still, of_y, value, of_y
        self.graph.nodes.append(Node("Redirect", inputs, (y,), {}, OURS, title))
        self.graph.opsets.setdefault(OURS, 1)

    def append(
        self,
        node: Node,
        op: str,
        inputs: tuple[str, ...],
        kind: TensorType,
        domain: str,
        **attrs: Any,
    ) -> str:
        """Append a node that goes with another one; return the value of a type that it makes."""
        value = self.names.take_fresh(f"{node.outputs[0]}_{op}")
        title = self.names.take_fresh(f"{node.name}/{op}")
        self.graph.nodes.append(Node(op, inputs, (value,), dict(attrs), domain, title))
        self.made[value] = kind
        return value


def list_tracked(graph: Graph) -> list[Node]:
    """Return the nodes whose scales follow a range."""
    return [n for n in graph.nodes if (n.domain, n.op) == TRACKED]


def track_ranges(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Let ranges move towards the ranges of each batch in training, in place.

    Before   s, z = TrackedScale(x, range)
    After    s, z, batch = TrackedScale(x, range) training_mode=1;
             MoveStatistic(range, batch, true)
    """
    mover = Mover(graph)
    for node in nodes:
        moment = mover.names.take_fresh(f"{node.inputs[1]}_batch")
        node.outputs = (*node.outputs[:2], moment)
        node.attrs = {**node.attrs, "training_mode": 1}
        mover.append(node.inputs[1], moment, node.attrs.get("momentum", 0.99), node.name)
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
