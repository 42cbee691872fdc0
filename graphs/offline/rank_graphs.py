"""Graphs for ranks: training graphs with which each rank of a group runs its part of a batch.

Every rank runs the same graph on samples of its own.  Afterwards every rank has the loss, the
gradients and, if requested, the statistics of batch normalisations of the joined batch.

    Before   loss = Loss(y, labels); dy = LossGrad(loss_grad, ...); dw = ...; accumulate(dw)
    After    own = Loss(y, labels); loss = JoinLoss(own, #share); dy = LossGrad(#share, ...)
             dw = ...; b = AllReduceStart(dw, db); ...; s = AllReduceWait(b)
             dw_joined = BucketPart(s); accumulate(dw_joined)

The backward pass begins with this rank's share of the joined loss (loss_shares.py).

Gradients travel in buckets, in the order in which the backward pass completes them.  The sum of a
bucket begins as soon as the bucket is complete, and is awaited after the backward pass, so
communication overlaps with computation.  If memory is scarce, it is awaited when `IN_FLIGHT` more
sums have begun, which bounds the bytes in flight.

The size of buckets: k buckets cost (k - 1) L more than one, where L is the latency of a sum, but
only the last one does not overlap with computation; it takes B / (k R) for B bytes at a rate R.
The sum of both is least for buckets of sqrt(B L R) bytes.  In a ring of n ranks whose messages have
the latency ALPHA and the rate RATE, L = 2 (n - 1) ALPHA and R = RATE n / (2 (n - 1)).

Source: Li et al., arXiv 2006.15704 (buckets of torch's DistributedDataParallel, 25 MB); Sergeev,
Del Balso, arXiv 1802.05799 (fusion of tensors in Horovod); Thakur, Rabenseifner, Gropp,
"Optimization of collective communication operations in MPICH", 2005 (the cost of a ring).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.element_types import ITEMSIZE, ONNX_CODE
from engine.base.errors import ModelError
from engine.base.proximal import MU
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import make_site
from engine.graphs.offline.loss_shares import begin, read_instead
from engine.kernels.ops.norm.batchnorm import is_training
from engine.kernels.ops.norm.joint import GRADIENT, NORMS
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.plan.collective import ORDINAL, PART, RANKS, SAMPLES, SHARE

ALPHA, RATE = 50e-6, 117e6  # seconds and bytes a second of a message: gigabit Ethernet with TCP
LEAST, MOST = 1 << 20, 25 << 20  # bytes of a bucket, if there is more than one
IN_FLIGHT = 2  # buckets in flight when the next one is complete, if memory is scarce

ACCUMULATOR = (MS, "InPlaceAccumulatorV2")
PORTS = (RANKS, SHARE, SAMPLES, PART)


@dataclass(frozen=True, slots=True)
class Gradient:
    """Gradient of a parameter.

    buffer: its accumulation buffer, an input of the training graph.
    dtype, shape: the type and shape of the parameter.
    """

    buffer: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Number of bytes of its elements."""
        return ITEMSIZE[self.dtype] * math.prod(self.shape)


def choose_bucket_bytes(total: int, size: int) -> int:
    """Return the bytes of a bucket, for gradients of `total` bytes on `size` ranks."""
    if size < 2 or total <= LEAST:
        return max(total, 1)
    latency, rate = 2 * (size - 1) * ALPHA, RATE * size / (2 * (size - 1))
    return int(min(max(math.sqrt(total * latency * rate), LEAST), MOST))


