"""Losses to train with, and their options: what `generate_artifacts(loss=...)` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


class LossType(IntEnum):
    """The losses, with their default options; the classes of the same names take options."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    HuberLoss = 5
    SmoothL1Loss = 6
    KLDivLoss = 7
    NLLLoss = 8
    CosineEmbeddingLoss = 9


class Loss(ABC):
    """A loss: nodes at the end of a graph.  Subclass it for one of your own.

    takes: how many outputs of the model it is taken of.
    """

    takes: ClassVar[int] = 1

    @abstractmethod
    def build(self, graph: Graph, *inputs: str) -> str:
        """Append the loss over the values `inputs` to `graph`; return the name of the result."""


def _named(loss: Loss, inputs: Sequence[str], last: str) -> tuple[str, ...]:
    """The values a loss is taken of, and the name of what they are compared with."""
    if len(inputs) not in (loss.takes, loss.takes + 1):
        raise InputError(
            f"{type(loss).__name__} takes {('one', 'two')[loss.takes - 1]} model "
            f"output{'s' if loss.takes > 1 else ''}, and may be given the name of its {last}; "
            f"found {list(inputs)}: choose by loss_input_names"
        )
    return (*inputs, last)[: loss.takes + 1]


@dataclass(frozen=True)
class MSELoss(Loss):
    """Squared error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = _named(self, inputs, "target")
        return losses.squared_error(graph, x, target, self.reduction)


@dataclass(frozen=True)
class L1Loss(Loss):
    """Absolute error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = _named(self, inputs, "target")
        return losses.absolute_error(graph, x, target, self.reduction)


@dataclass(frozen=True)
class HuberLoss(Loss):
    """Squared error / 2 up to `delta`, beyond it delta times the absolute error - delta / 2."""

    reduction: str = "mean"
    delta: float = 1.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = _named(self, inputs, "target")
        return losses.huber(graph, x, target, self.reduction, self.delta)


@dataclass(frozen=True)
class SmoothL1Loss(Loss):
    """`HuberLoss` of delta `beta`, divided by it; the absolute error when that is 0."""

    reduction: str = "mean"
    beta: float = 1.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = _named(self, inputs, "target")
        return losses.huber(graph, x, target, self.reduction, self.beta, smooth_l1=True)


@dataclass(frozen=True)
class KLDivLoss(Loss):
    """target (log target - output): outputs are log-probabilities, targets probabilities.

    reduction: also "batchmean", the sum over the size of the batch.
    log_target: whether targets are log-probabilities, too.
    """

    reduction: str = "mean"
    log_target: bool = False

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = _named(self, inputs, "target")
        return losses.divergence(graph, x, target, self.reduction, self.log_target)


@dataclass(frozen=True)
class CosineEmbeddingLoss(Loss):
    """1 - cos of two outputs [batch, features] where the input `target` [batch] is 1, and
    max(0, cos - margin) where it is -1."""

    takes: ClassVar[int] = 2

    margin: float = 0.0
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        a, b, target = _named(self, inputs, "target")
        return losses.cosine_embedding(graph, a, b, target, self.reduction, self.margin)


@dataclass(frozen=True, eq=False)
class CrossEntropyLoss(Loss):
    """Softmax cross entropy of scores [batch, classes, ...] and int64 `labels` [batch, ...].

    weight: one factor a class.  ignore_index: the label whose positions do not count.
    label_smoothing: the part of the target that is spread over all classes.
    """

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None
    label_smoothing: float = 0.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        scores, labels = _named(self, inputs, "labels")
        return losses.cross_entropy(
            graph, scores, labels, self.reduction, self.weight, self.ignore_index,
            self.label_smoothing,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class NLLLoss(Loss):
    """-output[label] of log-probabilities [batch, classes, ...]; options as `CrossEntropyLoss`."""

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        logs, labels = _named(self, inputs, "labels")
        return losses.likelihood(
            graph, logs, labels, self.reduction, self.weight, self.ignore_index
        )


@dataclass(frozen=True, eq=False)
class BCEWithLogitsLoss(Loss):
    """Cross entropy of sigmoid(output) and the input `target`, in a form that never overflows.

    weight, pos_weight: factors of all elements and of positive ones, broadcast to the output.
    """

    weight: Array | None = None
    reduction: str = "mean"
    pos_weight: Array | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        logits, target = _named(self, inputs, "target")
        return losses.binary_cross_entropy(
            graph, logits, target, self.reduction, self.weight, self.pos_weight
        )


LOSSES: dict[LossType, type[Loss]] = {
    LossType.MSELoss: MSELoss,
    LossType.CrossEntropyLoss: CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: BCEWithLogitsLoss,
    LossType.L1Loss: L1Loss,
    LossType.HuberLoss: HuberLoss,
    LossType.SmoothL1Loss: SmoothL1Loss,
    LossType.KLDivLoss: KLDivLoss,
    LossType.NLLLoss: NLLLoss,
    LossType.CosineEmbeddingLoss: CosineEmbeddingLoss,
}
