"""Losses of regions: of boxes, and of the parts of an image that belong to classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from engine.base.signatures import ABOVE_0, FINITE, checked
from engine.loss_types.base import Activation, Array, NamedLoss

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@checked
@dataclass(frozen=True)
class GIoULoss(NamedLoss):
    """1 - generalised intersection over union of boxes [..., 4] and the input `target`.

    boxes: "xyxy", two corners, the first one left of and above the second; or "cxcywh", centre,
        width and height.
    weighted: whether there is an input `weight` [...], a factor for each pair of boxes: 0 leaves
        one out, and the mean is the sum over the sum of weights, 0 where that is 0.
    """

    targets: ClassVar[tuple[str, ...]] = ("target", "weight")

    boxes: Literal["xyxy", "cxcywh"] = "xyxy"
    weighted: bool = False
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import regions

        x, target, weight = self.named(inputs)
        chosen = weight if self.weighted else None
        return regions.generalized_iou(graph, x, target, chosen, self.reduction, self.boxes)


@checked
@dataclass(frozen=True)
class CIoULoss(NamedLoss):
    """1 - complete intersection over union of boxes [..., 4] and the input `target`: also the
    distance of centres and the difference of shapes count.  Options are those of `GIoULoss`."""

    targets: ClassVar[tuple[str, ...]] = ("target", "weight")

    boxes: Literal["xyxy", "cxcywh"] = "xyxy"
    weighted: bool = False
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import regions

        x, target, weight = self.named(inputs)
        chosen = weight if self.weighted else None
        return regions.complete_iou(graph, x, target, chosen, self.reduction, self.boxes)


@checked(smooth=ABOVE_0, weight=FINITE)
@dataclass(frozen=True, eq=False)
class DiceLoss(NamedLoss):
    """1 - Dice coefficient of the classes of scores [batch, classes, ...].

    activation: "softmax", where `target` is int64 classes [batch, ...]; or "sigmoid", where it is
        shaped like the output, every class a question of its own.
    smooth: added to both sides of the quotient, so that a class that is nowhere has the loss 0.
    batch: sum over the batch too, and not over each sample alone.
    reduction: "none" gives the losses of all classes [batch, classes], or [classes] with `batch`.
    weight: one factor a class; the mean is weighted by them.
    ignore_index: the target whose positions do not count.
    """

    activation: Activation = "softmax"
    smooth: float = 1.0
    batch: bool = False
    reduction: str = "mean"
    weight: Array | None = None
    ignore_index: int | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import regions

        x, target = self.named(inputs)
        options = regions.Overlap(
            self.reduction, self.smooth, self.batch, self.weight, self.ignore_index
        )
        return regions.dice(graph, x, target, self.activation, options)
