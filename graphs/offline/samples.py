"""Samples: whether a model computes each sample of a batch for itself, up to its loss.

If it does, a batch can be trained on in parts: the loss of the batch is the mean of the losses of
its parts, each weighted by its share, or their sum.  Every value of the forward part is followed:

Constant   no sample is in it
Rows       axis `axis` holds the samples in order, `rows` places for each; nothing mixes them
Loss       the samples are reduced: a mean or a sum over them, and linear functions of it

Any other use of samples mixes them, as training batch normalisations do, and is told by its node.
What is not known to keep samples apart is taken to mix them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import declaration
from engine.graphs.passes.infer import bind, infer
from engine.graphs.passes.simplify import ancestors
from engine.kernels.vocabulary.op import Array, TensorType

_PAIRS = {"Add", "Sub"}
_LINEAR = {
    "Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Neg", "ReduceMean", "ReduceSum",
}  # fmt: skip
_FIRST = {  # samples are on axis 0, and what else is read belongs to no sample
    "Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ConvTranspose",
    "InstanceNormalization", "GroupNormalization", "FusedConv",
}  # fmt: skip
_NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}
_PLACES = {"Cast", "Identity", "Dropout", "Clip", "Gelu", "FastGelu", "QuickGelu", "Where", "Not"}
_SAME_ROWS = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}


@dataclass(frozen=True, slots=True)
class Rows:
    """A value of which an axis holds the samples in order, `rows` places for each.

    source: the input of the model that it is, in another shape or type; None if it is computed.
    """

    axis: int
    rows: int = 1
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """A value over all samples.

    is_mean: the mean of the samples; else their sum.
    labels: the input whose labels weigh the samples; None: all weigh the same.
    ignore: the label of those that weigh nothing.
    weights: the weights of the classes.
    """

    is_mean: bool
    labels: str | None = None
    ignore: int | None = None
    weights: tuple[float, ...] | None = None

    def weight(self, inputs: Mapping[str, Array], samples: int) -> float:
        """What a part of a batch weighs; inputs: of the part.  samples: how many it has."""
        if not self.is_mean:
            return 1.0
        if self.labels is None:
            return float(samples)
        labels = np.asarray(inputs[self.labels]).reshape(-1)
        if self.ignore is not None:
            labels = labels[labels != self.ignore]
        if self.weights is None:
            return float(labels.size)
        known = np.array(self.weights, np.float64)
        inside = labels[(labels >= 0) & (labels < known.size)]  # others are a fault, told by a run
        return float(known[inside].sum())


class MixedError(Exception):
    """Samples are mixed; the message says where."""


Flow = Rows | Loss | None  # None: constant


def loss_of(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    rows: Mapping[str, int],
    *,
    own_statistics: bool = False,
) -> Loss:
    """How the loss of a training graph, its first output, is made of the samples.

    shapes: of the inputs.  rows: of each input that holds samples on its first axis, how many
        places of it a sample has.
    own_statistics: whether batch normalisations may take their statistics over a part of a batch.

    Raises:
        MixedError: samples are mixed; the message names the node.
        EngineError: the graph does not fit the shapes.
    """
    graph = bind(graph, shapes)
    graph.outputs = graph.outputs[:1]
    forward = ancestors(graph)
    graph.nodes = [node for node in graph.nodes if node in forward]
    found = infer(graph)
    samples = next(shapes[name][0] // count for name, count in rows.items())
    job = _Following(graph, found.types, found.constants, samples, own_statistics)
    for name, count in rows.items():
        job.flows[name] = Rows(0, count, name)
    for node in graph.nodes:
        job.follow(node)
    flow = job.flows.get(graph.outputs[0])
    if not isinstance(flow, Loss):
        raise MixedError(f"the loss {graph.outputs[0]!r} is no mean and no sum over the samples")
    return flow


class _Following:
    """Follows samples through the nodes of a graph.  flows: of values that are not constant."""

    def __init__(
        self,
        graph: Graph,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Array],
        samples: int,
        own_statistics: bool,
    ) -> None:
        self.graph, self.types, self.constants = graph, types, constants
        self.samples, self.own_statistics = samples, own_statistics
        self.flows: dict[str, Flow] = {}

    def follow(self, node: Node) -> None:
        """Find out how the outputs of a node hold samples."""
        read = [self.flows.get(name) for name in node.reads()]
        if any(read):
            flow = self._flow(node)
        elif node.op == "Expand" and self._repeats(node):
            flow = Rows(0)  # the same for each sample
        else:
            return
        for name in filter(None, node.outputs):
            self.flows[name] = flow

    def mixed(self, node: Node, why: str) -> MixedError:
        return MixedError(f"node {node.name!r} ({node.op}) {why}")

    def _flow(self, node: Node) -> Flow:
        flows = [self.flows.get(name) for name in node.inputs]
        if any(isinstance(flow, Loss) for flow in flows):
            return self._of_loss(node, flows)
        if node.op.startswith("SoftmaxCrossEntropyLoss"):
            return self._cross_entropy(node)
        rule = _RULES.get(node.op)
        if rule is not None:
            return rule(self, node)
        op = declaration(self.graph, node)
        if op.expr is not None or node.op in _PLACES:
            return self._elementwise(node)
        if node.op in _FIRST:
            return self._first(node)
        raise self.mixed(node, "is not known to keep samples apart")

    def _repeats(self, node: Node) -> bool:
        """Whether a node repeats a constant for each sample."""
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        return new[:1] == (self.samples,) and (len(old) < len(new) or old[0] == 1)

    # --- what is reduced

    def _of_loss(self, node: Node, flows: Sequence[Flow]) -> Loss:
        """A linear function of what is reduced already."""
        first, *more = flows
        kinds = {flow for flow in flows if flow is not None}
        (loss, *others) = kinds
        if others or not isinstance(loss, Loss):
            raise self.mixed(node, "joins values that are reduced in different ways")
        if node.op in _LINEAR and isinstance(first, Loss):
            return loss
        if node.op in _PAIRS and (None not in flows or loss.is_mean):
            return loss
        if node.op == "Mul" and flows.count(None) == 1:
            return loss
        if node.op == "Div" and isinstance(first, Loss) and more == [None]:
            return loss
        raise self.mixed(node, "computes something of a loss over all samples that is not linear")

    def _cross_entropy(self, node: Node) -> Flow:
        scores, labels = (self.flows.get(name) for name in node.inputs[:2])
        if not (isinstance(scores, Rows) and isinstance(labels, Rows)):
            raise self.mixed(node, "has scores or labels that belong to no sample")
        if scores.axis or labels.axis or scores.rows != labels.rows:
            raise self.mixed(node, "has samples elsewhere than on the first axis")
        reduction = node.attrs.get("reduction", b"mean")
        reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
        weights = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None
        ignore = node.attrs.get("ignore_index")
        if reduction == "none":
            return Rows(0, labels.rows)
        if reduction == "sum":
            return Loss(is_mean=False)
        if weights is None and ignore is None:
            return Loss(is_mean=True)
        if labels.source is None:
            raise self.mixed(node, "weighs samples by labels that are no input of the model")
        known = None
        if weights is not None:
            if weights not in self.constants:
                raise self.mixed(node, "weighs samples by weights that are no constant")
            known = tuple(float(w) for w in self.constants[weights])
        return Loss(True, labels.source, ignore, known)

    def reduce(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        axes = node.attrs.get("axes")
        if axes is None and len(node.inputs) > 1 and node.inputs[1]:
            axes = self.constants[node.inputs[1]].tolist()
        gone = {a % rank for a in axes} if axes else set(range(rank))
        if axes is not None and not axes and node.attrs.get("noop_with_empty_axes"):
            gone = set()
        if flow.axis not in gone:
            kept = node.attrs.get("keepdims", 1)
            return Rows(flow.axis - (0 if kept else sum(a < flow.axis for a in gone)), flow.rows)
        if node.op not in ("ReduceMean", "ReduceSum"):
            raise self.mixed(node, "reduces the samples, to neither their mean nor their sum")
        return Loss(is_mean=node.op == "ReduceMean")

    # --- what keeps samples apart

    def _only(self, node: Node) -> Rows:
        """The samples of input 0; all other inputs are constant."""
        flows = [self.flows.get(name) for name in node.inputs]
        flow = flows[0]
        if not isinstance(flow, Rows) or any(flows[1:]):
            raise self.mixed(node, "reads samples elsewhere than in its first input")
        return flow

    def _elementwise(self, node: Node) -> Flow:
        """Samples that all operands have at the same axis, counted from the last."""
        found: set[tuple[int, int]] = set()
        for name in filter(None, node.inputs):
            flow = self.flows.get(name)
            if isinstance(flow, Rows):
                found.add((self.types[name].rank - flow.axis, flow.rows))
        if len(found) != 1:
            raise self.mixed(node, "meets samples on different axes")
        ((behind, rows),) = found
        for name in filter(None, node.inputs):
            dims = self.types[name].dims
            if self.flows.get(name) is None and len(dims) >= behind and dims[-behind] != 1:
                raise self.mixed(node, f"has {name!r}, which is as long as the samples, but none")
        source = None
        if node.op in _SAME_ROWS:
            flow = self.flows[node.inputs[0]]
            source = flow.source if isinstance(flow, Rows) else None
        return Rows(self.types[node.outputs[0]].rank - behind, rows, source)

    def _first(self, node: Node) -> Flow:
        flow = self._only(node)
        if flow.axis or flow.rows != 1:
            raise self.mixed(node, "has samples elsewhere than on its first axis")
        return replace(flow, source=None)

    def gemm(self, node: Node) -> Flow:
        if node.attrs.get("transA"):
            raise self.mixed(node, "sums over the samples")
        flow = self._only(node)
        if flow.axis:
            raise self.mixed(node, "sums over the samples")
        return Rows(0, flow.rows)

    def matmul(self, node: Node) -> Flow:
        a, b = (self.flows.get(name) for name in node.inputs)
        ranks = [self.types[name].rank for name in node.inputs]
        out = self.types[node.outputs[0]].rank
        if isinstance(a, Rows) and b is None and a.axis < ranks[0] - 1 and ranks[1] <= ranks[0]:
            return Rows(a.axis + out - ranks[0], a.rows)
        batches = [
            (rank - flow.axis, flow.rows)
            for flow, rank in zip((a, b), ranks, strict=True)
            if isinstance(flow, Rows) and flow.axis < rank - 2
        ]
        if len(batches) == 2 and batches[0] == batches[1]:
            return Rows(out - batches[0][0], batches[0][1])
        raise self.mixed(node, "multiplies samples with each other, or sums over them")

    def moved(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        order = list(node.attrs.get("perm", range(rank)[::-1]))
        return Rows(order.index(flow.axis), flow.rows)

    def reshaped(self, node: Node) -> Flow:
        """The samples lie where as many elements are before them as were, and as many in each."""
        flow = self._only(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        samples, before = old[flow.axis] // flow.rows, math.prod(old[: flow.axis])
        for axis, size in enumerate(new):
            if math.prod(new[:axis]) == before and size > 1 and size % samples == 0:
                return Rows(axis, size // samples, flow.source)
        raise self.mixed(node, "shapes samples into each other")

    def normed(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        if flow.axis >= node.attrs.get("axis", -1) % rank:
            raise self.mixed(node, "normalises over the samples")
        return Rows(flow.axis, flow.rows)

    def softmax(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        old = self.graph.opsets.get("", 1) < 13
        axis = node.attrs.get("axis", 1 if old else -1) % rank
        if flow.axis == axis or (old and flow.axis > axis):
            raise self.mixed(node, "normalises over the samples")
        return Rows(flow.axis, flow.rows)

    def batch_norm(self, node: Node) -> Flow:
        learns = node.op != "BatchNormalization" or node.attrs.get("training_mode")
        if learns and not self.own_statistics:
            raise self.mixed(node, "takes its statistics over all samples")
        return self._first(node)

    def gather(self, node: Node) -> Flow:
        data, index = (self.flows.get(name) for name in node.inputs)
        rank = self.types[node.inputs[0]].rank
        axis = node.attrs.get("axis", 0) % rank
        if data is None and isinstance(index, Rows):
            return Rows(axis + index.axis, index.rows)
        if isinstance(data, Rows) and index is None and axis != data.axis:
            more = self.types[node.inputs[1]].rank - 1 if axis < data.axis else 0
            return Rows(data.axis + more, data.rows)
        raise self.mixed(node, "takes places out of the samples")

    def along(self, node: Node) -> Flow:
        """Joined or parted along another axis than that of the samples."""
        flows = [self.flows.get(name) for name in node.inputs]
        if node.op == "Split":
            flows = flows[:1]
        kinds = {(f.axis, f.rows) if isinstance(f, Rows) else None for f in flows}
        (kind, *others) = kinds
        rank = self.types[node.inputs[0]].rank
        if kind is None or others or node.attrs.get("axis", 0) % rank == kind[0]:
            raise self.mixed(node, "joins or parts the samples")
        return Rows(*kind)

    def sliced(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        axes = self.constants.get(node.inputs[3]) if len(node.inputs) > 3 else None
        touched = range(rank) if axes is None else [int(a) % rank for a in axes]
        if flow.axis in touched:
            raise self.mixed(node, "takes samples out of the batch, or changes their order")
        return Rows(flow.axis, flow.rows)


_Rule = Callable[[_Following, Node], Flow]
_RULES: dict[str, _Rule] = {
    "Gemm": _Following.gemm, "MatMul": _Following.matmul, "Transpose": _Following.moved,
    "BatchNormalization": _Following.batch_norm,
    "BatchNormInternal": _Following.batch_norm, "Gather": _Following.gather,
    "Concat": _Following.along, "Split": _Following.along, "Slice": _Following.sliced,
    "Softmax": _Following.softmax, "LogSoftmax": _Following.softmax,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _Following.reshaped),
    **dict.fromkeys(_NORMS, _Following.normed),
    **{f"Reduce{kind}": _Following.reduce for kind in (
        "Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")},
}  # fmt: skip
