"""Static quantisation of a forward graph: which values become integers, and the nodes for that.

A product with constant weights (Conv, Gemm, MatMul) reads its activation and its weights as
integers that are dequantised in front of it (QDQ): the form that onnxruntime and other runtimes
compute in integers.  Batch normalisations are folded into convolutions before.

A value is quantised if a product reads it, or if a convolution makes it, after an activation that
only bounds it.  Ops that only move elements keep the scale of what they move.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, UnsupportedOpError, suggest_nearest
from engine.graphs.ir.graph import Graph, Names, Node, find_type
from engine.graphs.ir.sites import (
    find_product,
    get_declaration,
    is_dequantiser,
    is_quantiser,
    make_site,
)
from engine.graphs.offline.integer_weights import IntegerWeights, find_floor, find_peak_scale
from engine.graphs.offline.normalize import fold_factors, name_nodes, set_inference_mode
from engine.graphs.offline.scales import Scale
from engine.graphs.passes.batchnorm import absorb_norms
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import drop_identities, prune
from engine.kernels.ops.fake_quantization import find_top
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import CONV, GEMM, MATMUL, Movement
from engine.kernels.vocabulary.op import OURS, TensorType

_PRODUCTS = (CONV, GEMM, MATMUL)
_SUPPORTED = ", ".join(product.of for product in _PRODUCTS)
_BOUNDING = ("Relu", "Clip")  # a quantiser after one of these bounds in the same way


class FloatProduct(NamedTuple):
    """A product that stays float, and why."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """A product that becomes one of integers.

    activation, weight, bias: names of the values that it reads; the bias is empty if there is none.
    axis: the axis of the output channels in the weights.
    """

    node: Node
    activation: str
    weight: str
    axis: int
    bias: str = ""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The choice of what becomes integers.

    sources: for each activation that is quantised, the value whose range decides its scale: itself,
        or what moving ops have made it of.
    left: the products that stay float.
    """

    products: Sequence[IntegerProduct]
    sources: Mapping[str, str]
    left: Sequence[FloatProduct]

    def move_to(self, graph: Graph) -> Scheme:
        """Return the same choice for a graph with the same products, by their names."""
        nodes = {node.name: node for node in graph.nodes}
        products = [_make_product(nodes[each.node.name]) for each in self.products]
        return Scheme(products, self.sources, self.left)

    @property
    def ranged(self) -> list[str]:
        """The values whose ranges are needed, in the order of the graph."""
        return list(dict.fromkeys(self.sources.values()))


@dataclass(frozen=True, slots=True)
class Tracking:
    """Ranges of activations that follow the ranges of batches in training.

    ranges: the ranges to begin with, by the names of values.
    momentum: the share of a range that stays at each step.
    symmetric: 0 is in the middle of the integers.
    """

    ranges: Mapping[str, tuple[float, float]]
    momentum: float
    symmetric: bool


@dataclass(frozen=True, slots=True)
class Learning:
    """Scales of activations that are trained, as logarithms of their ratio to the first ones.

    top: the integers above the one that stands for 0, or of the whole range if this may be any.
    """

    top: int


# --- before


def prepare_forward(graph: Graph, trained: Collection[str] = ()) -> Graph:
    """Return a copy in inference form whose convolutions have absorbed their batch normalisations.

    Loops and branches become plain nodes, as in training.  Weights that depend only on constants
    are constants, and factors of Gemm are part of them, see `fold_factors`.

    trained: names of convolutions whose normalisation stays one that can be trained, see
        `absorb_norms`.

    Before   a = Conv(x, w); y = BatchNormalization(a, s, b, m, v); k = Transpose(j); MatMul(y, k)
    After    y = Conv(x, w', b'); MatMul(y, k)                      w', b', k are initializers

    Raises:
        InputError: the model has quantisers already.
        EngineError: as `infer`.
    """
    for node in graph.nodes:
        if is_quantiser(node):
            raise InputError(
                f"{graph.name}: {node.op} {node.name!r} quantises {node.inputs[0]!r} already; give "
                "the float model"
            )
    made = drop_identities(set_inference_mode(name_nodes(unroll(graph.copy()))))
    before = {node.name: node.inputs for node in made.nodes}
    _fold_constants(absorb_norms(made, trained))
    made = prune(fold_factors(made))
    _keep_names(made, before)
    made.parameters = made.buffers = made.gone = ()  # of a module without its normalisations
    made.types = infer(made.copy()).types
    return name_nodes(made)


