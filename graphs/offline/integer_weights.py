"""Integer weights and biases as constants of a graph, dequantised in front of their readers."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.quantize import TRACKED
from engine.graphs.offline.scales import find_scale
from engine.graphs.passes.batchnorm import FOLDED
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.op import OURS, Array

_LARGEST = 2.0**30  # of a bias in units of its scale, so that sums fit in int32


def quantise_weights(
    weight: Array, axis: int | None, bits: int, floor: Array | None = None
) -> tuple[Array, Array]:
    """Return the int8 integers of weights, symmetric about 0, and their scales.

    axis: the axis of the channels, which have a scale each; None for a single scale.
    bits: the bits of an integer; fewer than 8 use the middle of int8.
    floor: least scales.
    """
    top = 2 ** (bits - 1) - 1
    over = tuple(k for k in range(weight.ndim) if k != axis)
    scale = np.asarray(np.abs(weight).max(over if axis is not None else None) / np.float32(top))
    if floor is not None:
        scale = np.maximum(scale, floor)
    scale = scale.astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    along = [-1 if k == axis else 1 for k in range(weight.ndim)] if axis is not None else []
    integers = np.rint(weight / scale.reshape(along))
    return np.clip(integers, -top, top).astype(np.int8), scale


def find_floor(bias: Array, unit: np.float32, *, per_channel: bool) -> Array:
    """Return the least scales of weights with which a bias beside them fits in int32.

    unit: the scale of the activation.
    """
    size = np.abs(bias.astype(np.float64))
    return np.asarray((size if per_channel else size.max(initial=0)) / (float(unit) * _LARGEST))


class IntegerWeights:
    """Constants of integers that are added to a graph, with the nodes that dequantise them."""

    def __init__(self, graph: Graph, names: Names) -> None:
        self.graph, self.names = graph, names
        self.made: list[Node] = []
        self._biases: dict[tuple[str, bytes], str] = {}

    def add_weights(
        self, name: str, axis: int | None, bits: int, floor: Array | None = None
    ) -> tuple[str, Array]:
        """Return the dequantised value of weights, and their scales."""
        integers, scale = quantise_weights(self.graph.initializers[name], axis, bits, floor)
        return self._add(name, integers, scale, axis), scale

    def add_bias(self, name: str, scale: Array) -> str:
        """Return the dequantised value of a bias with these scales; "" where it does not fit."""
        key = name, scale.tobytes()
        if key not in self._biases:
            levels = np.rint(self.graph.initializers[name].astype(np.float64) / scale)
            if not (np.abs(levels) <= 2 * _LARGEST).all():
                return ""
            axis = 0 if scale.ndim else None
            self._biases[key] = self._add(name, levels.astype(np.int32), scale, axis)
        return self._biases[key]

    def _add(self, name: str, integers: Array, scale: Array, axis: int | None) -> str:
        graph, take = self.graph, self.names.take_fresh
        inputs = take(f"{name}_quantized"), take(f"{name}_scale"), take(f"{name}_zero_point")
        values = integers, scale, np.zeros(scale.shape, integers.dtype)
        graph.initializers.update(zip(inputs, values, strict=True))
        value = take(f"{name}_dequantized")
        attrs = {} if axis is None else {"axis": axis}
        title = take(f"{value}/DequantizeLinear")
        self.made.append(Node("DequantizeLinear", inputs, (value,), attrs, "", title))
        return value


def is_rounded(graph: Graph) -> bool:
    """Return whether a graph rounds weights that it trains."""
    return any((node.domain, node.op) == (OURS, "RoundWeights") for node in graph.nodes)


def store_weights(graph: Graph) -> Graph:
    """Store weights and biases that a training has rounded as integers, in place.

    Scales that follow ranges become constants, and normalisations part of their convolution.  A
    bias that does not fit in int32 stays float.

    Before   r = RoundWeights(w) axis=0; c = RoundBias(b, w, s) axis=0; y = Conv(d, r, c)
    After    r = DequantizeLinear(w8, t, 0) axis=0; c = DequantizeLinear(b32, s t, 0);
             y = Conv(d, r, c)
    """
    _compute_scales(graph)
    rounded = [n for n in graph.nodes if n.domain == OURS and n.op in ("RoundWeights", "RoundBias")]
    if not all(name in graph.initializers for node in rounded for name in node.inputs):
        return graph
    work = IntegerWeights(graph, Names(graph))
    values: dict[str, str] = {}
    for node in rounded:
        axis, bits = int(node.attrs.get("axis", -1)), int(node.attrs.get("bits", 8))
        channels = None if axis < 0 else axis
        if node.op == "RoundWeights":
            values[node.outputs[0]], _ = work.add_weights(node.inputs[0], channels, bits)
            continue
        bias, weight, unit = (graph.initializers[name] for name in node.inputs)
        _, scale = quantise_weights(weight, channels, bits)
        scales = (scale * unit).astype(np.float32)
        if scales.ndim:
            scales = np.broadcast_to(scales, bias.shape)
        values[node.outputs[0]] = work.add_bias(node.inputs[0], scales) or node.inputs[0]
    for node in graph.nodes:
        node.inputs = tuple(values.get(name, name) for name in node.inputs)
    graph.nodes = [*work.made, *graph.nodes]
    return prune(graph)


def _compute_scales(graph: Graph) -> None:
    """Compute scales of known ranges, and weights that include a normalisation, in place."""
    kept: list[Node] = []
    for node in graph.nodes:
        key, values = (node.domain, node.op), [graph.initializers.get(n) for n in node.inputs]
        made: tuple[Array, ...] = ()
        if key == TRACKED and values[1] is not None:
            low, high = map(float, values[1])
            signed, symmetric = (bool(node.attrs.get(name)) for name in ("signed", "symmetric"))
            scale = find_scale(low, high, signed=signed, symmetric=symmetric)
            made = np.asarray(scale.scale), np.asarray(scale.zero, scale.dtype)
        elif key == FOLDED and len(known := [v for v in values if v is not None]) == len(values):
            made = _fold_norm(*known, epsilon=node.attrs.get("epsilon", 1e-5))
        graph.initializers.update(zip(node.outputs, made, strict=False))
        if not made:
            kept.append(node)
    graph.nodes = kept


def _fold_norm(
    weight: Array,
    scale: Array,
    shift: Array,
    mean: Array,
    variance: Array,
    bias: Array | None = None,
    *,
    epsilon: float,
) -> tuple[Array, Array]:
    """Return the weights and the bias of a convolution that includes its normalisation."""
    factor = scale * (1 / np.sqrt(variance + weight.dtype.type(epsilon)))
    centre = -mean if bias is None else bias - mean
    return weight * factor.reshape(-1, *[1] * (weight.ndim - 1)), shift + centre * factor