def make_rank_graph(
    training: Graph,
    outputs: Sequence[str],
    gradients: Sequence[Gradient],
    size: int,
    *,
    statistics: bool,
    is_tight: bool = False,
) -> Graph:
    """Return the graph that each of `size` ranks runs; the given graph is not changed.

    outputs: the outputs of the training graph to keep, the loss first.
    statistics: whether trained batch normalisations use the statistics of the joined batch;
        otherwise each rank uses the statistics of its own part.
    is_tight: whether memory is scarce.  All ranks must pass the same value.

    The new graph has the inputs `PORTS` of engine/plan/collective.py.

    Raises:
        ModelError: no initializer begins the backward pass, or a value has the name of a port.
    """
    graph = training.copy()
    taken = sorted(set(PORTS) & set(graph.list_values()))
    if taken:
        raise ModelError(f"the training model has values with the names {taken}")
    job = _RankRewriting(graph, Names(graph), {g.buffer: g for g in gradients})
    job.begin(outputs[0])
    job.divide_proximal()
    job.join_loss(outputs)
    if statistics:
        job.join_norms()
    limit = choose_bucket_bytes(sum(g.nbytes for g in gradients), size)
    job.sum_buckets(limit, IN_FLIGHT if is_tight else len(gradients))
    ordinals = (node for node in graph.nodes if "ordinal" in node.attrs)
    for ordinal, node in enumerate(ordinals, 1):
        node.attrs["ordinal"] = ordinal
    read = {name for node in graph.nodes for name in node.list_reads()}
    for name in set(PORTS) - read:
        graph.inputs.pop(name, None)
    graph.opsets |= {OURS: 1, MS: 1}
    return graph


