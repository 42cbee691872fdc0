"""Heads: replacement of the last layer of a classifier for another number of classes.

    Before   scores = Gemm(features, fc.weight[1000, 512], fc.bias[1000]) transB=1
    After    scores = Gemm(features, fc.weight[5, 512], fc.bias[5]) transB=1       for 5 classes

The layer keeps the names of its node and of its parameters.  New weights are normal with variance
2 / fan-in, new biases zero (He et al., "Delving Deep into Rectifiers", 2015, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.base.errors import ModelError, ShapeError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import find_product
from engine.graphs.offline.integer_head import (
    KEEPING,
    NORMALISING,
    expand_integers,
    find_quantiser,
    write_head_in_floats,
)
from engine.graphs.offline.scaled_products import join_scales
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import CONV, GEMM, MATMUL, Movement
from engine.kernels.vocabulary.op import Dim, TensorType

_ACTIVATIONS = ("Softmax", "Sigmoid")  # losses of scores apply them


@dataclass(slots=True)
class Head:
    """Layer that computes scores.

    weight, axis: the initializer, and its axis of classes.
    bias: the initializer that is added; empty if there is none.
    values: the values from the layer to the scores that depend on the number of classes.
    shapes: initializers that Reshape nodes between them take as shape.
    """

    node: Node
    weight: str
    axis: int
    bias: str = ""
    values: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)


def count_output_classes(graph: Graph, output: str) -> int | None:
    """Return the number of classes on axis 1 of a value of scores, or None if it is unknown."""
    known = graph.types.get(output) or _infer_type(graph, output)
    size = known.shape[1] if len(known.shape) > 1 else None
    return size if isinstance(size, int) else None


def _infer_type(graph: Graph, value: str) -> TensorType:
    """Return the type of a value by inference on a copy, because inference folds constants."""
    return _infer(graph).types[value]


def _infer(graph: Graph) -> Graph:
    """Return a copy of a graph whose types and constants are known."""
    typed = unroll(graph.copy())
    infer(typed)
    return typed


def find_scores(graph: Graph, output: str, activation: str) -> str | None:
    """Return the value that the last op makes probabilities of: a Softmax of axis 1, or a Sigmoid.

    A Softmax may be written as exp(z) / sum exp(z).

    activation: "softmax" or "sigmoid".  Between the op and the output, Identity and Reshape that
        keeps the shape are allowed.  None: other ops make the output.
    """
    makers, made = graph.find_producers(), output
    while (node := makers.get(made)) is not None and node.op in ("Identity", "Reshape"):
        made = node.inputs[0]
    if node is None or node.domain:
        return None
    if node.op == "Sigmoid" and activation == "sigmoid" and made == output:
        return node.inputs[0]
    is_written_out = activation == "softmax" and _divides_exponents(node, makers)
    if node.op.lower() != activation and not is_written_out:
        return None
    typed = _infer(graph)
    t = typed.types[made]
    if t.shape != typed.types[output].shape:
        return None
    if node.op == "Div":
        return _find_exponents(node, makers, typed)
    axis = 1 if node.op == "Sigmoid" else int(node.attrs.get("axis", -1)) % max(t.rank, 1)
    return node.inputs[0] if axis == 1 else None


def is_made_of_probabilities(graph: Graph, output: str, activation: str) -> bool:
    """Return whether an output selects, moves or averages results of a Softmax or a Sigmoid.

    A speech detector returns the mean over its frames, and a detector in two steps returns the
    probability of one step or of the other.

    graph: without control flow, as `unroll` leaves it.
    """
    makers = graph.find_producers()
    waiting, seen = [output], set[str]()
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        node = makers.get(name)
        if node is None or node.domain:
            return False
        if node.op == "Where":
            waiting += node.inputs[1:]
        elif node.op.lower() != activation:
            if node.op not in KEEPING:
                return False
            waiting.append(node.inputs[0])
    return True


def _divides_exponents(node: Node, makers: Mapping[str, Node]) -> bool:
    exp = makers.get(node.inputs[0]) if node.op == "Div" else None
    return exp is not None and exp.op == "Exp"


def _spreads(node: Node) -> bool:
    """Return whether a node gives a sum the shape of what it divides."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and (op.movement is Movement.KEPT or op.name == "Expand")


def _find_exponents(division: Node, makers: Mapping[str, Node], typed: Graph) -> str | None:
    """Return z of exp(z) / sum exp(z), the sum of each row of a matrix, as JAX models are written.

    None: the nodes compute something else.
    """
    (e, divisor), sizes = division.inputs, list[Dim]()  # of the divisor along axis 1
    while (total := makers.get(divisor)) is not None and _spreads(total):
        sizes += typed.types[divisor].shape[1:]
        divisor = total.inputs[0]
    if total is None or total.op != "ReduceSum":
        return None
    axes = total.attrs.get("axes")
    if axes is None and len(total.inputs) > 1:
        axes = typed.initializers.get(total.inputs[1])
    is_by_row = axes is not None and [int(axis) % 2 for axis in axes] == [1]
    is_column = bool(total.attrs.get("keepdims", 1)) or 1 in sizes
    if total.inputs[0] != e or typed.types[e].rank != 2 or not is_by_row or not is_column:
        return None
    return makers[e].inputs[0]


