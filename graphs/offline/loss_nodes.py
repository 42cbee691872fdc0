"""The nodes of a loss: appended to a graph, with targets as inputs, and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.element_types import FLOATS, NUMPY
from engine.base.errors import DTypeError, ModelError
from engine.base.other_names import LOSS_INPUTS
from engine.graphs.ir.graph import Graph, Names, Node, find_type
from engine.kernels.vocabulary.op import MS, OURS, TensorType

REDUCTIONS = {"none": None, "mean": "ReduceMean", "sum": "ReduceSum"}


PREFIX = "loss"  # of the names of nodes and constants


class LossNodes:
    """Appends the nodes of a loss to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph)

    def find_type(self, name: str) -> TensorType:
        """Return the type of a value that a loss is computed on.

        Raises:
            ModelError: there is no such value, or its type is not known.
            DTypeError: it is not f32 or f64.
        """
        graph = self.graph
        t = graph.types.get(name) or graph.inputs.get(name)
        if t is None:
            raise ModelError(
                f"{graph.name}: the loss needs the value {name!r}, which the model lacks, or whose "
                "type is not known"
            )
        if t.dtype not in FLOATS:
            raise DTypeError(
                f"{graph.name}: the loss is computed on {name!r}, which is {t}; expected f32 or f64"
            )
        return t

    def add_target(self, name: str, t: TensorType) -> str:
        """Return the name of the target; if the model has no value of that name, add an input.

        name: a `DefaultName` is never the name of a value of the model: the input then gets a fresh
            name, which all losses of the graph share.

        Raises:
            ModelError: the model has one of another type.
        """
        graph = self.graph
        if isinstance(name, arguments.DefaultName):
            if name not in graph.targets:
                taken = name in set(graph.list_values())
                graph.targets[name] = Names(graph).take_fresh(str(name)) if taken else str(name)
            name = graph.targets[name]
        known = graph.inputs.get(name) or graph.types.get(name)
        if known is None and name in graph.initializers:
            known = find_type(graph.initializers[name])
        if known is None and name in set(graph.list_values()):
            return name
        if known is None:
            graph.inputs[name] = t
        elif known.dtype != t.dtype or known.rank != t.rank:
            raise ModelError(
                f"{graph.name}: the loss needs {name!r} as {t}, but the model has one that is "
                f"{known}; name another with {LOSS_INPUTS}"
            )
        return name

    def add_integer_target(self, name: str, shape: Sequence[int | str]) -> str:
        """Return the name of an i64 target of this shape, such as labels; see `add_target`."""
        return self.add_target(name, TensorType("i64", tuple(shape)))

    def append_many(
        self, op: str, *inputs: str, outputs: int, domain: str = "", **attrs: Any
    ) -> list[str]:
        """Append a node and return its outputs."""
        if domain:
            self.graph.opsets.setdefault(domain, 1)
        title = self.names.take_fresh(f"{PREFIX}/{op}")
        results = [self.names.take_fresh(f"{title}_output_{k}") for k in range(outputs)]
        self.graph.nodes.append(Node(op, inputs, tuple(results), attrs, domain, title))
        return results

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Append a node and return its output."""
        return self.append_many(op, *inputs, outputs=1, **attrs)[0]

    def append_named(self, op: str, *inputs: str, output: str) -> None:
        """Append a node whose output has a name of its own.

        Raises:
            ModelError: the model has a value of this name.
        """
        if output in set(self.graph.list_values()):
            raise ModelError(f"{self.graph.name}: a value of the model has the name {output!r}")
        title = self.names.take_fresh(f"{PREFIX}/{op}")
        self.graph.nodes.append(Node(op, inputs, (output,), {}, "", title))

    def append_own(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Append a node of an op of the domain `engine` and return its output."""
        return self.add(op, *inputs, domain=OURS, **attrs)

    def add_constant(self, what: str, value: Any, dtype: str) -> str:
        """Add an initializer."""
        name = self.names.take_fresh(f"{PREFIX}/{what}")
        self.graph.initializers[name] = arguments.cast(what, value, np.dtype(NUMPY[dtype]))
        return name

    def reduce(self, x: str, reduction: str) -> str:
        """Append the mean or the sum of all elements, a scalar; return `x` itself for "none"."""
        op = REDUCTIONS[reduction]
        return self.add(op, x, keepdims=0) if op else x

    def sum(self, x: str, axes: Sequence[int], *, keepdims: bool = False) -> str:
        """Append the sum along axes, which are dropped, or have the size 1 with `keepdims`."""
        given = self.add_constant("axes", list(axes), "i64")
        return self.add("ReduceSum", x, given, keepdims=int(keepdims))

    def mean(self, x: str, axis: int) -> str:
        """Append the mean along an axis, which is dropped."""
        return self.reduce_along("ReduceMean", x, axis)

    def reduce_along(self, op: str, x: str, axis: int) -> str:
        """Append a reduction other than ReduceSum along an axis, which is dropped."""
        if self.graph.opsets.get("", 1) < 18:
            return self.add(op, x, axes=[axis], keepdims=0)
        return self.add(op, x, self.add_constant("axes", [axis], "i64"), keepdims=0)

    def scale(self, x: str, factor: float, dtype: str) -> str:
        """Append x times a number; return x itself for 1."""
        if factor == 1:
            return x
        return self.add("Mul", x, self.add_constant("factor", factor, dtype))

    def clip_below(self, x: str, least: float, dtype: str) -> str:
        """Append max(x, least), without a gradient where x is less."""
        return self.add("Clip", x, self.add_constant("least", least, dtype))

    def append_size(self, x: str, axis: int) -> str:
        """Append the length of an axis, an i64 scalar."""
        return self.add(
            "Gather", self.add("Shape", x), self.add_constant("axis", axis, "i64"), axis=0
        )

    def append_range(self, length: str) -> str:
        """Append 0, 1, ... below `length`, i64."""
        first, step = (self.add_constant("range", k, "i64") for k in (0, 1))
        return self.add("Range", first, length, step)

    def divide(self, total: str, count: str, dtype: str) -> str:
        """Append total / count, scalars; `total` where the count is 0."""
        is_none = self.add("Equal", count, self.add_constant("zero", 0, dtype))
        one = self.add_constant("one", 1, dtype)
        return self.add("Div", total, self.add("Where", is_none, one, count))

    def reduce_counted(self, each: str, counts: str, reduction: str, dtype: str) -> str:
        """Append the reduction; a mean divides by the sum of `counts`, and is 0 where that is 0."""
        if reduction != "mean":
            return self.reduce(each, reduction)
        return self.divide(self.reduce(each, "sum"), self.reduce(counts, "sum"), dtype)

    def stop_gradient(self, x: str) -> str:
        """Append x, with no gradient to it."""
        return self.add("PassThrough", x, domain=MS)
