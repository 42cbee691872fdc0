"""Losses of regions: of boxes [..., 4], and of the parts of an image that belong to classes.

p are the boxes of the model and t the true ones.  I and U are the areas of the intersection and of
the union of two boxes, C the area of the least box around both; a box that is inside out has the
area 0.
Every quotient has 1e-7 in its divisor, as in torchvision, so that boxes of no area have finite
values and gradients.

GIoU    1 - I/U + (C - U)/C.  Rezatofighi et al. 2019, arXiv 1902.09630
CIoU    1 - I/U + d^2/c^2 + a v, d the distance of the centres, c the diagonal of the least box,
        v = 4/pi^2 (atan(w_t/h_t) - atan(w_p/h_p))^2, a = v / (1 - I/U + v), to which no gradient
        flows.  Zheng et al. 2020, arXiv 1911.08287
Dice    1 - (2 sum p t + s) / (sum p + sum t + s), of every class of every sample, or of the whole
        batch.  Milletari et al. 2016, arXiv 1606.04797
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import InputError, ShapeError
from engine.base.signatures import ABOVE_0, FINITE, check_arguments
from engine.loss_types.base import Activation, LossOfScores, NamedLoss

__all__ = ["CIoULoss", "DiceLoss", "GIoULoss"]

if TYPE_CHECKING:
    from engine.graphs.offline.loss_nodes import LossNodes
    from engine.kernels.vocabulary.op import TensorType

EPSILON = 1e-7
Form = Literal["xyxy", "cxcywh"]


@dataclass(frozen=True)
class _Boxed:
    """Options of losses of pairs of boxes."""

    outputs: ClassVar[str] = "boxes [..., 4]"
    compared: ClassVar[str] = "`target`, same shape; `weight` [...] if `weighted`"
    targets: ClassVar[tuple[str, ...]] = ("target", "weight")

    boxes: Form = "xyxy"
    weighted: bool = False
    reduction: str = "mean"


@check_arguments
@dataclass(frozen=True)
class GIoULoss(_Boxed, NamedLoss):
    """1 - generalised intersection over union of boxes [..., 4] and their targets.

    boxes: "xyxy": the left, top, right and bottom sides; "cxcywh": the centre, width and height.
    weighted: whether the training model has an input `weight` [...] with a factor for each pair of
        boxes.  0 leaves a pair out.  The mean is then the weighted sum divided by the sum of the
        weights, or 0 if that is 0.
    """

    def _append(self, nodes: LossNodes, boxes: str, target: str, weight: str) -> str:
        pairs = _Pairs.read(nodes, boxes, target, self.boxes)
        around = nodes.add("Mul", *pairs.around.append_extent(nodes))
        empty = nodes.add("Sub", around, pairs.union)
        each = nodes.add(
            "Add", pairs.append_missed(), _append_quotient(nodes, empty, around, pairs.type.dtype)
        )
        return pairs.append_reduced(each, weight if self.weighted else None, self.reduction)


@check_arguments
@dataclass(frozen=True)
class CIoULoss(_Boxed, NamedLoss):
    """1 - complete intersection over union, with the distance of the centres and the aspect ratios.

    boxes, weighted: as in `GIoULoss`.
    """

    def _append(self, nodes: LossNodes, boxes: str, target: str, weight: str) -> str:
        pairs = _Pairs.read(nodes, boxes, target, self.boxes)
        dtype, missed = pairs.type.dtype, pairs.append_missed()
        doubled = [
            nodes.add("Sub", *(nodes.add("Add", low, high) for low, high in axis))
            for axis in (
                [(b.x1, b.x2) for b in (pairs.p, pairs.t)],
                [(b.y1, b.y2) for b in (pairs.p, pairs.t)],
            )
        ]
        distance = nodes.scale(_append_squares(nodes, *doubled), 0.25, dtype)
        diagonal = _append_squares(nodes, *pairs.around.append_extent(nodes))
        angles = [nodes.add("Atan", _append_ratio(nodes, b, dtype)) for b in (pairs.t, pairs.p)]
        difference = nodes.add("Sub", *angles)
        v = nodes.scale(nodes.add("Mul", difference, difference), 4 / math.pi**2, dtype)
        a = nodes.stop_gradient(_append_quotient(nodes, v, nodes.add("Add", missed, v), dtype))
        apart = nodes.add("Add", missed, _append_quotient(nodes, distance, diagonal, dtype))
        each = nodes.add("Add", apart, nodes.add("Mul", a, v))
        return pairs.append_reduced(each, weight if self.weighted else None, self.reduction)


@check_arguments(smooth=ABOVE_0, weight=FINITE)
@dataclass(frozen=True, eq=False)
class DiceLoss(LossOfScores):
    """1 - Dice coefficient (the overlap of predicted and true regions) of each class.

    activation: "softmax": `target` contains int64 classes [batch, ...].  "sigmoid": `target` has
        the output's shape, and each class is decided separately.
    smooth: is added to numerator and denominator, so that the loss of an absent class is 0.
    batch: whether to sum over the whole batch instead of over each sample.
    reduction: "none" gives the losses of the classes: [batch, classes], or [classes] with `batch`.
    weight: one factor per class, for the mean.
    ignore_index: the target of positions that do not count.
    from_logits: as in `CrossEntropyLoss`.
    """

    outputs: ClassVar[str] = "scores [batch, classes, ...]"
    compared: ClassVar[str] = (
        "`target`: classes [batch, ...], int64; with `activation='sigmoid'`, same shape"
    )

    activation: Activation = "softmax"
    smooth: float = 1.0
    batch: bool = False
    reduction: str = "mean"
    weight: Array | None = None
    ignore_index: int | None = None

    @property
    def applies(self) -> Activation:
        return self.activation

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        t = nodes.find_type(x)
        if t.rank < 2:
            raise ShapeError(
                f"{nodes.graph.name}: scores {x!r} are {t}; expected [batch, classes, ...]"
            )
        if self.activation == "softmax":
            p = nodes.add("Softmax", x, axis=1)
            truth, kept = _append_one_hot(nodes, target, t, self.ignore_index)
        else:
            p = nodes.add("Sigmoid", x)
            truth, kept = _append_masked(nodes, target, t, self.ignore_index)
        if kept is not None:
            p = nodes.add("Mul", p, kept)
        axes = [*([0] if self.batch else []), *range(2, t.rank)]

        def append_total(value: str) -> str:
            return nodes.sum(value, axes) if axes else value

        s = nodes.add_constant("smooth", self.smooth, t.dtype)
        common = nodes.scale(append_total(nodes.add("Mul", p, truth)), 2.0, t.dtype)
        both = nodes.add("Add", append_total(p), append_total(truth))
        share = nodes.add("Div", nodes.add("Add", common, s), nodes.add("Add", both, s))
        each = nodes.add("Sub", nodes.add_constant("one", 1, t.dtype), share)
        if self.weight is not None:
            factors = _make_factors(self.weight, t.shape[1], mean=self.reduction == "mean")
            each = nodes.add("Mul", each, nodes.add_constant("weight", factors, t.dtype))
        return nodes.reduce(each, self.reduction)


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes as the values of their sides, each [..., 1]: names of left, top, right, bottom."""

    x1: str
    y1: str
    x2: str
    y2: str

    @classmethod
    def read(cls, nodes: LossNodes, boxes: str, form: Form, dtype: str) -> _Boxes:
        """Return the sides of boxes [..., 4]."""
        sizes = nodes.add_constant("split", [1, 1, 1, 1], "i64")
        parts = nodes.append_many("Split", boxes, sizes, outputs=4, axis=-1)
        if form == "xyxy":
            return cls(*parts)
        x, y, w, h = parts
        halves = [nodes.scale(side, 0.5, dtype) for side in (w, h)]
        low = [nodes.add("Sub", c, half) for c, half in zip((x, y), halves, strict=True)]
        high = [nodes.add("Add", c, half) for c, half in zip((x, y), halves, strict=True)]
        return cls(*low, *high)

    def append_extent(self, nodes: LossNodes) -> tuple[str, str]:
        """Append the width and the height, 0 of a box that is inside out."""
        return (
            nodes.add("Relu", nodes.add("Sub", self.x2, self.x1)),
            nodes.add("Relu", nodes.add("Sub", self.y2, self.y1)),
        )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of boxes.

    nodes, type: what they are computed with, and the type of the boxes.
    p, t: the boxes of the model and those that are true.  around: the least boxes around both.
    iou, union: the share of the union that is the intersection, and the union's area.
    """

    nodes: LossNodes
    type: TensorType
    p: _Boxes
    t: _Boxes
    around: _Boxes
    iou: str
    union: str

    @classmethod
    def read(cls, nodes: LossNodes, boxes: str, target: str, form: Form) -> _Pairs:
        """Return the pairs of the values `boxes` and the targets of the same shape.

        Raises:
            ShapeError: the last axis does not hold the four numbers of a box.
        """
        t = nodes.find_type(boxes)
        if not t.rank or (isinstance(t.shape[-1], int) and t.shape[-1] != 4):
            raise ShapeError(f"{nodes.graph.name}: boxes {boxes!r} are {t}; expected [..., 4]")
        truth = nodes.add_target(target, t)
        p, q = (_Boxes.read(nodes, name, form, t.dtype) for name in (boxes, truth))
        inner, outer = (
            _Boxes(
                *(nodes.add(ops[0], getattr(p, s), getattr(q, s)) for s in ("x1", "y1")),
                *(nodes.add(ops[1], getattr(p, s), getattr(q, s)) for s in ("x2", "y2")),
            )
            for ops in (("Max", "Min"), ("Min", "Max"))
        )
        common = nodes.add("Mul", *inner.append_extent(nodes))
        areas = nodes.add("Add", *(nodes.add("Mul", *b.append_extent(nodes)) for b in (p, q)))
        union = nodes.add("Sub", areas, common)
        iou = _append_quotient(nodes, common, union, t.dtype)
        return cls(nodes, t, p, q, outer, iou, union)

    def append_missed(self) -> str:
        """Append 1 - IoU."""
        return self.nodes.add("Sub", self.nodes.add_constant("one", 1, self.type.dtype), self.iou)

    def append_reduced(self, each: str, weight: str | None, reduction: str) -> str:
        """Append the losses of all pairs, without the last axis; weighted, and reduced.

        weight: the name of a factor for each pair; a mean divides by their sum.
        """
        nodes = self.nodes
        each = nodes.sum(each, [-1])
        if weight is None:
            return nodes.reduce(each, reduction)
        factor = nodes.add_target(weight, self.type.but(self.type.shape[:-1]))
        each = nodes.add("Mul", each, factor)
        return nodes.reduce_counted(each, factor, reduction, self.type.dtype)


def _append_ratio(nodes: LossNodes, box: _Boxes, dtype: str) -> str:
    """Append width / height; a height counts as no less than `EPSILON`."""
    width, height = box.append_extent(nodes)
    return nodes.add("Div", width, nodes.clip_below(height, EPSILON, dtype))


def _append_squares(nodes: LossNodes, a: str, b: str) -> str:
    """Append a^2 + b^2."""
    return nodes.add("Add", nodes.add("Mul", a, a), nodes.add("Mul", b, b))


def _append_quotient(nodes: LossNodes, a: str, b: str, dtype: str) -> str:
    """Append a / (b + 1e-7)."""
    return nodes.add("Div", a, nodes.add("Add", b, nodes.add_constant("epsilon", EPSILON, dtype)))


def _make_factors(weight: Any, classes: Any, *, mean: bool) -> Array:
    """Return one factor a class; of a mean they have the mean 1."""
    given = arguments.cast("weight", weight, np.dtype(np.float64))
    if given.ndim != 1 or (isinstance(classes, int) and len(given) != classes):
        raise ShapeError(f"weight has shape {list(given.shape)}; expected [{classes}]")
    if mean and not given.mean() > 0:
        raise InputError(f"weight={given.tolist()}; expected factors with a positive sum")
    return given / given.mean() if mean else given


def _append_masked(
    nodes: LossNodes, target: str, t: TensorType, ignore_index: int | None
) -> tuple[str, str | None]:
    """Append targets shaped like the scores, 0 where they are ignored, and 1 where they count."""
    truth = nodes.add_target(target, t)
    if ignore_index is None:
        return truth, None
    ignored = nodes.add_constant("ignore_index", ignore_index, t.dtype)
    skipped = nodes.add("Equal", truth, ignored)
    zero, one = (nodes.add_constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
    return nodes.add("Where", skipped, zero, truth), nodes.add("Where", skipped, zero, one)


def _append_one_hot(
    nodes: LossNodes, labels: str, t: TensorType, ignore_index: int | None
) -> tuple[str, str | None]:
    """Append 1 for the class of each label, zeros where it is ignored, and 1 where it counts.

    A label is looked up in the identity matrix, so that any other number is an error.
    """
    classes = t.shape[1]
    if not isinstance(classes, int):
        raise ShapeError(f"{nodes.graph.name}: the number of classes of {t} must be known")
    index = nodes.add_integer_target(labels, (t.shape[0], *t.shape[2:]))
    first, outside = (nodes.add_constant("class", k, "i64") for k in (0, classes))
    kept = None
    if ignore_index is not None:
        skipped = nodes.add("Equal", index, nodes.add_constant("ignore_index", ignore_index, "i64"))
        index = nodes.add("Where", skipped, first, index)
        zero, one = (nodes.add_constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
        counts = nodes.add("Where", skipped, zero, one)
        kept = nodes.add("Unsqueeze", counts, nodes.add_constant("axes", [1], "i64"))
    # Gather counts negative indices from the end; a negative label is not a class.
    index = nodes.add("Where", nodes.add("Less", index, first), outside, index)
    hot = nodes.add(
        "Gather", nodes.add_constant("classes", np.eye(classes), t.dtype), index, axis=0
    )
    hot = nodes.add("Transpose", hot, perm=[0, t.rank - 1, *range(1, t.rank - 1)])
    return (hot if kept is None else nodes.add("Mul", hot, kept)), kept