def require_scores(graph: Graph, output: str, activation: str) -> str:
    """Return the scores that an output is the probabilities of; see `find_scores`.

    Raises:
        ModelError: it is not made by that function.
    """
    scores = find_scores(graph, output, activation)
    if scores is None:
        node = graph.find_producers().get(output)
        made = "is an input" if node is None else f"is made by {node.op} (node {node.name!r})"
        op = next(op for op in _ACTIVATIONS if op.lower() == activation)
        raise ModelError(
            f"from_logits=False: the output {output!r} {made}; supported: {op}"
            f"{' along axis 1' if op == 'Softmax' else ''}, whose input is the scores"
        )
    return scores


def drop_activation(graph: Graph, activation: str, output: int = 0) -> str:
    """Drop the op that makes probabilities of scores, because the loss does this itself.

    activation: of the loss: "softmax", which also drops a LogSoftmax, or "sigmoid".

    Before   scores = Gemm(...); p = Softmax(scores); output p
    After    scores = Gemm(...); output scores

    If the output is rounded to integers and back, as in models of TensorFlow Lite, so is the
    Softmax, and that is dropped with it.

    Returns the op that was dropped; empty if another op makes the output.
    """
    makers = graph.find_producers()
    maker = makers.get(graph.outputs[output])
    source = makers.get(maker.inputs[0]) if maker is not None else None
    if source is not None and source.op == "QLinearSoftmax" and expand_integers(graph, source):
        makers = graph.find_producers()
    while maker is not None and (quantiser := find_quantiser(maker, makers)) is not None:
        maker = makers.get(quantiser.inputs[0])
    ops = NORMALISING if activation == "softmax" else ("Sigmoid",)
    if maker is not None and not maker.domain and maker.op in ops:
        scores, op = maker.inputs[0], maker.op
    else:  # Identity or Reshape may follow
        scores = find_scores(graph, graph.outputs[output], activation) or ""
        op = next(name for name in _ACTIVATIONS if name.lower() == activation)
    if not scores:
        return ""
    graph.types[scores] = graph.types.get(graph.outputs[output]) or _infer_type(graph, scores)
    graph.outputs[output] = scores
    prune(graph)
    return op


def find_head(graph: Graph, output: str) -> Head:
    """Return the layer that makes the scores `output`: a Gemm, a MatMul (and Add), or a Conv.

    Raises:
        ModelError: another op makes them, or the layer's parameters are computed or shared.
    """
    return _make_head(graph, *_find_layer(graph, output))


def unfreeze_head(graph: Graph, output: int = 0) -> list[str]:
    """Return the parameters of the layer that makes the scores, as floats where they are integers.

    Before   scores = Gemm(d, DequantizeLinear(w_quantized, s, z), DequantizeLinear(b_quantized, t))
    After    scores = Gemm(d, w, b)

    Scores are no longer rounded: they had the range of the integer layer.  See `integer_head.py`
    for the other ways in which layers of integers are written.

    Raises:
        ModelError: see `find_head`.
    """
    name = graph.outputs[output]
    join_scales(graph)
    write_head_in_floats(graph, name)
    head = _make_head(graph, *_find_layer(graph, name, is_replaced=False))
    return [each for each in (head.weight, head.bias) if each]


def _keeps_classes(node: Node) -> bool:
    """Return whether a node keeps the classes of its input: it pools, normalises or maps them."""
    op = list_ops().get((node.domain, node.op))
    is_map = op is not None and op.expr is not None and len(node.inputs) == 1
    return is_map or node.op in KEEPING


def _find_only_value(node: Node, graph: Graph, makers: Mapping[str, Node]) -> str:
    """Return the only operand of a node that is not constant; empty if there are several."""
    values = [
        name
        for name in dict.fromkeys(node.list_reads())
        if name not in graph.initializers and (name not in makers or makers[name].inputs)
    ]
    return values[0] if len(values) == 1 else ""


