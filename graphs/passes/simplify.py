"""Cleanup: dead code, nodes that change nothing, and equal small values that become one."""

from __future__ import annotations

from collections.abc import Mapping

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS, TensorType
from engine.kernels.vocabulary.sizes import SizedArray

# Most bytes of a value that may be kept for several readers: so little is never at a peak.  By
# `python -m bench budgets.constants`, with 0 or 1 << 20 plans of MiniLM are the same.
SMALL = 1 << 14


def is_acting(node: Node) -> bool:
    """Return whether a node writes to memory that outlives the run: gradients, parameters or
    states.
    """
    op = list_ops().get((node.domain, node.op))
    return op is not None and (op.is_acting or op.optimizer is not None)


def prune(graph: Graph) -> Graph:
    """Drop the nodes on which no output depends, unless they write to memory that outlives the run.

    Before   y = Relu(x); z = Exp(x); output y
    After    y = Relu(x); output y
    """
    wanted = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or is_acting(node):
            kept.append(node)
            wanted.update(node.list_reads())
    graph.nodes = kept[::-1]
    graph.initializers = {k: v for k, v in graph.initializers.items() if k in wanted}
    return graph


def find_ancestors(graph: Graph) -> set[Node]:
    """Return the nodes on which an output depends.  In a training graph this is the forward part.

    A signal of gradients belongs to the update, and so do the values it reads, except the signal
    before it.
    """
    wanted, nodes = set(graph.outputs), set[Node]()
    for node in reversed(graph.nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        if (node.domain, node.op) == (OURS, "GradientSignal"):
            wanted.update(node.inputs[:1])
        else:
            nodes.add(node)
            wanted.update(node.inputs)
    return nodes


def forward_part(graph: Graph) -> set[Node]:
    """Return the nodes on which an output depends, and nodes that slice kept values among them.

    Before   y = Conv(x, w); p = Slice(x); loss = ...; dt = Gemm(dy, p)
    Found    y, p, loss
    """
    nodes = find_ancestors(graph)
    made = {*graph.inputs, *(name for node in nodes for name in node.outputs)}
    end = max((place for place, node in enumerate(graph.nodes) if node in nodes), default=0)
    for node in graph.nodes[:end]:
        if node.op == "Slice" and not node.domain and node.inputs[0] in made:
            nodes.add(node)
    return nodes


def drop_identities(graph: Graph) -> Graph:
    """Let readers of an Identity read its input; drop it unless it makes an output of the graph.

    Before   b = Identity(a); c = Relu(b)
    After    c = Relu(a)
    """
    alias: dict[str, str] = {}
    kept, ends = [], set(graph.outputs)
    for node in graph.nodes:
        if not alias.keys().isdisjoint(node.inputs):
            node.inputs = tuple([alias.get(i, i) for i in node.inputs])
        if node.op == "Identity" and not node.domain and node.outputs[0] not in ends:
            alias[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    graph.nodes = kept
    return graph


def share_equal(graph: Graph, types: Mapping[str, TensorType]) -> Graph:
    """Compute small values once if several nodes compute the same; share equal small constants.

    A large constant is shared if several names refer to the same array in memory.

    A large value is not shared, because it would have to be kept from its first reader to its last.

    Before   a = Mul(s, i); b = Mul(s, i); y = Add(x, a); z = Sub(x, b)      s, i: f32[8]
    After    a = Mul(s, i); y = Add(x, a); z = Sub(x, a)
    """
    updated = {n.inputs[0] for n in graph.nodes if is_acting(n)}
    alias: dict[str, str] = {}
    first: dict[object, tuple[str, ...]] = {}
    for name, array in graph.initializers.items():
        if array.nbytes <= SMALL:
            alias[name] = first.setdefault(_make_key(array), (name,))[0]
        else:  # each trip of a loop has its own constants
            alias[name] = first.setdefault(id(array), (name,))[0]
    kept, ends = [], set(graph.outputs)
    for node in graph.nodes:
        if not alias.keys().isdisjoint(node.inputs):
            node.inputs = tuple([alias.get(i, i) for i in node.inputs])
        if _is_plain(node) and updated.isdisjoint(node.inputs):
            attrs = tuple(sorted((k, repr(v)) for k, v in node.attrs.items()))
            made = first.setdefault((node.domain, node.op, node.inputs, attrs), node.outputs)
            is_again = made is not node.outputs and node.outputs[0] not in ends
            if is_again and _are_small(node, types):
                alias[node.outputs[0]] = made[0]
                continue
        kept.append(node)
    graph.nodes = kept
    return graph


def _make_key(array: Array) -> object:
    """Return a key that equal constants share, whatever sizes they depend on."""
    if isinstance(array, SizedArray):
        return array.key
    return array.dtype.str, array.shape, array.tobytes()


def _is_plain(node: Node) -> bool:
    """Return whether a node only computes a formula or is a view, and has one output."""
    op = list_ops().get((node.domain, node.op))
    pure = op is not None and (op.expr is not None or (op.is_view and op.lower is None))
    return pure and len(node.outputs) == 1


def _are_small(node: Node, types: Mapping[str, TensorType]) -> bool:
    return all(types[o].size <= SMALL // 4 for o in node.outputs)


def let_relu_grad_read_output(graph: Graph) -> Graph:
    """Let ReluGrad read the output of Relu instead of its input: both are positive at the same
    elements.

    Then only Relu reads its input, so that it can be fused with the node that makes it.

    Before   y = Relu(x); dx = ReluGrad(dy, x)
    After    y = Relu(x); dx = ReluGrad(dy, y)
    """
    relus = {n.inputs[0]: n.outputs[0] for n in graph.nodes if n.op == "Relu" and not n.domain}
    for node in graph.nodes:
        if node.op == "ReluGrad" and node.inputs[1] in relus:
            node.inputs = (node.inputs[0], relus[node.inputs[1]])
    return graph
