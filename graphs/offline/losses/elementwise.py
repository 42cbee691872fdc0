"""Losses of an output and a target of the same shape, element by element.

x is the output of the model, t the target, and d = x - t.

MSE             mean(d^2)
L1              mean(|d|)
Huber           mean(d^2 / 2 where |d| < delta, else delta (|d| - delta / 2)); smooth L1: its
                quotient by delta
BCE             mean(w ((1 - t) x + (1 + (p - 1) t) Softplus(-x))), x logits, p the weight of
                positives: finite for every finite x, and so is its gradient, which has Sigmoid(-x)
KL divergence   mean(t (log t - x)), x and perhaps t log-probabilities; 0 log 0 = 0
"""

from __future__ import annotations

import numpy as np

from engine.base import arguments
from engine.base.errors import InputError, ShapeError
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.losses.nodes import Nodes, float_type, target_input
from engine.kernels.vocabulary.op import Array


def squared_error(graph: Graph, x: str, target: str, reduction: str) -> str:
    """The mean or sum of (x - t)^2, or the squares of all elements."""
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    difference = nodes.add("Sub", x, target_input(graph, target, t))
    two = nodes.constant("exponent", 2, t.dtype)
    return nodes.reduce(nodes.add("Pow", difference, two), reduction)


def absolute_error(graph: Graph, x: str, target: str, reduction: str) -> str:
    """The mean or sum of |x - t|, or the absolute values of all elements."""
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    difference = nodes.add("Sub", x, target_input(graph, target, t))
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
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    d = nodes.add("Sub", x, target_input(graph, target, t))
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
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    y = target_input(graph, target, t)
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


def binary_cross_entropy(
    graph: Graph,
    x: str,
    target: str,
    reduction: str,
    weight: Array | None,
    pos_weight: Array | None,
) -> str:
    """The cross entropy of sigmoid(x) and targets in [0, 1], from logits."""
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    y = target_input(graph, target, t)
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
