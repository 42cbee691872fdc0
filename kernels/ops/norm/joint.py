"""Batch normalisation over the batches of all ranks, as if they were one.

Forward   moments of the joined batch: JoinMoments of each rank's own
Backward  dx = scale inv (dy - dB samples / n - h dscale samples / n) with dB and dscale summed over
          all ranks, where this one has n values a channel, and the part `samples` of the batch;
          dB and dscale are the sums of this rank alone, because gradients of parameters are summed
          over the ranks later
Error     of the moments: kernels/ops/collective.py
Source    torch.nn.SyncBatchNorm, which combines moments by counts and sums likewise

The ops are as in batchnorm.py in training, with `SAMPLES` (gradients: `PART`) and `RANKS` as
further inputs, after theirs, and an attribute `ordinal`.  graphs/offline/rank_graphs.py makes them.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.kernels.ops.norm import batchnorm
from engine.kernels.vocabulary.op import MS, OURS, Nodes, Op

GRADIENT = (MS, "BatchNormalizationGrad")
NORMS = {  # a batch normalisation that trains, and its form for ranks
    ("", "BatchNormalization"): "JointBatchNormalization",
    (MS, "BatchNormInternal"): "JointBatchNormInternal",
    GRADIENT: "JointBatchNormalizationGrad",
}
HELD = {  # a batch normalisation that moves its statistics, and its form in a joined graph
    (MS, "BatchNormInternal"): "BatchNormHeld",
    (OURS, "JointBatchNormInternal"): "JointBatchNormHeld",
}


def _moments(nodes: Nodes) -> tuple[str, str]:
    """Return the mean and the variance of the joined batch."""
    mean, var = nodes.op("ChannelMoments", nodes.x(0), domain=OURS, outputs=2)
    ordinal, samples, ranks = nodes.site.attrs["ordinal"], nodes.x(5), nodes.x(6)
    made: tuple[str, str] = nodes.op(
        "JoinMoments", ranks, mean, var, samples, domain=OURS, outputs=2, ordinal=ordinal
    )
    return made


def _expand(nodes: Nodes) -> tuple[str, ...]:
    return batchnorm.trained(nodes, *_moments(nodes))


def _expand_held(nodes: Nodes) -> tuple[str, ...]:
    return batchnorm.trained_held(nodes, *_moments(nodes))


def _expand_internal(nodes: Nodes) -> tuple[str, ...]:
    return batchnorm.moving(nodes, _expand_held(nodes))


def _expand_grad(nodes: Nodes) -> tuple[str, ...]:
    m, inv = batchnorm.centre(nodes), nodes.x(4)
    own = batchnorm.gradient_sums(nodes, m)
    ordinal, part, ranks = nodes.site.attrs["ordinal"], nodes.x(5), nodes.x(6)
    db, total = nodes.op("AllReduce", ranks, *own, domain=OURS, outputs=2, ordinal=ordinal)
    one = nodes.op("Mul", part, batchnorm.share_of_one(nodes))
    level = nodes.op("Mul", db, one)
    slope = nodes.op("Mul", nodes.op("Mul", nodes.op("Mul", total, inv), inv), one)
    dx = batchnorm.gradient(nodes, m, level, slope)
    return (dx, nodes.op("Mul", own[1], inv), own[0])


def _op(name: str, like: Op, expand: Callable[[Nodes], tuple[str, ...]], makes: str) -> Op:
    """Return the form of an op of batchnorm.py for ranks."""
    return Op(
        name=name,
        domain=OURS,
        attrs=like.attrs,
        takes=like.takes,
        needs={"ordinal": "int"},
        infer=like.infer,
        expand=expand,
        becomes=f"{like.becomes} {makes}",
        no_gradient=frozenset(range(7)),
        gradient_of=like.gradient_of,
        names_all_outputs=like.names_all_outputs,
        internal=True,
    )


_LIKE = {op.name: op for op in batchnorm.OPS}
_JOIN = f"{OURS}::JoinMoments"
OPS = (
    _op("JointBatchNormalization", _LIKE["BatchNormalization"], _expand, _JOIN),
    _op("JointBatchNormInternal", _LIKE["BatchNormInternal"], _expand_internal, _JOIN),
    _op("JointBatchNormHeld", _LIKE["BatchNormHeld"], _expand_held, _JOIN),
    _op(
        "JointBatchNormalizationGrad",
        _LIKE["BatchNormalizationGrad"],
        _expand_grad,
        f"{OURS}::AllReduce",
    ),
)
