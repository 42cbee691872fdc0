"""Losses of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.base.signatures import AT_LEAST_0, checked
from engine.loss_types.base import NamedLoss

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@checked(blank=AT_LEAST_0)
@dataclass(frozen=True)
class CTCLoss(NamedLoss):
    """Connectionist temporal classification of log-probabilities [steps, batch, classes].

    The inputs are int64: `targets` [batch, length], padded at the end by anything;
    `input_lengths` and `target_lengths` [batch], how much of a sequence and of its targets counts.
    The mean is that of each loss over the number of its targets, as in torch.

    blank: the class that stands for no label.
    zero_infinity: whether targets that are too long for their sequence cost nothing, and not
        infinity.
    logits: whether the output is scores, whose log softmax is to be taken.
    batch_first: whether the output is [batch, steps, classes].
    """

    inputs: ClassVar[tuple[str, ...]] = ("log_probs_name",)
    targets: ClassVar[tuple[str, ...]] = ("targets", "input_lengths", "target_lengths")

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False
    logits: bool = False
    batch_first: bool = False

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.losses import sequences

        options = sequences.Alignment(
            self.reduction, self.blank, self.zero_infinity, self.logits, self.batch_first
        )
        x, targets, steps, counts = self.named(inputs)
        return sequences.ctc(graph, x, targets, steps, counts, options)
