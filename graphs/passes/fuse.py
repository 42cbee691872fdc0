"""Operator fusion: neighbouring nodes that one kernel can compute together become one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.base.element_types import ITEMSIZE
from engine.graphs.ir.graph import Constants, Graph, Node, Types
from engine.graphs.ir.sites import Answers, list_facts, make_site
from engine.graphs.passes.may_add import Keys, add_by_table
from engine.graphs.passes.simplify import prune
from engine.kernels.loops.map import inline_constants
from engine.kernels.ops.conv.convolution import takes_curves
from engine.kernels.ops.epilogue import BOUNDS, CURVES
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import MS, OURS, Dim, TensorType, read_op_keys
from engine.kernels.vocabulary.shape_rules import broadcast_dims
from engine.kernels.vocabulary.terms import Formulas, TermWriter

# Operands of one fused map: with more pointers, registers spill to the stack.  By `python -m bench
# budgets.constants`, with 4 or 16 plans of ViT and of an LSTM are the same.
MAX_OPERANDS = 8
# Instructions of one fused map, see `Formulas.estimate_cost`.  A chain is one dependency: if it is
# longer than the reorder window of a processor, nothing overlaps with the next elements.  The most
# expensive formula in the models examined, a decomposed cross-entropy, costs 132.  By the same
# command, with 75 or without a limit plans of GPT-2 and of an LSTM are the same.
MAX_COST = 150
# Most instructions of a formula that may be computed more than once.  By the same command, with 0
# steps of MobileNetV3 are 4.0 % longer and take 1.8 % more memory; without a limit plans are the
# same.
MAX_AGAIN = 20
CHEAP = {
    "in", "const", "cast", "add", "sub", "mul", "neg", "abs", "max", "min", "where", "lt", "le",
    "gt", "ge", "eq", "ne", "and_", "or_", "not_",
}  # fmt: skip

_EPILOGUES = {"Gemm": "FusedGemm", "Conv": "FusedConv"}
EPILOGUES_MAY_ADD = add_by_table(
    {
        **{f"{op} Relu": f"{MS}::{fused}" for op, fused in _EPILOGUES.items()},
        **{f"Conv {op}": f"{MS}::FusedConv" for op in CURVES},
    }
)

Shape = tuple[Dim, ...]


def fuse_epilogues(graph: Graph, types: Types, constants: Constants) -> Graph:
    """Join a Relu with the Gemm or Conv before it, which then applies it as it stores its result.

    Many convolutions also apply a Clip between 0 and 6, or a HardSwish.

    Before   a = Conv(x, w, b); y = Relu(a)          nothing else reads a
    After    y = FusedConv(x, w, b) activation="Relu"
    """
    makers, readers = graph.find_producers(), graph.find_consumers()
    gone, ends = set[Node](), set(graph.outputs)
    for node in graph.nodes:
        if node.op not in CURVES or node.domain:
            continue
        source = node.inputs[0]
        maker = makers.get(source)
        if maker is None or maker.domain or maker.op not in _EPILOGUES:
            continue
        if len(readers[source]) > 1 or source in ends:
            continue
        if node.op != "Relu" and not _is_applied(maker, node, types, constants):
            continue
        maker.op, maker.domain = _EPILOGUES[maker.op], MS
        maker.attrs = {**maker.attrs, "activation": node.op}
        if node.op == "Clip":
            maker.attrs["activation_params"] = BOUNDS
        maker.outputs = node.outputs
        makers[node.outputs[0]] = maker
        gone.add(node)
    graph.nodes = [n for n in graph.nodes if n not in gone]
    return graph


def _is_applied(maker: Node, node: Node, types: Types, constants: Constants) -> bool:
    """Return whether the node before a Clip or HardSwish can apply it."""
    if maker.op != "Conv":
        return False
    weights, attrs = types[maker.inputs[1]], maker.attrs
    if not takes_curves(weights.shape, attrs.get("strides", ()), attrs.get("group", 1)):
        return False
    if node.op != "Clip":
        return True
    bounds = [constants.get(name) for name in node.inputs[1:]]
    return len(bounds) == len(BOUNDS) and all(
        given is not None and given == bound for given, bound in zip(bounds, BOUNDS, strict=True)
    )


def fuse_maps(graph: Graph, types: Types, constants: Constants, *, closed: bool = False) -> Graph:
    """Turn elementwise nodes into `Map`s, and join chains of maps of one shape into one map.

    ChannelSums nodes count as readers: they compute the formula of a map themselves, instead of
    reading its result.  A map with several readers is joined only if its formula is cheap, because
    every reader then computes it again.  This is done only where it does not increase the memory
    needed, see `_Maps.is_free`.

    Before   a = Sub(x, t); b = Mul(a, a); c = Div(b, n)      n a constant scalar
    After    c = engine::Map(x, t) formulas=[_0 = sub(a,b); div(mul(_0,_0),8.0)]

    Before   y = Map(x, m, s); z = Clip(y); d = Where(Less(y, 0), 0, dz); r = ChannelSums(d)
    After    z = Map(x, m, s); r = ChannelSums(dz, x, m, s)   the formula of y is in both

    closed: use only kernels that a library for the ops of the graph contains.  Such a library can
        compute any formula, but channel sums only of the formulas already in the graph; ChannelSums
        nodes then read the stored results of maps.
    """
    job = _Maps(graph, types, () if closed else ("ChannelSums",))
    read: Answers[tuple[_Formula, list[int]]] = Answers()
    for place, node in enumerate(graph.nodes):
        if node.domain == OURS and node.op in job.sums:
            job.join(node, _Formula.of(node.attrs["formulas"]), place)
        elif has_formula(node):
            told = list_facts(graph, node, types, constants)
            formula = read.get(told)
            if formula is None:
                site = make_site(graph, node, types, constants)
                formulas, kept = inline_constants(site)
                formula = _Formula.of(formulas), kept
                read.keep(told, site, formula)
            node.inputs = tuple([node.inputs[i] for i in formula[1]])
            node.op, node.domain = "Map", OURS
            job.join(node, formula[0], place)
    prune(graph)
    for node in graph.nodes:
        job.write(node)
    return graph


def list_map_ops(held: Keys) -> Keys:
    """Return the ops that `fuse_maps` may add: Map, if some op of the graph has a formula."""
    declared = (list_ops().get(key) for key in held)
    return read_op_keys(f"{OURS}::Map" if any(op and op.expr for op in declared) else "")


@dataclass(frozen=True, slots=True, eq=False)
class _Formula:
    """Formulas and their properties.

    reads: the operands that are read, in the order of their first use.
    is_plain: True if they use only functions in `CHEAP`.
    """

    formulas: Formulas
    reads: tuple[int, ...]
    cost: int
    is_plain: bool

    @classmethod
    def of(cls, formulas: Formulas) -> _Formula:
        is_plain = formulas.list_functions() <= CHEAP
        return cls(formulas, formulas.list_reads(), formulas.estimate_cost(), is_plain)


@dataclass(frozen=True, slots=True)
class _FusedPart:
    """Formula of one original node, as a part of the kernel that computes it.

    place: its position in the graph.  inputs: the values that its formula reads.
    """

    place: int
    formula: _Formula
    inputs: tuple[str, ...]


@dataclass(slots=True)
class _FusedGroup:
    """Nodes whose formulas one kernel computes, and the values that this kernel reads.

    node: the node that the kernel becomes.
    parts: by value, the parts of nodes whose values only the others read; `node` itself has the key
        "".
    inputs: the values it reads, in the order of the first use.
    shut: the operands that it must not join.
    cost: the approximate number of instructions; values that happen to be equal count twice.
    is_plain: True if it uses only functions in `CHEAP`.
    """

    node: Node
    parts: dict[str, _FusedPart]
    inputs: tuple[str, ...]
    shut: set[str]
    cost: int
    is_plain: bool

    @property
    def is_cheap(self) -> bool:
        """True if computing it again costs less than storing its result and reading it back."""
        return self.cost <= MAX_AGAIN and self.is_plain

    def join_formulas(self) -> Formulas:
        """Return the formulas of the kernel over `inputs`: the formulas of all parts, without
        duplicates.
        """
        own = self.parts[""]
        if len(self.parts) == 1 and own.inputs == self.inputs:
            return own.formula.formulas
        return _join_formulas(self.parts, self.inputs)

    def make_key(self) -> tuple[object, ...]:
        """Return a key of its formulas: groups that combine the same `_Formula`s in the same way
        have equal keys.
        """
        values = {name: i for i, name in enumerate(self.inputs)}
        key: list[object] = [len(self.inputs)]
        for name, part in _order_parts(self.parts):
            key.append(part.formula)
            key += [values.get(n, -1) for n in part.inputs]
            values[name] = len(values)
        return tuple(key)


def _order_parts(parts: Mapping[str, _FusedPart]) -> list[tuple[str, _FusedPart]]:
    """Return the parts of a group in the order of the graph."""
    return sorted(parts.items(), key=lambda item: item[1].place)


def _join_formulas(parts: Mapping[str, _FusedPart], inputs: Sequence[str]) -> Formulas:
    """Return the formulas over `inputs` of all parts of a group."""
    writer = TermWriter()
    values = {name: writer.put("in", i) for i, name in enumerate(inputs)}
    results: list[int] = []
    for name, part in _order_parts(parts):
        results = writer.copy(part.formula.formulas, [values.get(n, -1) for n in part.inputs])
        values[name] = results[0]
    return writer.formulas(results)


class _Maps:
    """Joining of the maps of one graph; `join` is called for each node in the order of the graph.

    Joined nodes are only noted, and `write` turns them into a formula at the end, so the time is
    proportional to the number of nodes, however many of them become one.

    A place is the position of a node in the original graph.

    sums: the ops of this package other than maps that have formulas into which maps can be joined.
    readers: the nodes that read each value in the original graph.
    groups: for each value that a map makes, its group.
    """

    def __init__(self, graph: Graph, types: Types, sums: Sequence[str]) -> None:
        self.types, self.outputs, self.sums = types, set(graph.outputs), sums
        self.readers = graph.find_consumers()
        self.groups: dict[str, _FusedGroup] = {}
        self.written: dict[Node, _FusedGroup] = {}
        self.last: dict[str, int] = {}  # value -> place of its last reader
        self.fused: dict[str, bool] = {}  # value -> True if all its readers can compute it
        self.made: dict[tuple[object, ...], Formulas] = {}  # by the wiring of a group
        for place, node in enumerate(graph.nodes):
            self.last.update(dict.fromkeys(node.list_reads(), place))

    def join(self, node: Node, formula: _Formula, place: int) -> None:
        """Join a node with the maps that make its operands, as far as possible.

        formula: the formula of the node, whose operands are the node's inputs.
        """
        inputs = tuple(dict.fromkeys([node.inputs[i] for i in formula.reads]))
        part = _FusedPart(place, formula, node.inputs)
        group = _FusedGroup(node, {"": part}, inputs, set(), formula.cost, formula.is_plain)
        shape = self.find_shape(node)
        while name := next((n for n in group.inputs if self.is_open(n, group, shape, place)), ""):
            if not self.absorb(group, name, shape):
                group.shut.add(name)
                continue
            for i in group.inputs:
                self.last[i] = max(place, self.last.get(i, -1))
        node.inputs = group.inputs
        self.written[node] = group
        if node.op == "Map":
            self.groups[node.outputs[0]] = group

    def absorb(self, group: _FusedGroup, name: str, shape: Shape) -> bool:
        """Let a group compute its operand `name` itself; return False if one kernel cannot compute
        both.

        The kernel must not be too long, and must be able to read all its operands.  A Map reads all
        values that broadcast.  ChannelSums reads tensors of the whole shape, one value for each
        channel, or a single value.
        """
        source = self.groups[name]
        spliced = [i for n in group.inputs for i in (source.inputs if n == name else (n,))]
        left = [n for n in spliced if n not in source.parts and n not in group.parts]
        inputs = tuple(dict.fromkeys([n for n in left if n != name]))
        if len(inputs) > MAX_OPERANDS:
            return False
        if group.node.op != "Map" and not all(self.is_summed(n, shape) for n in inputs):
            return False
        cost = group.cost + source.cost
        if len(group.parts) > 1:
            shared = (source.parts.keys() & group.parts.keys()) - {""}
            cost -= sum(group.parts[n].formula.cost for n in shared)
        if cost > MAX_COST:  # unless values happen to be equal
            parts = {**source.parts, name: source.parts[""], **group.parts}
            if _join_formulas(parts, inputs).estimate_cost() > MAX_COST:
                return False
        parts = source.parts
        if len(self.readers[name]) == 1 and name not in self.outputs:
            del self.groups[name], self.written[source.node]  # nothing reads it any more
        else:
            parts = dict(parts)
        parts[name] = parts.pop("")
        parts.update(group.parts)
        group.parts, group.inputs, group.cost = parts, inputs, cost
        group.shut |= source.shut
        group.is_plain &= source.is_plain
        return True

    def is_summed(self, name: str, shape: Shape) -> bool:
        """Return whether ChannelSums of this shape can read a value."""
        t = self.types[name]
        channel = (1, shape[1], *[1] * (len(shape) - 2))
        if has_shape(t, shape) or t.size == 1:
            return True
        return (1,) * (len(shape) - t.rank) + t.shape == channel

    def write(self, node: Node) -> None:
        """Give a node the formulas of its group, if it has one."""
        group = self.written.get(node)
        if group is None:
            return
        wiring = group.make_key()
        if wiring not in self.made:
            self.made[wiring] = group.join_formulas()
        node.attrs = {"formulas": self.made[wiring]}

    def is_open(self, name: str, group: _FusedGroup, shape: Shape, place: int) -> bool:
        """Return whether the reader at `place` may compute the operand `name` itself.

        group: the reader and the nodes joined with it so far.  shape: the shape in which it
            computes.
        """
        if name not in self.groups or name in group.shut:
            return False
        if not has_shape(self.types[name], shape):
            return False
        if len(self.readers[name]) == 1 and name not in self.outputs:
            return True
        return self.is_free(name, group.inputs, place)

    def find_shape(self, node: Node) -> Shape:
        """Return the shape in which the formulas of a Map or of ChannelSums are computed."""
        if node.op == "Map":
            return self.types[node.outputs[0]].shape
        return broadcast_dims(*(self.types[i].dims for i in node.inputs))

    def is_free(self, name: str, inputs: Sequence[str], place: int) -> bool:
        """Return whether the reader at `place` can compute `name` again at negligible cost.

        The formula must be cheap.  It may read at most one tensor of the whole shape that the
        reader does not read anyway.  If the last reader of this tensor comes before `place`, the
        tensor must be kept longer; then `name` must vanish in return, and take at least as many
        bytes.
        """
        shape, source = self.types[name].shape, self.groups[name]
        if len(shape) < 2 or not source.is_cheap:
            return False
        others = [n for n in source.inputs if n not in inputs]
        more = {n for n in others if has_shape(self.types[n], shape)}
        if len(more) > 1:
            return False
        fresh = {n for n in more if self.last.get(n, -1) < place and n not in self.outputs}
        return not fresh or (
            name not in self.outputs
            and self._fuses(name)
            and len(fresh) == 1
            and self._is_smaller(fresh, name)
        )

    def _fuses(self, name: str) -> bool:
        """Return whether all readers of a value have formulas, so that they may compute it
        themselves.
        """
        if name not in self.fused:
            self.fused[name] = all(self._computes(n) for n in self.readers[name])
        return self.fused[name]

    def _computes(self, node: Node) -> bool:
        """Return whether a node has a formula, or sums formulas, and so can compute an operand
        itself.
        """
        mine = node.domain == OURS and node.op in ("Map", *self.sums)
        return mine or has_formula(node)

    def _is_smaller(self, fresh: set[str], name: str) -> bool:
        """Return whether elements of the only value in `fresh` are no larger than elements of
        `name`.
        """
        sizes = [ITEMSIZE[self.types[n].dtype] for n in (*fresh, name)]
        return sizes[0] <= sizes[1]


def has_shape(t: TensorType, shape: Shape) -> bool:
    """Return whether a tensor has this shape; of one of another rank no size is asked."""
    return t.shape is shape or (len(t.shape) == len(shape) and t.shape == shape)


def has_formula(node: Node) -> bool:
    """Return whether the op of a node is a formula, and the node has one output."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.expr is not None and len([o for o in node.outputs if o]) == 1
