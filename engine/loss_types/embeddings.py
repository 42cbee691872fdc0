"""Losses of embeddings, which compare outputs with one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.base.signatures import ABOVE_0, AT_LEAST_0, AT_LEAST_1, Range, checked
from engine.loss_types.base import NamedLoss

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@checked(margin=Range(-1, 1))
@dataclass(frozen=True)
class CosineEmbeddingLoss(NamedLoss):
    """1 - cos of two outputs [batch, features] where the input `target` [batch] is 1, and
    max(0, cos - margin) where it is -1."""

    takes: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("input_name1", "input_name2")

    margin: float = 0.0
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import embeddings

        a, b, target = self.named(inputs)
        return embeddings.cosine_embedding(graph, a, b, target, self.reduction, self.margin)


@checked(margin=AT_LEAST_0, p=AT_LEAST_1)
@dataclass(frozen=True)
class TripletMarginLoss(NamedLoss):
    """max(0, margin + |a - p| - |a - n|) of three outputs [batch, features]: anchors a, and for
    each a row p that is alike and a row n that is not.  There is no target.

    p: the order of the norm.  swap: take |p - n| where that is less than |a - n|.
    """

    takes: ClassVar[int] = 3
    inputs: ClassVar[tuple[str, ...]] = ("anchor_name", "positive_name", "negative_name")
    targets: ClassVar[tuple[str, ...]] = ()

    margin: float = 1.0
    p: float = 2.0
    swap: bool = False
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import embeddings

        a, p, n = self.named(inputs)
        return embeddings.triplet(graph, a, p, n, self.reduction, self.margin, self.p, self.swap)


@checked(margin=AT_LEAST_0)
@dataclass(frozen=True)
class BatchHardTripletLoss(NamedLoss):
    """The triplet loss of one output [batch, features] and int64 `labels` [batch]: each row with
    the furthest row of its label and the nearest row of another.

    The mean is that over the rows that have both; a batch without such rows has the loss 0.
    """

    inputs: ClassVar[tuple[str, ...]] = ("embeddings_name",)
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    margin: float = 1.0
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import embeddings

        x, labels = self.named(inputs)
        return embeddings.batch_hard_triplet(graph, x, labels, self.reduction, self.margin)


@checked(temperature=ABOVE_0)
@dataclass(frozen=True)
class InfoNCELoss(NamedLoss):
    """Cross entropy of which rows of two outputs [batch, features] belong together: row i of one
    with row i of the other, all other rows being its negatives.  There is no target.

    temperature: what the products of rows are divided by.  A temperature that is learned belongs
        into the model: it scales one output there, and `temperature` is 1.
    normalize: whether rows are divided by their norms before.
    symmetric: whether the second output is also asked for its row of the first, as in CLIP.
    """

    takes: ClassVar[int] = 2
    inputs: ClassVar[tuple[str, ...]] = ("input_name1", "input_name2")
    targets: ClassVar[tuple[str, ...]] = ()

    temperature: float = 0.07
    normalize: bool = True
    symmetric: bool = True
    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import embeddings

        a, b = self.named(inputs)
        return embeddings.info_nce(
            graph, a, b, self.reduction, self.temperature, self.normalize, self.symmetric
        )
