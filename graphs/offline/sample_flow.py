"""Samples: whether a model computes each sample of a batch for itself, up to its loss.

If it does, a batch can be trained on in parts: the loss of the batch is the mean of the losses of
its parts, each weighted by its share, or their sum.  Every value of the forward part is followed:

Constant   no sample is in it
Rows       axis `axis` holds the samples in order, `rows` places for each; nothing mixes them
Loss       the samples are reduced: a mean or a sum over them, and linear functions of it

Any other use of samples mixes them, as training batch normalisations do, and its node is named.
Of the backward pass those parts are followed that a user has written (user_gradients.py): given the
gradients of the whole batch, they must make gradients of each sample alone, or sums over samples
where the value that the gradient is of is the same for all.
A node that is not known to keep samples apart is followed through the nodes that it stands for, as
quantisers are, and is taken to mix samples if it stands for none.  The sizes and constants that
the batch gives show whether a node takes the whole of their axis, as the Slice of `x[:, 0]` does,
and whether it repeats a constant for each of them, as class tokens are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.sample_rules import ADVICE, SampleRules
from engine.graphs.offline.sample_values import (
    Flow,
    LossValue,
    MixedError,
    SampleRows,
    make_gradient_flow,
)
from engine.graphs.offline.user_gradients import ToldGradient, read
from engine.graphs.passes.control import unroll
from engine.graphs.passes.expand import expand
from engine.graphs.passes.infer import bind, infer
from engine.graphs.passes.simplify import find_ancestors
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.op import Op

# Nodes that add up elements.
_ADDING = frozenset({Samples.SUM, Samples.MATMUL, Samples.GEMM, Samples.EINSUM})


def find_loss(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    rows: Mapping[str, int],
    *,
    own_statistics: bool = False,
) -> LossValue:
    """Return how the loss of a training graph, its first output, is made of the samples.

    shapes: the shapes of the inputs.  rows: for each input with samples on its first axis, how many
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
    if not isinstance(flow, LossValue):
        raise MixedError(
            f"the loss {graph.outputs[0]!r} is neither a mean nor a sum over the samples"
        )
    return replace(flow, is_told=bool(told))


def _is_unsaid(op: Op) -> bool:
    """Return whether an op of this package says nothing of samples, and its expansion may."""
    return op.samples is Samples.MIXED and op.expr is None and op.becomes is not None