def _fold_constants(graph: Graph) -> None:
    """Compute what depends on constants alone, of any size, in place."""
    inferred = infer(graph)
    kept = []
    for node in graph.nodes:
        op = get_declaration(graph, node)
        is_known = all(not name or name in graph.initializers for name in node.inputs)
        if (
            op.fold is None
            or not node.inputs
            or not is_known
            or is_dequantiser(node)
            or (node.domain == OURS)
        ):
            kept.append(node)
            continue
        site = make_site(graph, node, inferred.types, graph.initializers)
        values = [np.asarray(value) for value in op.fold(site)]
        graph.initializers.update(zip(node.outputs, values, strict=False))
    graph.nodes = kept


def _keep_names(graph: Graph, before: Mapping[str, Sequence[str]]) -> None:
    """Give weights and biases that folding has computed the names of those they were made of.

    before: the inputs of each node, by its name, as they were.
    A convolution without a bias gets one that is named like its weights.
    """
    taken, names = set(graph.list_values()), dict[str, str]()
    for node in graph.nodes:
        if not can_be_integers(node) or node.name not in before:
            continue
        old = before[node.name]
        wanted = [*old, *([re.sub(r"weight$", "bias", old[1])] if len(old) == 2 else [])]
        for now, name in zip(node.inputs[1:], wanted[1:], strict=False):
            if now in graph.initializers and now not in names and name not in taken:
                names[now] = name
                taken.add(name)
    for node in graph.nodes:
        node.inputs = tuple(names.get(name, name) for name in node.inputs)
    for now, name in names.items():
        graph.initializers[name] = graph.initializers.pop(now)
        graph.types[name] = find_type(graph.initializers[name])


# --- the choice


def choose_scheme(graph: Graph, keep: Sequence[str] = ()) -> Scheme:
    """Return what of a graph that `prepare_forward` has made becomes integers.

    keep: names of nodes that stay float, or patterns of them as "head.*".

    Raises:
        InputError: a pattern matches no product.
        UnsupportedOpError: there is no product that can become one of integers.
    """
    types = infer(graph.copy()).types
    kept = _match(graph, keep)
    products: list[IntegerProduct] = []
    left: list[FloatProduct] = []
    for node in graph.nodes:
        if find_product(node) is None:
            continue
        if not can_be_integers(node):
            left.append(FloatProduct(node.name, node.op, f"supported: {_SUPPORTED}"))
            continue
        reason = "kept by a pattern" if node.name in kept else _find_obstacle(graph, node, types)
        if reason:
            left.append(FloatProduct(node.name, node.op, reason))
        else:
            products.append(_make_product(node))
    if not products:
        told = "; ".join(f"{each.op} {each.name!r}: {each.reason}" for each in left[:3])
        raise UnsupportedOpError(
            f"{graph.name}: no product can become one of integers ({told or 'it has none'}); "
            f"supported: {_SUPPORTED} of float32 with constant weights"
        )
    return Scheme(products, _choose_activations(graph, products), left)


def can_be_integers(node: Node) -> bool:
    """Return whether a node is a product of a kind that other runtimes compute in integers."""
    return not node.domain and find_product(node) in _PRODUCTS


def _match(graph: Graph, patterns: Sequence[str]) -> set[str]:
    """Return the names of the products that patterns name."""
    names = [node.name for node in graph.nodes if can_be_integers(node)]
    chosen = set[str]()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise InputError(
                f"keep_float: {pattern!r} matches none of {len(names)} products"
                f"{suggest_nearest(pattern, names)}"
            )
        chosen |= matched
    return chosen


