"""Cleanup of a bound graph: what a node cannot change is removed before anything is lowered."""

from __future__ import annotations

from engine.graphs.ir import Graph, Node
from engine.kernels._op import MS

_KEEP = {(MS, "InPlaceAccumulatorV2"), (MS, "AdamWOptimizer"), (MS, "SGDOptimizerV2")}


def prune(graph: Graph) -> Graph:
    """Drop nodes that reach no output and write nothing that outlives the run.

    Before   y = Relu(x); z = Exp(x); output y
    After    y = Relu(x); output y
    """
    wanted = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if (node.domain, node.op) in _KEEP or any(o in wanted for o in node.outputs):
            kept.append(node)
            wanted.update(node.reads())
    graph.nodes = kept[::-1]
    graph.initializers = {k: v for k, v in graph.initializers.items() if k in wanted}
    return graph


def drop_identities(graph: Graph) -> Graph:
    """Let readers of an Identity read its input; outputs of the graph keep their node.

    Before   b = Identity(a); c = Relu(b)
    After    c = Relu(a)
    """
    alias: dict[str, str] = {}
    kept = []
    for node in graph.nodes:
        node.inputs = tuple(alias.get(i, i) for i in node.inputs)
        if node.op == "Identity" and not node.domain and node.outputs[0] not in graph.outputs:
            alias[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    graph.nodes = kept
    return graph


def relu_grad_reads_output(graph: Graph) -> Graph:
    """Let ReluGrad read Relu's output instead of its input: Y > 0 exactly where X > 0.

    Then nothing but Relu reads X, which the fuser can keep in registers.

    Before   y = Relu(x); dx = ReluGrad(dy, x)
    After    y = Relu(x); dx = ReluGrad(dy, y)
    """
    relus = {n.inputs[0]: n.outputs[0] for n in graph.nodes if n.op == "Relu" and not n.domain}
    for node in graph.nodes:
        if node.op == "ReluGrad" and node.inputs[1] in relus:
            node.inputs = (node.inputs[0], relus[node.inputs[1]])
    return graph
