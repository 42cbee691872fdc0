"""Expansion of nodes whose op is composed of other ops into nodes of those ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.base import limits
from engine.base.element_types import NUMPY
from engine.base.errors import ModelError
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import Answers, get_declaration, make_site, run_rule
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.infer import NodeResults, infer, naming_sources
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import Op, read_op_keys, title_op
from engine.kernels.vocabulary.sizes import make_array

DEPTH = 16  # how often the result of an expansion may itself be expanded


def expand(
    graph: Graph,
    inferred: Inferred,
    chosen: Callable[[Node, Op], bool] = lambda node, op: True,
    answers: Answers[NodeResults] | None = None,
) -> Inferred:
    """Replace nodes by their expansions, in place, until none is left; return all types.

    inferred: the types and constants of the graph before expansion.
    chosen: returns whether to expand a node of an op; by default every node that has an expansion
        is.
    answers: see `infer`.

    Before   y = DepthToSpace(x), blocksize=2
    After    a = Reshape(x, ...); b = Transpose(a); y = Reshape(b, ...)

    Raises:
        UnsupportedOpError, ShapeError: an expansion refuses its node.
        ModelError: expansions are nested deeper than `DEPTH`.
        LimitError: there would be too many nodes.
    """
    answers = Answers() if answers is None else answers
    most = limits.limit("NODES")
    for _ in range(DEPTH):
        before = graph.nodes
        wanted = {node: op for node in before if (op := _find_expansion(graph, node, chosen))}
        if not wanted:
            return inferred
        names = Names(graph)
        graph.nodes = []
        is_changed = False
        for node in before:
            if node in wanted:
                is_changed |= _replace(graph, inferred, names, node, wanted[node])
            else:
                graph.nodes.append(node)
            if len(graph.nodes) > most:
                limits.check("NODES", len(graph.nodes), graph.name, "expanded it has more than")
        if not is_changed:
            return inferred
        inferred = infer(graph, answers=answers)
    raise ModelError(f"{graph.name}: expansions are nested deeper than {DEPTH}")


def expand_first(graph: Graph, chosen: Callable[[Node], bool] = lambda node: True) -> Graph:
    """Replace nodes whose expansion reads no types, in place.

    chosen: returns whether to expand a node; by default every one is.

    Before   y, n = ConcatTraining(a, b), axis=1; da, db = SplitTraining(dy, n)
    After    y = Concat(a, b), axis=1; n = Concat(Gather(Shape(a), [1]), Gather(Shape(b), [1])); ...

    Raises:
        UnsupportedOpError: an expansion refuses its node.
    """
    first = {
        n: op
        for n in graph.nodes
        if (op := list_ops().get((n.domain, n.op))) and op.expands_first and chosen(n)
    }
    if first:
        names, nodes, nothing = Names(graph), graph.nodes, Inferred({}, {})
        graph.nodes = []
        for node in nodes:
            if node in first:
                _replace(graph, nothing, names, node, first[node])
            else:
                graph.nodes.append(node)
    return graph


def _find_expansion(graph: Graph, node: Node, chosen: Callable[[Node, Op], bool]) -> Op | None:
    """Return the declaration of a node that is to be expanded, or None."""
    op = list_ops().get((node.domain, node.op)) or get_declaration(graph, node)
    return op if op.expand is not None and chosen(node, op) else None


def _replace(graph: Graph, found: Inferred, names: Names, node: Node, op: Op) -> bool:
    """Append the expansion of a node, or the node if its rule declines; return whether it was
    expanded.
    """
    assert op.expand is not None
    into = _Expansion(graph, found, names, node)
    with (
        naming_sources(graph, node, found.constants),
        run_rule(op, "the expansion", into.site, node),
    ):
        made = op.expand(into)
    if made is None:
        graph.nodes.append(node)
        return False
    into.finish(made)
    graph.nodes += into.nodes
    return True


class _Expansion:
    """Interface for the expansion of one node (`kernels.vocabulary.op.Nodes`)."""

    def __init__(self, graph: Graph, found: Inferred, names: Names, node: Node) -> None:
        self.graph, self.names, self.node = graph, names, node
        self.site = make_site(graph, node, found.types, found.constants)
        self.declared = get_declaration(graph, node)
        self.title = node.name or node.outputs[0]
        self.nodes: list[Node] = []

    def x(self, i: int) -> str:
        if i >= len(self.node.inputs):
            self.site.fail(f"input {i} is missing")
        return self.node.inputs[i]

    def wants(self, i: int) -> bool:
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def op(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        becomes = self.declared.becomes
        if becomes is not None and (domain, op) not in read_op_keys(f"{becomes} Identity"):
            raise LookupError(
                f"{self.declared.title} expands into {title_op(domain, op)}, which its "
                f"declaration `becomes` leaves out"
            )
        title = self.names.take_fresh(f"{self.title}/{op}")
        made = tuple(self.names.take_fresh(f"{title}_output_{k}") for k in range(outputs))
        self.nodes.append(Node(op, inputs, made, attrs, domain, title))
        return made if outputs > 1 else made[0]

    def const(self, value: Any, dtype: str) -> str:
        name = self.names.take_fresh(f"{self.title}/{dtype}")
        self.graph.initializers[name] = make_array(value, NUMPY[dtype])
        return name

    def like(self, value: float, i: int) -> str:
        return self.const(value, self.site.type(i).dtype)

    def sized(self, value: float, i: int) -> str:
        name = self.like(value, i)
        self.graph.sized.add(name)
        return name

    def finish(self, made: tuple[str, ...]) -> None:
        """Rename the values `made` to the outputs of the expanded node.

        An Identity is added for a value that is an input of the node or two of its outputs.
        """
        own = {o for n in self.nodes for o in n.outputs}
        final: dict[str, str] = {}
        for name, output in zip(made, self.node.outputs, strict=False):
            if output and (name not in own or name in final):
                name = self.op("Identity", name)
            if output:
                final[name] = output
        for node in self.nodes:
            node.inputs = tuple(final.get(i, i) for i in node.inputs)
            node.outputs = tuple(final.get(o, o) for o in node.outputs)
