"""`quantize`: from a float model and data to a model with 8-bit integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.base.errors import UnsupportedOpError
from engine.base.fields import select_options
from engine.base.signatures import check_arguments
from engine.graphs.io.writable_model import Model, WritableModel
from engine.quantization.calibration import Calibrator
from engine.quantization.options import Qat, Quantization

if TYPE_CHECKING:
    from engine.base.aliases import Array
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.static_quantization import Scheme


@check_arguments
@dataclass(frozen=True, slots=True)
class Quantized(WritableModel):
    """Quantised model.  As text it shows how much became integers and what stayed float.

    graph: the model.
    scheme: the products and activations that became integers, and the nodes that stay float.
    ranges: ranges of the activations that decide scales, by name.
    float_bytes, integer_bytes: size of the weights that became integers, before and after.
    """

    graph: Graph
    scheme: Scheme
    ranges: Mapping[str, tuple[float, float]]
    float_bytes: int
    integer_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return a summary of the quantisation as JSON types."""
        return {
            "products": [each.node.name for each in self.scheme.products],
            "left": [each._asdict() for each in self.scheme.left],
            "ranges": {name: list(bounds) for name, bounds in self.ranges.items()},
            "float_bytes": self.float_bytes,
            "integer_bytes": self.integer_bytes,
        }

    def __str__(self) -> str:
        products, left = self.scheme.products, self.scheme.left
        lines = [
            f"{len(products)} products in integers, {len(self.scheme.sources)} activations; "
            f"weights {self.float_bytes:,} -> {self.integer_bytes:,} bytes"
        ]
        lines += [f"  stays float: {each.op} {each.name}: {each.reason}" for each in left]
        return "\n".join(lines)

    __repr__ = __str__  # in a notebook


@check_arguments
def quantize(model: Model, data: Any, options: Quantization | None = None) -> Quantized:
    """Quantise a float model after training, with ranges measured on data.

    Batch normalisations are folded into convolutions.  Conv, Gemm and MatMul with constant weights
    then get int8 weights (a scale for each channel), int32 biases and 8-bit activations (a scale
    for each tensor), through QuantizeLinear and DequantizeLinear nodes around them.  Everything
    else stays float; the result lists the layers with weights that do.  The given model does not
    change.

    Args:
        model: A path, bytes or `ModelProto` of a float model.
        data: Samples like those that the model will get: anything that `engine.data.batches`
            accepts.  The first arrays of a sample are the model's inputs; others, such as labels,
            are ignored.
        options: See `Quantization`.

    Raises:
        FileError, ModelError: the model cannot be read.
        InputError: the model is already quantised; a pattern of `keep_float` matches nothing; there
            are no data, or they are constant; or a value is not finite or always 0.
        UnsupportedOpError: no product can use integers, or the model has an op that cannot be run.
        EngineError: the data do not fit the model.
    """
    return _quantise(model, data, Quantization() if options is None else options)


@check_arguments
def prepare_qat(model: Model, data: Any, options: Qat | Quantization | None = None) -> Quantized:
    """Prepare a float model for training with rounded weights and activations.

    The result computes like the model of `quantize`, but its weights and biases are float
    parameters that can be trained.  Weights are rounded when they are read, with scales that follow
    the largest weight of each channel.  Activations are rounded within ranges that begin as
    measured on data and move towards the range of each batch.  By choice, both kinds of scales are
    parameters, too (LSQ).  Gradients pass straight through roundings, except where a value is
    outside its range.  Batch normalisations are folded into convolutions first, or by choice
    wherever weights are rounded.

        made = edgegrad.prepare_qat("trained.onnx", samples)
        trainer = edgegrad.Trainer.from_onnx(made.to_bytes(), "cross_entropy", edgegrad.AdamW(1e-4))
        trainer.fit(samples)
        trainer.export("int8.onnx")         # weights of int8, as in `quantize`

    `Trainer.from_onnx(..., qat=edgegrad.Qat(), data=samples)` does the same.

    Args:
        model, data: See `quantize`.
        options: See `Qat`; a `Quantization` stands for a `Qat` with these options.

    Raises:
        EngineError: as for `quantize`.
    """
    given = Qat() if options is None else options
    chosen = given if isinstance(given, Qat) else Qat(**vars(given))
    return _quantise(model, data, chosen)


