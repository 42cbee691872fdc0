"""Losses over classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.base.signatures import AT_LEAST_0, FINITE, SHARE, checked
from engine.loss_types.base import Activation, Array, NamedLoss

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@checked(weight=FINITE, label_smoothing=SHARE)
@dataclass(frozen=True, eq=False)
class CrossEntropyLoss(NamedLoss):
    """Softmax cross entropy of scores [batch, classes, ...] and int64 `labels` [batch, ...].

    weight: one factor a class.  ignore_index: the label whose positions do not count.
    label_smoothing: the part of the target that is spread over all classes.
    """

    inputs: ClassVar[tuple[str, ...]] = ("scores_input_name",)
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None
    label_smoothing: float = 0.0

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import classes

        scores, labels = self.named(inputs)
        return classes.cross_entropy(
            graph,
            scores,
            labels,
            self.reduction,
            self.weight,
            self.ignore_index,
            self.label_smoothing,
        )


@checked(weight=FINITE)
@dataclass(frozen=True, eq=False)
class NLLLoss(NamedLoss):
    """-output[label] of log-probabilities [batch, classes, ...]; options as `CrossEntropyLoss`."""

    inputs: ClassVar[tuple[str, ...]] = ("logs_input_name",)
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import classes

        logs, labels = self.named(inputs)
        return classes.likelihood(
            graph, logs, labels, self.reduction, self.weight, self.ignore_index
        )


@checked(gamma=AT_LEAST_0, alpha=FINITE)
@dataclass(frozen=True, eq=False)
class FocalLoss(NamedLoss):
    """Cross entropy times alpha (1 - p)^gamma, p the probability of what is true.

    activation: "sigmoid", where `target` is in [0, 1] and shaped like the output, every class a
        question of its own; or "softmax", where it is int64 classes [batch, ...] of scores [batch,
        classes, ...].
    gamma: how much less what is right already counts; 0 is plain cross entropy.
    alpha: by sigmoid the factor of positives, that of negatives being 1 - alpha (RetinaNet: 0.25);
        by softmax one factor a class.  None: 1 for all.
    ignore_index: the target whose positions do not count, in a mean neither.
    """

    activation: Activation = "sigmoid"
    gamma: float = 2.0
    alpha: float | Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import classes

        x, target = self.named(inputs)
        options = (self.reduction, self.gamma, self.alpha, self.ignore_index)
        if self.activation == "softmax":
            return classes.focal_by_softmax(graph, x, target, *options)
        return classes.focal_by_sigmoid(graph, x, target, *options)