def _find_obstacle(graph: Graph, node: Node, types: Mapping[str, TensorType]) -> str:
    """Return why a product cannot become one of integers; empty if it can."""
    activation, weight = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if activation in graph.initializers:
        return "its first factor is constant"
    if weight not in graph.initializers:
        return "both factors are computed"
    if types[activation].dtype != "f32":
        return f"it computes in {types[activation].dtype}"
    shape = graph.initializers[weight].shape
    if len(shape) < 2 or (node.op == "MatMul" and len(shape) != 2) or 0 in shape:
        return f"its weights have the shape {list(shape)}"
    channels = shape[_make_product(node).axis]
    if bias and (bias not in graph.initializers or graph.initializers[bias].shape != (channels,)):
        return f"its bias {bias!r} is not a constant of {channels} channels"
    return "" if np.isfinite(graph.initializers[weight]).all() else "its weights are not finite"


def _make_product(node: Node) -> IntegerProduct:
    product, (activation, weight, *bias) = find_product(node), node.inputs
    assert product is not None  # see `can_be_integers`
    axis = product.find_output_axis(node.attrs)
    return IntegerProduct(node, activation, weight, axis, *bias)


def _choose_activations(graph: Graph, products: Sequence[IntegerProduct]) -> dict[str, str]:
    """Return the activations that are quantised, each with the value that decides its scale."""
    makers, readers = graph.find_producers(), graph.find_consumers()
    ends = set(graph.outputs)
    wanted = {product.activation for product in products}
    for product in products:
        if find_product(product.node) == CONV:
            wanted.add(_find_end(product.node, readers, ends, graph.initializers))
    order = {name: place for place, name in enumerate(graph.list_values())}
    sources: dict[str, str] = {}
    for name in sorted(wanted, key=lambda name: order[name]):
        path = [name]
        while (maker := makers.get(path[-1])) is not None and _picks_elements(maker):
            if maker.inputs[0] in graph.initializers:  # rows of a table
                break
            path.append(maker.inputs[0])
        sources |= dict.fromkeys(path, path[-1])
    return {name: sources[name] for name in sorted(sources, key=lambda name: order[name])}


def _find_end(
    node: Node,
    readers: Mapping[str, Sequence[Node]],
    ends: Collection[str],
    constants: Collection[str],
) -> str:
    """Return the value that a convolution makes, after an activation that only bounds it."""
    value = node.outputs[0]
    for after in readers.get(value, ()):
        is_only = len(readers[value]) == 1 and value not in ends
        bounds = all(not name or name in constants for name in after.inputs[1:])
        if is_only and after.op in _BOUNDING and not after.domain and bounds:
            return after.outputs[0]
    return value


def _picks_elements(node: Node) -> bool:
    """Return whether every element of a node's first output is one of its first input."""
    op = list_ops().get((node.domain, node.op))
    is_pool = node.op == "MaxPool" and not node.domain
    picks = op is not None and op.movement.copies and op.movement is not Movement.JOINED
    return picks or is_pool


# --- the nodes


def insert_quantizers(
    graph: Graph,
    scheme: Scheme,
    scales: Mapping[str, Scale],
    *,
    bits: int = 8,
    per_channel: bool = True,
    is_trained: bool = False,
    activations: Tracking | Learning | None = None,
    learned: Mapping[str, Array] | None = None,
) -> Graph:
    """Quantise what a scheme has chosen, in place; return the graph.

    scales: the scales of the values `scheme.ranged`.
    bits: the bits of the weights' integers, which are stored as int8.
    is_trained: weights and biases stay float; weights are rounded when they are read.
    activations: how their scales move in training; None if they stay as they are.
    learned: scales of weights to begin with, by names of products, if they are trained; otherwise
        they follow the largest weights.

    Before   h = Conv(x, w, b); y = Relu(h)                            x and y are quantised
    After    d = DequantizeLinear(QuantizeLinear(x, s, z), s, z)
             h = Conv(d, DequantizeLinear(w8, t, 0), DequantizeLinear(b32, s t, 0)); y = Relu(h)
             e = DequantizeLinear(QuantizeLinear(y, u, v), u, v)       all readers of y read e
             with tracking, u, v = TrackedScale(y, range); with learning, u = LearnedScale(y, t)
    """
    work = _Insertion(graph, scheme, scales, bits, per_channel, activations)
    if is_trained:
        work.round_weights(learned or {})
    else:
        work.store_weights()
    work.quantise_activations()
    return prune(graph.sort()).check()


