"""Losses: what their gradients read of scores that may be kept in 16 bits."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import MS, OURS, TensorType

_LOSSES = {("", "SoftmaxCrossEntropyLoss"), (MS, "SoftmaxCrossEntropyLossInternal")}
_GRADS = {(MS, "SoftmaxCrossEntropyLossGrad"), (MS, "SoftmaxCrossEntropyLossInternalGrad")}


def keep_scores(graph: Graph, types: dict[str, TensorType]) -> Graph:
    """Let gradients of cross entropies read scores and their log sums, not log softmax.

    Scores are stored in 16 bits once; log softmax would be rounded once more, with an error that
    grows with its magnitude.  This is done if only such gradients read it.  `types` is updated.

    Before   loss, logp = SoftmaxCrossEntropyLoss(x, label)
             dx = SoftmaxCrossEntropyLossGrad(dy, logp, label)
    After    loss, lse = engine::SoftmaxCrossEntropyLoss(x, label)                lse: [2, label]
             dx = engine::SoftmaxCrossEntropyLossGrad(dy, x, label, , , lse)
    """
    readers, ends = graph.find_consumers(), set(graph.outputs)
    for node in graph.nodes:
        if (node.domain, node.op) not in _LOSSES:
            continue
        x, label, logp = *node.inputs[:2], "".join(node.outputs[1:])
        nodes = readers.get(logp, [])
        if logp in ends or not all(_reads_as_logarithm(n, logp) for n in nodes):
            continue
        node.op, node.domain = "SoftmaxCrossEntropyLoss", OURS
        if logp:
            types[logp] = types[logp].but((2, *types[label].shape))
        for back in nodes:
            dy, _, *rest = back.inputs[:5]
            options = [*rest, *[""] * (3 - len(rest))]
            back.op, back.domain = "SoftmaxCrossEntropyLossGrad", OURS
            back.inputs = (dy, x, *options, logp)
    return graph


def _reads_as_logarithm(node: Node, logp: str) -> bool:
    """Return whether a node is the gradient of a cross entropy whose logarithm this is."""
    return (
        (node.domain, node.op) in _GRADS
        and node.inputs[1] == logp
        and logp
        not in (
            *node.inputs[:1],
            *node.inputs[2:],
        )
    )