def round_untrained(model: Model, aware: Quantized, options: Qat) -> Quantized:
    """Quantise a model as `quantize` does, with the ranges that `prepare_qat` has measured on it.

    aware: the result of `prepare_qat` for the model and the options.

    Raises:
        EngineError: as for `quantize`.
    """
    asked = Quantization(**vars(select_options(options, Quantization)))
    return _quantise(model, None, asked, aware.ranges)


def freeze_in_integers(model: Model) -> tuple[Quantized, tuple[str, ...]]:
    """Quantise all but the last product of a model, without data: for its sizes, not its values.

    Returns:
        The model, whose every range is [-1, 1], and the parameters of the last product.

    Raises:
        EngineError: as for `quantize`; fewer than two products could use integers.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline import static_quantization as static
    from engine.graphs.offline.precision import widen_graph

    raw = widen_graph(model.copy() if isinstance(model, Graph) else onnx_io.load(model))
    scheme = static.choose_scheme(static.prepare_forward(raw), ())
    *rest, last = scheme.products
    if not rest:
        raise UnsupportedOpError(
            "int8: only one product of the model can use integers, and that is the last layer, "
            "which stays float"
        )
    options = Quantization(keep_float=[last.node.name])
    made = _quantise(raw, None, options, dict.fromkeys(scheme.ranged, (-1.0, 1.0)))
    (node,) = (n for n in made.graph.nodes if n.name == last.node.name)
    return made, tuple(name for name in node.inputs if name in made.graph.initializers)


def _quantise(
    model: Model,
    data: Any,
    chosen: Quantization,
    measured: Mapping[str, tuple[float, float]] | None = None,
) -> Quantized:
    """Quantise a model; with options of the class `Qat`, for training.

    measured: the ranges, if they are known without data.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline import static_quantization as static
    from engine.graphs.offline.integer_weights import find_nearest_scale
    from engine.graphs.offline.nibbles import store_nibbles
    from engine.graphs.offline.precision import keep_inside, narrow_graph, widen_graph
    from engine.graphs.offline.scales import find_scale

    source = widen_graph(model.copy() if isinstance(model, Graph) else onnx_io.load(model))
    graph = static.prepare_forward(source)
    scheme = static.choose_scheme(graph, chosen.keep_float)
    ranges = measured or Calibrator(graph, data, chosen).find_ranges(scheme.ranged)
    weights = static.count_weights(graph, scheme.products)
    signed = chosen.activations == "int8"
    moving: static.Tracking | static.Learning | None = None
    learned: dict[str, Array] = {}
    scales = {
        name: find_scale(low, high, signed=signed, symmetric=chosen.symmetric)
        for name, (low, high) in ranges.items()
    }
    is_trained = isinstance(chosen, Qat)
    if isinstance(chosen, Qat):
        if chosen.ranges == "moving":
            moving = static.Tracking(ranges, chosen.momentum, chosen.symmetric)
        elif chosen.ranges == "learned":
            moving = static.Learning(127 if chosen.symmetric else 255)
        if chosen.weight_ranges == "learned":
            for each in scheme.products:  # with normalisations folded, as they are rounded
                axis = each.axis if chosen.per_channel else None
                weight = graph.initializers[each.weight]
                learned[each.node.name] = find_nearest_scale(weight, axis, chosen.weight_bits)
        if chosen.norms == "trained":
            graph = static.prepare_forward(source, {p.node.name for p in scheme.products})
            scheme = scheme.move_to(graph)
    static.insert_quantizers(
        graph, scheme, scales, bits=chosen.weight_bits, per_channel=chosen.per_channel,
        is_trained=is_trained, activations=moving, learned=learned,
    )  # fmt: skip
    keep_inside(graph)
    graph = graph if is_trained else narrow_graph(graph, graph)
    if chosen.weight_bits == 4 and not is_trained:
        graph = store_nibbles(graph)
    stored = -(-weights * chosen.weight_bits // 8)
    return Quantized(graph, scheme, ranges, 4 * weights, stored)