def _find_layer(
    graph: Graph, output: str, *, is_replaced: bool = True
) -> tuple[Node, str, list[str], list[str]]:
    """Return the linear node that makes scores, the bias of an Add, and see `Head`.

    is_replaced: for another number of classes, which must be kept from the layer to the scores.
        Otherwise, any nodes that compute with one value, and with constants, may be between them.
    """
    makers, bias, values, shapes = graph.find_producers(), "", [output], list[str]()
    node = makers.get(output)
    while node is not None and not node.domain:
        constants = [i for i in node.inputs if i in graph.initializers]
        if node.op == "Add" and not bias and len(constants) == 1:
            bias, (name,) = constants[0], [i for i in node.inputs if i not in constants]
        elif node.op in ("Identity", "Reshape") or (not bias and _keeps_classes(node)):
            name = node.inputs[0]
            if node.op == "Reshape":
                shapes.append(node.inputs[1])
        elif find_product(node) in (GEMM, MATMUL, CONV):
            return node, bias, values, shapes
        elif not is_replaced and (only := _find_only_value(node, graph, makers)):
            name, bias = only, ""
        else:
            break
        values.append(name)
        node = makers.get(name)
    what = "an input" if node is None else f"{node.op} (node {node.name!r})"
    supported = "supported: Gemm, MatMul and Add, Conv, and these of integers with constant weights"
    if not is_replaced:
        raise ModelError(
            f"the last layer is not known: the scores {output!r} are made by {what} ({supported}): "
            "name the parameters to train instead, as in train='classifier'"
        )
    raise ModelError(
        f"the scores {output!r} are made by {what}, which cannot be replaced ({supported}): "
        "export the model with as many outputs as there are classes"
    )


def _make_head(graph: Graph, node: Node, bias: str, values: list[str], shapes: list[str]) -> Head:
    """Return the head for a linear node."""
    product, weight = find_product(node), node.inputs[1]
    assert product is not None  # see `_find_layer`
    axis = product.find_output_axis(node.attrs)
    if len(node.inputs) > 2:
        bias = node.inputs[2]
    maker = graph.find_producers().get(weight)
    if maker is not None and maker.op == "Transpose" and product.is_of_matrices:
        values.append(weight)
        weight, axis = maker.inputs[0], 1 - axis
    head = Head(node, weight, axis, bias, values, shapes)
    consumers = graph.find_consumers()
    for name in filter(None, (weight, bias)):
        if name not in graph.initializers:
            raise ModelError(
                f"the last layer {node.name!r} ({node.op}) computes its parameter {name!r}, so it "
                "cannot be replaced: export the model with as many outputs as there are classes"
            )
        if len(consumers[name]) > 1:
            others = [n.name for n in consumers[name] if n is not node]
            raise ModelError(
                f"the last layer {node.name!r} shares its parameter {name!r} with {others[0]!r}, "
                "so it cannot be replaced: export the model with as many outputs as there are "
                "classes"
            )
    wanted = 2 if product.is_of_matrices else graph.initializers[weight].ndim
    if graph.initializers[weight].ndim != wanted or node.attrs.get("group", 1) != 1:
        raise ModelError(
            f"the last layer {node.name!r} ({node.op}) has weights {weight!r} of shape "
            f"{list(graph.initializers[weight].shape)}, which do not fit a last layer"
        )
    return head


def replace_head(graph: Graph, classes: int, seed: int, output: int = 0) -> Head:
    """Replace the last layer of a model by a new one for another number of classes, of floats.

    Raises:
        ModelError: see `find_head`.
        ShapeError: the scores of the model would not have the shape (batch, classes, ...).
    """
    name = graph.outputs[output]
    join_scales(graph)
    write_head_in_floats(graph, name)
    head = find_head(graph, name)
    weight = graph.initializers[head.weight]
    before = weight.shape[head.axis]
    shape = list(weight.shape)
    shape[head.axis] = classes
    fan_in = weight.size // before
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * math.sqrt(2 / fan_in)
    graph.initializers[head.weight] = values.astype(weight.dtype)
    if head.bias:
        bias = graph.initializers[head.bias]
        if bias.size == before:
            sizes = [classes if d == before else d for d in bias.shape]
            graph.initializers[head.bias] = np.zeros(sizes, bias.dtype)
    for given in head.shapes:
        _resize(graph, given, before, classes)
    for value in head.values:
        graph.types.pop(value, None)
    graph.types[name] = _infer_type(graph, name)
    scores_shape = graph.types[name].shape
    if len(scores_shape) < 2 or scores_shape[1] != classes:
        raise ShapeError(
            f"with a last layer of {classes} classes the scores {name!r} are {list(scores_shape)}, "
            f"expected (batch, {classes}): export the model with as many outputs as there are "
            "classes"
        )
    return head


def _resize(graph: Graph, name: str, before: int, classes: int) -> None:
    """Replace the number of classes in the shape that a Reshape takes."""
    shape = graph.initializers.get(name)
    if shape is None or before not in shape.tolist():
        return
    changed = shape.copy()
    changed[[i for i, size in enumerate(shape.tolist()) if i and size == before]] = classes
    graph.initializers[name] = changed
