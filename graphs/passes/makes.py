"""What passes may put into a graph, told before there is one.

A library for a set of ops is made before the plans that run on it, so it must hold the kernels of
whatever these ops become on the way to a plan.  A pass that adds ops therefore says which, and of
what; the planner holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.graphs.ir.graph import Graph, Subgraph
from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import op_keys

Keys = frozenset[tuple[str, str]]  # ops, as (domain, op type)
Makes = Callable[[Keys], Keys]  # the ops a pass may add to a graph that holds these


def nothing(held: Keys) -> Keys:
    """What a pass makes that adds no op."""
    return frozenset()


def where(table: Mapping[str, str]) -> Makes:
    """By table: where a graph holds all ops of the left, those of the right may be added.

    `where({"Conv Relu": "com.microsoft::FusedConv"})`; both sides as `op_keys` reads them.
    """
    rows = [(op_keys(needed), op_keys(added)) for needed, added in table.items()]

    def makes(held: Keys) -> Keys:
        return frozenset[tuple[str, str]]().union(*(new for needed, new in rows if needed <= held))

    return makes


def from_ops(held: Keys) -> Keys:
    """What expansions make: all that the ops, and those that they become, declare.

    An Identity stands where an output of an expansion is one of its inputs.  An op that does not
    declare what it becomes may become anything.
    """
    found: set[tuple[str, str]] = set()
    waiting = list(held)
    while waiting:
        op = ops().get(waiting.pop())
        if op is None or op.expand is None:
            continue
        if op.becomes is None:
            return frozenset(ops())
        new = (op_keys(op.becomes) | op_keys("Identity")) - found
        found |= new
        waiting += new
    return frozenset(found)


def kinds(graph: Graph) -> Keys:
    """The ops that a graph holds, those of the bodies of its control flow too."""
    found = {(n.domain, n.op) for n in graph.nodes}
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, Subgraph):
                found |= kinds(value.graph)
    return frozenset(found)
