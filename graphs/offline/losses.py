"""Losses as ONNX nodes at the end of a graph, with the meaning that they have in torch.

x is the output of the model, t the target, and d = x - t.

MSE             mean(d^2)
L1              mean(|d|)
Huber           mean(d^2 / 2 where |d| < delta, else delta (|d| - delta / 2)); smooth L1: its
                quotient by delta
cross entropy   SoftmaxCrossEntropyLoss: classes on axis 1, as ONNX has it.  Smoothed by e:
                (1 - e) of it + e / C sum_c -w_c log p_c, the mean's divisor that of the first part
likelihood      NegativeLogLikelihoodLoss of log-probabilities
BCE             mean(w ((1 - t) x + (1 + (p - 1) t) Softplus(-x))), x logits, p the weight of
                positives: finite for every finite x, and so is its gradient, which has Sigmoid(-x)
KL divergence   mean(t (log t - x)), x and perhaps t log-probabilities; 0 log 0 = 0
cosine          mean(1 - c where t = 1, max(0, c - margin) where t = -1),
                c = a b / sqrt((a a + 1e-12) (b b + 1e-12))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import arguments
from engine.element_types import FLOATS, NUMPY
from engine.errors import DTypeError, InputError, ModelError, ShapeError
from engine.graphs.ir.graph import Graph, Names, Node, type_of
from engine.kernels.vocabulary.op import Array, TensorType

REDUCTIONS = {"none": None, "mean": "ReduceMean", "sum": "ReduceSum"}


class _Nodes:
    """Appends nodes to a graph; `prefix` begins their names."""

    def __init__(self, graph: Graph, prefix: str) -> None:
        self.graph, self.prefix, self.names = graph, prefix, Names(graph)

    def many(self, op: str, *inputs: str, outputs: int, **attrs: Any) -> list[str]:
        """Append a node and return its outputs."""
        title = self.names.fresh(f"{self.prefix}/{op}")
        results = [self.names.fresh(f"{title}_output_{k}") for k in range(outputs)]
        self.graph.nodes.append(Node(op, inputs, tuple(results), attrs, "", title))
        return results

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Append a node and return its output."""
        return self.many(op, *inputs, outputs=1, **attrs)[0]

    def constant(self, what: str, value: Any, dtype: str) -> str:
        """Add an initializer."""
        name = self.names.fresh(f"{self.prefix}/{what}")
        self.graph.initializers[name] = arguments.cast(what, value, np.dtype(NUMPY[dtype]))
        return name

    def reduce(self, x: str, reduction: str) -> str:
        """The mean or the sum of all elements as a scalar; `x` itself for "none"."""
        op = REDUCTIONS[check_reduction(reduction)]
        return self.add(op, x, keepdims=0) if op else x

    def sum(self, x: str, axes: Sequence[int]) -> str:
        """The sum along axes, which are dropped."""
        return self.add("ReduceSum", x, self.constant("axes", list(axes), "i64"), keepdims=0)

    def mean(self, x: str, axis: int) -> str:
        """The mean along an axis, which is dropped."""
        if self.graph.opsets.get("", 1) < 18:
            return self.add("ReduceMean", x, axes=[axis], keepdims=0)
        return self.add("ReduceMean", x, self.constant("axes", [axis], "i64"), keepdims=0)


