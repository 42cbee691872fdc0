"""Checks between passes: names, the order of nodes, and the types of the changed values."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from engine.base.aliases import Array
from engine.base.errors import EngineError, ModelError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import Answers, get_declaration, list_facts, make_site
from engine.graphs.passes.infer import NodeResults
from engine.kernels.vocabulary.op import OURS, TensorType

# A node without its name: its parts and the names of its attributes, and their values.
State = tuple[tuple[object, ...], tuple[object, ...]]


class Watch:
    """Checker of a graph after every pass; only nodes that have changed since are inferred again.

    Attributes are compared by identity: a pass that replaces a value by an equal one only causes an
    unnecessary check.

    answers: results of shape rules from the inference of the graph.  The types that a node makes
        are compared with the recorded ones even if its rule need not be called again.
    """

    def __init__(self, answers: Answers[NodeResults]) -> None:
        self._answers = answers
        self._made: Answers[tuple[TensorType, ...]] = Answers()
        self._dtypes: Answers[list[str | None]] = Answers()  # of the results of maps
        self._seen: dict[Node, State] = {}
        self._nodes: list[Node] = []
        self._ends: tuple[set[str], list[str]] = set(), []  # names that no node makes; outputs

    def check(
        self, graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, Array]
    ) -> None:
        """Check names and order, and that changed nodes make values of the recorded types.

        types: the recorded type of every value.  It is empty before the pass that infers types;
            then only names and order are checked.

        Raises:
            LookupError: a value is made twice, is read before it is made, or has no type.
            TypeError: a node makes another type than the recorded one.
        """
        if not types:
            _check_order(graph)
            return
        changed = self._list_changed(graph.nodes)
        ends = {*graph.inputs, *graph.initializers}, list(graph.outputs)
        if changed or ends != self._ends or graph.nodes != self._nodes:
            _check_order(graph)
        self._nodes, self._ends = list(graph.nodes), ends
        for node in changed:
            self._check_node(graph, node, types, constants)

    def _list_changed(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that are new or have changed since the last call."""
        changed: list[Node] = []
        seen: dict[Node, State] = {}
        for node in nodes:
            attrs = node.attrs
            parts: tuple[object, ...] = (node.op, node.domain, node.inputs, node.outputs)
            if attrs:
                parts += tuple(attrs)
            state = self._seen.get(node)
            if (
                state is None
                or state[0] != parts
                or (attrs and not all(map(operator.is_, state[1], attrs.values())))
            ):
                changed.append(node)
                state = parts, tuple(attrs.values())
            seen[node] = state
        self._seen = seen
        return changed

    def _check_node(
        self,
        graph: Graph,
        node: Node,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Array],
    ) -> None:
        """Compare the types that a node makes from its inputs with the recorded ones."""
        untyped = [v for v in (*node.list_reads(), *node.outputs) if v and v not in types]
        if untyped:
            raise LookupError(f"{node}: {', '.join(untyped)} have no type")
        if (node.domain, node.op) == (OURS, "Map"):
            self._check_map(graph, node, types, constants)
            return
        types_made = self._infer_types(graph, node, types, constants)
        for name, made in zip(node.outputs, types_made, strict=False):
            kept = types.get(name)
            if kept is made or kept is None:
                continue
            if (made.dtype, made.shape) != (kept.dtype, kept.shape):
                raise TypeError(f"{node}: {name} is recorded as {kept}, but is made as {made}")

    def _infer_types(
        self,
        graph: Graph,
        node: Node,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Array],
    ) -> tuple[TensorType, ...]:
        """Return the types that a node makes, by its shape rule."""
        told = list_facts(graph, node, types, constants)
        inferred = self._answers.get(told)
        if inferred is not None:
            return inferred.types
        result = self._made.get(told)
        if result is None:
            site = make_site(graph, node, types, constants)
            try:
                result = get_declaration(graph, node).infer(site)
            except EngineError as error:
                raise TypeError(f"{node}: its types do not fit: {error}") from error
            self._made.keep(told, site, result)
        return result

    def _check_map(
        self,
        graph: Graph,
        node: Node,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Array],
    ) -> None:
        """Check the types of the outputs of a map.

        It repeats its operands up to the recorded shape of an output, which may be larger than the
        shapes of all operands, and it can write formulas of constants as any element type.
        """
        ins = [types[i] for i in node.inputs]
        told = list_facts(graph, node, types, constants)
        dtypes = self._dtypes.get(told)
        if dtypes is None:
            dtypes = node.attrs["formulas"].infer_results([t.dtype for t in ins])
            self._dtypes.keep(told, make_site(graph, node, types, constants), dtypes)
        for name, made in zip(node.outputs, dtypes, strict=True):
            kept = types[name]
            if made not in (None, kept.dtype):
                raise TypeError(
                    f"{node}: {name} is recorded as {kept}, but its formula makes {made}"
                )
            for t in ins:
                pairs = zip(reversed(t.shape), reversed(kept.shape), strict=False)
                if t.rank > kept.rank or not all(a is b or a in (1, b) for a, b in pairs):
                    raise TypeError(f"{node}: {t} does not broadcast to {name}, recorded as {kept}")


def _check_order(graph: Graph) -> None:
    """Check names and order; a fault is a pass's: the model was checked before."""
    try:
        graph.check()
    except ModelError as error:
        raise LookupError(str(error)) from error
