"""Declarations of passes: the ops that a pass may add to a graph, given the ops in the graph.

A library for a set of ops is built before the graphs that will use it are known, so it must contain
the kernels of every op that a pass could put in their place.  Therefore every pass declares what it
may add, and the planner refuses a pass that adds anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.graphs.ir.graph import Graph, Subgraph
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import read_op_keys

Keys = frozenset[tuple[str, str]]  # ops, as (domain, op type)
MayAdd = Callable[[Keys], Keys]  # the ops that a pass may add to a graph with these ops


def add_nothing(held: Keys) -> Keys:
    """Return the declaration of a pass that adds no op."""
    return frozenset()


def add_by_table(table: Mapping[str, str]) -> MayAdd:
    """Return a declaration by table: if a graph has all ops of a key, the ops of its value may be
    added.

    Both are texts in the notation of `read_op_keys`: `add_by_table({"Conv Relu":
    "com.microsoft::FusedConv"})`.
    """
    rows = [(read_op_keys(needed), read_op_keys(added)) for needed, added in table.items()]

    def list_added(held: Keys) -> Keys:
        return frozenset[tuple[str, str]]().union(*(new for needed, new in rows if needed <= held))

    return list_added


def from_ops(held: Keys) -> Keys:
    """Return the declaration of `expand`: the ops that the given ops declare to become, and so on.

    It includes Identity, for an output of an expansion that is also one of its inputs.  If an op
    does not declare what it becomes, the result is all ops.
    """
    keys: set[tuple[str, str]] = set()
    waiting = list(held)
    while waiting:
        op = list_ops().get(waiting.pop())
        if op is None or op.expand is None:
            continue
        if op.becomes is None:
            return frozenset(list_ops())
        new = (read_op_keys(op.becomes) | read_op_keys("Identity")) - keys
        keys |= new
        waiting += new
    return frozenset(keys)


def from_first_ops(held: Keys) -> Keys:
    """Return the declaration of `expand_first`: as `from_ops`, for ops that are expanded first."""
    return from_ops(frozenset(k for k in held if k in list_ops() and list_ops()[k].expands_first))


def list_kinds(graph: Graph) -> Keys:
    """Return the ops of all nodes of a graph, including the bodies of control flow."""
    keys = {(n.domain, n.op) for n in graph.nodes}
    values = [v for n in graph.nodes if n.attrs for v in n.attrs.values()]
    for value in values:
        if isinstance(value, Subgraph):
            keys |= list_kinds(value.graph)
    return frozenset(keys)