@dataclass(slots=True)
class _RankRewriting:
    """State of one rewriting.

    gradients: the gradients by their buffers.
    """

    graph: Graph
    names: Names
    gradients: Mapping[str, Gradient]

    def begin(self, loss: str) -> None:
        """Let the backward pass begin with the share of the loss."""
        kind = begin(self.graph, loss)
        self.graph.inputs |= {
            RANKS: TensorType("i64", (ORDINAL.size,)),
            SAMPLES: TensorType("f64", (1,)),
            PART: TensorType(kind.dtype, (1,)),
        }

    def divide_proximal(self) -> None:
        """Divide the proximal term by the number of ranks, so that the summed gradient contains it
        once.
        """
        graph = self.graph
        if MU not in graph.inputs:
            return
        shape, scalar = self.names.take_fresh(f"{MU}/shape"), self.names.take_fresh(f"{MU}/scalar")
        part = self.names.take_fresh(f"{MU}/samples")
        mine = self.names.take_fresh(f"{MU}/part")
        graph.initializers[shape] = np.zeros(0, np.int64)
        read_instead(graph, MU, mine)
        graph.nodes[:0] = [
            Node("Cast", (PART,), (part,), {"to": ONNX_CODE[graph.inputs[MU].dtype]}, "", part),
            Node("Reshape", (part, shape), (scalar,), {}, "", scalar),
            Node("Mul", (MU, scalar), (mine,), {}, "", mine),
        ]

    def join_loss(self, outputs: Sequence[str]) -> None:
        """Let output 0 be the loss of the joined batch, computed after the forward pass."""
        graph, loss = self.graph, outputs[0]
        own = self.names.take_fresh(f"{loss}/own")
        wanted, last = set(outputs), -1
        for place in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[place]
            if not wanted.isdisjoint(node.outputs):
                wanted.update(node.list_reads())
                last = max(last, place)
        for node in graph.nodes:
            node.outputs = tuple(own if name == loss else name for name in node.outputs)
        read_instead(graph, loss, own)
        title = self.names.take_fresh(f"{loss}/JoinLoss")
        inputs = (RANKS, own, SHARE)
        graph.nodes.insert(last + 1, Node("JoinLoss", inputs, (loss,), {"ordinal": 0}, OURS, title))

    def join_norms(self) -> None:
        """Let trained batch normalisations use the statistics of the joined batch."""
        graph = self.graph
        nodes, graph.nodes = graph.nodes, []
        for node in nodes:
            graph.nodes.append(node)
            key = (node.domain, node.op)
            if key in NORMS and self._trains(node):
                node.op, node.domain = NORMS[key], OURS
                part = PART if node.op == NORMS[GRADIENT] else SAMPLES
                node.inputs = (*node.inputs[:5], part, RANKS)
                node.attrs["ordinal"] = 0
            elif key == (OURS, "ChannelMoments"):  # for a gradient that computes them again
                own = tuple(self.names.take_fresh(f"{name}/own") for name in node.outputs)
                title = self.names.take_fresh(f"{node.name}/JoinMoments")
                inputs, outputs, node.outputs = (RANKS, *own, SAMPLES), node.outputs, own
                graph.nodes.append(
                    Node("JoinMoments", inputs, outputs, {"ordinal": 0}, OURS, title)
                )

    def _trains(self, node: Node) -> bool:
        """Return whether a batch normalisation, or the gradient of one, uses the batch's
        statistics.
        """
        if (node.domain, node.op) == GRADIENT:
            return True
        site = make_site(self.graph, node, {}, {})
        return is_training(site)

    def sum_buckets(self, limit: int, in_flight: int) -> None:
        """Sum gradients in buckets of about `limit` bytes before they are accumulated.

        The gradients of a bucket have one element type.  A gradient of at least `limit` bytes is a
        bucket by itself, and is summed in place.  At most `in_flight` sums are in progress when
        another bucket is complete.
        """
        graph = self.graph
        makers = {o: n for n, node in enumerate(graph.nodes) for o in node.outputs if o}
        mine = [n for n in graph.nodes if self._is_accumulator(n)]
        left = {id(n) for n in mine}
        mine.sort(key=lambda n: makers.get(n.inputs[1], -1))
        buckets: list[list[Node]] = []
        small: dict[str, list[Node]] = {}  # by element type, because a bucket has only one
        for node in mine:
            gradient = self.gradients[node.inputs[0]]
            if gradient.nbytes >= limit:
                buckets.append([node])
                continue
            bucket = small.setdefault(gradient.dtype, [])
            bucket.append(node)
            if sum(self.gradients[n.inputs[0]].nbytes for n in bucket) >= limit:
                buckets.append(small.pop(gradient.dtype))
        buckets += small.values()
        places = {id(b): max(makers.get(n.inputs[1], -1) for n in b) for b in buckets}
        buckets.sort(key=lambda b: places[id(b)])
        behind: dict[int, list[Node]] = {}
        flying: list[tuple[list[Node], str]] = []
        end = len(graph.nodes) - 1
        for bucket in buckets:
            made = behind.setdefault(places[id(bucket)], [])
            start = self._start(bucket)
            made.append(start)
            flying.append((bucket, start.outputs[0]))
            if len(flying) > in_flight:
                made += self._finish(*flying.pop(0))
        for bucket, name in flying:
            behind.setdefault(end, []).extend(self._finish(bucket, name))
        nodes = list(behind.get(-1, []))
        for place, node in enumerate(graph.nodes):
            if id(node) not in left:
                nodes.append(node)
            nodes += behind.get(place, [])
        graph.nodes = nodes

    def _is_accumulator(self, node: Node) -> bool:
        """Return whether a node accumulates the gradient of a parameter."""
        return (node.domain, node.op) == ACCUMULATOR and node.inputs[0] in self.gradients

    def _start(self, bucket: Sequence[Node]) -> Node:
        """Return the node that starts the sum of a bucket, given the accumulators of its
        gradients.
        """
        title = self.names.take_fresh(f"{bucket[-1].inputs[1]}/AllReduceStart")
        inputs = (RANKS, *(node.inputs[1] for node in bucket))
        return Node("AllReduceStart", inputs, (f"{title}_output",), {"ordinal": 0}, OURS, title)

    def _finish(self, bucket: Sequence[Node], name: str) -> Iterator[Node]:
        """Yield the nodes that await the sum of a bucket and accumulate its gradients."""
        title = self.names.take_fresh(f"{bucket[-1].inputs[1]}/AllReduceWait")
        joined = f"{title}_output"
        yield Node("AllReduceWait", (RANKS, name), (joined,), {"ordinal": 0}, OURS, title)
        begin = 0
        for node in bucket:
            gradient = self.gradients[node.inputs[0]]
            title = self.names.take_fresh(f"{node.inputs[1]}/joined")
            if len(bucket) == 1:
                shape = self.names.take_fresh(f"{title}_shape")
                self.graph.initializers[shape] = np.array(gradient.shape, np.int64)
                yield Node("Reshape", (joined, shape), (title,), {}, "", title)
            else:
                attrs = {"begin": begin, "dims": list(gradient.shape)}
                yield Node("BucketPart", (joined,), (title,), attrs, OURS, title)
            begin += math.prod(gradient.shape)
            node.inputs = (node.inputs[0], title, *node.inputs[2:])
            yield node
