"""Losses over classes.

cross entropy   SoftmaxCrossEntropyLoss: classes on axis 1, as ONNX has it.  Smoothed by e:
                (1 - e) of it + e / C sum_c -w_c log p_c, the mean's divisor that of the first part
likelihood      NegativeLogLikelihoodLoss of log-probabilities
focal           a (1 - p)^gamma (-log p), p the probability of what is true and a the factor of its
                class; by Sigmoid, where every class is a question of its own, a = alpha t +
                (1 - alpha) (1 - t), or by Softmax.  1 - p is computed without a difference by
                Sigmoid; below 1e-30 it counts as that, and has no gradient, so that the power is
                finite for every gamma.  Lin et al. 2017, arXiv 1708.02002
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.base import arguments
from engine.base.errors import InputError, ShapeError
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.losses.nodes import Nodes, check_reduction, float_type, target_input
from engine.kernels.vocabulary.op import Array, TensorType

TINY = 1e-30


@dataclass(frozen=True, slots=True)
class _Classes:
    """What losses over classes have in common.

    type: of the scores [batch, classes, ...].
    inputs: of ONNX's loss ops: scores, labels [batch, ...] and, if given, class weights.
    attrs: of ONNX's loss ops.
    weight: one factor for each class, or None.
    """

    nodes: Nodes
    type: TensorType
    inputs: list[str]
    attrs: dict[str, Any]
    weight: Array | None


def _classes(
    graph: Graph, scores: str, labels: str, reduction: str, weight: Any, ignore_index: int | None
) -> _Classes:
    nodes, t = Nodes(graph, "loss"), float_type(graph, scores)
    if t.rank < 2:
        raise ShapeError(f"{graph.name}: scores {scores!r} are {t}; expected [batch, classes, ...]")
    inputs = [scores, target_input(graph, labels, TensorType("i64", (t.shape[0], *t.shape[2:])))]
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
    return nodes.counted(each, counts, "mean", dtype)


def likelihood(
    graph: Graph, logs: str, labels: str, reduction: str, weight: Any, ignore_index: int | None
) -> str:
    """-x[label] along axis 1 of log-probabilities x, weighted by class; labels lack that axis."""
    c = _classes(graph, logs, labels, reduction, weight, ignore_index)
    return c.nodes.add("NegativeLogLikelihoodLoss", *c.inputs, **c.attrs)


def focal_by_softmax(
    graph: Graph,
    scores: str,
    labels: str,
    reduction: str,
    gamma: float,
    alpha: Any,
    ignore_index: int | None,
) -> str:
    """alpha[l] (1 - p)^gamma (-log p), p = softmax(scores)[l] along axis 1.

    The mean is that over the labels that are not `ignore_index`.
    """
    check_reduction(reduction)
    power = _gamma(gamma)
    c = _classes(graph, scores, labels, "none", alpha, ignore_index)
    nodes, dtype, index = c.nodes, c.type.dtype, c.inputs[1]
    each = nodes.add("SoftmaxCrossEntropyLoss", *c.inputs[:2], **c.attrs)
    missed = nodes.add(
        "Sub", nodes.constant("one", 1, dtype), nodes.add("Exp", nodes.add("Neg", each))
    )
    each = _modulated(nodes, each, missed, power, dtype)
    counts = None
    if ignore_index is not None:
        ignored = nodes.constant("ignore_index", c.attrs["ignore_index"], "i64")
        skipped = nodes.add("Equal", index, ignored)
        index = nodes.add("Where", skipped, nodes.constant("first", 0, "i64"), index)
        counts = _counts(nodes, skipped, dtype)
    if c.weight is not None:
        each = nodes.add("Mul", each, nodes.add("Gather", c.inputs[2], index))
    return _reduced(nodes, each, counts, reduction, dtype)


def focal_by_sigmoid(
    graph: Graph,
    x: str,
    target: str,
    reduction: str,
    gamma: float,
    alpha: Any,
    ignore_index: int | None,
) -> str:
    """a (1 - p)^gamma (-log p) of logits and targets in [0, 1], element by element.

    The mean is that over the elements whose target is not `ignore_index`.
    """
    check_reduction(reduction)
    power, nodes, t = _gamma(gamma), Nodes(graph, "loss"), float_type(graph, x)
    share = None if alpha is None else arguments.real("alpha", alpha)
    if share is not None and not 0 <= share <= 1:
        raise InputError(
            f"alpha={alpha}; expected the factor of positives from 0 to 1, that of negatives is 1 "
            "less it"
        )
    y = target_input(graph, target, t)
    counts = skipped = None
    if ignore_index is not None:
        ignored = nodes.constant(
            "ignore_index", arguments.real("ignore_index", ignore_index), t.dtype
        )
        skipped = nodes.add("Equal", y, ignored)
        y = nodes.add("Where", skipped, nodes.constant("zero", 0, t.dtype), y)
        counts = _counts(nodes, skipped, t.dtype)
    rest, opposite = nodes.add("Sub", nodes.constant("one", 1, t.dtype), y), nodes.add("Neg", x)
    each = nodes.add("Add", nodes.add("Mul", rest, x), nodes.add("Softplus", opposite))
    missed = nodes.add(
        "Add",
        nodes.add("Mul", rest, nodes.add("Sigmoid", x)),
        nodes.add("Mul", y, nodes.add("Sigmoid", opposite)),
    )
    each = _modulated(nodes, each, missed, power, t.dtype)
    if share is not None:
        slope = nodes.times(y, 2 * share - 1, t.dtype)
        factor = nodes.add("Add", slope, nodes.constant("alpha", 1 - share, t.dtype))
        each = nodes.add("Mul", each, factor)
    if skipped is not None:
        each = nodes.add("Where", skipped, nodes.constant("zero", 0, t.dtype), each)
    return _reduced(nodes, each, counts, reduction, t.dtype)


def _gamma(gamma: float) -> float:
    given = arguments.real("gamma", gamma)
    if given < 0:
        raise InputError(f"gamma={gamma}; expected 0 or a positive number")
    return given


def _modulated(nodes: Nodes, each: str, missed: str, gamma: float, dtype: str) -> str:
    """missed^gamma times each."""
    if gamma == 0:
        return each
    base = nodes.at_least(missed, TINY, dtype)
    return nodes.add("Mul", nodes.add("Pow", base, nodes.constant("gamma", gamma, dtype)), each)


def _counts(nodes: Nodes, skipped: str, dtype: str) -> str:
    """1 for what counts, 0 for what is skipped."""
    zero, one = (nodes.constant("count", k, dtype) for k in (0, 1))
    return nodes.add("Where", skipped, zero, one)


def _reduced(nodes: Nodes, each: str, counts: str | None, reduction: str, dtype: str) -> str:
    if counts is None:
        return nodes.reduce(each, reduction)
    return nodes.counted(each, counts, reduction, dtype)
