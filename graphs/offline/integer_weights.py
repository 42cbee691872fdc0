"""Integer weights and biases as constants of a graph, dequantised in front of their readers."""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.quantize import LEARNED, PEAK, TRACKED
from engine.graphs.offline.scales import find_scale
from engine.graphs.passes.batchnorm import FOLDED
from engine.graphs.passes.simplify import prune
from engine.kernels.ops.fake_quantization import find_top
from engine.kernels.vocabulary.op import OURS

_LARGEST = 2.0**30  # of a bias in units of its scale, so that sums fit in int32
_SHARES = np.arange(8, 33) / np.float32(32)  # of the largest weight, among which a scale is best


def find_peak_scale(weight: Array, axis: int | None, bits: int) -> Array:
    """Return the scales with which the largest weight of each channel is the largest integer.

    axis: the axis of the channels, which have a scale each; None for a single scale.
    """
    over = tuple(k for k in range(weight.ndim) if k != axis)
    scale = np.abs(weight).max(over, initial=0) / weight.dtype.type(find_top(bits))
    return np.asarray(np.where(scale == 0, weight.dtype.type(1), scale))


def find_nearest_scale(weight: Array, axis: int | None, bits: int) -> Array:
    """Return the scales with which rounding changes weights least, by the sum of squares.

    axis: see `find_peak_scale`, of whose scales they are shares.
    """
    over = tuple(k for k in range(weight.ndim) if k != axis)
    peak = find_peak_scale(weight, axis, bits)
    best, least = peak, np.full(peak.shape, np.inf)
    for share in _SHARES:
        scale = peak * share.astype(peak.dtype)
        rounded = round_weights(weight, scale, axis, bits) * _lay_along(scale, axis, weight.ndim)
        change = np.square(weight - rounded).sum(over)
        best, least = np.where(change <= least, scale, best), np.minimum(change, least)
    return np.asarray(best)


def round_weights(weight: Array, scale: Array, axis: int | None, bits: int) -> Array:
    """Return the int8 integers of weights, symmetric about 0.

    bits: the bits of an integer; fewer than 8 use the middle of int8.
    """
    top = find_top(bits)
    integers = np.rint(weight / _lay_along(scale, axis, weight.ndim))
    return np.clip(integers, -top, top).astype(np.int8)


def _lay_along(scale: Array, axis: int | None, rank: int) -> Array:
    """Return scales in a shape that broadcasts to their weights."""
    return scale if axis is None else scale.reshape([-1 if k == axis else 1 for k in range(rank)])


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

    def add_weights(self, name: str, scale: Array, axis: int | None, bits: int) -> str:
        """Return the dequantised value of weights with these scales."""
        integers = round_weights(self.graph.initializers[name], scale, axis, bits)
        return self._add(name, integers, scale, axis)

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


def is_rounded_to_nibbles(graph: Graph) -> bool:
    """Return whether a graph rounds weights that it trains to 4 bits or fewer."""
    rounded = (n for n in graph.nodes if (n.domain, n.op) == (OURS, "RoundWeights"))
    return any(_read_rounding(node)[1] <= 4 for node in rounded)


def store_weights(graph: Graph) -> Graph:
    """Store weights and biases that a training run has rounded as integers, in place.

    Scales that follow ranges or weights, or were learned, become constants, and normalisations part
    of their convolution.  A bias that does not fit in int32 stays float.

    Before   t = PeakScale(w) axis=0; r = RoundWeights(w, t) axis=0; c = RoundBias(b, t, s);
             y = Conv(d, r, c)
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
        value, scale, *unit = (graph.initializers[name] for name in node.inputs)
        if node.op == "RoundWeights":
            axis, bits = _read_rounding(node)
            values[node.outputs[0]] = work.add_weights(node.inputs[0], scale, axis, bits)
            continue
        scales = scale * unit[0]
        if scales.ndim:
            scales = np.broadcast_to(scales, value.shape)
        values[node.outputs[0]] = work.add_bias(node.inputs[0], scales) or node.inputs[0]
    for node in graph.nodes:
        node.inputs = tuple(values.get(name, name) for name in node.inputs)
    graph.nodes = [*work.made, *graph.nodes]
    return prune(graph)


def _read_rounding(node: Node) -> tuple[int | None, int]:
    """Return the axis of the channels, which have a scale each, and the bits of an integer."""
    axis = int(node.attrs.get("axis", -1))
    return (None if axis < 0 else axis), int(node.attrs.get("bits", 8))


def _compute_scales(graph: Graph) -> None:
    """Compute scales, and weights that include a normalisation, where they are known, in place."""
    kept: list[Node] = []
    for node in graph.nodes:
        key, values = (node.domain, node.op), [graph.initializers.get(n) for n in node.inputs]
        made: tuple[Array, ...] = ()
        if key == TRACKED and values[1] is not None:
            low, high = map(float, values[1])
            signed, symmetric = (bool(node.attrs.get(name)) for name in ("signed", "symmetric"))
            scale = find_scale(low, high, signed=signed, symmetric=symmetric)
            made = np.asarray(scale.scale), np.asarray(scale.zero, scale.dtype)
        elif key == PEAK and values[0] is not None:
            made = (find_peak_scale(values[0], *_read_rounding(node)),)
        elif key == LEARNED and values[1] is not None:
            learned = np.asarray(node.attrs["initial"], values[1].dtype) * np.exp(values[1])
            made = (learned.reshape(() if _read_rounding(node)[0] is None else -1),)
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
