"""Losses of sequences.

CTC     the op CTCLoss of kernels/ops/ctc.py on log-probabilities [T, N, C].  The mean is that over
        the batch of each loss over the number of its labels, or 1 if it has none, as in torch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.base.element_types import ONNX_CODE
from engine.base.errors import InputError, ShapeError
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.loss_types.base import NamedLoss

__all__ = ["CTCLoss"]

if TYPE_CHECKING:
    from engine.graphs.offline.loss_nodes import LossNodes


@check_arguments(blank=AT_LEAST_0)
@dataclass(frozen=True)
class CTCLoss(NamedLoss):
    """Connectionist temporal classification, for sequences without an alignment.

    The targets are three int64 inputs: `targets` [batch, length], whose rows are padded at the end
    with any values, and `input_lengths` and `target_lengths` [batch], the valid lengths of the
    sequences and of the targets.  The mean divides each loss by its target length, as in torch.

    blank: the class that means "no label".
    zero_infinity: whether a target that is too long for its sequence has the loss 0 instead of
        infinity.
    logits: whether the output contains scores, so that the loss computes their log softmax.
    batch_first: whether the output is [batch, steps, classes] instead of [steps, batch, classes].
    """

    outputs: ClassVar[str] = (
        "log-probabilities [steps, batch, classes]; with `logits`, scores; with `batch_first`, "
        "[batch, steps, classes]"
    )
    compared: ClassVar[str] = (
        "`targets` [batch, length], `input_lengths`, `target_lengths` [batch], int64"
    )
    inputs: ClassVar[tuple[str, ...]] = ("log_probs_name",)
    targets: ClassVar[tuple[str, ...]] = ("targets", "input_lengths", "target_lengths")

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False
    logits: bool = False
    batch_first: bool = False

    def _append(self, nodes: LossNodes, x: str, targets: str, steps: str, counts: str) -> str:
        t = nodes.find_type(x)
        if t.rank != 3:
            form = "[batch, steps, classes]" if self.batch_first else "[steps, batch, classes]"
            raise ShapeError(f"{nodes.graph.name}: {x!r} is {t}; expected {form}")
        classes = t.shape[2]
        if isinstance(classes, int) and self.blank >= classes:
            raise InputError(f"blank={self.blank}; expected a class from 0 to {classes} - 1")
        if self.logits:
            x = nodes.add("LogSoftmax", x, axis=-1)
        if self.batch_first:
            x = nodes.add("Transpose", x, perm=[1, 0, 2])
        batch = t.shape[0 if self.batch_first else 1]
        labels = nodes.add_integer_target(targets, (batch, f"length_of_{targets}"))
        lengths = [nodes.add_integer_target(name, (batch,)) for name in (steps, counts)]
        each = nodes.append_own(
            "CTCLoss", x, labels, *lengths, blank=self.blank, zero_infinity=int(self.zero_infinity)
        )
        if self.reduction == "mean":
            number = nodes.add("Cast", lengths[1], to=ONNX_CODE[t.dtype])
            each = nodes.add("Div", each, nodes.clip_below(number, 1, t.dtype))
        return nodes.reduce(each, self.reduction)