def check_reduction(reduction: str) -> str:
    """Return the name of a reduction.

    Raises:
        InputError: it is none.
    """
    if str(reduction) not in REDUCTIONS:
        raise InputError(f"reduction={reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    return reduction


def _float_type(graph: Graph, name: str) -> TensorType:
    """The type of a value of which a loss is taken.

    Raises:
        ModelError: there is no such value, or its type is not known.
        DTypeError: it is not f32 or f64.
    """
    t = graph.types.get(name) or graph.inputs.get(name)
    if t is None:
        raise ModelError(f"{graph.name}: no value {name!r} with a known type to take a loss of")
    if t.dtype not in FLOATS:
        raise DTypeError(f"{graph.name}: the loss is taken of {name!r}, {t}; expected f32 or f64")
    return t


def _target(graph: Graph, name: str, t: TensorType) -> str:
    """The name of the target.  If the model has no value of that name, an input is added.

    Raises:
        ModelError: the model has one of another type.
    """
    known = graph.inputs.get(name) or graph.types.get(name)
    if known is None and name in graph.initializers:
        known = type_of(graph.initializers[name])
    if known is None and name in set(graph.values()):
        return name
    if known is None:
        graph.inputs[name] = t
    elif known.dtype != t.dtype or known.rank != t.rank:
        raise ModelError(
            f"{graph.name}: the loss needs {name!r} as {t}, but the model has one that is {known}; "
            f"name another by loss_input_names"
        )
    return name


def squared_error(graph: Graph, x: str, target: str, reduction: str) -> str:
    """The mean or sum of (x - t)^2, or the squares of all elements."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    difference = nodes.add("Sub", x, _target(graph, target, t))
    two = nodes.constant("exponent", 2, t.dtype)
    return nodes.reduce(nodes.add("Pow", difference, two), reduction)


def absolute_error(graph: Graph, x: str, target: str, reduction: str) -> str:
    """The mean or sum of |x - t|, or the absolute values of all elements."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    difference = nodes.add("Sub", x, _target(graph, target, t))
    return nodes.reduce(nodes.add("Abs", difference), reduction)


def huber(
    graph: Graph, x: str, target: str, reduction: str, delta: float, *, smooth_l1: bool = False
) -> str:
    """The reduced Huber loss: quadratic in differences below `delta`, linear in larger ones.

    smooth_l1: divide it by `delta`, which torch calls beta then.
    """
    given = arguments.real("beta" if smooth_l1 else "delta", delta)
    if smooth_l1 and given == 0:
        return absolute_error(graph, x, target, reduction)
    if not given > 0:
        raise InputError(f"{'beta' if smooth_l1 else 'delta'}={delta}; expected a positive number")
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    d = nodes.add("Sub", x, _target(graph, target, t))
    size = nodes.add("Abs", d)
    scale = 1.0 / given if smooth_l1 else 1.0
    near = nodes.add("Mul", nodes.add("Mul", d, d), nodes.constant("half", 0.5 * scale, t.dtype))
    far = nodes.add("Sub", size, nodes.constant("offset", 0.5 * given, t.dtype))
    if not smooth_l1:
        far = nodes.add("Mul", far, nodes.constant("slope", given, t.dtype))
    is_near = nodes.add("Less", size, nodes.constant("delta", given, t.dtype))
    return nodes.reduce(nodes.add("Where", is_near, near, far), reduction)


def divergence(graph: Graph, x: str, target: str, reduction: str, log_target: bool) -> str:
    """The Kullback-Leibler divergence t (log t - x), for log-probabilities x.

    reduction: also "batchmean", the sum divided by the size of the batch.
    log_target: the target is log t.
    """
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    y = _target(graph, target, t)
    if arguments.flag("log_target", log_target):
        each = nodes.add("Mul", nodes.add("Exp", y), nodes.add("Sub", y, x))
    else:
        is_zero = nodes.add("Equal", y, nodes.constant("zero", 0, t.dtype))
        logs = nodes.add("Log", nodes.add("Where", is_zero, nodes.constant("one", 1, t.dtype), y))
        each = nodes.add("Mul", y, nodes.add("Sub", logs, x))
    if reduction != "batchmean":
        return nodes.reduce(each, reduction)
    if not t.rank:
        raise ShapeError(f"{graph.name}: {x!r} is a scalar, which has no batch to take a mean over")
    rows = nodes.sum(each, range(1, t.rank)) if t.rank > 1 else each
    return nodes.reduce(rows, "mean")


def cosine_embedding(
    graph: Graph, a: str, b: str, target: str, reduction: str, margin: float
) -> str:
    """Of two rows 1 - cos where the target is 1, and max(0, cos - margin) where it is -1."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, a)
    other = _float_type(graph, b)
    if t.rank not in (1, 2) or other.dtype != t.dtype or other.rank != t.rank:
        raise ShapeError(
            f"{graph.name}: {a!r} is {t}, {b!r} is {other}; expected two of [batch, features]"
        )
    if not -1 <= arguments.real("margin", margin) <= 1:
        raise InputError(f"margin={margin}; expected a number from -1 to 1")
    axis = [t.rank - 1]
    y = _target(graph, target, t.but(t.shape[:-1]))
    least = nodes.constant("epsilon", 1e-12, t.dtype)
    norms = [nodes.add("Add", nodes.sum(nodes.add("Mul", v, v), axis), least) for v in (a, b)]
    dot = nodes.sum(nodes.add("Mul", a, b), axis)
    cosine = nodes.add("Div", dot, nodes.add("Sqrt", nodes.add("Mul", *norms)))
    zero, one = (nodes.constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
    beyond = nodes.add("Sub", cosine, nodes.constant("margin", margin, t.dtype))
    parts = []
    for sign, value in ((1, nodes.add("Sub", one, cosine)), (-1, nodes.add("Relu", beyond))):
        chosen = nodes.add("Equal", y, nodes.constant("sign", sign, t.dtype))
        parts.append(nodes.add("Where", chosen, value, zero))
    return nodes.reduce(nodes.add("Add", *parts), reduction)


@dataclass(frozen=True, slots=True)
class _Classes:
    """What losses over classes have in common.

    type: of the scores [batch, classes, ...].
    inputs: of ONNX's loss ops: scores, labels [batch, ...] and, if given, class weights.
    attrs: of ONNX's loss ops.
    weight: one factor for each class, or None.
    """

    nodes: _Nodes
    type: TensorType
    inputs: list[str]
    attrs: dict[str, Any]
    weight: Array | None


def _classes(
    graph: Graph, scores: str, labels: str, reduction: str, weight: Any, ignore_index: int | None
) -> _Classes:
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, scores)
    if t.rank < 2:
        raise ShapeError(f"{graph.name}: scores {scores!r} are {t}; expected [batch, classes, ...]")
    inputs = [scores, _target(graph, labels, TensorType("i64", (t.shape[0], *t.shape[2:])))]
    given = None if weight is None else arguments.array("weight", weight)
    if given is not None:
        classes = t.shape[1]
        if given.ndim != 1 or (isinstance(classes, int) and len(given) != classes):
            raise ShapeError(f"weight has shape {list(given.shape)}; expected [{classes}]")
        inputs.append(nodes.constant("weight", given, t.dtype))
    attrs: dict[str, Any] = {"reduction": check_reduction(reduction)}
    if ignore_index is not None:
        attrs["ignore_index"] = arguments.count("ignore_index", ignore_index)
    return _Classes(nodes, t, inputs, attrs, given)


def cross_entropy(
    graph: Graph,
    scores: str,
    labels: str,
    reduction: str,
    weight: Array | None,
    ignore_index: int | None,
    smoothing: float = 0.0,
) -> str:
    """-log softmax(scores)[label] along axis 1, weighted by class; labels lack that axis."""
    c = _classes(graph, scores, labels, reduction, weight, ignore_index)
    loss, logs = c.nodes.many("SoftmaxCrossEntropyLoss", *c.inputs, outputs=2, **c.attrs)
    part = arguments.real("label_smoothing", smoothing)
    if not 0 <= part <= 1:
        raise InputError(f"label_smoothing={smoothing}; expected a number from 0 to 1")
    if not part:
        return loss
    keep, spread = (c.nodes.constant("smoothing", k, c.type.dtype) for k in (1 - part, -part))
    smooth = c.nodes.add("Mul", _mean_over_classes(c, logs), spread)
    return c.nodes.add("Add", c.nodes.add("Mul", loss, keep), smooth)


def _mean_over_classes(c: _Classes, logs: str) -> str:
    """The mean over classes of the weighted log-probabilities, reduced as the loss is."""
    nodes, dtype = c.nodes, c.type.dtype
    if c.weight is None:
        each = nodes.mean(logs, 1)
    else:
        shares = c.weight.reshape(-1, *[1] * (c.type.rank - 2)) / len(c.weight)
        each = nodes.sum(nodes.add("Mul", logs, nodes.constant("shares", shares, dtype)), [1])
    labels, ignored = c.inputs[1], c.attrs.get("ignore_index")
    skipped = None
    if ignored is not None:
        skipped = nodes.add("Equal", labels, nodes.constant("ignore_index", ignored, "i64"))
        each = nodes.add("Where", skipped, nodes.constant("zero", 0, dtype), each)
    if c.attrs["reduction"] != "mean" or (skipped is None and c.weight is None):
        return nodes.reduce(each, c.attrs["reduction"])
    one = nodes.constant("one", 1, dtype)
    counts = one
    if c.weight is not None:
        index = labels
        if skipped is not None:
            index = nodes.add("Where", skipped, nodes.constant("first", 0, "i64"), labels)
        counts = nodes.add("Gather", c.inputs[2], index)
    if skipped is not None:
        counts = nodes.add("Where", skipped, nodes.constant("zero", 0, dtype), counts)
    count = nodes.reduce(counts, "sum")
    is_none = nodes.add("Equal", count, nodes.constant("zero", 0, dtype))
    return nodes.add("Div", nodes.reduce(each, "sum"), nodes.add("Where", is_none, one, count))


def likelihood(
    graph: Graph, logs: str, labels: str, reduction: str, weight: Any, ignore_index: int | None
) -> str:
    """-x[label] along axis 1 of log-probabilities x, weighted by class; labels lack that axis."""
    c = _classes(graph, logs, labels, reduction, weight, ignore_index)
    return c.nodes.add("NegativeLogLikelihoodLoss", *c.inputs, **c.attrs)


def binary_cross_entropy(
    graph: Graph,
    x: str,
    target: str,
    reduction: str,
    weight: Array | None,
    pos_weight: Array | None,
) -> str:
    """The cross entropy of sigmoid(x) and targets in [0, 1], from logits."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    y = _target(graph, target, t)
    one = nodes.constant("one", 1, t.dtype)
    below = nodes.add("Mul", nodes.add("Sub", one, y), x)
    above = nodes.add("Softplus", nodes.add("Neg", x))
    if pos_weight is not None:
        given = arguments.cast("pos_weight", pos_weight, np.dtype(np.float64))
        excess = nodes.constant("pos_weight_minus_one", given - 1.0, t.dtype)
        above = nodes.add("Mul", nodes.add("Add", nodes.add("Mul", excess, y), one), above)
    each = nodes.add("Add", below, above)
    if weight is not None:
        each = nodes.add("Mul", each, nodes.constant("weight", weight, t.dtype))
    return nodes.reduce(each, reduction)
