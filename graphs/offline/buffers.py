"""Buffers that a module changes while it runs forward: averages of what it has seen, for example.

A forward model has a MovedBuffer where a module reads the new value (kernels/ops/gradient_flow.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.graphs.ir.graph import Graph, Names, Node
from engine.kernels.vocabulary.op import OURS


class Mover:
    """Moves values of a graph in training, by nodes that it appends."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph)
        self._always = ""

    def append(self, old: str, new: str, momentum: float, title: str) -> None:
        """Let a value become `momentum old + (1 - momentum) new` after it has been read."""
        if not self._always:
            self._always = self.names.take_fresh("always")
            self.graph.initializers[self._always] = np.ones(1, np.bool_)
        flag = self.names.take_fresh(f"{new}_flag")
        title = self.names.take_fresh(f"{title}/MoveStatistic")
        attrs = {"momentum": momentum}
        self.graph.nodes.append(
            Node("MoveStatistic", (old, new, self._always), (flag,), attrs, OURS, title)
        )


def list_moved(graph: Graph) -> list[Node]:
    """Return the nodes that stand for buffers with new values."""
    return [n for n in graph.nodes if (n.domain, n.op) == (OURS, "MovedBuffer")]


def read_new(nodes: Sequence[Node]) -> list[tuple[str, str, str]]:
    """Let nodes that stand for buffers have their new values, in place.

    Returns the buffer, its new value, and the title of each.

    Before   y = MovedBuffer(old, new)
    After    y = Identity(new)
    """
    read = []
    for node in nodes:
        old, new = node.inputs
        node.op, node.domain, node.inputs = "Identity", "", (new,)
        read.append((old, new, node.name))
    return read


def move_buffers(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Let buffers have their new values in training, and keep them, in place.

    Before   y = MovedBuffer(old, new)
    After    y = Identity(new); MoveStatistic(old, new, true) momentum=0
    """
    mover = Mover(graph)
    for old, new, title in read_new(nodes):
        mover.append(old, new, 0.0, title)
    return graph


def move_last(graph: Graph) -> Graph:
    """Let values move after all other nodes, in place: the backward pass reads some, too."""
    graph.nodes.sort(key=lambda node: (node.domain, node.op) == (OURS, "MoveStatistic"))
    return graph
