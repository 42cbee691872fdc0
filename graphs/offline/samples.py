"""Samples: whether a model computes each sample of a batch for itself, up to its loss.

If it does, a batch can be trained on in parts: the loss of the batch is the mean of the losses of
its parts, each weighted by its share, or their sum.  Every value of the forward part is followed:

Constant   no sample is in it
Rows       axis `axis` holds the samples in order, `rows` places for each; nothing mixes them
Loss       the samples are reduced: a mean or a sum over them, and linear functions of it

Any other use of samples mixes them, as training batch normalisations do, and is told by its node.
Of the backward pass those parts are followed that a user has written (told_gradients.py): given the
gradients of the whole batch, they must make gradients of each sample alone, or sums over samples
where the value that the gradient is of is the same for all.
A node that is not known to keep samples apart is taken to mix them.  The sizes and constants that
the batch gives show whether a node takes the whole of their axis, as the Slice of `x[:, 0]` does,
and whether it repeats a constant for each of them, as class tokens are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.base.element_types import FLOATS
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import declaration
from engine.graphs.offline.told_gradients import ToldGradient, read
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import bind, infer
from engine.graphs.passes.simplify import ancestors
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.op import Array, TensorType
from engine.system.paths import Paths


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with an axis that holds the samples in order, `rows` places for each.

    source: the input of the model that it is, in another shape or type; None if it is computed.
    turns: how often the axis goes through all samples: for each place of a sequence once, after
        `x.transpose(0, 1).flatten(0, 1)`.
    numbers: of indices, the places of the last axis that hold the number of each sample in the
        batch, as in `x[arange(len(x)), i]`.
    """

    axis: int
    rows: int = 1
    source: str | None = None
    turns: int = 1
    numbers: frozenset[int] = frozenset()

    def to(self, axis: int) -> Rows:
        """Computed values that hold the samples in the same way on an axis."""
        return Rows(axis, self.rows, None, self.turns)

    @property
    def step(self) -> tuple[int, int]:
        """The places for each sample and the turns: the layout of the axis, wherever it is."""
        return self.rows, self.turns


@dataclass(frozen=True, slots=True)
class Loss:
    """A value over all samples.

    is_mean: the mean of the samples; otherwise their sum.
    labels: the input whose labels weigh the samples; None: all weigh the same.
    ignore: the label of those that weigh nothing.
    weights: the weights of the classes.
    is_told: whether gradients are told, which are made of the gradients of the whole batch: the
        backward pass of a part must begin with what the part weighs.
    """

    is_mean: bool
    labels: str | None = None
    ignore: int | None = None
    weights: tuple[float, ...] | None = None
    is_told: bool = False

    def weight(self, inputs: Mapping[str, Array], samples: int) -> float:
        """Return what a part of a batch weighs; inputs: of the part.  samples: how many it has."""
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
_SUM = Loss(is_mean=False)
_ADVICE = "; let the gradient be computed for each sample alone, or train on whole batches"


def gradient_flow(flow: Flow) -> Flow:
    """Return how the gradient of a value holds the samples that the value holds in some way.

    The backward pass of each part begins with what the part weighs in the loss of the batch.
    """
    if isinstance(flow, Rows):
        return flow.to(flow.axis)
    return None if flow == _SUM else _SUM


def loss_of(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    rows: Mapping[str, int],
    *,
    own_statistics: bool = False,
) -> Loss:
    """Return how the loss of a training graph, its first output, is made of the samples.

    shapes: of the inputs.  rows: of each input that holds samples on its first axis, how many
        places of it a sample has.
    own_statistics: whether batch normalisations may take their statistics over a part of a batch.

    Raises:
        MixedError: samples are mixed; the message names the node.
        EngineError: the graph does not fit the shapes.
    """
    twice = {
        name: (2 * shape[0], *shape[1:]) if name in rows else tuple(shape)
        for name, shape in shapes.items()
    }
    told = read(graph)
    one, two = (_Following(graph, known, rows, own_statistics, told) for known in (shapes, twice))
    one.compare(two)
    flow = one.flows.get(one.graph.outputs[0])
    if not isinstance(flow, Loss):
        raise MixedError(
            f"the loss {graph.outputs[0]!r} is neither a mean nor a sum over the samples"
        )
    return replace(flow, is_told=bool(told))


