"""Layout: which tensors are stored channels-last, and where they are copied between layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Node, Types
from engine.graphs.ir.sites import make_site
from engine.graphs.passes.fuse import has_shape
from engine.graphs.passes.may_add import Keys
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import ChannelsLast, Layout, LayoutChoice
from engine.kernels.vocabulary.op import OURS, Dim, Op, TensorType, read_op_keys
from engine.kernels.vocabulary.shape_rules import broadcast_dims


def _is_trivial(t: TensorType) -> bool:
    """Return whether both layouts are the same bytes: there is one channel, or one pixel."""
    return t.rank < 3 or t.dims[1] == 1 or all(d == 1 for d in t.dims[2:])


def _is_image(t: TensorType) -> bool:
    """Return whether a tensor has batch, channel and spatial axes, so that it can be
    channels-last.
    """
    return t.rank >= 3


def _make_conversion(t: TensorType, name: str, out: str, title: str) -> Node:
    """Return the node that converts a value of type `t` to the other layout.

    It is a copy, or an Identity where both layouts are the same bytes.
    """
    if _is_trivial(t):
        return Node("Identity", (name,), (out,), {}, "", title)
    op = "ToPlain" if t.last else "ToChannelsLast"
    return Node(op, (name,), (out,), {}, OURS, title)


_COPIES = read_op_keys(f"{OURS}::ToChannelsLast {OURS}::ToPlain")
_MADE = _COPIES | read_op_keys(f"{OURS}::TransposedView Identity")


def _has_layouts(held: Keys) -> bool:
    """Return whether a graph of these ops has values that are stored channels-last."""
    declared = (list_ops().get(key) for key in held)
    return bool(_COPIES & held) or any(
        op and isinstance(op.layout, ChannelsLast) for op in declared
    )


def list_layout_ops(held: Keys) -> Keys:
    """Return the ops that `choose_layouts` may add: copies, if an op prefers channels-last."""
    return _MADE if _has_layouts(held) else frozenset()


class _Layouts:
    """Rewriting of one graph.

    wanted: the values that a later node reads channels-last, if they come so.
    made: for each value and layout (whether it is channels-last), the copy that has been made.
    """

    def __init__(self, graph: Graph, types: Types, constants: Mapping[str, Array]) -> None:
        self.graph, self.types, self.constants = graph, types, constants
        self.wanted: set[str] = set()
        self.made: dict[tuple[str, bool], str] = {}
        self.nodes: list[Node] = []

    def find_wanted(self) -> None:
        """Note the values that are read channels-last, from the last reader to the first."""
        for node in reversed(self.graph.nodes):
            self.wanted.update(self._list_wanted(node))

    def _list_wanted(self, node: Node) -> Iterator[str]:
        """Yield the inputs that a node would read channels-last."""
        op = list_ops()[node.domain, node.op]
        is_wanted = any(out in self.wanted for out in node.outputs)
        if isinstance(op.layout, ChannelsLast):
            yield from (node.inputs[i] for i in op.layout.inputs if i < len(node.inputs))
        elif op.expr is not None or op.layout in (Layout.ANY, Layout.ANY_BROADCAST):
            if is_wanted:
                shape = self.types[node.outputs[0]].shape
                yield from (
                    x for x in node.inputs if x in self.types and has_shape(self.types[x], shape)
                )
        elif callable(op.layout) and _is_image(self.types[node.inputs[0]]):
            choice = self._choose(node, op, last=True)
            if choice and (is_wanted if choice.last else choice.view):
                yield node.inputs[0]

    def _choose(self, node: Node, op: Op, last: bool) -> LayoutChoice | None:
        """Return how a node with a rule of its own stores its output, for a layout of its input."""
        assert callable(op.layout)
        site = make_site(self.graph, node, self.types, self.constants)
        x = site.type(0).as_last(last)
        return op.layout(
            replace(site, ins=(x, *site.ins[1:])), self.types[node.outputs[0]].as_last(False)
        )

    def as_layout(self, name: str, last: bool) -> str:
        """Return the name of the tensor in a layout; add a copy if it has the other one."""
        t = self.types[name]
        if not _is_image(t) or t.last == last:
            return name
        key = (name, last)
        if key not in self.made:
            out = f"{name}__{'last' if last else 'plain'}"
            self.types[out] = t.as_last(last)
            title = f"{name}/{'ToChannelsLast' if last else 'ToPlain'}"
            self.nodes.append(_make_conversion(t, name, out, title))
            self.made[key] = out
        return self.made[key]

    def visit(self, node: Node) -> None:
        """Choose the layouts of a node's outputs; append it with inputs in the layouts it reads."""
        op = list_ops()[node.domain, node.op]
        if op.expr is not None or op.layout in (Layout.ANY_BROADCAST, Layout.ANY_INPUT):
            self._follow(node, op)
        elif op.layout is Layout.ANY:
            self._keep(node)
        elif callable(op.layout):
            self._let_choose(node, op)
        else:
            self._convert(node, op)

    def _convert(self, node: Node, op: Op) -> None:
        """Append a node whose inputs and outputs have layouts of their own."""
        last = op.layout if isinstance(op.layout, ChannelsLast) else ChannelsLast((), ())
        node.inputs = tuple(
            self.as_layout(x, i in last.inputs) if x in self.types and i not in op.type_only else x
            for i, x in enumerate(node.inputs)
        )
        for j, out in enumerate(node.outputs):
            if out and j in last.outputs and _is_image(self.types[out]):
                self.types[out] = self.types[out].as_last()
        self.nodes.append(node)

    def _let_choose(self, node: Node, op: Op) -> None:
        """Append a node whose rule chooses the layout of its output by the layout of its input.

        From a plain input it may be channels-last only where a reader wants that.
        """
        name, out = node.inputs[0], node.outputs[0]
        t = self.types[name]
        choice = self._choose(node, op, t.last) if t.last or out in self.wanted else None
        if choice is None or (choice.last and out not in self.wanted and not t.last):
            return self._convert(node, op)
        self.types[out] = self.types[out].as_last(choice.last)
        if choice.view:
            node = replace(node, op=choice.view, domain=OURS)
        self.nodes.append(node)

    def _keep(self, node: Node) -> None:
        """Append a node that moves data in either layout.

        It is channels-last if at least half of the elements that it reads are.
        """
        images = [
            self.types[x] for x in node.inputs if x in self.types and _is_image(self.types[x])
        ]
        sizes = [t.size for t in images if t.last]
        last = bool(sizes) and 2 * sum(sizes) >= sum(t.size for t in images)
        node.inputs = tuple(self.as_layout(x, last) if x in self.types else x for x in node.inputs)
        for out in node.outputs:
            if out and _is_image(self.types[out]):
                self.types[out] = self.types[out].as_last(last)
        self.nodes.append(node)

    def is_plain_only(self, name: str, rank: int) -> bool:
        """Return whether broadcasting needs a tensor in the plain order of axes.

        rank: the rank of the tensors it is broadcast with.  Such a tensor has no batch axis, but
            several channels and several pixels.
        """
        t = self.types[name]
        return t.rank == rank - 1 and t.dims[0] != 1 and any(d != 1 for d in t.dims[1:])

    def _follow(self, node: Node, op: Op) -> None:
        """Append an elementwise node: it is channels-last if an input of the full shape is."""
        shape: tuple[Dim, ...] = self.types[node.outputs[0]].shape
        if op.layout is Layout.ANY_INPUT:
            shape = broadcast_dims(*(self.types[i].dims for i in node.inputs))
        full = [i for i in node.inputs if i and has_shape(self.types[i], shape)]
        last = any(self.types[i].last for i in full) and len(shape) >= 3
        last = last and not any(self.is_plain_only(i, len(shape)) for i in node.inputs if i)
        if not last and any(self.types[i].last for i in node.inputs if i):
            full = [i for i in node.inputs if i]
        node.inputs = tuple(
            self.as_layout(i, last)
            if i and (i in full or self.types[i].last != last) and self.types[i].rank == len(shape)
            else i
            for i in node.inputs
        )
        for o in node.outputs if op.layout is not Layout.ANY_INPUT else ():
            self.types[o] = self.types[o].as_last(last)
        self.nodes.append(node)


