"""Graphs for ranks: a training graph of which each rank of a group runs its part of a batch.

Every rank runs the same graph on samples of its own.  Afterwards the loss, the gradients and, where
asked for, the statistics of batch normalisations are those of the joined batch on all ranks.

    Before   loss = Loss(y, labels); dy = LossGrad(loss_grad, ...); dw = ...; accumulate(dw)
    After    own = Loss(y, labels); loss = JoinLoss(own, #share); dy = LossGrad(#share, ...)
             dw = ...; b = AllReduceStart(dw, db); ...; s = AllReduceWait(b)
             dw_joined = BucketPart(s); accumulate(dw_joined)

The backward pass begins with the share of this rank's loss in that of the joined batch, so each
gradient in it is one of the joined loss, and sums over ranks need no weights.

Gradients travel in buckets, in the order in which the backward pass completes them.  The sum of a
bucket begins as soon as it is complete, and is awaited behind the backward pass, so that it runs
beside what that still computes.  Where memory is scarce it is awaited when `IN_FLIGHT` more have
begun: then few bytes are on their way at a time.

How large buckets are: k buckets cost (k - 1) L more than one, L the latency of a sum, but only the
last one is not hidden behind computing; it takes B / (k R) of B bytes at a rate R.  The sum of both
is least where a bucket has sqrt(B L R) bytes.  By a ring of n ranks with the latency ALPHA and the
rate RATE of each message, L = 2 (n - 1) ALPHA and R = RATE n / (2 (n - 1)).

Source: Li et al., arXiv 2006.15704 (buckets of torch's DistributedDataParallel, 25 MB); Sergeev,
Del Balso, arXiv 1802.05799 (fusion of tensors in Horovod); Thakur, Rabenseifner, Gropp,
"Optimization of collective communication operations in MPICH", 2005 (the cost of a ring).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.element_types import ITEMSIZE, ONNX_CODE
from engine.errors import ModelError
from engine.graphs.ir.graph import Graph, Names, Node, type_of
from engine.graphs.ir.sites import site_of
from engine.kernels.ops.norm.batchnorm import is_training
from engine.kernels.ops.norm.joint import GRADIENT, NORMS
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.proximal import MU
from engine.runtime.collective import ORDINAL, PART, RANKS, SAMPLES, SHARE

ALPHA, RATE = 50e-6, 117e6  # seconds and bytes a second of a message: gigabit Ethernet with TCP
LEAST, MOST = 1 << 20, 25 << 20  # bytes of a bucket, if there is more than one
IN_FLIGHT = 2  # buckets that are on their way when the next one is complete, if memory is scarce

ACCUMULATOR = (MS, "InPlaceAccumulatorV2")
PORTS = (RANKS, SHARE, SAMPLES, PART)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient of a parameter.

    buffer: its accumulation buffer, an input of the training graph.
    dtype, shape: of the parameter.
    """

    buffer: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return ITEMSIZE[self.dtype] * math.prod(self.shape)


def bucket_bytes(total: int, size: int) -> int:
    """The bytes of a bucket, for gradients of `total` bytes on so many ranks."""
    if size < 2 or total <= LEAST:
        return max(total, 1)
    latency, rate = 2 * (size - 1) * ALPHA, RATE * size / (2 * (size - 1))
    return int(min(max(math.sqrt(total * latency * rate), LEAST), MOST))


def for_ranks(
    training: Graph,
    outputs: Sequence[str],
    gradients: Sequence[Gradient],
    size: int,
    *,
    statistics: bool,
    is_tight: bool = False,
) -> Graph:
    """The graph that each of `size` ranks runs; the graph given stays as it is.

    outputs: those of the training graph that are kept, the loss first.
    statistics: whether batch normalisations that train use the statistics of the joined batch; else
        each rank those of its own part.
    is_tight: whether memory is scarce.  All ranks must say the same.

    The new graph has the inputs `PORTS` of engine/runtime/collective.py.

    Raises:
        ModelError: the graph has no initializer that begins the backward pass, or a value has the
            name of a port.
    """
    graph = training.copy()
    taken = sorted(set(PORTS) & set(graph.values()))
    if taken:
        raise ModelError(f"the training model has values of the names {taken}")
    job = _Ranks(graph, Names(graph), {g.buffer: g for g in gradients})
    job.begin(outputs[0])
    job.proximal()
    job.loss(outputs)
    if statistics:
        job.norms()
    limit = bucket_bytes(sum(g.nbytes for g in gradients), size)
    job.buckets(limit, IN_FLIGHT if is_tight else len(gradients))
    ordinals = (node for node in graph.nodes if "ordinal" in node.attrs)
    for ordinal, node in enumerate(ordinals, 1):
        node.attrs["ordinal"] = ordinal
    read = {name for node in graph.nodes for name in node.reads()}
    for name in set(PORTS) - read:
        graph.inputs.pop(name, None)
    graph.opsets |= {OURS: 1, MS: 1}
    return graph


