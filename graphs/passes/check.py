"""Checks between passes: names, the order of nodes, and the types of what a pass has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import EngineError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import declaration, site_of
from engine.kernels.vocabulary.op import OURS, Array, TensorType

State = tuple[str, str, tuple[str, ...], tuple[str, ...], dict[str, Any]]


class Watch:
    """Checks a graph after every pass; only nodes that have changed since are inferred again."""

    def __init__(self) -> None:
        self._seen: dict[Node, State] = {}

    def check(
        self, graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, Array]
    ) -> None:
        """Check names and order, and that changed nodes make values of the recorded types.

        types: the recorded type of every value.  It is empty before the pass that infers types;
            then only names and order are checked.

        Raises:
            ModelError: a value that is made twice, or is read before it is made.
            LookupError: a value without a type.
            TypeError: a node that makes another type than the recorded one.
        """
        graph.check()
        seen: dict[Node, State] = {}
        for node in graph.nodes if types else ():
            state = self._seen.get(node)
            if state is None or not _is_same(state, node):
                _check_node(graph, node, types, constants)
                state = (node.op, node.domain, node.inputs, node.outputs, dict(node.attrs))
            seen[node] = state
        self._seen = seen


def _is_same(old: State, node: Node) -> bool:
    """Whether a node is as it was.

    Attributes are compared by identity.  A pass that puts an equal value in place of another only
    causes a check that was not needed.
    """
    op, domain, inputs, outputs, attrs = old
    if (op, domain, inputs, outputs) != (node.op, node.domain, node.inputs, node.outputs):
        return False
    if not attrs and not node.attrs:
        return True
    if attrs.keys() != node.attrs.keys():
        return False
    return all(attrs[name] is value for name, value in node.attrs.items())


def _check_node(
    graph: Graph, node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> None:
    """Infer the output types of a node from its inputs, and compare them with the recorded ones."""
    untyped = [v for v in (*node.reads(), *node.outputs) if v and v not in types]
    if untyped:
        raise LookupError(f"{node}: {', '.join(untyped)} have no type")
    if (node.domain, node.op) == (OURS, "Map"):
        _check_map(node, types)
        return
    try:
        found = declaration(graph, node).infer(site_of(graph, node, types, constants))
    except EngineError as error:
        raise TypeError(f"{node}: its types do not fit: {error}") from error
    for name, made in zip(node.outputs, found, strict=False):
        kept = types.get(name)
        if kept and (made.dtype, made.shape) != (kept.dtype, kept.shape):
            raise TypeError(f"{node}: {name} is recorded as {kept}, but is made as {made}")


def _check_map(node: Node, types: Mapping[str, TensorType]) -> None:
    """Check that a map makes its outputs.

    It repeats its operands up to the shape that is recorded of an output, which may be larger than
    that of every operand, and it writes formulas of constants alone as any element type.
    """
    ins = [types[i] for i in node.inputs]
    found = node.attrs["formulas"].results_dtypes([t.dtype for t in ins])
    for name, made in zip(node.outputs, found, strict=True):
        kept = types[name]
        if made not in (None, kept.dtype):
            raise TypeError(f"{node}: {name} is recorded as {kept}, but its formula makes {made}")
        for t in ins:
            pairs = zip(reversed(t.shape), reversed(kept.shape), strict=False)
            if t.rank > kept.rank or not all(a in (1, b) for a, b in pairs):
                raise TypeError(f"{node}: {t} does not broadcast to {name}, recorded as {kept}")
