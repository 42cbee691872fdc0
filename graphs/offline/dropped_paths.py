"""Masks of dropped paths, whose expectation takes their place in inference.

Stochastic depth (Huang et al., 2016, arXiv:1603.09382), or drop path, multiplies a branch of each
sample by a draw of 0 or 1, and divides it by the chance of a 1.  ONNX has no op for it, so that
exporters write the arithmetic of the draw, which runs in inference as in training:

    Bernoulli(p)        Cast(Less(u, p))        Floor(Add(u, p))        u = RandomUniformLike(v)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np

from engine.base.element_types import NUMPY
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import prune

T = TypeVar("T")
UNIFORM = {"RandomUniform", "RandomUniformLike"}
_COPIES = {"Cast", "CastLike", "Identity"}
_LESS, _GREATER = {"Less", "LessOrEqual"}, {"Greater", "GreaterOrEqual"}
_EXACT = 1e-6  # relative; the quotient of a chance and its rounded copy is 1


def expect_masks(graph: Graph) -> Graph:
    """Replace masks of 0 and 1 by the chance of a 1, in place, where that is a constant.

    Other random numbers stay as they are.

    Before   u = RandomUniformLike(v); m = Cast(Less(u, 0.8)); s = Div(m, 0.8); y = Mul(x, s)
    After    y = Identity(x)                      # if m broadcasts to the shape of x
    """
    if any(n.op in UNIFORM or n.op == "Bernoulli" for n in graph.nodes if not n.domain):
        _DropoutMasks(graph, infer(graph.copy())).replace()
        prune(graph)
    return graph


class _DropoutMasks:
    """The masks of a graph, found in the order of its nodes.

    draws: values uniform in [0, 1), their comparisons and sums, with the node that draws.
    chances: the chance that a comparison is true.
    sums: the number that is added to a draw; the floor of the sum is 1 with this chance.
    expected: the expectations of masks, and of their products with constants.
    expanded: results of Expand, with its operand.
    """

    def __init__(self, graph: Graph, known: Inferred) -> None:
        self.graph, self.known, self.names = graph, known, Names(graph)
        self.draws: dict[str, Node] = {}
        self.chances: dict[str, float] = {}
        self.sums: dict[str, float] = {}
        self.expected: dict[str, float] = {}
        self.expanded: dict[str, str] = {}

    def replace(self) -> None:
        """Give each mask its expectation; products with an expectation of 1 are copies."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self._replace_node(node) if not node.domain else [node]
        self.graph.nodes = nodes

    def _replace_node(self, node: Node) -> Iterator[Node]:
        y, inputs = node.outputs[0], node.inputs
        if node.op in UNIFORM and _is_unit(node.attrs):
            self.draws[y] = node
        elif node.op in _COPIES and inputs[0] in self.chances:
            yield from self._fill_mask(y, self.chances[inputs[0]], self.draws[inputs[0]])
            return
        elif node.op == "Floor" and inputs[0] in self.sums:
            yield from self._fill_mask(y, self.sums[inputs[0]], self.draws[inputs[0]])
            return
        elif node.op in _COPIES:
            _copy(self.draws, inputs[0], y)
            _copy(self.sums, inputs[0], y)
            _copy(self.expected, inputs[0], y)
        elif node.op == "Expand":
            self.expanded[y] = self.expanded.get(inputs[0], inputs[0])
        elif node.op == "Bernoulli" and (chance := self._find_number(inputs[0])) is not None:
            self.expected[y] = chance
            to = {"to": node.attrs["dtype"]} if "dtype" in node.attrs else {}
            yield Node("Cast" if to else "Identity", inputs, (y,), to, "", node.name)
            return
        elif node.op in _LESS | _GREATER:
            self._compare(y, inputs, node.op)
        elif node.op == "Add":
            self._add(y, *inputs)
        elif node.op in ("Mul", "Div") and (made := self._scale_by_expectation(node)) is not None:
            yield made
            return
        yield node

    def _compare(self, y: str, inputs: tuple[str, ...], op: str) -> None:
        """Note a comparison of a draw with a number."""
        for draw, other, below in (
            (inputs[0], inputs[1], op in _LESS),
            (inputs[1], inputs[0], op in _GREATER),
        ):
            bound = self._find_number(other)
            if draw in self.draws and bound is not None:
                chance = min(max(bound, 0.0), 1.0)
                self.draws[y] = self.draws[draw]
                self.chances[y] = chance if below else 1 - chance

    def _add(self, y: str, one: str, two: str) -> None:
        """Note a draw plus a chance, whose floor is a mask."""
        for draw, other in ((one, two), (two, one)):
            chance = self._find_number(other)
            if draw in self.draws and chance is not None and 0 <= chance <= 1:
                self.draws[y], self.sums[y] = self.draws[draw], chance

    def _scale_by_expectation(self, node: Node) -> Node | None:
        """Return the node that replaces a product or quotient with an expectation."""
        (a, b), y = node.inputs, node.outputs[0]
        number = self._find_number(b)
        if a in self.expected and number:
            self.expected[y] = self.expected[a] * (number if node.op == "Mul" else 1 / number)
            return None
        if node.op == "Mul":
            for x, mask in ((a, b), (b, a)):
                if mask in self.expected and self._is_large(x, y):
                    if math.isclose(self.expected[mask], 1, rel_tol=_EXACT):
                        return Node("Identity", (x,), (y,), {}, "", node.name)
                    factor = self._add_constant(self.expected[mask], y)
                    return Node("Mul", (x, factor), (y,), {}, "", node.name)
        return None

    def _fill_mask(self, y: str, chance: float, draw: Node) -> Iterator[Node]:
        """Yield the nodes that fill a mask, of the shape of a draw, with the chance of a 1."""
        self.expected[y] = chance
        shape = self.names.take_fresh(f"{y}_shape")
        if draw.op == "RandomUniform":
            self.graph.initializers[shape] = np.array(draw.attrs["shape"], np.int64)
        else:
            yield Node("Shape", draw.inputs, (shape,), {}, "", self.names.take_fresh(f"{y}_shape"))
        filled = (self._add_constant(chance, y), shape)
        yield Node("Expand", filled, (y,), {}, "", self.names.take_fresh(f"{y}_expected"))

    def _add_constant(self, number: float, like: str) -> str:
        name = self.names.take_fresh(f"{like}_expectation")
        self.graph.initializers[name] = np.array(number, NUMPY[self.known.types[like].dtype])
        return name

    def _find_number(self, name: str) -> float | None:
        """Return a value if it is one constant number, or one expanded to a shape."""
        value = self.known.constants.get(self.expanded.get(name, name))
        if value is None or value.dtype.kind != "f" or not value.size:
            return None
        return float(value.flat[0]) if (value == value.flat[0]).all() else None

    def _is_large(self, x: str, y: str) -> bool:
        """Return whether a value has the shape of a product with it."""
        return self.known.types[x].shape == self.known.types[y].shape


def _copy(table: dict[str, T], x: str, y: str) -> None:
    if x in table:
        table[y] = table[x]


def _is_unit(attrs: Mapping[str, object]) -> bool:
    """Return whether a draw lies in [0, 1)."""
    return attrs.get("low", 0.0) == 0.0 and attrs.get("high", 1.0) == 1.0