class _Insertion:
    """Insertion of quantisers into a graph."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        scales: Mapping[str, Scale],
        bits: int,
        per_channel: bool,
        activations: Tracking | Learning | None,
    ) -> None:
        self.graph, self.scheme, self.bits, self.per_channel = graph, scheme, bits, per_channel
        self.names, self.activations = Names(graph), activations
        self.scales = {name: scales[source] for name, source in scheme.sources.items()}
        self.points = {  # the names of the scale and the zero point of each range
            name: tuple(self.names.take_fresh(f"{name}_{end}") for end in ("scale", "zero_point"))
            for name in scheme.ranged
        }

    def add(self, name: str, value: Array) -> str:
        """Add a constant; return its name."""
        name = self.names.take_fresh(name)
        self.graph.initializers[name] = value
        return name

    def add_point(self, name: str, value: str, scale: Scale) -> None:
        """Add the scale and the zero point of a range.

        name: the name of the range.  value: the value that it is one of, before it is rounded.
        """
        point, moving = self.points[name], self.activations
        if isinstance(moving, Tracking):
            bounds = self.add(f"{name}_range", np.array(moving.ranges[name], np.float32))
            attrs = {"signed": int(scale.dtype == np.int8), "symmetric": int(moving.symmetric),
                     "momentum": moving.momentum}  # fmt: skip
            title = self.names.take_fresh(f"{name}/TrackedScale")
            inputs = value, bounds
            self.graph.nodes.append(Node("TrackedScale", inputs, point, attrs, OURS, title))
            return
        if isinstance(moving, Learning):
            initial = np.asarray(scale.scale)
            self.append_learned(name, value, initial, point[0], samples=1, top=moving.top)
        else:
            self.graph.initializers[point[0]] = np.asarray(scale.scale)
        self.graph.initializers[point[1]] = np.asarray(scale.zero, scale.dtype)

    def append_learned(
        self, name: str, value: str, initial: Array, output: str, **attrs: int
    ) -> str:
        """Let a parameter decide scales; return their name, which is `output`.

        name: what the parameter is named after.  value: the value that is rounded.
        """
        step = self.add(f"{name}_step", np.zeros(initial.size, np.float32))
        given: dict[str, Any] = {"initial": initial.reshape(-1).tolist()}
        return self.append("LearnedScale", (value, step), output, OURS, **attrs, **given)

    def append(
        self, op: str, inputs: tuple[str, ...], output: str, domain: str = "", **attrs: Any
    ) -> str:
        """Append a node; return the value that it makes."""
        title = self.names.take_fresh(f"{output}/{op}")
        self.graph.nodes.append(Node(op, inputs, (output,), dict(attrs), domain, title))
        return output

    def store_weights(self) -> None:
        """Let products read weights and biases of integers."""
        graph, work = self.graph, IntegerWeights(self.graph, self.names)
        floors = self.find_floors()
        kept: dict[tuple[str, int], tuple[str, Array]] = {}
        for product in self.scheme.products:
            key = product.weight, product.axis
            if key not in kept:
                axis = product.axis if self.per_channel else None
                scale = find_peak_scale(graph.initializers[product.weight], axis, self.bits)
                scale = np.maximum(scale, floors.get(key, 0)).astype(np.float32)
                kept[key] = work.add_weights(product.weight, scale, axis, self.bits), scale
            made, scale = kept[key]
            inputs = [product.node.inputs[0], made]
            if product.bias:
                unit = self.scales[product.activation].scale
                inputs.append(work.add_bias(product.bias, (unit * scale).astype(np.float32)))
            product.node.inputs = tuple(inputs)
        graph.nodes += work.made

    def find_floors(self) -> dict[tuple[str, int], Array]:
        """Return the least scales of weights with which the biases beside them fit."""
        floors: dict[tuple[str, int], Array] = {}
        for product in self.scheme.products:
            if product.bias:
                bias = self.graph.initializers[product.bias]
                unit = self.scales[product.activation].scale
                least = find_floor(bias, unit, per_channel=self.per_channel)
                key = product.weight, product.axis
                floors[key] = np.maximum(floors.get(key, np.zeros(())), least)
        return floors

    def round_weights(self, learned: Mapping[str, Array]) -> None:
        """Let products read their weights and biases rounded, while these stay float.

        learned: see `insert_quantizers`.
        """
        scales, rounded = dict[tuple[str, int], str](), dict[tuple[object, ...], str]()
        for product in self.scheme.products:
            node, weight, bias = product.node, product.weight, product.bias
            axis = product.axis if self.per_channel else -1
            key = weight, axis
            if key not in scales:
                scales[key] = scale = self.append_weight_scale(*key, learned.get(node.name))
                attrs = {"axis": axis, "bits": self.bits}
                made = self.names.take_fresh(f"{weight}_rounded")
                rounded[key] = self.append("RoundWeights", (weight, scale), made, OURS, **attrs)
            inputs = [node.inputs[0], rounded[key]]
            if bias:
                unit, _ = self.points[self.scheme.sources[product.activation]]
                read = bias, scales[key], unit
                if read not in rounded:
                    made = self.names.take_fresh(f"{bias}_rounded")
                    rounded[read] = self.append("RoundBias", read, made, OURS)
                inputs.append(rounded[read])
            node.inputs = tuple(inputs)
        self.graph.opsets.setdefault(OURS, 1)

    def append_weight_scale(self, weight: str, axis: int, initial: Array | None) -> str:
        """Let the largest weights decide scales, or if they begin somewhere a parameter.

        axis: the axis of the channels; -1 for one scale.
        """
        # The scale of an exported model is another value, of that name.
        scale = self.names.take_fresh(f"{weight}_unit")
        if initial is None:
            return self.append("PeakScale", (weight,), scale, OURS, axis=axis, bits=self.bits)
        top = find_top(self.bits)
        return self.append_learned(weight, weight, initial, scale, axis=axis, top=top)

    def quantise_activations(self) -> None:
        """Let all readers of the chosen values read them rounded."""
        graph = self.graph
        makers, readers = graph.find_producers(), graph.find_consumers()
        for name, scale in self.scales.items():
            rounded = self.names.take_fresh(f"{name}_dequantized")
            for reader in readers.get(name, ()):
                reader.inputs = tuple(rounded if each == name else each for each in reader.inputs)
            source = name
            if name in graph.outputs and name in makers:  # the output keeps its name
                source = self.names.take_fresh(f"{name}_raw")
                maker = makers[name]
                maker.outputs = tuple(source if each == name else each for each in maker.outputs)
                for reader in readers.get(name, ()):
                    reader.inputs = tuple(name if i == rounded else i for i in reader.inputs)
                if name in graph.types:
                    graph.types[source] = graph.types[name]
                rounded = name
            point = self.points[self.scheme.sources[name]]
            if self.scheme.sources[name] == name:
                self.add_point(name, source, scale)
            integers = self.names.take_fresh(f"{name}_quantized")
            self.append("QuantizeLinear", (source, *point), integers)
            graph.types[integers] = find_type(np.zeros((), scale.dtype)).but(
                shape=graph.types[name].shape if name in graph.types else graph.inputs[name].shape
            )
            self.append("DequantizeLinear", (integers, *point), rounded)


def count_weights(graph: Graph, products: Sequence[IntegerProduct]) -> int:
    """Return the number of weights that products read; shared ones count once."""
    return sum(graph.initializers[name].size for name in {each.weight for each in products})
