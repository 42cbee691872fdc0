"""Losses of sequences.

CTC     the op CTCLoss of kernels/ops/ctc.py on log-probabilities [T, N, C].  The mean is that over
        the batch of each loss over the number of its labels, or 1 if it has none, as in torch
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.base import arguments
from engine.base.element_types import ONNX_CODE
from engine.base.errors import InputError, ShapeError
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.losses.nodes import Nodes, check_reduction, float_type, target_input
from engine.kernels.vocabulary.op import OURS, TensorType


@dataclass(frozen=True, slots=True)
class Alignment:
    """Options of the CTC loss, see `engine.loss_types.CTCLoss`."""

    reduction: str
    blank: int
    zero_infinity: bool
    logits: bool
    batch_first: bool


def ctc(
    graph: Graph,
    x: str,
    targets: str,
    input_lengths: str,
    target_lengths: str,
    options: Alignment,
) -> str:
    """-log of the probability that the classes of all steps collapse to the targets."""
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    reduction = check_reduction(options.reduction)
    batch_first = arguments.flag("batch_first", options.batch_first)
    if t.rank != 3:
        form = "[batch, steps, classes]" if batch_first else "[steps, batch, classes]"
        raise ShapeError(f"{graph.name}: {x!r} is {t}; expected {form}")
    blank = arguments.count("blank", options.blank)
    classes = t.shape[2]
    if blank < 0 or (isinstance(classes, int) and blank >= classes):
        raise InputError(f"blank={options.blank}; expected a class from 0 to {classes} - 1")
    if arguments.flag("logits", options.logits):
        x = nodes.add("LogSoftmax", x, axis=-1)
    if batch_first:
        x = nodes.add("Transpose", x, perm=[1, 0, 2])
    batch = t.shape[0 if batch_first else 1]
    labels = target_input(graph, targets, TensorType("i64", (batch, f"length_of_{targets}")))
    lengths = [
        target_input(graph, name, TensorType("i64", (batch,)))
        for name in (input_lengths, target_lengths)
    ]
    infinity = int(arguments.flag("zero_infinity", options.zero_infinity))
    each = nodes.add(
        "CTCLoss", x, labels, *lengths, domain=OURS, blank=blank, zero_infinity=infinity
    )
    if reduction == "mean":
        counts = nodes.add("Cast", lengths[1], to=ONNX_CODE[t.dtype])
        each = nodes.add("Div", each, nodes.at_least(counts, 1, t.dtype))
    return nodes.reduce(each, reduction)
