"""Models that compute something else in training than in evaluation.

A forward model has a ModeChoice for each value that differs (kernels/ops/gradient_flow.py):

    y = engine.ModeChoice(evaluated, trained)
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.op import OURS


def list_choices(graph: Graph) -> list[Node]:
    """Return the nodes whose values depend on the mode."""
    return [n for n in graph.nodes if (n.domain, n.op) == (OURS, "ModeChoice")]


def choose_mode(graph: Graph, trains: bool) -> Graph:
    """Let a graph compute what it does in one mode alone, in place.

    Before   a = Relu(x); b = Dropout(x); y = ModeChoice(a, b)
    After    b = Dropout(x); y = Identity(b)        if it trains
    """
    choices = list_choices(graph)
    for node in choices:
        node.op, node.domain, node.inputs = "Identity", "", (node.inputs[trains],)
    return prune(graph) if choices else graph


class EvaluationPart:
    """The nodes that only evaluation has, which `make_artifacts` takes out of a forward graph."""

    def __init__(self, forward: Graph) -> None:
        """Take what the mode decides out of `forward`, which then computes what training does."""
        self.own: Graph | None = None
        if list_choices(forward):
            self.own = choose_mode(forward.copy(), trains=False)
            choose_mode(forward, trains=True)
        self.before: Sequence[Node] = list(forward.nodes)

    def join(self, graph: Graph) -> Graph:
        """Return a copy of the graph, with the loss, that computes what evaluation does.

        Before   y = Dropout(x); loss = ...(y, labels)
        After    y = Relu(x);    loss = ...(y, labels)
        """
        made = graph.copy()
        if self.own is None:
            return made
        known = {node.name for node in self.before}
        own = self.own.copy()
        made.nodes = own.nodes + [n for n in made.nodes if n.name not in known]
        made.initializers = {
            **{n: a for n, a in own.initializers.items() if n not in made.inputs},
            **made.initializers,
        }
        infer(made)
        return made
