"""Losses of an output and a target of the same shape, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.base.signatures import ABOVE_0, AT_LEAST_0, FINITE, checked
from engine.loss_types.base import Array, NamedLoss

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@checked
@dataclass(frozen=True)
class MSELoss(NamedLoss):
    """Squared error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import elementwise

        x, target = self.named(inputs)
        return elementwise.squared_error(graph, x, target, self.reduction)


@checked
@dataclass(frozen=True)
class L1Loss(NamedLoss):
    """Absolute error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import elementwise

        x, target = self.named(inputs)
        return elementwise.absolute_error(graph, x, target, self.reduction)


@checked(delta=ABOVE_0)
@dataclass(frozen=True)
class HuberLoss(NamedLoss):
    """Squared error / 2 up to `delta`, beyond it delta times the absolute error - delta / 2."""

    reduction: str = "mean"
    delta: float = 1.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import elementwise

        x, target = self.named(inputs)
        return elementwise.huber(graph, x, target, self.reduction, self.delta)


@checked(beta=AT_LEAST_0)
@dataclass(frozen=True)
class SmoothL1Loss(NamedLoss):
    """`HuberLoss` of delta `beta`, divided by it; the absolute error when that is 0."""

    reduction: str = "mean"
    beta: float = 1.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import elementwise

        x, target = self.named(inputs)
        return elementwise.huber(graph, x, target, self.reduction, self.beta, smooth_l1=True)


@checked
@dataclass(frozen=True)
class KLDivLoss(NamedLoss):
    """target (log target - output): outputs are log-probabilities, targets probabilities.

    reduction: also "batchmean", the sum over the size of the batch.
    log_target: whether targets are log-probabilities, too.
    """

    reductions: ClassVar[tuple[str, ...]] = ("mean", "batchmean", "sum", "none")

    reduction: str = "mean"
    log_target: bool = False

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import elementwise

        x, target = self.named(inputs)
        return elementwise.divergence(graph, x, target, self.reduction, self.log_target)


@checked(weight=FINITE, pos_weight=FINITE)
@dataclass(frozen=True, eq=False)
class BCEWithLogitsLoss(NamedLoss):
    """Cross entropy of sigmoid(output) and the input `target`, in a form that never overflows.

    weight, pos_weight: factors of all elements and of positive ones, broadcast to the output.
    """

    weight: Array | None = None
    reduction: str = "mean"
    pos_weight: Array | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import elementwise

        logits, target = self.named(inputs)
        return elementwise.binary_cross_entropy(
            graph, logits, target, self.reduction, self.weight, self.pos_weight
        )