class _Following:
    """Follows samples through the nodes of a graph, for a batch of one size.

    flows: of values that are not constant.
    """

    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Sequence[int]],
        rows: Mapping[str, int],
        own_statistics: bool,
        told: Sequence[ToldGradient],
    ) -> None:
        whole = unroll(bind(graph, shapes))
        self.graph = whole.copy()
        self.graph.outputs = graph.outputs[:1]
        forward = ancestors(self.graph)
        self.graph.nodes = [node for node in self.graph.nodes if node in forward]
        self.infer()
        self.told: Sequence[ToldGradient] = ()
        self.owners: dict[str, str] = {}  # of nodes of told gradients, the node that tells
        self.samples = next(shapes[name][0] // count for name, count in rows.items())
        self.own_statistics = own_statistics
        self.makers = self.graph.producers()
        self.paths = Paths.of(graph.metadata)
        self.flows: dict[str, Flow] = {name: Rows(0, count, name) for name, count in rows.items()}
        self.live = self._live(self.graph.outputs)
        for node in self.live:
            self.follow(node)
        if told:
            self.follow_back(whole, told)

    def _live(self, ends: Iterable[str]) -> list[Node]:
        """Return the nodes, in order, that compute these values of more than constants."""
        wanted, live = set(ends), []
        for node in reversed(self.graph.nodes):
            if any(o in wanted and o not in self.constants for o in node.outputs):
                wanted.update(node.reads())
                live.append(node)
        return live[::-1]

    def infer(self) -> None:
        """Find the types and the constants of the graph."""
        inferred = infer(self.graph)
        self.types, self.constants = inferred.types, inferred.constants

    def follow_back(self, whole: Graph, told: Sequence[ToldGradient]) -> None:
        """Follow the samples through the told parts of the backward pass.

        whole: the training graph.

        Raises:
            MixedError: one of them mixes samples.
        """
        given = {dy: y for each in told for dy, y in each.given.items()}
        added = self._parts(whole, given, told)
        known = {o for node in added for o in node.outputs}
        known |= {*self.types, *whole.inputs, *whole.initializers}
        for each in told:
            lost = [x for x in each.made.values() if x not in known]
            lost += [y for y in each.given.values() if y not in self.types]
            if lost:
                raise self.told_mixed(each, f"is of {lost[0]!r}, whose samples are not known")
        nodes = [*self.graph.nodes, *added]
        self.graph.nodes = [node for node in whole.nodes if node in nodes]
        read = {name for node in added for name in node.reads()}
        for dy, y in given.items():
            if dy in read and y in self.types:
                self.graph.inputs[dy] = self.types[y]
                self.graph.initializers.pop(dy, None)
                self.flows[dy] = gradient_flow(self.flows.get(y))
        self.graph.initializers |= {
            n: a for n, a in whole.initializers.items() if n in read and n not in given
        }
        self.infer()
        self.makers = self.graph.producers()
        before = set(self.live)
        ends = (name for each in told for pair in each.made.items() for name in pair)
        self.live = self._live([*self.graph.outputs, *ends])
        for node in self.live:
            if node not in before:
                self.follow(node)
        self.told = told
        for each in told:
            for dx, x in each.made.items():
                self._end(each, dx, x)

    def _parts(
        self, whole: Graph, given: Container[str], told: Sequence[ToldGradient]
    ) -> list[Node]:
        """Return the nodes of told gradients, and those whose results they read besides."""
        owners = {dx: each.node for each in told for dx in each.made}
        owners |= {x: "" for each in told for x in each.made.values()}
        followed, nodes = set(self.graph.nodes), []
        for node in reversed(whole.nodes):
            of = next((owners[o] for o in node.outputs if o in owners), None)
            if of is None or node in followed:
                continue
            nodes.append(node)
            if of:
                self.owners[node.name] = of
            for name in node.reads():
                if name not in given:
                    owners.setdefault(name, of)
        return nodes[::-1]

    def _end(self, told: ToldGradient, dx: str, x: str) -> None:
        """Refuse a gradient that does not hold the samples as the value that it is of.

        Raises:
            MixedError: it does not.
        """
        flow, wanted = self.flows.get(dx), gradient_flow(self.flows.get(x))
        if (flow.to(flow.axis) if isinstance(flow, Rows) else flow) == wanted:
            return
        if isinstance(wanted, Rows):
            if flow is None and self._is_same(dx, wanted.axis, wanted.step):
                return
            raise self.told_mixed(
                told, f"mixes samples: its gradient of {x!r} is not one of each sample"
            )
        if flow is None and self._is_zero(dx):
            return
        raise self.told_mixed(told, f"is not a sum over the samples, which all share {x!r}")

    def told_mixed(self, told: ToldGradient, why: str) -> MixedError:
        return MixedError(f"the gradient of node {self.paths.node(told.node)} {why}{_ADVICE}")

    def compare(self, other: _Following) -> None:
        """Refuse a graph that does something else with another number of samples.

        Raises:
            MixedError: it has constants that depend on the number, as `x / len(x)` has, or takes
                as many places as there are samples by chance.
        """
        for node in self.live:
            why = "depends on how many samples a batch has"
            if any(self.flows.get(o) != other.flows.get(o) for o in node.outputs):
                raise self.mixed(node, why)
            if self._counts(node, other):
                raise self.mixed(node, why)
            if self.samples_of(node) is Samples.RESIZED:  # floats that it reads are scales
                continue
            for name in node.inputs:
                a, b = self.constants.get(name), other.constants.get(name)
                if a is None or b is None or not self._is_value(node, np.asarray(a)):
                    continue
                if not _agree(np.asarray(a), np.asarray(b)):
                    raise self.mixed(node, f"reads {name!r}, which {why}")
        for told in self.told:
            for dx in told.made:
                a, b = self.constants.get(dx), other.constants.get(dx)
                if a is not None and b is not None and not _agree(np.asarray(a), np.asarray(b)):
                    raise self.told_mixed(told, why)

    def _counts(self, node: Node, other: _Following) -> bool:
        """Return whether a node repeats a loss for each sample, or adds up equal values of each."""

        def growing(name: str) -> int:
            sizes = zip(self.types[name].dims, other.types[name].dims, strict=True)
            return sum(a != b for a, b in sizes)

        if any(isinstance(self.flows.get(o), Loss) and growing(o) for o in node.outputs):
            return True
        if self.samples_of(node) not in _ADDING or any(map(self.flows.get, node.outputs)):
            return False
        grown = max(growing(o) for o in node.outputs if o)
        return any(growing(name) > grown for name in filter(None, node.inputs))

    def _is_value(self, node: Node, constant: Array) -> bool:
        """Return whether a node computes with a constant that is not a size, axis or position."""
        if constant.dtype.kind == "f":
            return True
        return self.samples_of(node) is Samples.ELEMENTWISE

    def follow(self, node: Node) -> None:
        """Find out how the outputs of a node hold samples."""
        if not any(self.flows.get(name) for name in node.reads()):
            return
        flow = self._flow(node)
        flows = flow if isinstance(flow, tuple) else (flow,) * len(node.outputs)
        self.flows.update((n, f) for n, f in zip(node.outputs, flows, strict=True) if n)

    def mixed(self, node: Node, why: str) -> MixedError:
        name, owner = self.paths.node(node.name), self.owners.get(node.name)
        if owner is None:
            return MixedError(f"node {name} ({node.op}) {why}")
        where = f"of the gradient of node {self.paths.node(owner)}"
        return MixedError(f"node {name} ({node.op}) {where} {why}{_ADVICE}")

    def _flow(self, node: Node) -> Flow | tuple[Flow, ...]:
        flows = [self.flows.get(name) for name in node.inputs]
        if any(isinstance(flow, Loss) for flow in flows):
            return self._of_loss(node, flows)
        how = self.samples_of(node)
        rule = _RULES.get(how)
        if rule is None:
            raise self.mixed(node, "is not known to keep samples apart")
        numbered = any(isinstance(flow, Rows) and flow.numbers for flow in flows)
        if numbered and how is not Samples.GATHERED_ND:
            raise self.mixed(node, "computes with the numbers of samples in the batch")
        return rule(self, node)

    def samples_of(self, node: Node) -> Samples:
        """Return how a node holds the samples of its inputs."""
        op = declaration(self.graph, node)
        is_formula = op.expr is not None and op.samples is Samples.MIXED
        return Samples.ELEMENTWISE if is_formula else op.samples

    def _is_same(self, name: str, axis: int, step: tuple[int, int]) -> bool:
        """Return whether a constant is the same for all samples, whose axis has this `Rows.step`.

        Nothing that is drawn at random is.  A constant that has one place is broadcast.
        """
        rows, turns = step
        t = self.types[name]
        if axis >= t.rank or t.dims[axis] == 1:
            return True
        if t.dims[axis] != rows * turns * self.samples:
            return False
        if name in self.constants:
            value = np.moveaxis(np.asarray(self.constants[name]), axis, 0)
            value = value.reshape(turns, self.samples, rows, -1)
            return bool(np.array_equal(value, np.broadcast_to(value[:, :1], value.shape)))
        maker = self.makers.get(name)
        return maker is not None and self._makes_same(maker, t, axis, step)

    def _makes_same(self, node: Node, t: TensorType, axis: int, step: tuple[int, int]) -> bool:
        """As `_is_same`, of the output of a node, which has the type `t`."""
        op, from_end, how = declaration(self.graph, node), t.rank - axis, self.samples_of(node)
        x = self.types[node.inputs[0]] if node.inputs and node.inputs[0] else t
        if how is Samples.TILED:
            times = t.dims[axis] // x.dims[axis]
            at_once = times > 1 and step[0] % x.dims[axis] == 0
            return at_once or (times == 1 and self._is_same(node.inputs[0], axis, step))
        if op.is_random:
            return False
        if how in (Samples.EXPANDED, Samples.ELEMENTWISE):
            names = node.inputs[:1] if how is Samples.EXPANDED else filter(None, node.inputs)
            return all(
                self._is_same(name, self.types[name].rank - from_end, step)
                for name in names
                if self.types[name].rank >= from_end
            )
        if how is Samples.TRANSPOSED:
            order = list(node.attrs.get("perm", range(t.rank)[::-1]))
            return self._is_same(node.inputs[0], order[axis], step)
        if how is Samples.KEPT:
            before, size = math.prod(t.dims[:axis]), t.dims[axis]
            return any(
                math.prod(x.dims[:k]) == before and x.dims[k] == size
                and self._is_same(node.inputs[0], k, step)
                for k in range(x.rank)
            )  # fmt: skip
        if how is Samples.GATHERED:
            place, width = node.attrs.get("axis", 0) % x.rank, self.types[node.inputs[1]].rank
            if place <= axis < place + width:
                return self._is_same(node.inputs[1], axis - place, step)
            at = axis if axis < place else axis - width + 1
            return self._is_same(node.inputs[0], at, step)
        if how is Samples.CONCATENATED:
            joins = axis == node.attrs.get("axis", 0) % t.rank
            return not joins and all(self._is_same(name, axis, step) for name in node.inputs)
        if how in (Samples.SOFTMAX, Samples.NORMALISED):
            return axis not in self._normalised(node) and self._is_same(node.inputs[0], axis, step)
        if how in (Samples.SLICED, Samples.SPLIT):
            steps = self._value(node, 4) if how is Samples.SLICED else None
            forward = steps is None or bool(np.all(steps == 1))
            whole = x.dims[axis] == t.dims[axis] and forward
            return whole and self._is_same(node.inputs[0], axis, step)
        if how is Samples.UNIFORM:
            return True
        if how in (Samples.MATMUL, Samples.GEMM) and from_end == 2 and not node.attrs.get("transA"):
            return self._is_same(node.inputs[0], x.rank - from_end, step)
        return False

    # --- what is reduced

    def _of_loss(self, node: Node, flows: Sequence[Flow]) -> Loss:
        """A linear function of what is reduced already."""
        first, *more = flows
        kinds = {flow for flow in flows if flow is not None}
        (loss, *others) = kinds
        if others or not isinstance(loss, Loss):
            raise self.mixed(node, "joins values that are reduced in different ways")
        how, op = self.samples_of(node), declaration(self.graph, node)
        is_real = all(self.types[o].dtype in FLOATS for o in node.outputs if o)
        is_moved = op.keeps_elements or how in _LINEAR or node.op == "Neg"
        if is_moved and is_real and isinstance(first, Loss) and not any(more):
            return loss
        if node.op in ("Add", "Sub", "Sum") or how is Samples.CONCATENATED:
            terms = list(node.inputs)
        elif node.op == "Where" and first is None:
            terms = list(node.inputs[1:])
        else:
            terms = []
        if terms and (loss.is_mean or all(self.flows.get(n) or self._is_zero(n) for n in terms)):
            return loss
        is_product = node.op == "Mul" or how in (Samples.MATMUL, Samples.GEMM, Samples.EINSUM)
        is_alone = sum(flow is not None for flow in flows) == 1
        if is_product and is_alone and (len(flows) == 2 or how is Samples.EINSUM):
            return loss
        if node.op == "Div" and isinstance(first, Loss) and more == [None]:
            return loss
        raise self.mixed(node, "computes something of a loss over all samples that is not linear")

    def _is_zero(self, name: str) -> bool:
        """Return whether a value is known to be 0 everywhere."""
        if name in self.constants:
            return not np.any(self.constants[name])
        maker = self.makers.get(name)
        if maker is None:
            return False
        how, op = self.samples_of(maker), declaration(self.graph, maker)
        if how is Samples.UNIFORM:
            return "value" not in maker.attrs or not np.any(maker.attrs["value"])
        return (op.keeps_elements or how in _LINEAR) and self._is_zero(maker.inputs[0])

    def cross_entropy(self, node: Node) -> tuple[Flow, ...]:
        """A loss, and the logarithms of the probabilities of each sample."""
        loss, scores = self._cross_entropy(node), self.flows[node.inputs[0]]
        assert isinstance(scores, Rows)
        return (loss, scores.to(0))[: len(node.outputs)]

    def _cross_entropy(self, node: Node) -> Flow:
        scores, labels = (self.flows.get(name) for name in node.inputs[:2])
        if not (isinstance(scores, Rows) and isinstance(labels, Rows)):
            raise self.mixed(node, "has scores or labels that belong to no sample")
        if scores.axis or labels.axis or scores.step != labels.step:
            raise self.mixed(node, "has samples elsewhere than on the first axis")
        reduction = node.attrs.get("reduction", b"mean")
        reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
        weights = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None
        ignore = node.attrs.get("ignore_index")
        if reduction == "none":
            return labels.to(0)
        if reduction == "sum":
            return Loss(is_mean=False)
        if weights is None and ignore is None:
            return Loss(is_mean=True)
        if labels.source is None:
            raise self.mixed(node, "weighs samples by labels that are not an input of the model")
        known = None
        if weights is not None:
            if weights not in self.constants:
                raise self.mixed(node, "weighs samples by weights that are not a constant")
            known = tuple(float(w) for w in self.constants[weights])
        return Loss(True, labels.source, ignore, known)

    def reduce(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        axes = node.attrs.get("axes")
        how = self.samples_of(node)
        if how is Samples.REDUCED_AXIS:
            axes = [node.attrs.get("axis", 0)]
        elif axes is None and len(node.inputs) > 1 and node.inputs[1]:
            axes = self.constants[node.inputs[1]].tolist()
        gone = {a % rank for a in axes} if axes else set(range(rank))
        if axes is not None and not axes and node.attrs.get("noop_with_empty_axes"):
            gone = set()
        if flow.axis not in gone:
            kept = node.attrs.get("keepdims", 1)
            return flow.to(flow.axis - (0 if kept else sum(a < flow.axis for a in gone)))
        if how not in (Samples.MEAN, Samples.SUM):
            raise self.mixed(node, "reduces the samples, to neither their mean nor their sum")
        return Loss(is_mean=how is Samples.MEAN)

    # --- what keeps samples apart

    def _only(self, node: Node) -> Rows:
        """The samples of input 0; all other inputs are constant."""
        flows = [self.flows.get(name) for name in node.inputs]
        flow = flows[0]
        if not isinstance(flow, Rows) or any(flows[1:]):
            raise self.mixed(node, "reads samples elsewhere than in its first input")
        return flow

    def _aligned(
        self, node: Node, names: Sequence[str], from_end: int, step: tuple[int, int]
    ) -> None:
        """Refuse constants that are not the same for each sample.

        from_end: the place of the samples' axis, counted from the last.

        Raises:
            MixedError: one of them is not.
        """
        for name in filter(None, names):
            axis = self.types[name].rank - from_end
            if self.flows.get(name) is None and axis >= 0 and not self._is_same(name, axis, step):
                raise self.mixed(node, f"has {name!r}, which is as long as the samples, but none")

    def elementwise(self, node: Node) -> Flow:
        """Samples that all operands have at the same axis, counted from the last."""
        op = declaration(self.graph, node)
        names = [n for k, n in enumerate(node.inputs) if n and k not in op.type_only]
        flows = {name: self.flows.get(name) for name in names}
        layouts = {
            (self.types[name].rank - flow.axis, flow.step)
            for name, flow in flows.items()
            if isinstance(flow, Rows)
        }
        if not layouts:  # the type of samples is read, and nothing of them
            return None
        if len(layouts) != 1:
            raise self.mixed(node, "meets samples on different axes")
        ((from_end, step),) = layouts
        self._aligned(node, names, from_end, step)
        first = flows[names[0]]
        source = first.source if op.keeps_elements and isinstance(first, Rows) else None
        return Rows(self.types[node.outputs[0]].rank - from_end, step[0], source, step[1])

    def first(self, node: Node) -> Flow:
        flow = self._only(node)
        if flow.axis or flow.step != (1, 1):
            raise self.mixed(node, "has samples elsewhere than on its first axis")
        return flow.to(0)

    def gemm(self, node: Node) -> Flow:
        a, *_ = flows = [self.flows.get(name) for name in node.inputs]
        places = int(not node.attrs.get("transA")), int(bool(node.attrs.get("transB")))
        if self._is_summed(flows[:2], places) and not any(node.inputs[2:]):
            return _SUM
        if node.attrs.get("transA") or not isinstance(a, Rows) or a.axis or flows[1]:
            raise self.mixed(node, "sums over the samples")
        if len(flows) > 2 and flows[2] is not None:
            added = flows[2]
            if not isinstance(added, Rows) or added.to(0) != a.to(0) or added.axis != 0:
                raise self.mixed(node, "meets samples on different axes")
        self._aligned(node, node.inputs[2:], 2, a.step)
        return a.to(0)

    def _is_summed(self, flows: Sequence[Flow], axes: Sequence[int]) -> bool:
        """Return whether a product sums over the samples of both operands, along these axes."""
        a, b = flows
        return (
            isinstance(a, Rows)
            and isinstance(b, Rows)
            and (a.axis, b.axis) == tuple(axes)
            and a.step == b.step
        )

    def matmul(self, node: Node) -> Flow:
        """Samples on a batch axis of both, or on an axis of one that the product keeps."""
        ranks = [self.types[name].rank for name in node.inputs]
        out = self.types[node.outputs[0]].rank
        places = ranks[0] - 1, max(ranks[1] - 2, 0)
        if self._is_summed([self.flows.get(name) for name in node.inputs], places):
            return _SUM
        layouts = {
            (place, rank - flow.axis, flow.step)
            for place, (name, rank) in enumerate(zip(node.inputs, ranks, strict=True))
            if isinstance(flow := self.flows.get(name), Rows)
        }
        summed = {(0, 1), (1, 2) if ranks[1] > 1 else (1, 1)}
        from_ends = {(from_end, step) for _, from_end, step in layouts}
        apart = len(from_ends) == 1 and (len(layouts) == 1 or next(iter(from_ends))[0] > 2)
        if not apart or any((place, from_end) in summed for place, from_end, _ in layouts):
            raise self.mixed(node, "multiplies samples with each other, or sums over them")
        ((from_end, step),) = from_ends
        if from_end > 2:
            self._aligned(node, node.inputs, from_end, step)
        if from_end == 2 and ranks[1] == 1:
            from_end = 1
        elif from_end > 2:
            from_end -= sum(rank == 1 for rank in ranks)
        return Rows(out - from_end, step[0], None, step[1])

    def einsum(self, node: Node) -> Flow:
        """Samples that have one letter in all operands, which the result has, too."""
        equation = node.attrs["equation"].replace(" ", "")
        given, arrow, result = equation.partition("->")
        terms = given.split(",")
        letters = {
            (term[flow.axis], flow.step)
            for term, name in zip(terms, node.inputs, strict=True)
            if isinstance(flow := self.flows.get(name), Rows) and "." not in equation
        }
        if len(letters) != 1 or not arrow:
            raise self.mixed(node, "multiplies samples with each other, or sums over them")
        ((letter, step),) = letters
        for term, name in zip(terms, node.inputs, strict=True):
            flow = self.flows.get(name)
            if isinstance(flow, Rows) and term.count(letter) > 1:
                raise self.mixed(node, "multiplies samples with each other, or sums over them")
            if flow is None and letter in term:
                self._aligned(node, [name], len(term) - term.index(letter), step)
        if letter not in result:
            return _SUM
        return Rows(result.index(letter), step[0], None, step[1])

    def moved(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        order = list(node.attrs.get("perm", range(rank)[::-1]))
        return flow.to(order.index(flow.axis))

    def reshaped(self, node: Node) -> Flow:
        """The samples lie where as many elements are before them as were, and as many in each.

        Axes in front of theirs may become one with it: then it goes through them so many turns.
        """
        flow = self._only(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        before = math.prod(old[: flow.axis]) * flow.turns
        for axis, size in enumerate(new):
            outside = math.prod(new[:axis])
            turns = before // outside if outside else 0
            if turns and outside * turns == before and size % (turns * self.samples) == 0:
                rows = size // (turns * self.samples)
                if rows and size > 1:
                    return Rows(axis, rows, flow.source, turns)
        raise self.mixed(node, "shapes samples into each other")

    def spread(self, node: Node) -> Flow:
        """Follow longer axes; a Tile of the samples' axis goes through the samples again."""
        flow = self._only(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        axis = flow.axis + len(new) - len(old)
        times = new[axis] // old[flow.axis]
        return Rows(axis, flow.rows, None, flow.turns * times)

    def resized(self, node: Node) -> Flow:
        """The axis of the samples stays as long as it is."""
        flow = self._only(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        cropped = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if cropped or old[flow.axis] != new[flow.axis]:
            raise self.mixed(node, "changes how many samples there are")
        return flow.to(flow.axis)

    def padded(self, node: Node) -> Flow:
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        pads = node.attrs.get("pads")
        if pads is None:
            pads = self._value(node, 1)
        axes = self._value(node, 3) if len(node.inputs) > 3 else None
        places = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
        count = len(places)
        if pads is None or any(
            int(pads[k]) or int(pads[k + count])
            for k, place in enumerate(places) if place == flow.axis
        ):  # fmt: skip
            raise self.mixed(node, "pads the samples")
        return flow.to(flow.axis)

    def _value(self, node: Node, place: int) -> Array | None:
        """The constant that input `place` of a node is; None if it is none or left out."""
        return self._known(node.inputs[place] if place < len(node.inputs) else "")

    def _known(self, name: str) -> Array | None:
        """The constant of a name; None if there is none."""
        constant = self.constants.get(name) if name else None
        return None if constant is None else np.asarray(constant)

    def normed(self, node: Node) -> Flow:
        flow = self._only(node)
        if flow.axis in self._normalised(node):
            raise self.mixed(node, "normalises over the samples")
        return flow.to(flow.axis)

    def _normalised(self, node: Node) -> range:
        """The axes over which a node normalises."""
        rank = self.types[node.inputs[0]].rank
        is_softmax = self.samples_of(node) is Samples.SOFTMAX
        is_old = is_softmax and self.graph.opsets.get("", 1) < 13
        axis = node.attrs.get("axis", 1 if is_old else -1) % rank
        return range(axis, axis + 1 if is_softmax and not is_old else rank)

    def aside(self, node: Node) -> Flow:
        """Follow a node that works along one axis, which must not be the samples' axis."""
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        how = self.samples_of(node)
        given = how is Samples.INPUT_AXIS_APART
        axis = self._value(node, 1) if given else node.attrs.get("axis", -1)
        if how is Samples.MATRICES_APART:
            places = {rank - 1, rank - 2}
        else:
            places = {int(np.asarray(axis)) % rank}
        if flow.axis in places:
            raise self.mixed(node, "works along the samples")
        return flow.to(flow.axis)

    def batch_norm(self, node: Node) -> Flow:
        learns = self.samples_of(node) is Samples.BATCH_STATISTICS
        if (learns or node.attrs.get("training_mode")) and not self.own_statistics:
            raise self.mixed(node, "takes its statistics over all samples")
        return self.first(node)

    def gather(self, node: Node) -> Flow:
        data, index = (self.flows.get(name) for name in node.inputs)
        t, places = (self.types[name] for name in node.inputs)
        axis = node.attrs.get("axis", 0) % t.rank
        if data is None and isinstance(index, Rows):
            return index.to(axis + index.axis)
        if isinstance(data, Rows) and index is None and axis != data.axis:
            return data.to(data.axis + (places.rank - 1 if axis < data.axis else 0))
        if isinstance(data, Rows) and index is None:
            taken = self._value(node, 1)
            if taken is not None and np.array_equal(taken, np.arange(t.dims[axis])):
                return data.to(axis)
        raise self.mixed(node, "takes places out of the samples")

    def gather_nd(self, node: Node) -> Flow:
        """Each sample by indices of its own, all by the same, or by indices with its number."""
        data, index = (self.flows.get(name) for name in node.inputs)
        ranks = [self.types[name].rank for name in node.inputs]
        batch = node.attrs.get("batch_dims", 0)
        end, last = batch + int(self.types[node.inputs[1]].dims[-1]), ranks[1] - 1
        if isinstance(index, Rows) and index.axis == last:
            raise self.mixed(node, "takes places out of the samples")
        if data is None and isinstance(index, Rows) and not index.numbers:
            if index.axis < batch:
                self._aligned(node, node.inputs[:1], ranks[0] - index.axis, index.step)
            return index.to(index.axis)
        if not isinstance(data, Rows):
            raise self.mixed(node, "takes places out of the samples")
        if data.axis >= end and index is None:
            return data.to(data.axis - end + last)
        if data.axis < batch and index is None:
            self._aligned(node, node.inputs[1:], ranks[1] - data.axis, data.step)
            return data.to(data.axis)
        if data.axis < batch and isinstance(index, Rows) and not index.numbers:
            if (data.axis, data.step) == (index.axis, index.step):
                return data.to(data.axis)
        elif batch <= data.axis < end and data.step == (1, 1):
            known = {axis: self._numbers(node.inputs[1], axis) for axis in range(batch, last)}
            if isinstance(index, Rows):
                known = {index.axis: index.numbers}
            for axis, numbers in known.items():
                if axis >= batch and numbers == {data.axis - batch}:
                    return Rows(axis)
        raise self.mixed(node, "takes places out of the samples")

    def _numbers(self, name: str, axis: int) -> frozenset[int]:
        """Return the places of the last axis of indices that hold the number of each sample.

        axis: along which there is one for each sample.  No place is returned if other places differ
            between samples.
        """
        t, value, maker = self.types[name], self._known(name), self.makers.get(name)
        if value is None:
            if maker is None or maker.attrs.get("axis", 0) % t.rank != t.rank - 1:
                return frozenset()
            return self._joined_numbers(maker, axis)
        if t.dims[axis] != self.samples:
            return frozenset()
        value = np.moveaxis(value, axis, 0)
        rest = tuple(range(value.ndim - 1))
        is_shared = np.all(value == value[:1], rest)
        is_number = np.all(value == self._count(value.ndim), rest)
        return (
            frozenset(np.flatnonzero(is_number)) if np.all(is_shared | is_number) else frozenset()
        )

    def _count(self, rank: int) -> Array:
        """The numbers of the samples, along the first of so many axes."""
        return np.arange(self.samples).reshape(-1, *[1] * (rank - 1))

    def _joined_numbers(self, node: Node, axis: int) -> frozenset[int]:
        """Return `_numbers` of what a node joins along the last axis.

        Operands that hold samples are left out.
        """
        begin, places = 0, set[int]()
        if self.samples_of(node) is not Samples.CONCATENATED:
            return frozenset()
        for name in node.inputs:
            size = self.types[name].dims[-1]
            if self.flows.get(name) is None and not self._is_same(name, axis, (1, 1)):
                if not self._is_number(name, axis):
                    return frozenset()
                places.update(range(begin, begin + size))
            begin += size
        return frozenset(places)

    def _is_number(self, name: str, axis: int) -> bool:
        """Return whether each element is the number of its sample along an axis."""
        t, value, maker = self.types[name], self._known(name), self.makers.get(name)
        if axis < 0 or t.dims[axis] != self.samples:
            return False
        if value is not None:
            return bool(np.all(np.moveaxis(value, axis, 0) == self._count(t.rank)))
        if maker is None:
            return False
        x = self.types[maker.inputs[0]] if maker.inputs and maker.inputs[0] else t
        if self.samples_of(maker) is Samples.EXPANDED:
            return self._is_number(maker.inputs[0], axis - t.rank + x.rank)
        if declaration(self.graph, maker).keeps_elements:
            before = math.prod(t.dims[:axis])
            return any(
                math.prod(x.dims[:k]) == before and self._is_number(maker.inputs[0], k)
                for k in range(x.rank)
            )
        return False

    def picked(self, node: Node) -> Flow:
        """GatherElements, each sample by places of its own, or all by the same."""
        flows, t = [self.flows.get(name) for name in node.inputs], self.types[node.inputs[0]]
        axis = node.attrs.get("axis", 0) % t.rank
        kinds = {(f.axis, f.step) for f in flows if isinstance(f, Rows)}
        dims = {self.types[name].dims[next(iter(kinds))[0]] for name in node.inputs}
        if len(kinds) != 1 or len(dims) != 1 or next(iter(kinds))[0] == axis:
            raise self.mixed(node, "takes places out of the samples")
        ((place, step),) = kinds
        self._aligned(node, node.inputs, t.rank - place, step)
        return Rows(place, step[0], None, step[1])

    def along(self, node: Node) -> Flow:
        """Follow a join or split along another axis than the samples', or turn by turn."""
        names = node.inputs[:1] if self.samples_of(node) is Samples.SPLIT else node.inputs
        flows = [self.flows.get(name) for name in names]
        kinds = {(f.axis, f.step) for f in flows if isinstance(f, Rows)}
        rank = self.types[names[0]].rank
        axis = node.attrs.get("axis", 0) % rank
        if len(kinds) != 1:
            raise self.mixed(node, "joins or parts the samples")
        ((place, step),) = kinds
        if axis != place:
            is_last = axis == rank - 1 and step == (1, 1)
            numbers = self._joined_numbers(node, place) if is_last else frozenset()
            self._aligned(node, [] if numbers else names, rank - place, step)
            return Rows(place, step[0], None, step[1], numbers)
        parts = [self.types[o].dims[axis] for o in node.outputs if o]
        turn = self.samples * step[0]
        if None in flows or len(set(parts)) != 1 or parts[0] % turn or not parts[0]:
            raise self.mixed(node, "joins or parts the samples")
        return Rows(place, step[0], None, parts[0] // turn)

    def sliced(self, node: Node) -> Flow:
        """Follow a slice along another axis than the samples', or of whole turns through them."""
        flow, rank = self._only(node), self.types[node.inputs[0]].rank
        new = self.types[node.outputs[0]].dims[flow.axis]
        begins, axes, steps = (self._value(node, k) for k in (1, 3, 4))
        if begins is None and "starts" in node.attrs:
            begins = np.asarray(node.attrs["starts"])
            axes = np.asarray(node.attrs.get("axes", range(len(begins))))
        if begins is None:
            raise self.mixed(node, "takes samples out of the batch, or changes their order")
        places = range(rank) if axes is None else [int(a) % rank for a in axes]
        turn = self.samples * flow.rows
        for k, place in enumerate(places[: len(begins)]):
            begin = int(begins[k]) + (flow.turns * turn if begins[k] < 0 else 0)
            stride = 1 if steps is None else int(steps[k])
            whole = stride == 1 and max(begin, 0) % turn == 0 and new and new % turn == 0
            if place == flow.axis and not whole:
                raise self.mixed(node, "takes samples out of the batch, or changes their order")
        source = flow.source if new == flow.turns * turn else None
        return Rows(flow.axis, flow.rows, source if self._is_whole(node) else None, new // turn)

    def _is_whole(self, node: Node) -> bool:
        """Return whether a node leaves all of its input as it is."""
        return self.types[node.inputs[0]].dims == self.types[node.outputs[0]].dims

    def walked(self, node: Node) -> tuple[Flow, ...]:
        """A recurrent layer, whose states may have samples, too."""
        first = bool(node.attrs.get("layout", 0))
        axes = {0: 1 - first, 4: 0, 5: 1 - first, 6: 1 - first}
        flows = {k: self.flows.get(name) for k, name in enumerate(node.inputs) if name}
        x = flows[0]
        if not isinstance(x, Rows) or any(
            flow is not None and (not isinstance(flow, Rows) or axes.get(k) != flow.axis
                                  or flow.step != x.step)
            for k, flow in flows.items()
        ):  # fmt: skip
            raise self.mixed(node, "has samples elsewhere than on the axis of its batch")
        for k, axis in axes.items():
            if flows.get(k) is None and k in flows:
                name = node.inputs[k]
                self._aligned(node, [name], self.types[name].rank - axis, x.step)
        return tuple(x.to(0 if first else 1 if 0 < k < 3 else 2) for k in range(len(node.outputs)))


def _agree(one: Array, two: Array) -> bool:
    """Return whether a constant is the same for another number of samples, but for its size."""
    if one.ndim != two.ndim:
        return False
    axes = [k for k, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b]
    for axis in axes:
        one, two = one.take([0], axis), two.take([0], axis)
    return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))


# Linear in one input: the result for a sum of arrays is the sum of the results.
_LINEAR = frozenset(
    {
        *(Samples.MEAN, Samples.SUM, Samples.KEPT, Samples.TRANSPOSED, Samples.EXPANDED),
        *(Samples.TILED, Samples.SLICED, Samples.SPLIT, Samples.GATHERED),
    }
)

# Nodes that add up elements.
_ADDING = frozenset({Samples.SUM, Samples.MATMUL, Samples.GEMM, Samples.EINSUM})

_Rule = Callable[[_Following, Node], Flow | tuple[Flow, ...]]
_RULES: dict[Samples, _Rule] = {
    Samples.ELEMENTWISE: _Following.elementwise,
    Samples.FIRST_AXIS: _Following.first,
    Samples.KEPT: _Following.reshaped,
    Samples.TRANSPOSED: _Following.moved,
    Samples.EXPANDED: _Following.spread,
    Samples.TILED: _Following.spread,
    Samples.RESIZED: _Following.resized,
    Samples.PADDED: _Following.padded,
    Samples.CONCATENATED: _Following.along,
    Samples.SPLIT: _Following.along,
    Samples.SLICED: _Following.sliced,
    Samples.GATHERED: _Following.gather,
    Samples.GATHERED_EACH: _Following.picked,
    Samples.GATHERED_ND: _Following.gather_nd,
    Samples.AXIS_APART: _Following.aside,
    Samples.INPUT_AXIS_APART: _Following.aside,
    Samples.MATRICES_APART: _Following.aside,
    Samples.NORMALISED: _Following.normed,
    Samples.SOFTMAX: _Following.normed,
    Samples.BATCH_NORM: _Following.batch_norm,
    Samples.BATCH_STATISTICS: _Following.batch_norm,
    Samples.MEAN: _Following.reduce,
    Samples.SUM: _Following.reduce,
    Samples.REDUCED: _Following.reduce,
    Samples.REDUCED_AXIS: _Following.reduce,
    Samples.GEMM: _Following.gemm,
    Samples.MATMUL: _Following.matmul,
    Samples.EINSUM: _Following.einsum,
    Samples.RECURRENT: _Following.walked,
    Samples.CROSS_ENTROPY: _Following.cross_entropy,
}
