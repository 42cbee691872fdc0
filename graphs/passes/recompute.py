"""Recomputation of cheap values in the backward pass, so that they need not be kept.

It is a pass of its own, and not the first rung of the ladder of a budget (planner/budget.py): plans
without a budget have no ladder, and ladders reach lower where the pass has run.  MobileNetV2 is the
exception.  Predicted for training steps:

                 without the pass              ladder alone,      least budget, % of the work
                 bytes      time               at equal budgets   memory with the pass
    MiniLM       +48 %      -1.3 %             -0.6 % time        32.5 instead of 29.5
    MobileNetV2  +96 %      -4.3 %             +0.1 %             26.0 instead of 28.8
    ResNet-18    +40 %      -0.8 %             +2.0 %             59.9 instead of 49.4
    U-Net        +54 %      -2.5 %             +1.5 %             58.2 instead of 57.7
    ViT          +52 %      -2.0 %             -0.4 %             20.3 instead of 18.3
    ConvNeXt     +70 %      -2.9 %             -0.2 %             27.7 instead of 25.3
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from engine.base.element_types import ITEMSIZE
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.passes.simplify import forward_part, is_acting, prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS, TensorType, read_op_keys
from engine.kernels.vocabulary.terms import Formulas

# Figures are of `python -m bench budgets.constants`: peaks of work memory, and predicted seconds.
# Least bytes of a value that is computed twice.  With 1 << 20 the peak of MobileNetV2 is 3.3 %
# higher; with 1 << 12 plans are the same.
LARGE = 1 << 16
# Least ratio of its bytes to the bytes that are kept instead.  With 1 steps of MiniLM take 1.5 %
# more memory and 0.6 % longer; with 4 plans are the same.
MUCH = 2
NEVER = 1 << 62  # more bytes than any value has: an input has changed
# Most instructions of a map that is computed twice, see `Formulas.estimate_cost`.  With 20 steps of
# MiniLM, whose Gelu takes more, take 30 % more memory and are 1.1 % shorter; without a limit plans
# are the same.
DEAR = 80
# Readers at most this many nodes apart share one value.  With 32 steps of MiniLM take 2.1 % more
# memory and are 0.3 % shorter; with 0 plans are the same.
NEAR = 4
# Longest chain of values that are computed again to get one.  With 1 steps of MobileNetV2 take
# 0.9 % more memory; with 9 plans are the same.
CHAIN = 3

# Converting between layouts is slow if there are few channels.
LAYOUTS = read_op_keys(f"{OURS}::ToChannelsLast {OURS}::ToPlain")
# Without this steps of MobileNetV2 take 2.2 % less memory and are 0.2 % longer.
FEW = 8


def recompute(graph: Graph, types: dict[str, TensorType]) -> Graph:
    """Compute large values of cheap nodes a second time, for their readers in the backward pass.

    This is done only where the inputs of the node are kept until then anyway, or can be computed
    again from values that are.  The results are the same to the last bit.

    Before   z = Map(x, m, s); y = Conv(z, w); ...; dw = ConvGrad(dy, z, w); r = ChannelSums(dz, x)
    After    z = Map(x, m, s); y = Conv(z, w); ...; z_again = Map(x, m, s);
             dw = ConvGrad(dy, z_again, w); r = ChannelSums(dz, x)
    """
    _Recomputation(graph, types).run()
    return prune(graph)


class _Recomputation:
    """Walk over the forward nodes, from the last to the first.

    early: for each value, the place of the last forward node that touches its bytes.
    late: for each value, the places of the nodes of the backward pass that read its bytes.
    changed: for each value, the place of the first node that writes to it.
    twins: by place, the nodes to insert before it, in reverse order.
    paid: results of `is_worth`.
    """

    def __init__(self, graph: Graph, types: dict[str, TensorType]) -> None:
        self.graph, self.types, self.names = graph, types, Names(graph)
        self.ends = set(graph.outputs)
        self.forward = forward_part(graph)
        self.makers = {o: n for n in self.forward for o in n.outputs if o}
        self.early: dict[str, int] = {}
        self.late: dict[str, list[int]] = {}
        self.changed: dict[str, int] = {}
        self.twins: dict[int, list[Node]] = {}
        self.paid: dict[Node, bool] = {}
        for place, node in enumerate(graph.nodes):
            if node in self.forward:
                self.early.update(dict.fromkeys((*_read(node), *node.outputs), place))
            else:
                for name in dict.fromkeys(_read(node)):
                    self.late.setdefault(name, []).append(place)
            if is_acting(node):
                self.changed.setdefault(node.inputs[0], place)

    def run(self) -> None:
        """Rewrite the graph."""
        for node in reversed(self.graph.nodes):
            if node in self.forward and self.is_worth(node):
                self.repeat(node)
        nodes: list[Node] = []
        for place, node in enumerate(self.graph.nodes):
            nodes += (*reversed(self.twins.get(place, ())), node)
        self.graph.nodes = nodes

    def is_worth(self, node: Node) -> bool:
        """Return whether to compute the first output of a node again rather than keep it."""
        if node not in self.paid:
            z = node.outputs[0]
            self.paid[node] = False  # while this is being determined
            if z in self.late and z not in self.ends and self.is_repeatable(node):
                size, place = self.count_bytes(z), self.late[z][0]
                if size >= LARGE and place - self.early[z] > NEAR:
                    self.paid[node] = MUCH * self.count_kept(node, place) <= size
        return self.paid[node]

    def count_kept(self, node: Node, place: int, depth: int = 1) -> int:
        """Return how many more bytes must be kept so that a node can be computed at a place.

        depth: the length of the chain of nodes that would be computed there, including this one.
        """
        total = 0
        for name in dict.fromkeys(_read(node)):
            if self.changed.get(name, place) < place:
                return NEVER
            maker = self.makers.get(name)
            if maker is None or name in self.ends:
                continue
            if self.late.get(name, (-1,))[-1] >= place and not self.is_worth(maker):
                continue
            nbytes = self.count_bytes(name)
            if depth < CHAIN and self.is_repeatable(maker):
                nbytes = min(nbytes, self.count_kept(maker, place, depth + 1))
            total += nbytes
        return total

    def is_repeatable(self, node: Node) -> bool:
        """Return whether computing a node again takes little more than reading and writing
        memory.
        """
        if (node.domain, node.op) == (OURS, "Map"):
            formulas: Formulas = node.attrs["formulas"]
            return formulas.estimate_cost() <= DEAR
        if (node.domain, node.op) in LAYOUTS:
            return self.types[node.outputs[0]].dims[1] >= FEW
        op = list_ops().get((node.domain, node.op))
        return op is not None and (op.is_cheap or is_view(node))

    def count_bytes(self, name: str) -> int:
        """Return the bytes of a value."""
        t = self.types[name]
        return t.size * ITEMSIZE[t.dtype]

    def repeat(self, node: Node) -> None:
        """Add a twin of a node; all late readers of the node's first output read the twin's
        result.
        """
        z, *_ = node.outputs
        copy = self.names.take_fresh(f"{z}_again")
        self.types[copy] = self.types[z]
        places = self.late.pop(z)
        twin = replace(node, outputs=(copy,), attrs=dict(node.attrs), again=True)
        for place in places:
            for reader in (*self.twins.get(place, ()), self.graph.nodes[place]):
                reader.inputs = tuple(copy if i == z else i for i in reader.inputs)
        self.twins.setdefault(places[0], []).append(twin)
        for name in dict.fromkeys(_read(node)):
            known = self.late.setdefault(name, [])
            at = bisect_left(known, places[0])
            if known[at : at + 1] != places[:1]:
                known.insert(at, places[0])


def is_view(node: Node) -> bool:
    """Return whether the output of a node has the same bytes as its input."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.is_view and op.lower is None


def _read(node: Node) -> Iterator[str]:
    """Return the values whose bytes a node reads, not only their types."""
    op = list_ops().get((node.domain, node.op))
    unread = op.type_only if op is not None else frozenset[int]()
    return (name for i, name in enumerate(node.inputs) if name and i not in unread)
