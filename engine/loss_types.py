"""Losses to train with, and their options: what `generate_artifacts(loss=...)` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engine.errors import InputError

__all__ = [
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Loss",
    "LossType",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
]

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
    """A loss, which appends its nodes to a graph.  Subclass it for a loss of your own.

    takes: how many outputs of the model it is taken of.
    """

    takes: ClassVar[int] = 1

    @abstractmethod
    def build(self, graph: Graph, *inputs: str) -> str:
        """Append the loss over the values `inputs` to `graph`; return the name of the result."""


class NamedLoss(Loss):
    """A loss of this package.

    inputs, last: what its block calls the values it is taken of, and the target they are compared
        with.
    reductions: what `reduction` may be.
    """

    inputs: ClassVar[tuple[str, ...]] = ("loss_input_name",)
    last: ClassVar[str] = "target"
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    reduction: str

    def named(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """The values of which the loss is taken, and the name of the target."""
        if len(inputs) not in (self.takes, self.takes + 1):
            raise InputError(
                f"{type(self).__name__} takes {('one', 'two')[self.takes - 1]} model "
                f"output{'s' if self.takes > 1 else ''}, and may be given the name of its "
                f"{self.last}; found {list(inputs)}: choose by loss_input_names"
            )
        return (*inputs, self.last)[: self.takes + 1]


@dataclass(frozen=True)
class MSELoss(NamedLoss):
    """Squared error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = self.named(inputs)
        return losses.squared_error(graph, x, target, self.reduction)


@dataclass(frozen=True)
class L1Loss(NamedLoss):
    """Absolute error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = self.named(inputs)
        return losses.absolute_error(graph, x, target, self.reduction)


@dataclass(frozen=True)
class HuberLoss(NamedLoss):
    """Squared error / 2 up to `delta`, beyond it delta times the absolute error - delta / 2."""

    reduction: str = "mean"
    delta: float = 1.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = self.named(inputs)
        return losses.huber(graph, x, target, self.reduction, self.delta)


@dataclass(frozen=True)
class SmoothL1Loss(NamedLoss):
    """`HuberLoss` of delta `beta`, divided by it; the absolute error when that is 0."""

    reduction: str = "mean"
    beta: float = 1.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        x, target = self.named(inputs)
        return losses.huber(graph, x, target, self.reduction, self.beta, smooth_l1=True)


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
        from engine.graphs.offline import losses

        x, target = self.named(inputs)
        return losses.divergence(graph, x, target, self.reduction, self.log_target)


@dataclass(frozen=True)
class CosineEmbeddingLoss(NamedLoss):
    """1 - cos of two outputs [batch, features] where the input `target` [batch] is 1, and
    max(0, cos - margin) where it is -1."""

    takes: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("input_name1", "input_name2")

    margin: float = 0.0
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        a, b, target = self.named(inputs)
        return losses.cosine_embedding(graph, a, b, target, self.reduction, self.margin)


@dataclass(frozen=True, eq=False)
class CrossEntropyLoss(NamedLoss):
    """Softmax cross entropy of scores [batch, classes, ...] and int64 `labels` [batch, ...].

    weight: one factor a class.  ignore_index: the label whose positions do not count.
    label_smoothing: the part of the target that is spread over all classes.
    """

    inputs: ClassVar[tuple[str, ...]] = ("scores_input_name",)
    last: ClassVar[str] = "labels"

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None
    label_smoothing: float = 0.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        scores, labels = self.named(inputs)
        return losses.cross_entropy(
            graph,
            scores,
            labels,
            self.reduction,
            self.weight,
            self.ignore_index,
            self.label_smoothing,
        )


@dataclass(frozen=True, eq=False)
class NLLLoss(NamedLoss):
    """-output[label] of log-probabilities [batch, classes, ...]; options as `CrossEntropyLoss`."""

    inputs: ClassVar[tuple[str, ...]] = ("logs_input_name",)
    last: ClassVar[str] = "labels"

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        logs, labels = self.named(inputs)
        return losses.likelihood(
            graph, logs, labels, self.reduction, self.weight, self.ignore_index
        )


@dataclass(frozen=True, eq=False)
class BCEWithLogitsLoss(NamedLoss):
    """Cross entropy of sigmoid(output) and the input `target`, in a form that never overflows.

    weight, pos_weight: factors of all elements and of positive ones, broadcast to the output.
    """

    weight: Array | None = None
    reduction: str = "mean"
    pos_weight: Array | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline import losses

        logits, target = self.named(inputs)
        return losses.binary_cross_entropy(
            graph, logits, target, self.reduction, self.weight, self.pos_weight
        )


LOSSES: dict[LossType, type[NamedLoss]] = {
    LossType[c.__name__]: c for c in NamedLoss.__subclasses__()
}
