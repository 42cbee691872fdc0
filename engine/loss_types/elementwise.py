"""Losses of an output and a target of the same shape, element by element.

x is the output of the model, t the target, and d = x - t.

MSE             mean(d^2)
L1              mean(|d|)
Huber           mean(d^2 / 2 where |d| < delta, delta (|d| - delta / 2) elsewhere); smooth L1: its
                quotient by delta
BCE             mean(w ((1 - t) x + (1 + (p - 1) t) Softplus(-x))), x logits, p the weight of
                positives: finite for every finite x, and so is its gradient, which has Sigmoid(-x)
KL divergence   mean(t (log t - x)), x and perhaps t log-probabilities; 0 log 0 = 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import ShapeError
from engine.base.signatures import ABOVE_0, AT_LEAST_0, FINITE, check_arguments
from engine.loss_types.base import Activation, LossOfScores, NamedLoss

__all__ = ["BCEWithLogitsLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "SmoothL1Loss"]

if TYPE_CHECKING:
    from engine.graphs.offline.loss_nodes import LossNodes


@check_arguments
@dataclass(frozen=True)
class MSELoss(NamedLoss):
    """Squared error: (output - target)^2, for each element."""

    other_names: ClassVar[str] = "l2 mean_squared_error"

    reduction: str = "mean"

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        t = nodes.find_type(x)
        difference = nodes.add("Sub", x, nodes.add_target(target, t))
        two = nodes.add_constant("exponent", 2, t.dtype)
        return nodes.reduce(nodes.add("Pow", difference, two), self.reduction)


@check_arguments
@dataclass(frozen=True)
class L1Loss(NamedLoss):
    """Absolute error: |output - target|, for each element."""

    other_names: ClassVar[str] = "mae mean_absolute_error"

    reduction: str = "mean"

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        difference = nodes.add("Sub", x, nodes.add_target(target, nodes.find_type(x)))
        return nodes.reduce(nodes.add("Abs", difference), self.reduction)


@check_arguments(delta=ABOVE_0)
@dataclass(frozen=True)
class HuberLoss(NamedLoss):
    """Huber loss: e^2 / 2 if e = |output - target| < delta, otherwise delta (e - delta / 2).

    delta: the error from which the loss is linear.
    """

    reduction: str = "mean"
    delta: float = 1.0

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        each = _append_huber(nodes, x, target, self.delta, is_divided=False)
        return nodes.reduce(each, self.reduction)


@check_arguments(beta=AT_LEAST_0)
@dataclass(frozen=True)
class SmoothL1Loss(NamedLoss):
    """`HuberLoss` with delta = beta, divided by beta.

    beta: the error from which the loss is linear; 0 gives the absolute error.
    """

    reduction: str = "mean"
    beta: float = 1.0

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        if self.beta == 0:
            return L1Loss(self.reduction)._append(nodes, x, target)
        each = _append_huber(nodes, x, target, self.beta, is_divided=True)
        return nodes.reduce(each, self.reduction)


def _append_huber(nodes: LossNodes, x: str, target: str, delta: float, *, is_divided: bool) -> str:
    """Append the Huber loss of each element; is_divided: by `delta`."""
    t = nodes.find_type(x)
    d = nodes.add("Sub", x, nodes.add_target(target, t))
    size = nodes.add("Abs", d)
    scale = 1.0 / delta if is_divided else 1.0
    near = nodes.add(
        "Mul", nodes.add("Mul", d, d), nodes.add_constant("half", 0.5 * scale, t.dtype)
    )
    far = nodes.add("Sub", size, nodes.add_constant("offset", 0.5 * delta, t.dtype))
    if not is_divided:
        far = nodes.add("Mul", far, nodes.add_constant("slope", delta, t.dtype))
    is_near = nodes.add("Less", size, nodes.add_constant("delta", delta, t.dtype))
    return nodes.add("Where", is_near, near, far)


@check_arguments
@dataclass(frozen=True)
class KLDivLoss(NamedLoss):
    """Kullback-Leibler divergence: target (log target - output), for log-probabilities.

    reduction: also "batchmean", the sum divided by the size of the batch.
    log_target: whether targets are also log-probabilities, instead of probabilities.
    """

    outputs: ClassVar[str] = "log-probabilities"
    reductions: ClassVar[tuple[str, ...]] = ("mean", "batchmean", "sum", "none")

    reduction: str = "mean"
    log_target: bool = False

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        t = nodes.find_type(x)
        y = nodes.add_target(target, t)
        if self.log_target:
            each = nodes.add("Mul", nodes.add("Exp", y), nodes.add("Sub", y, x))
        else:
            is_zero = nodes.add("Equal", y, nodes.add_constant("zero", 0, t.dtype))
            one = nodes.add_constant("one", 1, t.dtype)
            logs = nodes.add("Log", nodes.add("Where", is_zero, one, y))
            each = nodes.add("Mul", y, nodes.add("Sub", logs, x))
        if self.reduction != "batchmean":
            return nodes.reduce(each, self.reduction)
        if not t.rank:
            raise ShapeError(
                f"{nodes.graph.name}: {x!r} is a scalar; reduction='batchmean' needs a batch"
            )
        rows = nodes.sum(each, range(1, t.rank)) if t.rank > 1 else each
        return nodes.reduce(rows, "mean")


@check_arguments(weight=FINITE, pos_weight=FINITE)
@dataclass(frozen=True, eq=False)
class BCEWithLogitsLoss(LossOfScores):
    """Binary cross-entropy of sigmoid(output), in a form that never overflows.

    weight: factors of the elements, broadcast to the output's shape.
    pos_weight: factors of positive targets only, also broadcast.
    from_logits: as in `CrossEntropyLoss`, with a Sigmoid.
    """

    outputs: ClassVar[str] = "logits of any shape"
    compared: ClassVar[str] = "`target` in [0, 1], same shape"
    other_names: ClassVar[str] = "bce binary_crossentropy sigmoid_cross_entropy"

    weight: Array | None = None
    reduction: str = "mean"
    pos_weight: Array | None = None

    @property
    def applies(self) -> Activation:
        return "sigmoid"

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        t = nodes.find_type(x)
        y = nodes.add_target(target, t)
        one = nodes.add_constant("one", 1, t.dtype)
        below = nodes.add("Mul", nodes.add("Sub", one, y), x)
        above = nodes.add("Softplus", nodes.add("Neg", x))
        if self.pos_weight is not None:
            given = arguments.cast("pos_weight", self.pos_weight, np.dtype(np.float64))
            excess = nodes.add_constant("pos_weight_minus_one", given - 1.0, t.dtype)
            above = nodes.add("Mul", nodes.add("Add", nodes.add("Mul", excess, y), one), above)
        each = nodes.add("Add", below, above)
        if self.weight is not None:
            each = nodes.add("Mul", each, nodes.add_constant("weight", self.weight, t.dtype))
        return nodes.reduce(each, self.reduction)
