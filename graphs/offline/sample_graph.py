"""A graph with samples: values that are the same for all, or their numbers in the batch."""

from __future__ import annotations

import math

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import get_declaration
from engine.graphs.offline.sample_values import Flow
from engine.graphs.passes.infer import infer
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.op import TensorType

# Linear in one input: the result for a sum of arrays is the sum of the results.
LINEAR = frozenset(
    {
        *(Samples.MEAN, Samples.SUM, Samples.KEPT, Samples.TRANSPOSED, Samples.EXPANDED),
        *(Samples.TILED, Samples.SLICED, Samples.SPLIT, Samples.GATHERED),
    }
)


class SampleGraph:
    """A graph for a batch of one size: its types, constants, and the values that hold samples.

    flows: the flows of the values that are not constant.
    samples: how many the batch has.
    """

    def __init__(self, graph: Graph, flows: dict[str, Flow], samples: int) -> None:
        self.graph, self.flows, self.samples = graph, flows, samples
        self.infer()

    def infer(self) -> None:
        """Find the types, the constants and the makers of the values of the graph."""
        inferred = infer(self.graph)
        self.types, self.constants = inferred.types, inferred.constants
        self.makers = self.graph.find_producers()

    def find_samples(self, node: Node) -> Samples:
        """Return how a node holds the samples of its inputs."""
        op = get_declaration(self.graph, node)
        is_formula = op.expr is not None and op.samples is Samples.MIXED
        return Samples.ELEMENTWISE if is_formula else op.samples

    def find_value(self, node: Node, place: int) -> Array | None:
        """Return the constant that input `place` of a node is; None if it is none or left out."""
        return self.find_known(node.inputs[place] if place < len(node.inputs) else "")

    def find_known(self, name: str) -> Array | None:
        """Return the constant of a name; None if there is none."""
        constant = self.constants.get(name) if name else None
        return None if constant is None else np.asarray(constant)

    def list_normalised(self, node: Node) -> range:
        """Return the axes over which a node normalises."""
        rank = self.types[node.inputs[0]].rank
        is_softmax = self.find_samples(node) is Samples.SOFTMAX
        is_old = is_softmax and self.graph.opsets.get("", 1) < 13
        axis = node.attrs.get("axis", 1 if is_old else -1) % rank
        return range(axis, axis + 1 if is_softmax and not is_old else rank)

    def is_same(self, name: str, axis: int, step: tuple[int, int]) -> bool:
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
        """Return `is_same` of the output of a node, which has the type `t`."""
        op, from_end, how = (
            get_declaration(self.graph, node),
            t.rank - axis,
            self.find_samples(node),
        )
        x = self.types[node.inputs[0]] if node.inputs and node.inputs[0] else t
        if how is Samples.TILED:
            times = t.dims[axis] // x.dims[axis]
            at_once = times > 1 and step[0] % x.dims[axis] == 0
            return at_once or (times == 1 and self.is_same(node.inputs[0], axis, step))
        if op.is_random:
            return False
        if how in (Samples.EXPANDED, Samples.ELEMENTWISE):
            names = node.inputs[:1] if how is Samples.EXPANDED else filter(None, node.inputs)
            return all(
                self.is_same(name, self.types[name].rank - from_end, step)
                for name in names
                if self.types[name].rank >= from_end
            )
        if how is Samples.TRANSPOSED:
            order = list(node.attrs.get("perm", range(t.rank)[::-1]))
            return self.is_same(node.inputs[0], order[axis], step)
        if how is Samples.KEPT:
            before, size = math.prod(t.dims[:axis]), t.dims[axis]
            return any(
                math.prod(x.dims[:k]) == before and x.dims[k] == size
                and self.is_same(node.inputs[0], k, step)
                for k in range(x.rank)
            )  # fmt: skip
        if how is Samples.GATHERED:
            place, width = node.attrs.get("axis", 0) % x.rank, self.types[node.inputs[1]].rank
            if place <= axis < place + width:
                return self.is_same(node.inputs[1], axis - place, step)
            at = axis if axis < place else axis - width + 1
            return self.is_same(node.inputs[0], at, step)
        if how is Samples.CONCATENATED:
            joins = axis == node.attrs.get("axis", 0) % t.rank
            return not joins and all(self.is_same(name, axis, step) for name in node.inputs)
        if how in (Samples.SOFTMAX, Samples.NORMALISED):
            return axis not in self.list_normalised(node) and self.is_same(
                node.inputs[0], axis, step
            )
        if how in (Samples.SLICED, Samples.SPLIT):
            steps = self.find_value(node, 4) if how is Samples.SLICED else None
            forward = steps is None or bool(np.all(steps == 1))
            whole = x.dims[axis] == t.dims[axis] and forward
            return whole and self.is_same(node.inputs[0], axis, step)
        if how is Samples.UNIFORM:
            return True
        if how in (Samples.MATMUL, Samples.GEMM) and from_end == 2 and not node.attrs.get("transA"):
            return self.is_same(node.inputs[0], x.rank - from_end, step)
        return False

    def is_zero(self, name: str) -> bool:
        """Return whether a value is known to be 0 everywhere."""
        if name in self.constants:
            return not np.any(self.constants[name])
        maker = self.makers.get(name)
        if maker is None:
            return False
        how, op = self.find_samples(maker), get_declaration(self.graph, maker)
        if how is Samples.UNIFORM:
            return "value" not in maker.attrs or not np.any(maker.attrs["value"])
        return (op.keeps_elements or how in LINEAR) and self.is_zero(maker.inputs[0])

    def find_numbers(self, name: str, axis: int) -> frozenset[int]:
        """Return the places of the last axis of indices that hold the number of each sample.

        axis: along which there is one for each sample.  No place is returned if other places differ
            between samples.
        """
        t, value, maker = self.types[name], self.find_known(name), self.makers.get(name)
        if value is None:
            if maker is None or maker.attrs.get("axis", 0) % t.rank != t.rank - 1:
                return frozenset()
            return self.find_joined_numbers(maker, axis)
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
        """Return the numbers of the samples, along the first of this many axes."""
        return np.arange(self.samples).reshape(-1, *[1] * (rank - 1))

    def find_joined_numbers(self, node: Node, axis: int) -> frozenset[int]:
        """Return `find_numbers` of what a node joins along the last axis.

        Operands that hold samples are left out.
        """
        begin, places = 0, set[int]()
        if self.find_samples(node) is not Samples.CONCATENATED:
            return frozenset()
        for name in node.inputs:
            size = self.types[name].dims[-1]
            if self.flows.get(name) is None and not self.is_same(name, axis, (1, 1)):
                if not self._is_number(name, axis):
                    return frozenset()
                places.update(range(begin, begin + size))
            begin += size
        return frozenset(places)

    def _is_number(self, name: str, axis: int) -> bool:
        """Return whether each element is the number of its sample along an axis."""
        t, value, maker = self.types[name], self.find_known(name), self.makers.get(name)
        if axis < 0 or t.dims[axis] != self.samples:
            return False
        if value is not None:
            return bool(np.all(np.moveaxis(value, axis, 0) == self._count(t.rank)))
        if maker is None:
            return False
        x = self.types[maker.inputs[0]] if maker.inputs and maker.inputs[0] else t
        if self.find_samples(maker) is Samples.EXPANDED:
            return self._is_number(maker.inputs[0], axis - t.rank + x.rank)
        if get_declaration(self.graph, maker).keeps_elements:
            before = math.prod(t.dims[:axis])
            return any(
                math.prod(x.dims[:k]) == before and self._is_number(maker.inputs[0], k)
                for k in range(x.rank)
            )
        return False