class _Following(SampleRules):
    """Follows samples through the nodes of a graph, for a batch of one size."""

    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Sequence[int]],
        rows: Mapping[str, int],
        own_statistics: bool,
        told: Sequence[ToldGradient],
    ) -> None:
        whole = unroll(bind(graph, shapes))
        inferred = infer(whole)
        # Weights are left as they are: their floats would take several times their bytes.
        constant = {*inferred.constants, *whole.initializers}
        expand(whole, inferred, lambda n, op: _is_unsaid(op) and not constant.issuperset(n.inputs))
        followed = whole.copy()
        followed.outputs = graph.outputs[:1]
        forward = find_ancestors(followed)
        followed.nodes = [node for node in followed.nodes if node in forward]
        flows: dict[str, Flow] = {name: SampleRows(0, count, name) for name, count in rows.items()}
        samples = next(shapes[name][0] // count for name, count in rows.items())
        super().__init__(followed, flows, samples, own_statistics)
        self.told: Sequence[ToldGradient] = ()
        self.live = self._list_live(self.graph.outputs)
        for node in self.live:
            self.follow(node)
        if told:
            self.follow_back(whole, told)

    def _list_live(self, ends: Iterable[str]) -> list[Node]:
        """Return the nodes, in order, that compute these values of more than constants."""
        wanted, live = set(ends), []
        for node in reversed(self.graph.nodes):
            if any(o in wanted and o not in self.constants for o in node.outputs):
                wanted.update(node.list_reads())
                live.append(node)
        return live[::-1]

    def follow_back(self, whole: Graph, told: Sequence[ToldGradient]) -> None:
        """Follow the samples through the told parts of the backward pass.

        whole: the training graph.

        Raises:
            MixedError: one of them mixes samples.
        """
        given = {dy: y for each in told for dy, y in each.given.items()}
        added = self._list_parts(whole, given, told)
        known = {o for node in added for o in node.outputs}
        known |= {*self.types, *whole.inputs, *whole.initializers}
        for each in told:
            lost = [x for x in each.made.values() if x not in known]
            lost += [y for y in each.given.values() if y not in self.types]
            if lost:
                raise self.explain_told_mixed(
                    each, f"is of {lost[0]!r}, whose samples are not known"
                )
        nodes = [*self.graph.nodes, *added]
        self.graph.nodes = [node for node in whole.nodes if node in nodes]
        read = {name for node in added for name in node.list_reads()}
        for dy, y in given.items():
            if dy in read and y in self.types:
                self.graph.inputs[dy] = self.types[y]
                self.graph.initializers.pop(dy, None)
                self.flows[dy] = make_gradient_flow(self.flows.get(y))
        self.graph.initializers |= {
            n: a for n, a in whole.initializers.items() if n in read and n not in given
        }
        self.infer()
        before = set(self.live)
        ends = (name for each in told for pair in each.made.items() for name in pair)
        self.live = self._list_live([*self.graph.outputs, *ends])
        for node in self.live:
            if node not in before:
                self.follow(node)
        self.told = told
        for each in told:
            for dx, x in each.made.items():
                self._check_end(each, dx, x)

    def _list_parts(
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
            for name in node.list_reads():
                if name not in given:
                    owners.setdefault(name, of)
        return nodes[::-1]

    def _check_end(self, told: ToldGradient, dx: str, x: str) -> None:
        """Refuse a gradient that does not hold the samples as the value that it is of.

        Raises:
            MixedError: it does not.
        """
        flow, wanted = self.flows.get(dx), make_gradient_flow(self.flows.get(x))
        if (flow.to(flow.axis) if isinstance(flow, SampleRows) else flow) == wanted:
            return
        if isinstance(wanted, SampleRows):
            if flow is None and self.is_same(dx, wanted.axis, wanted.step):
                return
            raise self.explain_told_mixed(
                told, f"mixes samples: its gradient of {x!r} is not one of each sample"
            )
        if flow is None and self.is_zero(dx):
            return
        raise self.explain_told_mixed(told, f"is not a sum over the samples, which all share {x!r}")

    def explain_told_mixed(self, told: ToldGradient, why: str) -> MixedError:
        return MixedError(f"the gradient of node {self.paths.title_node(told.node)} {why}{ADVICE}")

    def compare(self, other: _Following) -> None:
        """Refuse a graph that does something else with another number of samples.

        Raises:
            MixedError: it has constants that depend on the number, as `x / len(x)` has, or takes
                as many places as there are samples by chance.
        """
        for node in self.live:
            why = "depends on how many samples a batch has"
            if any(self.flows.get(o) != other.flows.get(o) for o in node.outputs):
                raise self.explain_mixed(node, why)
            if self._counts(node, other):
                raise self.explain_mixed(node, why)
            if self.find_samples(node) is Samples.RESIZED:  # floats that it reads are scales
                continue
            for name in node.inputs:
                a, b = self.constants.get(name), other.constants.get(name)
                if a is None or b is None or not self._is_value(node, np.asarray(a)):
                    continue
                if not _agree(np.asarray(a), np.asarray(b)):
                    raise self.explain_mixed(node, f"reads {name!r}, which {why}")
        for told in self.told:
            for dx in told.made:
                a, b = self.constants.get(dx), other.constants.get(dx)
                if a is not None and b is not None and not _agree(np.asarray(a), np.asarray(b)):
                    raise self.explain_told_mixed(told, why)

    def _counts(self, node: Node, other: _Following) -> bool:
        """Return whether a node repeats a loss for each sample, or adds up equal values of each."""

        def count_growing(name: str) -> int:
            sizes = zip(self.types[name].dims, other.types[name].dims, strict=True)
            return sum(a != b for a, b in sizes)

        if any(isinstance(self.flows.get(o), LossValue) and count_growing(o) for o in node.outputs):
            return True
        if self.find_samples(node) not in _ADDING or any(map(self.flows.get, node.outputs)):
            return False
        grown = max(count_growing(o) for o in node.outputs if o)
        return any(count_growing(name) > grown for name in filter(None, node.inputs))

    def _is_value(self, node: Node, constant: Array) -> bool:
        """Return whether a node computes with a constant that is not a size, axis or position."""
        if constant.dtype.kind == "f":
            return True
        return self.find_samples(node) is Samples.ELEMENTWISE


def _agree(one: Array, two: Array) -> bool:
    """Return whether a constant is the same for another number of samples, except for its size."""
    if one.ndim != two.ndim:
        return False
    axes = [k for k, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b]
    for axis in axes:
        one, two = one.take([0], axis), two.take([0], axis)
    return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
