"""Integer layers: quantised layers with constant weights compute in integers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY, OF_NUMPY
from engine.base.errors import UnknownValueError
from engine.graphs.ir.graph import Graph, KnownTypes, Names, Node
from engine.graphs.ir.sites import find_product, is_dequantiser, is_quantiser
from engine.graphs.passes.may_add import add_by_table
from engine.kernels.ops.quantization import find_limits
from engine.kernels.vocabulary.facts import Factors
from engine.kernels.vocabulary.integers import fill_panels, pack_panels
from engine.kernels.vocabulary.op import MS, OURS

DEEPEST = (1 << 31) // (255 * 128)  # products of 8 bits whose sum int32 holds
_MATMUL, _CONV = f"{OURS}::IntegerMatMul", f"{OURS}::IntegerConv"
MAY_ADD = add_by_table(
    {
        **{
            f"{domain}DequantizeLinear {reader}": made
            for domain in ("", f"{MS}::")
            for reader, made in (
                ("MatMul", f"{_MATMUL} {OURS}::ScaledSums"),
                ("Gemm", f"{_MATMUL} Add Mul Transpose"),
                ("Conv", f"{_CONV} Add {OURS}::ScaledSums"),
            )
        },
        f"{MS}::FakeQuant MatMul": f"{_MATMUL} {OURS}::ScaledSums QuantizeLinear",
        f"{MS}::FakeQuant Gemm": f"{_MATMUL} Add Mul Transpose QuantizeLinear",
        f"{MS}::FakeQuant Conv": f"{_CONV} Add {OURS}::ScaledSums QuantizeLinear",
        "QLinearMatMul": _MATMUL,
        "QLinearConv": _CONV,
        "MatMulInteger": _MATMUL,
        "ConvInteger": _CONV,
        f"{MS}::DynamicQuantizeLSTM": f"DynamicQuantizeLinear {_MATMUL} {OURS}::ScaledSums "
        f"{OURS}::LSTMOfIntegers",
    }
)
_LIMITS = ("", "Relu"), ("", "Clip")
_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


def compute_in_integers(
    graph: Graph, types: KnownTypes, constants: Mapping[str, Array], frozen: Container[str] = ()
) -> bool:
    """Compute frozen quantised layers in integers, in place; return whether there are any.

    A layer is a product or a convolution whose input is quantised and whose weights are constant.
    If its result is quantised in turn, scaling and rounding are part of the same op, and so are a
    Relu and a Clip between them, which only narrow the range of the integers.  If any layer was
    changed, the types must be inferred again.

    Before   d = DequantizeLinear(q, s, z); v = DequantizeLinear(w, t); c = DequantizeLinear(b, st);
             y = Relu(Conv(d, v, c)); r = QuantizeLinear(y, u, p)
    After    r = engine::IntegerConv(q, w packed, sums, z, s t / u, b) low=p offset=p to=u8

    A layer stays as it is if it has several groups and is not depthwise, or if what it reads is
    scaled by channel.  Weights that need 9 bits less their zero points, as uint8 does, have shifts:
    what each column of the packed weights is too large by.

    No code depends on the scales and zero points of quantisers that stay.

    frozen: the inputs whose values are constants that the caller can tell.

    Raises:
        UnknownValueError: layers need the values of some of these inputs, which it names.
    """
    work = _Integers(graph, types, constants, frozen)
    work.run()
    return bool(work.made)


@dataclass(frozen=True, slots=True)
class _Activation:
    """A quantised value that a layer reads: the integers and the name of their zero point.

    maker: a new node that makes the integers; None if the graph has them.
    """

    name: str
    scale: np.float32
    zero: str
    maker: Node | None = None


@dataclass(frozen=True, slots=True)
class _Quantised:
    """Constant 8-bit weights, with scales and shifts along an axis, or one of each for all.

    shifts: the amounts by which the integers are too large.  axis: None for one scale and shift.
    """

    integers: Array
    scales: Array
    shifts: Array
    axis: int | None


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The weights of a layer as [depth, columns]; scales and shifts: of the columns, or one.

    repeats: how often the sum over the depth goes over what a depthwise window sees; 0: others.
    """

    integers: Array
    scales: Array
    shifts: Array
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a layer: the name and type of the value, and how its integers are computed.

    scale: None if the result is not 8-bit integers.  gone: the nodes that the layer includes.
    """

    name: str
    to: str
    scale: np.float32 | None = None
    low: int = 0
    high: int = 0
    offset: int = 0
    gone: tuple[Node, ...] = ()


class _Integers:
    """Walks over the layers of a graph.

    made: the nodes that replace each layer.  gone: nodes that are part of a layer.
    rounded: for nodes that round values in training, these as integers.  placed: the nodes that
    make such integers and are already part of the graph.
    lacking: the frozen inputs whose values it needs.
    """

    def __init__(
        self,
        graph: Graph,
        types: KnownTypes,
        constants: Mapping[str, Array],
        frozen: Container[str],
    ) -> None:
        self.graph, self.types, self.constants, self.frozen = graph, types, constants, frozen
        self.lacking: set[str] = set()
        self.names = Names(graph)
        self.makers = {o: n for n in graph.nodes for o in n.outputs if o}
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.list_reads():
                self.readers.setdefault(name, []).append(node)
        self.made: dict[Node, list[Node]] = {}
        self.rounded: dict[Node, _Activation] = {}
        self.placed: set[Node] = set()
        self.gone: set[Node] = set()

    def run(self) -> None:
        for node in self.graph.nodes:
            new = self.replace_node(node)
            if new is not None:
                self.made[node] = new
        if self.lacking:
            names = tuple(sorted(self.lacking))
            text = f"weights and scales of layers in integers must be constants: {', '.join(names)}"
            raise UnknownValueError(text, inputs=names)
        nodes = []
        for node in self.graph.nodes:
            if node not in self.gone:
                nodes += self.made.get(node, [node])
        self.graph.nodes = nodes
        # Of other layers scales are operands, not part of the code: they share their kernels.
        for node in nodes:
            if is_quantiser(node) or is_dequantiser(node):
                self.graph.sized |= self.graph.initializers.keys() & node.inputs[1:]

    def get_value(self, name: str) -> Array | None:
        """Return the value of a constant, None if it is none; note the frozen inputs."""
        value = self.constants.get(name)
        if value is None and name in self.frozen:
            self.lacking.add(name)
        return value

    def replace_node(self, node: Node) -> list[Node] | None:
        """Return the nodes that compute a layer in integers; None if the node stays."""
        match node.domain, node.op:
            case "", "MatMul" | "Gemm" | "Conv":
                return self.replace_dequantised(node)
            case "", "QLinearMatMul" | "QLinearConv":
                return self.replace_linear(node)
            case "", "MatMulInteger" | "ConvInteger":
                return self.replace_bare(node)
            case "com.microsoft", "DynamicQuantizeLSTM":
                return self.replace_recurrence(node)
        return None

    # --- the kinds of layers

    def replace_dequantised(self, node: Node) -> list[Node] | None:
        """Replace a layer between DequantizeLinear and QuantizeLinear; None if it stays."""
        x = self.find_activation(node.inputs[0])
        if x is None:
            return self.replace_measured(node)
        w = self.find_weights(node.inputs[1])
        if w is None:
            return None
        alpha, beta, is_turned = np.float32(1), np.float32(1), False
        if node.op == "Gemm":
            alpha, beta = (np.float32(node.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
            is_turned = bool(node.attrs.get("transA", 0))
            if not alpha:
                return None
            if node.attrs.get("transB", 0):
                w = _transpose(w, (1, 0))
        matrix = _flatten(node, w)
        if matrix is None:
            return None
        unit = _multiply(alpha * x.scale, matrix.scales)
        bias = node.inputs[2] if len(node.inputs) > 2 and beta else ""
        integers = self.read_bias(bias, unit, beta, matrix.integers.shape[1]) if bias else None
        result = self.find_result(node.outputs[0])
        is_separate = bool(bias) and integers is None
        if not is_separate and not np.isfinite(_find_factor(unit, result)).all():
            return None
        before = self.take_maker(x)
        name = x.name
        if is_turned:
            before.append(self.turn_input(node, name))
            name = before[-1].outputs[0]
        if is_separate:
            made = self.add_bias(node, name, x.zero, matrix, unit, bias, beta)
        else:
            made = [self.make_layer(node, name, x.zero, matrix, result, unit, integers)]
        return None if made is None else [*before, *made]

    def turn_input(self, node: Node, name: str) -> Node:
        """Return a node that transposes the integers that a Gemm reads."""
        turned = self.names.take_fresh(f"{name}_transposed")
        title = self.names.take_fresh(f"{node.name}/Transpose")
        return Node("Transpose", (name,), (turned,), {"perm": [1, 0]}, "", title)

    def replace_measured(self, node: Node) -> list[Node] | None:
        """Replace a layer of what DynamicQuantizeLinear rounds, whose scale is computed.

        It returns None if the node stays.

        Before   q, s, z = DynamicQuantizeLinear(x); d = DequantizeLinear(q, s, z)
                 y = Conv(d, DequantizeLinear(w, t), b)
        After    q, s, z = DynamicQuantizeLinear(x); m = engine::IntegerConv(q, w packed, sums, z)
                 y = engine::ScaledSums(m, s, t, b) axis=1
        """
        x = self.find_measured(node.inputs[0]) if node.op in ("MatMul", "Conv") else None
        w = self.find_weights(node.inputs[1]) if x is not None else None
        matrix = _flatten(node, w) if w is not None else None
        if x is None or matrix is None or self.types[node.outputs[0]].dtype != "f32":
            return None
        q, scale, zero = x
        total = self.names.take_fresh(f"{node.outputs[0]}_sums")
        layer = self.make_layer(node, q, zero, matrix, _Result(total, "i32"), None, None)
        factor = self.add(node, "scale", matrix.scales.astype(np.float32))
        inputs = (total, scale, factor, *node.inputs[2:3])
        attrs = {"axis": 1 if _is_convolution(node) else -1}
        title = self.names.take_fresh(f"{node.name}/ScaledSums")
        return [layer, Node("ScaledSums", inputs, node.outputs, attrs, OURS, title)]

    def find_measured(self, name: str) -> tuple[str, str, str] | None:
        """Return the integers, scale and zero point of a value that DynamicQuantizeLinear rounds.

        In training, the value may be rounded by an op through which gradients flow.
        """
        maker = self.makers.get(name)
        if maker is None or len(maker.inputs) < 3:
            return None
        source, scale, zero = maker.inputs[:3]
        measuring = self.makers.get(scale)
        if measuring is None or measuring.op != "DynamicQuantizeLinear":
            return None
        q = measuring.outputs[0]
        if (maker.domain, maker.op) == (MS, "FakeQuant"):
            limits = tuple(int(maker.attrs.get(f"quant_{end}", -1)) for end in ("min", "max"))
            cast = self.makers.get(zero)
            if cast is None or cast.op != "Cast" or limits != find_limits("u8"):
                return None
            is_same, zero = source == measuring.inputs[0], cast.inputs[0]
        else:
            is_same = source == q and is_dequantiser(maker)
        is_same &= maker.outputs[0] == name and (scale, zero) == measuring.outputs[1:3]
        return (q, scale, zero) if q and is_same and self.types[q].rank >= 2 else None

    def replace_linear(self, node: Node) -> list[Node] | None:
        """Replace QLinearMatMul or QLinearConv; None if it stays."""
        values = [self.get_value(name) for name in node.inputs]
        x_scale, y_scale, y_zero = (_take_single(values[i]) for i in (1, 6, 7))
        w = self.join_weights(*node.inputs[3:6], axis=_find_channels(node))
        zero = self.types[node.inputs[2]]
        if x_scale is None or y_scale is None or y_zero is None or w is None or zero.size != 1:
            return None
        matrix = _flatten(node, w)
        if matrix is None:
            return None
        bias = None
        if len(node.inputs) > 8 and node.inputs[8]:
            bias = values[8]
            if bias is None:
                return None
        to = self.types[node.outputs[0]].dtype
        low, high = find_limits(to)
        result = _Result(node.outputs[0], to, np.float32(y_scale), low, high, int(y_zero))
        unit = _multiply(x_scale, matrix.scales)
        if not np.isfinite(_find_factor(unit, result)).all():
            return None
        return [self.make_layer(node, node.inputs[0], node.inputs[2], matrix, result, unit, bias)]

    def replace_bare(self, node: Node) -> list[Node] | None:
        """Replace MatMulInteger or ConvInteger, whose result is a sum; None if it stays."""
        inputs = [*node.inputs, "", ""][:4]
        if inputs[2] and self.types[inputs[2]].size != 1:
            return None
        w = self.join_weights(inputs[1], "", inputs[3], axis=_find_channels(node))
        matrix = None if w is None else _flatten(node, w)
        if matrix is None:
            return None
        zero = inputs[2] or self.add_zero(self.types[inputs[0]].dtype)
        result = _Result(node.outputs[0], "i32")
        return [self.make_layer(node, inputs[0], zero, matrix, result, None, None)]

    def replace_recurrence(self, node: Node) -> list[Node] | None:
        """Replace DynamicQuantizeLSTM; None if it stays.

        Before   y = com.microsoft::DynamicQuantizeLSTM(x, w, r, b, ..., scales and zero points)
        After    q, s, z = DynamicQuantizeLinear(x); t = engine::IntegerMatMul(q, W packed, ...);
                 g = engine::ScaledSums(t, s, w_scale, bias);
                 y = engine::LSTMOfIntegers(g, R packed, sums, r_scale, ...)
        """
        x, w, r, b, lens, h0, c0, p, *rest = node.inputs
        if self.types[x].dtype != "f32":
            return None
        of_x, of_h = self.read_directions(w, *rest[:2]), self.read_directions(r, *rest[2:4])
        bias = self.get_value(b) if b else None
        if of_x is None or of_h is None or (b and bias is None):
            return None
        n = of_h[0].integers.shape[1]
        # W x of all steps and directions is one product.
        matrix = _Matrix(
            np.concatenate([m.integers for m in of_x], -1),
            np.concatenate([m.scales for m in of_x]),
            np.zeros(1, np.int16),
        )
        fresh, title = self.names.take_fresh, node.name or node.outputs[0]
        rounded = tuple(fresh(f"{x}_{part}") for part in ("rounded", "scale", "zero"))
        total, gates = fresh(f"{x}_sums"), fresh(f"{x}_gates")
        name = fresh(f"{title}/DynamicQuantizeLinear")
        first = Node("DynamicQuantizeLinear", (x,), rounded, {}, "", name)
        product = Node("MatMulInteger", (rounded[0], w), (total,), {}, "", fresh(f"{title}/W"))
        result = _Result(total, "i32")
        product = self.make_layer(product, rounded[0], rounded[2], matrix, result, None, None)
        ins = [total, rounded[1], self.add(node, "scale_of_x", matrix.scales)]
        if bias is not None:
            ins.append(self.add(node, "bias", (bias[:, :n] + bias[:, n:]).reshape(-1)))
        scaled = Node("ScaledSums", tuple(ins), (gates,), {}, OURS, fresh(f"{title}/ScaledSums"))
        packed = {
            "packed": [pack_panels(m.integers).reshape(-1) for m in of_h],
            "sums": [fill_panels(m.integers.sum(0, dtype=np.int32)) for m in of_h],
            "scale_of_h": [fill_panels(m.scales) for m in of_h],
        }
        ins = [gates, *(self.add(node, part, np.stack(v)) for part, v in packed.items())]
        ins += [lens, h0, c0, p]
        while not ins[-1]:
            ins.pop()
        attrs = {**node.attrs, "hidden_size": n // 4}
        walk = Node("LSTMOfIntegers", tuple(ins), node.outputs, attrs, OURS, node.name)
        return [first, product, scaled, walk]

    def read_directions(self, name: str, scale: str, zero: str) -> list[_Matrix] | None:
        """Return weights [directions, k, columns] as matrices with a scale for each column.

        None if they are not constant, or less their zero points need 9 bits.
        """
        w, scales, zeros = (self.get_value(n) for n in (name, scale, zero))
        if w is None or scales is None or zeros is None:
            return None
        d, _, columns = w.shape
        # A direction or a channel of one has a scale and a zero point.
        centred = w.astype(np.int16) - zeros.astype(np.int16).reshape(d, 1, -1)
        if centred.min() < -128 or centred.max() > 127:
            return None
        each = np.broadcast_to(scales.astype(np.float32).reshape(d, -1), (d, columns))
        shifts = np.zeros(1, np.int16)
        return [_Matrix(centred[i].astype(np.int8), each[i], shifts) for i in range(d)]

    def add_bias(
        self,
        node: Node,
        x: str,
        zero: str,
        matrix: _Matrix,
        unit: Array,
        bias: str,
        beta: np.float32,
    ) -> list[Node] | None:
        """Return the layer with a result of floats, to which beta times the bias is added."""
        if _is_convolution(node):
            value = self.get_value(bias)
            if value is None:
                return None
            rank = self.types[node.outputs[0]].rank
            bias = self.names.take_fresh(f"{bias}_channels")
            self.graph.initializers[bias] = value.reshape(-1, *[1] * (rank - 2))
        raw = self.names.take_fresh(f"{node.outputs[0]}_product")
        made = [self.make_layer(node, x, zero, matrix, _Result(raw, "f32"), unit, None)]
        if beta != 1:
            scaled = self.names.take_fresh(f"{node.outputs[0]}_bias")
            title = self.names.take_fresh(f"{node.name}/Mul")
            inputs = bias, self.add(node, "beta", np.asarray(beta))
            made.append(Node("Mul", inputs, (scaled,), {}, "", title))
            bias = scaled
        title = self.names.take_fresh(f"{node.name}/Add")
        return [*made, Node("Add", (raw, bias), node.outputs, {}, "", title)]

    # --- what layers read and write

    def find_activation(self, name: str) -> _Activation | None:
        """Return the integers that represent a value, if they are computed and have one scale."""
        maker = self.makers.get(name)
        if maker is not None and (maker.domain, maker.op) == (MS, "FakeQuant"):
            return self.find_rounded(maker)
        if maker is None or not is_dequantiser(maker):
            return None
        q, scale = maker.inputs[:2]
        unit = _take_single(self.get_value(scale))
        kind = self.types[q].dtype
        if unit is None or unit.dtype != np.float32 or kind not in ("u8", "i8"):
            return None
        if (
            q in self.constants
            or q in self.frozen
            or self.types[name].dtype != "f32"
            or self.types[q].rank < 2
        ):
            return None
        zero = maker.inputs[2] if len(maker.inputs) > 2 and maker.inputs[2] else ""
        if zero and _take_single(self.get_value(zero)) is None:
            return None
        return _Activation(q, np.float32(unit), zero or self.add_zero(kind))

    def find_rounded(self, maker: Node) -> _Activation | None:
        """Return the integers that represent a value which training rounds, if they have 8 bits.

        The value is still rounded as it is, for its gradient and for other readers.

        Before   d = com.microsoft::FakeQuant(x, s, z); y = MatMul(d, DequantizeLinear(w, t))
        After    d = ...; q = QuantizeLinear(x, s, z); y = engine::IntegerMatMul(q, w packed, ...)
        """
        if maker in self.rounded:
            return self.rounded[maker]
        x, scale, zero = maker.inputs[:3]
        unit, level = (_take_single(self.get_value(name)) for name in (scale, zero))
        limits = tuple(int(maker.attrs.get(f"quant_{end}", -1)) for end in ("min", "max"))
        kind = next((kind for kind in ("u8", "i8") if find_limits(kind) == limits), None)
        if unit is None or level is None or kind is None or unit.dtype != np.float32:
            return None
        if self.types[x].dtype != "f32" or self.types[x].rank < 2:
            return None
        q, point = (self.names.take_fresh(f"{x}_{part}") for part in ("rounded", "zero"))
        self.graph.initializers[point] = np.asarray(level, NUMPY[kind])
        title = self.names.take_fresh(f"{maker.name}/QuantizeLinear")
        node = Node("QuantizeLinear", (x, scale, point), (q,), {}, "", title)
        self.rounded[maker] = _Activation(q, np.float32(unit), point, node)
        return self.rounded[maker]

    def take_maker(self, x: _Activation) -> list[Node]:
        """Return the new node that makes integers, for the first layer that reads them."""
        if x.maker is None or x.maker in self.placed:
            return []
        self.placed.add(x.maker)
        return [x.maker]

    def add_zero(self, kind: str) -> str:
        name = self.names.take_fresh("no_zero_point")
        self.graph.initializers[name] = np.zeros((), NUMPY[kind])
        return name

    def find_weights(self, name: str) -> _Quantised | None:
        """Return constant weights that are dequantised, and perhaps transposed."""
        maker = self.makers.get(name)
        if maker is not None and (maker.domain, maker.op) == ("", "Transpose"):
            w = self.find_weights(maker.inputs[0])
            if w is None:
                return None
            order = maker.attrs.get("perm") or range(w.integers.ndim)[::-1]
            return _transpose(w, tuple(order))
        if maker is None or not is_dequantiser(maker):
            return None
        if maker.attrs.get("block_size", 0) or self.types[name].dtype != "f32":
            return None
        zero = maker.inputs[2] if len(maker.inputs) > 2 else ""
        integers, scale = maker.inputs[:2]
        return self.join_weights(integers, scale, zero, axis=int(maker.attrs.get("axis", 1)))

    def join_weights(self, name: str, scale: str, zero: str, *, axis: int) -> _Quantised | None:
        """Return weights less their zero points as far as 8 bits hold them; None if not constant.

        scale: "" for 1.
        """
        w = self.get_value(name)
        scales = self.get_value(scale) if scale else np.ones((), np.float32)
        zeros = self.get_value(zero) if zero else np.zeros((), np.int8)
        if w is None or scales is None or zeros is None or scales.dtype != np.float32:
            return None
        if OF_NUMPY[w.dtype] not in ("u8", "i8") or w.ndim < 2 or not w.size:
            return None
        axis %= w.ndim
        along = [-1 if i == axis else 1 for i in range(w.ndim)]
        if any(v.size not in (1, w.shape[axis]) or v.ndim > 1 for v in (scales, zeros)):
            return None
        shifts = zeros.astype(np.int16).reshape(-1)
        centred = w.astype(np.int16) - shifts.reshape(along if shifts.size > 1 else ())
        if centred.min() >= -128 and centred.max() <= 127:
            shifts = np.zeros(1, np.int16)
        else:  # as int8, which differs from uint8 by half of the range
            least = 128 if w.dtype == np.uint8 else 0
            centred, shifts = w.astype(np.int16) - least, shifts - least
        flat = scales.reshape(-1)
        is_one = flat.size == shifts.size == 1
        return _Quantised(centred.astype(np.int8), flat, shifts, None if is_one else axis)

    def read_bias(self, name: str, unit: Array, beta: np.float32, columns: int) -> Array | None:
        """Return the integers of a bias in units of the sums; None if it is not stored so.

        beta: what the bias is multiplied with.
        """
        maker = self.makers.get(name)
        if maker is None or not is_dequantiser(maker):
            return None
        values = [self.get_value(i) if i else None for i in (*maker.inputs, "")[:3]]
        integers, scale, zeros = values
        if integers is None or integers.dtype != np.int32 or scale is None:
            return None
        if integers.shape not in ((columns,), (1, columns)) or (zeros is not None and zeros.any()):
            return None
        if scale.size not in (1, columns):
            return None
        if not np.allclose(beta * scale.reshape(-1), unit, rtol=1e-5):
            return None
        return integers.reshape(-1)

    def find_result(self, name: str) -> _Result:
        """Return how the value of a layer is used: as floats, or by one quantisation alone."""
        plain = _Result(name, "f32")
        bounds: list[tuple[str, Array]] = []
        gone: list[Node] = []
        while (node := self.find_reader(name)) is not None:
            if is_quantiser(node):
                return self.join_result(node, bounds, gone) or plain
            limits = self.read_limits(node) if (node.domain, node.op) in _LIMITS else None
            if limits is None:
                break
            bounds += limits
            gone.append(node)
            name = node.outputs[0]
        return plain

    def find_reader(self, name: str) -> Node | None:
        """Return the node that reads a value as its first input, if nothing else needs it."""
        readers = self.readers.get(name, [])
        is_only = len(readers) == 1 and name not in self.graph.outputs
        return readers[0] if is_only and readers[0].inputs[0] == name else None

    def read_limits(self, node: Node) -> list[tuple[str, Array]] | None:
        """Return the bounds of a Relu or a Clip; None if they are not constants."""
        if node.op == "Relu":
            return [("low", np.zeros((), np.float32))]
        attrs = {"low": node.attrs.get("min"), "high": node.attrs.get("max")}
        out = [(side, np.float32(v)) for side, v in attrs.items() if v is not None]
        for side, name in zip(("low", "high"), node.inputs[1:], strict=False):
            if name:
                value = _take_single(self.get_value(name))
                if value is None:
                    return None
                out.append((side, value))
        return [(side, np.asarray(v)) for side, v in out]

    def join_result(
        self, node: Node, bounds: Sequence[tuple[str, Array]], gone: Sequence[Node]
    ) -> _Result | None:
        """Return the integers that a QuantizeLinear makes of values within bounds."""
        to = self.types[node.outputs[0]].dtype
        scale = _take_single(self.get_value(node.inputs[1]))
        zero: Any = 0
        if len(node.inputs) > 2 and node.inputs[2]:
            zero = _take_single(self.get_value(node.inputs[2]))
        if scale is None or scale.dtype != np.float32 or zero is None or to not in ("u8", "i8"):
            return None
        limits = low, high = find_limits(to)
        for side, bound in bounds:
            # Quantising keeps order: what is clipped before may be clipped after.
            level = int(np.clip(np.rint(np.float32(bound) / scale) + float(zero), *limits))
            low, high = (max(low, level), high) if side == "low" else (low, min(high, level))
        # ONNX clips to the least bound first: where bounds cross, the upper one holds.
        low = min(low, high)
        return _Result(node.outputs[0], to, np.float32(scale), low, high, int(zero), (*gone, node))

    def make_layer(
        self,
        node: Node,
        x: str,
        zero: str,
        matrix: _Matrix,
        result: _Result,
        unit: Array | None,
        bias: Array | None,
    ) -> Node:
        """Return the node of a layer, after adding its constants.

        unit: the value of 1 in a sum of each column.
        """
        columns = matrix.integers.shape[1]
        self.gone.update(result.gone)
        sums = matrix.integers.astype(np.int64).sum(0).astype(np.int32)
        inputs = [x, self.add(node, "packed", pack_panels(matrix.integers))]
        inputs += [self.add(node, "sums", fill_panels(sums)), zero]
        if unit is not None:
            factor = np.broadcast_to(_find_factor(unit, result), (columns,))
            inputs.append(self.add(node, "factor", fill_panels(factor)))
        if bias is not None:
            inputs += [""] * (5 - len(inputs))
            inputs.append(self.add(node, "bias", fill_panels(bias.reshape(-1))))
        if matrix.shifts.any():
            inputs += [""] * (6 - len(inputs))
            shifts = np.broadcast_to(matrix.shifts.astype(np.int32), (columns,))
            inputs.append(self.add(node, "shift", fill_panels(shifts)))
        attrs: dict[str, Any] = {"columns": columns, "to": result.to}
        attrs |= {"low": result.low, "high": result.high, "offset": result.offset}
        is_conv = _is_convolution(node)
        if is_conv:
            attrs |= {name: node.attrs[name] for name in _WINDOW if name in node.attrs}
            attrs["kernel_shape"] = list(self.types[node.inputs[_place(node)]].shape[2:])
            attrs["depthwise"] = matrix.repeats
        op = "IntegerConv" if is_conv else "IntegerMatMul"
        return Node(op, tuple(inputs), (result.name,), attrs, OURS, node.name)

    def add(self, node: Node, part: str, value: Array) -> str:
        """Add a constant of a layer; return its name."""
        name = self.names.take_fresh(f"{node.outputs[0]}_{part}")
        self.graph.initializers[name] = np.ascontiguousarray(value)
        return name


def _multiply(scale: Any, scales: Array) -> Array:
    """Return the unit of sums; infinite where float32 does not hold it."""
    with np.errstate(over="ignore"):
        return np.asarray(np.float32(scale) * scales)


def _find_factor(unit: Array, result: _Result) -> Array:
    """Return the factor of the sums; infinity if it is too large for float32."""
    with np.errstate(over="ignore"):
        factor = unit if result.scale is None else unit / result.scale
    return np.asarray(factor, np.float32)


def _place(node: Node) -> int:
    """Return which input of a layer is its weights."""
    product = find_product(node)
    return 3 if product is not None and product.factors is Factors.STATIC else 1


def _is_convolution(node: Node) -> bool:
    product = find_product(node)
    return product is not None and product.is_convolution


def _find_channels(node: Node) -> int:
    """Return the axis of the output channels in the weights of a layer."""
    return 0 if _is_convolution(node) else 1


def _take_single(value: Array | None) -> Any:
    """Return the element of a constant of one element; None of anything else."""
    return None if value is None or value.size != 1 else value.reshape(())[()]


def _transpose(w: _Quantised, order: tuple[int, ...]) -> _Quantised:
    axis = None if w.axis is None else order.index(w.axis)
    return replace(w, integers=w.integers.transpose(order), axis=axis)


def _flatten(node: Node, w: _Quantised) -> _Matrix | None:
    """Return weights as a matrix; None if the layer has another form, or sums that are too long."""
    made = _flatten_window(node, w) if _is_convolution(node) else _flatten_product(w)
    if made is None:
        return None
    # A shift takes a ninth bit.
    deepest = DEEPEST // 2 if made.shifts.any() else DEEPEST
    return made if made.integers.shape[0] <= deepest else None


def _flatten_product(w: _Quantised) -> _Matrix | None:
    if w.integers.ndim != 2 or w.axis not in (None, 1):
        return None
    return _Matrix(w.integers, w.scales, w.shifts)


def _flatten_window(node: Node, w: _Quantised) -> _Matrix | None:
    integers = w.integers
    if w.axis not in (None, 0) or integers.ndim not in (3, 4, 5):
        return None
    groups = int(node.attrs.get("group", 1))
    if groups == 1:
        # Channels are the fastest, as they lie in patches.
        matrix = np.moveaxis(integers, 1, -1).reshape(len(integers), -1).T
        return _Matrix(matrix, w.scales, w.shifts)
    if integers.shape[1] != 1 or groups != integers.shape[0]:
        return None
    # Of windows over one channel each the depth is the taps.
    matrix = integers.reshape(groups, -1).T
    if not w.shifts.any():
        return _Matrix(matrix, w.scales, w.shifts, repeats=1)
    # A sum over a few taps of a channel is short: weights of 9 bits are several of 8.
    left, parts = matrix.astype(np.int16) - w.shifts, list[Array]()
    while left.any() or not parts:
        parts.append(np.clip(left, -128, 127).astype(np.int8))
        left -= parts[-1]
    return _Matrix(np.concatenate(parts), w.scales, np.zeros(1, np.int16), repeats=len(parts))
