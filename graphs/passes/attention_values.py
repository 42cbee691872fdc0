"""Values of an attention in a graph: their axes and where they come from.

A dimension of a value is described by the axes that it consists of: `b` batch, `g` heads of K and
V, `r` heads of Q that share one of these, `q` queries, `k` keys, `d` columns of Q and K, `e`
columns of V.  [batch, heads, queries, columns] is (b) (g r) (q) (d); as [batch heads, queries,
columns] it is (b g r) (q) (d).  Axes of size 1 are left out, so a reshape may put them anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import find_product
from engine.graphs.ir.symbols import Inferred
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import MATMUL
from engine.kernels.vocabulary.op import Dim

Axes = tuple[tuple[str, ...], ...]
ORDERS = ("batch heads rows", "batch rows heads", "rows batch heads")  # columns follow


def _spell_order(order: str, rows: str, heads: str) -> tuple[str, ...]:
    """Return the axes that make up each dimension of an order."""
    parts = {"batch": ("b",), "heads": tuple(heads), "rows": (rows,)}
    return tuple(chain(*(parts[n] for n in order.split())))


@dataclass(frozen=True, slots=True)
class HeadMatrix:
    """Place of a matrix of each head: a value, its layout, and the factor it is multiplied by.

    order: its four dimensions, one of `ORDERS`.
    is_whole: the value has exactly these dimensions, none joined and none left out.
    """

    name: str
    order: str
    factor: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A product of matrices, by the names of its operands; `flags`: the transposed ones."""

    node: Node
    flags: tuple[bool, bool]
    alpha: float

    @classmethod
    def of(cls, node: Node | None) -> MatrixProduct | None:
        """Return the product that a node computes, or None."""
        if node is None or find_product(node) != MATMUL:
            return None
        if node.attrs.get("transBatchA") or node.attrs.get("transBatchB"):
            return None
        flags = (bool(node.attrs.get("transA")), bool(node.attrs.get("transB")))
        return cls(node, flags, float(node.attrs.get("alpha", 1.0)))