def choose_layouts(graph: Graph, types: Types, constants: Mapping[str, Array]) -> Graph:
    """Store tensors channels-last where spatial ops, such as Conv, read and write them that way.

    Elementwise ops keep the layout of their inputs, and reductions reduce in either.  A Transpose
    between the axes of the two layouts needs no copy: it only names the same bytes otherwise.  A
    copy is added only where a value of one layout has a reader of the other.  Graph inputs and
    outputs stay plain.  `types` is updated.

    Before   a = Conv(x, w); b = Relu(a); c = Flatten(b)
    After    x' = ToChannelsLast(x); a' = Conv(x', w); b' = Relu(a'); b = ToPlain(b');
             c = Flatten(b)
    """
    if not _has_layouts(frozenset((node.domain, node.op) for node in graph.nodes)):
        return graph
    work = _Layouts(graph, types, constants)
    work.find_wanted()
    for node in graph.nodes:
        work.visit(node)
    graph.nodes = work.nodes
    for name in graph.outputs:
        if types[name].last:
            _convert_output(graph, types, name)
    return graph


def _convert_output(graph: Graph, types: Types, name: str) -> None:
    """Convert an output of the graph to the plain layout; the value inside gets another name."""
    inner = f"{name}__inner"
    for node in graph.nodes:
        node.inputs = tuple(inner if i == name else i for i in node.inputs)
        node.outputs = tuple(inner if o == name else o for o in node.outputs)
    types[inner], types[name] = types[name], types[name].as_last(False)
    graph.nodes.append(_make_conversion(types[inner], inner, name, f"{name}/ToPlain"))
