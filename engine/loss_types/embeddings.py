"""Losses of embeddings [batch, features].

cosine          mean(1 - c where t = 1, max(0, c - margin) where t = -1),
                c = a b / sqrt((a a + 1e-12) (b b + 1e-12))
triplet         mean(max(0, margin + d(a, p) - d(a, n))), d(x, y) = |x - y + 1e-6|_p as in torch;
                swapped: the smaller of d(a, n) and d(p, n).  Balntas et al. 2016
batch hard      max(0, margin + the largest d to a row of the same label - the smallest to one of
                another), d^2 = a a + b b - 2 a b, the mean over rows that have both.  Hermans et
                al. 2017, arXiv 1703.07737.  In float32 d is uncertain by 5e-4 |a| near 0
InfoNCE         cross entropy of the scores s = a b / temperature of all pairs, where the label of
                row i is i: the other rows are its negatives.  Symmetric: the mean with the same of
                the columns, as in CLIP.  van den Oord et al. 2018, arXiv 1807.03748
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.base.errors import ShapeError
from engine.base.signatures import ABOVE_0, AT_LEAST_0, AT_LEAST_1, Range, check_arguments
from engine.loss_types.base import NamedLoss

__all__ = ["BatchHardTripletLoss", "CosineEmbeddingLoss", "InfoNCELoss", "TripletMarginLoss"]

if TYPE_CHECKING:
    from engine.graphs.offline.loss_nodes import LossNodes
    from engine.kernels.vocabulary.op import TensorType

SMALL = 1e-24  # squares of norms count as no less, so that roots have finite derivatives
FAR = 1e30  # further than any row


@check_arguments(margin=Range(-1, 1))
@dataclass(frozen=True)
class CosineEmbeddingLoss(NamedLoss):
    """1 - cos of two rows if their target is 1, and max(0, cos - margin) if it is -1.

    margin: the cosine up to which different rows have no loss.
    """

    outputs: ClassVar[str] = "two of [batch, features]"
    compared: ClassVar[str] = "`target` [batch], 1 or -1"
    takes: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("input_name1", "input_name2")

    margin: float = 0.0
    reduction: str = "mean"

    def _append(self, nodes: LossNodes, a: str, b: str, target: str) -> str:
        t, other = nodes.find_type(a), nodes.find_type(b)
        if t.rank not in (1, 2) or other.dtype != t.dtype or other.rank != t.rank:
            raise ShapeError(
                f"{nodes.graph.name}: {a!r} is {t}, {b!r} is {other}; "
                "expected two of [batch, features]"
            )
        axis = [t.rank - 1]
        y = nodes.add_target(target, t.but(t.shape[:-1]))
        least = nodes.add_constant("epsilon", 1e-12, t.dtype)
        norms = [nodes.add("Add", nodes.sum(nodes.add("Mul", v, v), axis), least) for v in (a, b)]
        dot = nodes.sum(nodes.add("Mul", a, b), axis)
        cosine = nodes.add("Div", dot, nodes.add("Sqrt", nodes.add("Mul", *norms)))
        zero, one = (nodes.add_constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
        beyond = nodes.add("Sub", cosine, nodes.add_constant("margin", self.margin, t.dtype))
        parts = []
        for sign, value in ((1, nodes.add("Sub", one, cosine)), (-1, nodes.add("Relu", beyond))):
            chosen = nodes.add("Equal", y, nodes.add_constant("sign", sign, t.dtype))
            parts.append(nodes.add("Where", chosen, value, zero))
        return nodes.reduce(nodes.add("Add", *parts), self.reduction)


@check_arguments(margin=AT_LEAST_0, p=AT_LEAST_1)
@dataclass(frozen=True)
class TripletMarginLoss(NamedLoss):
    """max(0, margin + |a - p| - |a - n|), for anchors a, similar rows p and different rows n.

    margin: how much further n must be from a than p, for the loss to be 0.
    p: the order of the norm.
    swap: whether to use |p - n| where it is less than |a - n|.
    """

    outputs: ClassVar[str] = "three of [batch, features]: anchors, similar rows, different rows"
    compared: ClassVar[str] = "nothing"
    takes: ClassVar[int] = 3
    inputs: ClassVar[tuple[str, ...]] = ("anchor_name", "positive_name", "negative_name")
    targets: ClassVar[tuple[str, ...]] = ()

    margin: float = 1.0
    p: float = 2.0
    swap: bool = False
    reduction: str = "mean"

    def _append(self, nodes: LossNodes, anchor: str, positive: str, negative: str) -> str:
        t = _check_rows(nodes, anchor, positive, negative)
        near = _append_distance(nodes, anchor, positive, self.p, t)
        far = _append_distance(nodes, anchor, negative, self.p, t)
        if self.swap:
            far = nodes.add("Min", far, _append_distance(nodes, positive, negative, self.p, t))
        return nodes.reduce(_append_hinge(nodes, near, far, self.margin, t), self.reduction)


@check_arguments(margin=AT_LEAST_0)
@dataclass(frozen=True)
class BatchHardTripletLoss(NamedLoss):
    """Triplet loss of each row, the furthest row of its label, and the nearest of another label.

    The mean is over the rows that have both; a batch without such rows has the loss 0.

    margin: how much further the row of another label must be, for the loss to be 0.
    """

    outputs: ClassVar[str] = "one of [batch, features]"
    compared: ClassVar[str] = "`labels` [batch], int64"
    inputs: ClassVar[tuple[str, ...]] = ("embeddings_name",)
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    margin: float = 1.0
    reduction: str = "mean"

    def _append(self, nodes: LossNodes, x: str, labels: str) -> str:
        t = _check_rows(nodes, x)
        y = nodes.add_integer_target(labels, t.shape[:1])
        first, second = (nodes.add_constant("axes", [k], "i64") for k in (0, 1))

        def find_extreme(op: str, rows: str) -> str:
            return nodes.add(
                op, nodes.add("Unsqueeze", rows, second), nodes.add("Unsqueeze", rows, first)
            )

        products = nodes.add("MatMul", x, nodes.add("Transpose", x, perm=[1, 0]))
        squares = find_extreme("Add", nodes.sum(nodes.add("Mul", x, x), [1]))
        apart = nodes.add("Sub", squares, nodes.scale(products, 2.0, t.dtype))
        d = nodes.add("Sqrt", nodes.clip_below(apart, 1e-12, t.dtype))
        zero, one = (nodes.add_constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
        same = find_extreme("Equal", y)
        itself = find_extreme("Equal", nodes.append_range(nodes.append_size(x, 0)))
        other = nodes.add("And", same, nodes.add("Not", itself))
        near = nodes.reduce_along("ReduceMax", nodes.add("Where", other, d, zero), 1)
        is_far = nodes.add("Where", same, nodes.add_constant("far", FAR, t.dtype), d)
        far = nodes.reduce_along("ReduceMin", is_far, 1)
        positives = nodes.reduce_along("ReduceMax", nodes.add("Where", other, one, zero), 1)
        negatives = nodes.reduce_along("ReduceMax", nodes.add("Where", same, zero, one), 1)
        counts = nodes.add("Mul", positives, negatives)
        skipped = nodes.add("Equal", counts, zero)
        each = nodes.add("Where", skipped, zero, _append_hinge(nodes, near, far, self.margin, t))
        return nodes.reduce_counted(each, counts, self.reduction, t.dtype)


@check_arguments(temperature=ABOVE_0)
@dataclass(frozen=True)
class InfoNCELoss(NamedLoss):
    """Cross-entropy of finding, for each row of one output, its counterpart in the other output.

    Row i of one output belongs to row i of the other; all other rows are negatives.

    temperature: the divisor of the products of rows.  If it is to be learned, scale one of the
        outputs in the model, and pass temperature=1 and normalize=False.
    normalize: whether rows are divided by their norms first.
    symmetric: whether rows of the second output also look for their counterparts in the first, as
        in CLIP.
    """

    outputs: ClassVar[str] = "two of [batch, features]"
    compared: ClassVar[str] = "nothing: row i belongs to row i"
    takes: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("input_name1", "input_name2")
    targets: ClassVar[tuple[str, ...]] = ()

    temperature: float = 0.07
    normalize: bool = True
    symmetric: bool = True
    reduction: str = "mean"

    def _append(self, nodes: LossNodes, a: str, b: str) -> str:
        t = _check_rows(nodes, a, b)
        if self.normalize:
            a, b = (_append_normalized(nodes, v, t.dtype) for v in (a, b))
        scores = nodes.add("MatMul", a, nodes.add("Transpose", b, perm=[1, 0]))
        scores = nodes.scale(scores, 1 / self.temperature, t.dtype)
        labels = nodes.append_range(nodes.append_size(a, 0))
        options = {"reduction": self.reduction}
        loss = nodes.add("SoftmaxCrossEntropyLoss", scores, labels, **options)
        if not self.symmetric:
            return loss
        columns = nodes.add("Transpose", scores, perm=[1, 0])
        other = nodes.add("SoftmaxCrossEntropyLoss", columns, labels, **options)
        return nodes.scale(nodes.add("Add", loss, other), 0.5, t.dtype)


def _check_rows(nodes: LossNodes, *names: str) -> TensorType:
    """Return the type of values [batch, features], which is one for all.

    Raises:
        ShapeError: they are something else, or of several types.
    """
    types = {name: nodes.find_type(name) for name in names}
    dtypes = {t.dtype for t in types.values()}
    sizes = {t.shape[-1] for t in types.values() if t.rank and isinstance(t.shape[-1], int)}
    if len(dtypes) > 1 or len(sizes) > 1 or any(t.rank != 2 for t in types.values()):
        listed = ", ".join(f"{name!r} is {t}" for name, t in types.items())
        each = "one" if len(names) == 1 else f"{len(names)} of one type"
        raise ShapeError(f"{nodes.graph.name}: {listed}; expected {each} [batch, features]")
    return types[names[0]]


def _append_distance(nodes: LossNodes, a: str, b: str, p: float, t: TensorType) -> str:
    """Append |a - b + 1e-6|_p of every row."""
    d = nodes.add("Add", nodes.add("Sub", a, b), nodes.add_constant("epsilon", 1e-6, t.dtype))
    axis = [t.rank - 1]
    if p == 1:
        return nodes.sum(nodes.add("Abs", d), axis)
    if p == 2:
        squares = nodes.sum(nodes.add("Mul", d, d), axis)
        return nodes.add("Sqrt", nodes.clip_below(squares, SMALL, t.dtype))
    powers = nodes.add("Pow", nodes.add("Abs", d), nodes.add_constant("p", p, t.dtype))
    total = nodes.clip_below(nodes.sum(powers, axis), SMALL, t.dtype)
    return nodes.add("Pow", total, nodes.add_constant("root", 1 / p, t.dtype))


def _append_hinge(nodes: LossNodes, near: str, far: str, margin: float, t: TensorType) -> str:
    """Append max(0, margin + near - far)."""
    difference = nodes.add("Sub", near, far)
    return nodes.add(
        "Relu", nodes.add("Add", difference, nodes.add_constant("margin", margin, t.dtype))
    )


def _append_normalized(nodes: LossNodes, x: str, dtype: str) -> str:
    """Append the rows of x divided by their norms, or by 1e-12 if that is more."""
    squares = nodes.sum(nodes.add("Mul", x, x), [1], keepdims=True)
    return nodes.add("Div", x, nodes.add("Sqrt", nodes.clip_below(squares, SMALL, dtype)))
