"""Fusion: neighbouring nodes that one kernel can compute together become one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.element_types import ITEMSIZE
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import site_of
from engine.graphs.passes.makes import Keys, where
from engine.graphs.passes.simplify import prune
from engine.kernels.loops.map import constant_inputs
from engine.kernels.registry import ops
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.op import MS, OURS, Array, Dim, TensorType, op_keys

MAX_OPERANDS = 8  # operands of one fused map: with more pointers, registers spill to the stack
MAX_TERMS = 40  # terms of a formula that may be computed more than once
CHEAP = {
    "in", "const", "cast", "add", "sub", "mul", "neg", "abs", "max", "min", "where", "lt", "le",
    "gt", "ge", "eq", "ne", "and_", "or_", "not_",
}  # fmt: skip

_EPILOGUES = {"Gemm": "FusedGemm", "Conv": "FusedConv"}
EPILOGUES_MAKE = where({f"{op} Relu": f"{MS}::{fused}" for op, fused in _EPILOGUES.items()})

Constants = dict[str, Array]
Formulas = tuple[Expr, ...]
Shape = tuple[Dim, ...]
Types = dict[str, TensorType]


def fuse_epilogues(graph: Graph) -> Graph:
    """Join a Relu with the Gemm or Conv before it, which then applies it as it stores its result.

    Before   a = Conv(x, w, b); y = Relu(a)          nothing else reads a
    After    y = FusedConv(x, w, b) activation="Relu"
    """
    makers, readers = graph.producers(), graph.consumers()
    gone = set[Node]()
    for node in graph.nodes:
        if node.op != "Relu" or node.domain:
            continue
        source = node.inputs[0]
        maker = makers.get(source)
        if maker is None or maker.domain or maker.op not in _EPILOGUES:
            continue
        if len(readers[source]) > 1 or source in graph.outputs:
            continue
        maker.op, maker.domain = _EPILOGUES[maker.op], MS
        maker.attrs = {**maker.attrs, "activation": "Relu"}
        maker.outputs = node.outputs
        makers[node.outputs[0]] = maker
        gone.add(node)
    graph.nodes = [n for n in graph.nodes if n not in gone]
    return graph


def fuse_maps(graph: Graph, types: Types, constants: Constants, *, closed: bool = False) -> Graph:
    """Turn elementwise nodes into `Map`s, and join chains of maps of one shape into one map.

    ChannelSums nodes take part as readers: they compute the formula of a map themselves, instead of
    reading its result.  A map with several readers is joined only if its formula is cheap, because
    every reader then computes it again.  That is done where it does not raise the need for memory,
    see `_Maps.is_free`.

    Before   a = Sub(x, t); b = Mul(a, a); c = Div(b, n)      n a constant scalar
    After    c = engine::Map(x, t) formulas=("div(mul(sub(a,b),sub(a,b)),8.0)",)

    Before   y = Map(x, m, s); z = Clip(y); d = Where(Less(y, 0), 0, dz); r = ChannelSums(d)
    After    z = Map(x, m, s); r = ChannelSums(dz, x, m, s)   the formula of y is in both

    closed: make only what a library for the ops of the graph has kernels for.  Such a library can
        compute any formula, but has channel sums of no other formulas than those that come; these
        nodes then read what maps have stored.
    """
    job = _Maps(graph, types, () if closed else ("ChannelSums",))
    for place, node in enumerate(graph.nodes):
        if node.domain == OURS and node.op in job.sums:
            job.join(node, formulas_of(node), place)
            continue
        formula_of = _formula_of(node)
        if formula_of is None:
            continue
        site = site_of(graph, node, types, constants)
        formula, kept = constant_inputs(site, formula_of(site))
        node.inputs = tuple(node.inputs[i] for i in kept)
        node.op, node.domain = "Map", OURS
        job.join(node, (formula,), place)
        job.maps[node.outputs[0]] = node
    return prune(graph)


def maps_make(held: Keys) -> Keys:
    """The ops that `fuse_maps` may add: Map, if some op of the graph has a formula."""
    found = (ops().get(key) for key in held)
    return op_keys(f"{OURS}::Map" if any(op and op.expr for op in found) else "")


class _Maps:
    """Joins the maps of one graph; `join` is called for each node in the order of the graph.

    A place is the position of a node in the graph as it came.

    sums: the ops of this package that are no maps but have formulas with which maps can be joined.
    readers: the nodes that read each value, in the graph as it came.
    maps: for each value that a map makes, that map.
    """

    def __init__(self, graph: Graph, types: Types, sums: Sequence[str]) -> None:
        self.types, self.outputs, self.sums = types, set(graph.outputs), sums
        self.readers = graph.consumers()
        self.maps: dict[str, Node] = {}
        self.shut: set[tuple[str, int]] = set()  # operands that the reader at a place must not join
        self.last: dict[str, int] = {}  # value -> place of its last reader
        for place, node in enumerate(graph.nodes):
            self.last.update((i, place) for i in node.reads())

    def join(self, node: Node, formulas: Formulas, place: int) -> None:
        """Join a node with the maps that make its operands, as far as possible.

        formulas: those of the node; the operands are its inputs.
        """
        formulas, inputs = _normal(formulas, list(node.inputs))
        shape = self.shape(node)
        while name := next((n for n in inputs if self.is_open(n, inputs, shape, place)), ""):
            source = self.maps[name]
            found, operands = _inline(formulas, inputs, name, source)
            if len(operands) > MAX_OPERANDS or not self.fits(node, operands, shape):
                self.shut.add((name, place))
                continue
            formulas, inputs = found, operands
            self.last.update((i, max(place, self.last.get(i, -1))) for i in source.inputs)
        node.inputs = tuple(inputs)
        node.attrs = {"formulas": tuple(expression.text(f) for f in formulas)}

    def is_open(self, name: str, inputs: Sequence[str], shape: Shape, place: int) -> bool:
        """Whether the reader at `place` may compute the operand `name` itself.

        inputs: what the reader reads so far.  shape: the shape that it computes in.
        """
        if name not in self.maps or (name, place) in self.shut or self.types[name].shape != shape:
            return False
        if len(self.readers[name]) == 1 and name not in self.outputs:
            return True
        return self.is_free(name, self.maps[name], inputs, place)

    def shape(self, node: Node) -> Shape:
        """The shape in which the formulas of a Map or of ChannelSums are computed."""
        if node.op == "Map":
            return self.types[node.outputs[0]].shape
        return np.broadcast_shapes(*(self.types[i].dims for i in node.inputs))

    def fits(self, node: Node, operands: Sequence[str], shape: Shape) -> bool:
        """Whether the kernel of a node can read these operands.

        A Map reads all that broadcast.  ChannelSums reads tensors of the whole shape, one value for
        each channel, or a single value.
        """
        if node.op == "Map":
            return True
        channel = (1, shape[1], *[1] * (len(shape) - 2))
        return all(
            t.shape == shape or t.size == 1 or (1,) * (len(shape) - t.rank) + t.shape == channel
            for t in (self.types[o] for o in operands)
        )

    def is_free(self, name: str, source: Node, inputs: Sequence[str], place: int) -> bool:
        """Whether the reader at `place` can compute `name` again without a cost that matters.

        The formula must be cheap.  There must be at most one tensor of the whole shape that the
        reader does not read anyway.  If its last reader comes before `place`, it has to be kept
        longer; then `name` must vanish in return, and take at least as many bytes.
        """
        shape = self.types[name].shape
        if len(shape) < 2 or not is_cheap(formulas_of(source)[0]):
            return False
        more = {n for n in source.inputs if self.types[n].shape == shape} - set(inputs)
        if len(more) > 1:
            return False
        fresh = {n for n in more if self.last.get(n, -1) < place and n not in self.outputs}
        vanishes = name not in self.outputs and all(self.fuses(n) for n in self.readers[name])
        return not fresh or (vanishes and len(fresh) == 1 and self._is_smaller(fresh, name))

    def fuses(self, node: Node) -> bool:
        """Whether a node can compute an operand itself: it has a formula, or sums formulas."""
        mine = node.domain == OURS and node.op in ("Map", *self.sums)
        return mine or _formula_of(node) is not None

    def _is_smaller(self, fresh: set[str], name: str) -> bool:
        """Whether the elements of the one value in `fresh` are no larger than those of `name`."""
        sizes = [ITEMSIZE[self.types[n].dtype] for n in (*fresh, name)]
        return sizes[0] <= sizes[1]


def formulas_of(node: Node) -> Formulas:
    """The formulas of a Map or of ChannelSums."""
    operands = expression.operand_names(len(node.inputs))
    return tuple(expression.parse(f, operands) for f in node.attrs["formulas"])


def is_cheap(formula: Expr) -> bool:
    """Whether computing a formula again costs less than storing its result and reading it back."""
    terms = [e[0] for e in expression.walk(formula)]
    return len(terms) <= MAX_TERMS and set(terms) <= CHEAP


def _formula_of(node: Node) -> Callable[..., Expr] | None:
    """What makes the formula of a node at its site; None if it has none or several outputs."""
    op = ops().get((node.domain, node.op))
    return op.expr if op is not None and len([o for o in node.outputs if o]) == 1 else None


def _normal(formulas: Formulas, inputs: list[str]) -> tuple[Formulas, list[str]]:
    """Number the operands by first use.  Drop operands that are not read, and join equal ones."""
    order: list[str] = []
    for e in (e for f in formulas for e in expression.walk(f)):
        if e[0] == "in" and inputs[e[1]] not in order:
            order.append(inputs[e[1]])
    places: list[Expr] = [
        ("in", order.index(name)) if name in order else ("const", 0) for name in inputs
    ]
    return tuple(expression.substitute(f, places) for f in formulas), order


def _inline(
    formulas: Formulas, inputs: list[str], name: str, source: Node
) -> tuple[Formulas, list[str]]:
    """Replace the operand `name` in formulas by the formula of the map `source`, which makes it."""
    (inner,) = formulas_of(source)
    operands = [*inputs, *source.inputs]
    shifted = expression.substitute(
        inner, [("in", len(inputs) + i) for i in range(len(source.inputs))]
    )
    places: list[Expr] = [shifted if n == name else ("in", i) for i, n in enumerate(inputs)]
    return _normal(tuple(expression.substitute(f, places) for f in formulas), operands)