@dataclass(slots=True)
class _Ranks:
    """The state of one rewriting.

    gradients: by their buffers.
    """

    graph: Graph
    names: Names
    gradients: Mapping[str, Gradient]

    def begin(self, loss: str) -> None:
        """Let the backward pass begin with the share of the loss."""
        graph, seed = self.graph, f"{loss}_grad"
        value = graph.initializers.pop(seed, None)
        if value is None or not np.all(value == 1):
            raise ModelError(
                f"the training model cannot run on several ranks: its backward pass does not begin "
                f"with an initializer {seed!r} of ones"
            )
        kind = type_of(value)
        graph.inputs |= {
            RANKS: TensorType("i64", (ORDINAL.size,)),
            SHARE: kind,
            SAMPLES: TensorType("f64", (1,)),
            PART: TensorType(kind.dtype, (1,)),
        }
        self._rename(seed, SHARE)

    def _rename(self, name: str, other: str) -> None:
        """Let all nodes read another value in the place of one."""
        for node in self.graph.nodes:
            node.inputs = tuple(other if each == name else each for each in node.inputs)

    def proximal(self) -> None:
        """Let each rank add its part of what gradients have besides those of the loss."""
        graph = self.graph
        if MU not in graph.inputs:
            return
        shape, scalar = self.names.fresh(f"{MU}/shape"), self.names.fresh(f"{MU}/scalar")
        part = self.names.fresh(f"{MU}/samples")
        mine = self.names.fresh(f"{MU}/part")
        graph.initializers[shape] = np.zeros(0, np.int64)
        self._rename(MU, mine)
        graph.nodes[:0] = [
            Node("Cast", (PART,), (part,), {"to": ONNX_CODE[graph.inputs[MU].dtype]}, "", part),
            Node("Reshape", (part, shape), (scalar,), {}, "", scalar),
            Node("Mul", (MU, scalar), (mine,), {}, "", mine),
        ]

    def loss(self, outputs: Sequence[str]) -> None:
        """Let output 0 be the loss of the joined batch, made behind all of the forward pass."""
        graph, loss = self.graph, outputs[0]
        own = self.names.fresh(f"{loss}/own")
        wanted, last = set(outputs), -1
        for place in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[place]
            if not wanted.isdisjoint(node.outputs):
                wanted.update(node.reads())
                last = max(last, place)
        for node in graph.nodes:
            node.outputs = tuple(own if name == loss else name for name in node.outputs)
        self._rename(loss, own)
        title = self.names.fresh(f"{loss}/JoinLoss")
        inputs = (RANKS, own, SHARE)
        graph.nodes.insert(last + 1, Node("JoinLoss", inputs, (loss,), {"ordinal": 0}, OURS, title))

    def norms(self) -> None:
        """Let batch normalisations that train use the statistics of the joined batch."""
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
            elif key == (OURS, "ChannelMoments"):  # of a gradient that computes them again
                own = tuple(self.names.fresh(f"{name}/own") for name in node.outputs)
                title = self.names.fresh(f"{node.name}/JoinMoments")
                inputs, outputs, node.outputs = (RANKS, *own, SAMPLES), node.outputs, own
                graph.nodes.append(
                    Node("JoinMoments", inputs, outputs, {"ordinal": 0}, OURS, title)
                )

    def _trains(self, node: Node) -> bool:
        """Whether a batch normalisation, or the gradient of one, uses the batch's statistics."""
        if (node.domain, node.op) == GRADIENT:
            return True
        site = site_of(self.graph, node, {}, {})
        return is_training(site)

    def buckets(self, limit: int, in_flight: int) -> None:
        """Sum gradients in buckets of about `limit` bytes before they are accumulated.

        The gradients of a bucket have one element type.  A gradient of as many bytes is a bucket
        by itself, and is summed where it lies.  At most `in_flight` are on their way when another
        one is complete.
        """
        graph = self.graph
        makers = {o: n for n, node in enumerate(graph.nodes) for o in node.outputs if o}
        mine = [n for n in graph.nodes if self._is_accumulator(n)]
        left = {id(n) for n in mine}
        mine.sort(key=lambda n: makers.get(n.inputs[1], -1))
        buckets: list[list[Node]] = []
        small: dict[str, list[Node]] = {}  # by element type, of which a bucket has one
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
        """Whether a node accumulates the gradient of a parameter."""
        return (node.domain, node.op) == ACCUMULATOR and node.inputs[0] in self.gradients

    def _start(self, bucket: Sequence[Node]) -> Node:
        """The node that begins the sum of a bucket, given what accumulates its gradients."""
        title = self.names.fresh(f"{bucket[-1].inputs[1]}/AllReduceStart")
        inputs = (RANKS, *(node.inputs[1] for node in bucket))
        return Node("AllReduceStart", inputs, (f"{title}_output",), {"ordinal": 0}, OURS, title)

    def _finish(self, bucket: Sequence[Node], name: str) -> Iterator[Node]:
        """The nodes that await the sum of a bucket and accumulate its gradients."""
        title = self.names.fresh(f"{bucket[-1].inputs[1]}/AllReduceWait")
        joined = f"{title}_output"
        yield Node("AllReduceWait", (RANKS, name), (joined,), {"ordinal": 0}, OURS, title)
        begin = 0
        for node in bucket:
            gradient = self.gradients[node.inputs[0]]
            title = self.names.fresh(f"{node.inputs[1]}/joined")
            if len(bucket) == 1:
                shape = self.names.fresh(f"{title}_shape")
                self.graph.initializers[shape] = np.array(gradient.shape, np.int64)
                yield Node("Reshape", (joined, shape), (title,), {}, "", title)
            else:
                attrs = {"begin": begin, "dims": list(gradient.shape)}
                yield Node("BucketPart", (joined,), (title,), attrs, OURS, title)
            begin += math.prod(gradient.shape)
            node.inputs = (node.inputs[0], title, *node.inputs[2:])
            yield node
