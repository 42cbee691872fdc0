"""What each pass declares: the ops that it may add to a graph, given the ops that it holds.

A library for a set of ops is built before the graphs that will use it are known.  It must hold the
kernels of every op that passes can put in the place of those ops.  Every pass therefore declares
what it may add, and the planner refuses a pass that adds anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.graphs.ir.graph import Graph, Subgraph
from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import op_keys

Keys = frozenset[tuple[str, str]]  # ops, as (domain, op type)
Makes = Callable[[Keys], Keys]  # the ops a pass may add to a graph that holds these


def nothing(held: Keys) -> Keys:
    """The declaration of a pass that adds no op."""
    return frozenset()


def where(table: Mapping[str, str]) -> Makes:
    """A declaration by table: if a graph holds all ops of a key, those of its value may be added.

    Both are texts as `op_keys` reads them: `where({"Conv Relu": "com.microsoft::FusedConv"})`.
    """
    rows = [(op_keys(needed), op_keys(added)) for needed, added in table.items()]

    def makes(held: Keys) -> Keys:
        return frozenset[tuple[str, str]]().union(*(new for needed, new in rows if needed <= held))

    return makes


def from_ops(held: Keys) -> Keys:
    """The declaration of `expand`: what the given ops declare that they become, and so on.

    Identity is among it, for an output of an expansion that is also one of its inputs.  If an op
    does not declare what it becomes, the result is all ops.
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


def from_first_ops(held: Keys) -> Keys:
    """The declaration of `expand_first`: as `from_ops`, for the ops that are expanded first."""
    return from_ops(frozenset(k for k in held if k in ops() and ops()[k].expands_first))


def kinds(graph: Graph) -> Keys:
    """The ops of all nodes of a graph, those in the bodies of control flow included."""
    found = {(n.domain, n.op) for n in graph.nodes}
    values = [v for n in graph.nodes if n.attrs for v in n.attrs.values()]
    for value in values:
        if isinstance(value, Subgraph):
            found |= kinds(value.graph)
    return frozenset(found)