class Values:
    """Values of a graph: their makers, readers and types, and how they depend on each other."""

    def __init__(self, graph: Graph, found: Inferred) -> None:
        self.graph, self.types, self.constants = graph, found.types, found.constants
        self.makers, self.readers = graph.find_producers(), graph.find_consumers()
        self.outputs = set(graph.outputs)
        self.sizes: Mapping[str, Dim] = {}  # of the axes of the current attention

    def find_shape(self, name: str) -> tuple[Dim, ...]:
        return self.types[name].shape

    def find_scalar(self, name: str) -> float | None:
        """Return the number in a constant of one element, or None."""
        value = self.constants.get(name)
        if value is None or value.size != 1 or value.dtype.kind not in "fiu":
            return None
        return float(value.reshape(-1)[0])

    def find_factor(self, node: Node) -> tuple[str, float] | None:
        """Return the value that a node multiplies by a constant, and the constant; or None."""
        if node.domain or node.op not in ("Mul", "Div"):
            return None
        for i in (0, 1) if node.op == "Mul" else (0,):
            other = self.find_scalar(node.inputs[1 - i])
            x = node.inputs[i]
            if other is not None and self.find_shape(x) == self.find_shape(node.outputs[0]):
                if node.op == "Div" and other == 0:
                    return None
                return x, other if node.op == "Mul" else 1 / other
        return None

    def keeps(self, node: Node) -> bool:
        """Return whether the output of a node is its first input, possibly reshaped."""
        op = list_ops().get((node.domain, node.op))
        if op is None or not op.keeps_elements:
            return False
        return self.types[node.inputs[0]].dtype == self.types[node.outputs[0]].dtype

    def list_axes(self, *names: str) -> tuple[str, ...]:
        """Return the given axes that are larger than 1."""
        return tuple(n for n in names if self.sizes[n] != 1)

    def group_axes(self, axes: Axes, shape: Sequence[Dim]) -> Axes | None:
        """Return the same axes as dimensions of a new shape, or None if an axis is cut."""
        left = list(chain(*axes))
        out: list[tuple[str, ...]] = []
        for d in shape:
            group: list[str] = []
            size: Dim = 1
            while size != d:
                if not left:
                    return None
                group.append(left.pop(0))
                size = size * self.sizes[group[-1]]  # type: ignore[operator]  # known
                if len(group) > 3:
                    return None
            out.append(tuple(group))
        return None if left else tuple(out)

    def pad_to_four(self, name: str, rank: int) -> tuple[Dim, ...] | None:
        """Return the shape of a value that broadcasts to scores of `rank` dimensions, as if they
        had four.

        The result is None if it is ambiguous: scores of three dimensions have one for batch and
        heads together.
        """
        shape = self.find_shape(name)
        heads = self.sizes["g"] * self.sizes["r"]  # type: ignore[operator]  # known
        full = (self.sizes["b"], heads, self.sizes["q"], self.sizes["k"])
        four = (*[1] * (4 - len(shape)), *shape)
        if len(shape) == rank == 3 and shape[0] != 1:
            if shape[0] != full[0] * heads:  # type: ignore[operator]  # known
                return None
            four = (*full[:2], *shape[1:])
        fits = len(four) == 4 and all(d in (1, f) for d, f in zip(four, full, strict=True))
        return four if fits else None

    # --- where values come from

    def _go_back(self, name: str, axes: Axes) -> tuple[str, Axes, float] | None:
        """Return the value that is moved, reshaped, repeated or scaled to make this one; its axes;
        the factor.
        """
        node = self.makers.get(name)
        if node is None or node.domain:
            return None
        if scaled := self.find_factor(node):
            return scaled[0], axes, scaled[1]
        x = node.inputs[0] if node.inputs else ""
        if node.op == "Transpose":
            order = node.attrs.get("perm") or range(len(axes))[::-1]
            back = dict(zip(order, axes, strict=True))
            return x, tuple(back[i] for i in range(len(axes))), 1.0
        if self.keeps(node):
            dims = self.group_axes(axes, self.find_shape(x))
            return None if dims is None else (x, dims, 1.0)
        if node.op == "Expand" and len(self.find_shape(x)) == len(axes):
            pairs = zip(axes, self.find_shape(x), self.find_shape(name), strict=True)
            small = [(a, d != full) for a, d, full in pairs]
            if any(changed and a != ("r",) for a, changed in small):
                return None
            return x, tuple(() if changed else a for a, changed in small), 1.0
        return None

    def find_layout(
        self, name: str, axes: Axes, rows: str, columns: str, heads: str
    ) -> HeadMatrix | None:
        """Return the operand for a value that has one of the layouts, or None."""
        flat = tuple(chain(*axes))
        for order in ORDERS:
            if flat == self.list_axes(*_spell_order(order, rows, heads), columns):
                whole = self.list_dims(order, rows, columns, heads)
                return HeadMatrix(name, order, 1.0, self.find_shape(name) == whole)
        return None

    def list_dims(self, order: str, rows: str, columns: str, heads: str) -> tuple[Dim, ...]:
        """Return the four dimensions of an operand of this order."""
        count: Dim = 1
        for h in heads:
            count = count * self.sizes[h]  # type: ignore[operator]  # known
        lead = {"batch": self.sizes["b"], "heads": count, "rows": self.sizes[rows]}
        return (*(lead[n] for n in order.split()), self.sizes[columns])

    def find_source(
        self, name: str, axes: Axes, rows: str, columns: str, heads: str
    ) -> HeadMatrix | None:
        """Return the earliest value that differs from a matrix operand in layout and a factor only.

        heads: the axes that make up its heads.  Factors of V, Y and their gradients, whose columns
            are `e`, are not followed, because the kernels do not accept them.
        """
        best: HeadMatrix | None = None
        factor = 1.0
        while True:
            here = self.find_layout(name, axes, rows, columns, heads)
            if here is not None and (here.is_whole or best is None or not best.is_whole):
                best = HeadMatrix(here.name, here.order, factor, here.is_whole)
            step = self._go_back(name, axes)
            if step is None or (columns == "e" and step[2] != 1):
                return best
            name, axes, factor = step[0], step[1], factor * step[2]

    # --- where values go

    def find_only_reader(self, name: str) -> Node | None:
        """Return the only node that reads a value; None if several do, or if it is an output of the
        graph.
        """
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def _go_on(self, name: str, axes: Axes) -> tuple[Node, Axes, float] | None:
        """Return the node that only moves, reshapes, scales or sums this value over repeats."""
        node = self.find_only_reader(name)
        if node is None or node.domain or node.inputs.count(name) != 1:
            return None
        out = node.outputs[0]
        if (scaled := self.find_factor(node)) and scaled[0] == name:
            return node, axes, scaled[1]
        if node.inputs[0] != name:
            return None
        if node.op == "Transpose":
            order = node.attrs.get("perm") or range(len(axes))[::-1]
            return node, tuple(axes[i] for i in order), 1.0
        if self.keeps(node):
            dims = self.group_axes(axes, self.find_shape(out))
            return None if dims is None else (node, dims, 1.0)
        if node.op == "ReduceSum" and len(node.inputs) == 2:
            over = self.constants.get(node.inputs[1])
            if over is None or over.size != 1:
                return None
            at = int(over.reshape(-1)[0]) % len(axes)
            if axes[at] != ("r",):
                return None
            keeps = node.attrs.get("keepdims", 1)
            rest = ((),) if keeps else ()
            return node, (*axes[:at], *rest, *axes[at + 1 :]), 1.0
        return None

    def find_target(
        self, name: str, axes: Axes, rows: str, columns: str, heads: str
    ) -> tuple[HeadMatrix, list[Node]] | None:
        """Return the final form of a product's result, up to layout and a factor, and the nodes
        between.
        """
        best: tuple[HeadMatrix, list[Node]] | None = None
        factor, passed = 1.0, list[Node]()
        while True:
            here = self.find_layout(name, axes, rows, columns, heads)
            if here is not None and (here.is_whole or best is None or not best[0].is_whole):
                best = HeadMatrix(name, here.order, factor, here.is_whole), list(passed)
            step = self._go_on(name, axes)
            if step is None or (columns == "e" and step[2] != 1):
                return best
            node, axes = step[0], step[1]
            name, factor = node.outputs[0], factor * step[2]
            passed.append(node)

    def find_known(self, name: str) -> Array | None:
        """Return the value that constants give, before it is repeated along axes; None if inputs
        decide it.
        """
        if name in self.constants:
            return np.asarray(self.constants[name])
        node = self.makers.get(name)
        if node is None or node.domain:
            return None
        if node.op in ("Expand", "Identity"):
            return self.find_known(node.inputs[0])
        if node.op == "Not":
            value = self.find_known(node.inputs[0])
            return None if value is None else np.logical_not(value)
        if node.op == "Where":
            c, x, y = (self.find_known(i) for i in node.inputs)
            return None if c is None or x is None or y is None else np.where(c, x, y)
        return None
