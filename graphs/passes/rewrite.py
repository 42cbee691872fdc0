"""Rewriting by pattern: one op replaces the nodes that together compute it.

A pattern is an expression over ONNX ops, `"Mul(x, Sigmoid(x))"`:

    Op(a, b)     a node of ONNX's domain with these inputs; Add and Mul match in either order;
                 further inputs of the node must be constant
    x            any value; a name that is used twice must be the same value both times
    1.5          a constant of one element with this value
    n := Op(x)   as Op(x), and its value gets the name n, for `Match.get_node` and the rest of the
                 pattern
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.may_add import MayAdd, add_by_table
from engine.kernels.vocabulary.op import TensorType
from engine.system.config import switch

_COMMUTE = {"Add", "Mul"}
_CALL = re.compile(r"(\w+)\(")  # an op in the text of a pattern
_CLOSE = 1e-4  # relative tolerance: exporters round constants to float32, or to fewer digits


@dataclass(slots=True)
class Match:
    """The place in a graph where a pattern matches.

    root: the node that computes the value of the whole pattern.
    values: the matched value for each name in the pattern.
    nodes: all nodes that the pattern covers, including the root.
    made: the nodes that a rule has added to replace them.
    """

    graph: Graph
    found: Inferred
    names: Names
    root: Node
    values: dict[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    made: list[Node] = field(default_factory=list)

    def get_type(self, name: str) -> TensorType:
        """Return the type of the value that matches a name of the pattern."""
        return self.found.types[self.values[name]]

    def get_value(self, name: str) -> Array | None:
        """Return the constant that matches a name of the pattern; None if it is not constant."""
        return self.found.constants.get(self.values[name])

    def get_scalar(self, name: str) -> float | None:
        """Return the constant number that matches a name of the pattern, or None."""
        value = self.get_value(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def get_node(self, name: str) -> Node:
        """Return the node that the pattern names by `:=`."""
        return next(n for n in self.nodes if n.outputs[0] == self.values[name])

    def list_axes(self, name: str) -> list[int]:
        """Return the axes of a reduction that the pattern names by `:=`, counted from the front."""
        node = self.get_node(name)
        rank = self.found.types[node.inputs[0]].rank
        axes = node.attrs.get("axes")
        if axes is None and len(node.inputs) > 1:
            axes = self.found.constants[node.inputs[1]].reshape(-1)
        if axes is None or not len(axes):
            axes = range(0 if node.attrs.get("noop_with_empty_axes") else rank)
        return sorted(int(axis) % rank for axis in axes)

    def add_op(
        self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any
    ) -> str:
        """Add a node; return the name of its first output, the only one that is read.

        The first output of the node that is added last takes the place of the root's output.
        """
        first = self.add_node(op, *inputs, domain=domain, **attrs)[0]
        self.made[-1].outputs = (first, *[""] * (outputs - 1))
        return first

    def add_node(
        self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any
    ) -> tuple[str, ...]:
        """Add a node; return the names of its outputs."""
        title = self.names.take_fresh(f"{self.root.name}/{op}")
        names = tuple(f"{title}_output_{i}" for i in range(outputs))
        self.made.append(Node(op, inputs, names, attrs, domain, title))
        return names

    def add_constant(self, value: Array) -> str:
        """Add an initializer; return its name."""
        name = self.names.take_fresh(f"{self.root.name}/value")
        self.graph.initializers[name] = value
        return name

    def refuse(self, rule: str, why: str) -> bool:
        """Leave the nodes as they are; return False.  EDGEGRAD_DEBUG prints the reason."""
        if switch("DEBUG") in ("1", "2"):
            print(f"not fused to {rule}: {self.root.op} {self.root.name!r}: {why}", file=sys.stderr)
        return False


@dataclass(frozen=True, slots=True)
class Rule:
    """Pattern, and the construction that replaces its matches.

    makes: the ops that replace the pattern, in the notation of `read_op_keys`.
    build: adds the nodes for a match and returns True, or refuses it (`Match.refuse`).  None: the
        op alone, without attributes, of the values that the pattern names, in their order.
    shares: whether values inside a match may have other readers; the nodes of values that have some
        stay.
    """

    makes: str
    pattern: str
    build: Callable[[Match], bool] | None = None
    shares: bool = False

    @property
    def name(self) -> str:
        """The name of the rule in messages: the op that it makes, without the domain."""
        return self.makes.rpartition("::")[2]

    def replace(self, match: Match) -> bool:
        """Add the nodes for a match; return False if it is refused."""
        if self.build is not None:
            return self.build(match)
        domain, _, op = self.makes.rpartition("::")
        match.add_op(op, *[match.values[name] for name in _free(self.pattern)], domain=domain)
        return True


def list_added(rules: Sequence[Rule]) -> MayAdd:
    """Return the declaration of rules: if a graph has all ops of a pattern, the rule's op may be
    added.
    """
    rows = [(" ".join(sorted(_list_operators(rule.pattern))), rule.makes) for rule in rules]
    made_by: dict[str, list[str]] = {}
    for needed, made in rows:
        made_by.setdefault(needed, []).append(made)
    return add_by_table({needed: " ".join(made) for needed, made in made_by.items()})


def rewrite(graph: Graph, found: Inferred, rules: Sequence[Rule]) -> bool:
    """Apply rules one after another, in place; return whether the graph has changed.

    A match is left alone if a value inside it has another reader or is an output of the graph,
    unless its rule `shares`.
    """
    is_changed, held = False, _list_operators_of(graph)
    places: _Places | None = None
    for rule in rules:
        if not held >= _list_operators(rule.pattern):
            continue
        places = places or _Places(graph)
        if _apply(graph, found, rule, places):
            is_changed, places, held = True, None, _list_operators_of(graph)
    return is_changed


def _list_operators_of(graph: Graph) -> set[str]:
    """Return the ops of ONNX's domain that a graph has."""
    return {node.op for node in graph.nodes if not node.domain}


class _Places:
    """Places where the values of a graph are made and read; valid until a rule changes the
    graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.names, self.outputs = Names(graph), set(graph.outputs)
        self.makers, self.readers = graph.find_producers(), graph.find_consumers()
        self.by_op: dict[str, list[Node]] = {}  # nodes of ONNX's domain
        for node in graph.nodes:
            if not node.domain:
                self.by_op.setdefault(node.op, []).append(node)


def _apply(graph: Graph, found: Inferred, rule: Rule, places: _Places) -> bool:
    """Apply one rule wherever it matches; return whether it did.  The graph has all ops of the
    rule.
    """
    tree = _parse(rule.pattern)
    kept: dict[Node, list[Node]] = {}  # root -> its replacement
    gone: set[Node] = set()
    for root in places.by_op[_find_operator(tree)]:
        if len(root.outputs) != 1:
            continue
        for values, nodes in _match(tree, root.outputs[0], {}, (), places.makers, found):
            inner = set(nodes)
            if not (inner.isdisjoint(gone) and inner.isdisjoint(kept)):
                continue
            match = Match(graph, found, places.names, root, values, nodes)
            escaped = _find_escaped(inner, root, places)
            if escaped and not rule.shares:
                names_read = [o for n in escaped for o in n.outputs]
                match.refuse(rule.name, f"{names_read} are read elsewhere")
                continue
            while escaped:  # they stay, and so do the nodes that they read
                inner -= escaped
                escaped = _find_escaped(inner, root, places)
            if rule.replace(match):
                last = match.made[-1]
                last.outputs = (root.outputs[0], *last.outputs[1:])
                kept[root] = match.made
                gone |= inner - {root}
                break
    if kept:
        graph.nodes = [m for n in graph.nodes if n not in gone for m in kept.get(n, [n])]
    return bool(kept)


def _find_escaped(inner: set[Node], root: Node, places: _Places) -> set[Node]:
    """Return the nodes of a match, except its root, whose outputs have readers outside it."""
    return {
        n
        for n in inner - {root}
        for o in n.outputs
        if o and (o in places.outputs or any(r not in inner for r in places.readers.get(o, ())))
    }


@functools.cache
def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@functools.cache
def _list_operators(text: str) -> frozenset[str]:
    """Return the ops in a pattern, without parsing it."""
    return frozenset(_CALL.findall(text))


@functools.cache
def _free(text: str) -> tuple[str, ...]:
    """Return the names in a pattern that match values from outside, in order."""
    every = list(ast.walk(_parse(text)))
    calls = {node.func for node in every if isinstance(node, ast.Call)}
    named = {node.target.id for node in every if isinstance(node, ast.NamedExpr)}
    read = [node for node in every if isinstance(node, ast.Name) and node not in calls]
    names = [node.id for node in sorted(read, key=lambda node: node.col_offset)]
    return tuple(name for name in dict.fromkeys(names) if name not in named)


@functools.cache
def _find_operator(tree: ast.expr) -> str:
    """Return the op of the root of a pattern; empty if the pattern is a name or a number."""
    call = tree.value if isinstance(tree, ast.NamedExpr) else tree
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        return call.func.id
    return ""


@functools.cache
def _parse_number(tree: ast.expr) -> float:
    """Return the number that a pattern of one number matches."""
    return float(ast.literal_eval(tree))


_State = tuple[dict[str, str], tuple[Node, ...]]  # values by name, and the nodes matched so far


def _match(
    tree: ast.expr,
    value: str,
    values: dict[str, str],
    nodes: tuple[Node, ...],
    makers: dict[str, Node],
    found: Inferred,
) -> Iterator[_State]:
    """Yield all ways to match a value with a pattern.

    values, nodes: the names that already have a value, and the nodes matched so far.
    """
    match tree:
        case ast.Name(id=name):
            if values.get(name, value) == value:
                yield {**values, name: value}, nodes
        case ast.Constant() | ast.UnaryOp():
            wanted = _parse_number(tree)
            known = found.constants.get(value)
            if known is None or known.size != 1 or known.dtype.kind not in "fiu":
                return
            if is_same(float(known.reshape(-1)[0]), wanted):
                yield values, nodes
        case ast.NamedExpr(target=ast.Name(id=name), value=inner):
            for known_values, covered in _match(inner, value, values, nodes, makers, found):
                if known_values.get(name, value) == value:
                    yield {**known_values, name: value}, covered
        case ast.Call(func=ast.Name(id=op), args=args):
            node = makers.get(value)
            if node is None or node.op != op or node.domain or len(node.inputs) < len(args):
                return
            if any(i and i not in found.constants for i in node.inputs[len(args) :]):
                return
            orders = [args, args[::-1]] if op in _COMMUTE else [args]
            for order in orders:
                if _may_match(order, node, makers):
                    yield from _match_inputs(order, node, values, (*nodes, node), makers, found)
        case _:
            raise ValueError(ast.unparse(tree))


def _may_match(trees: Sequence[ast.expr], node: Node, makers: Mapping[str, Node]) -> bool:
    """Return whether the ops at the roots of the patterns make the first inputs of a node."""
    for tree, value in zip(trees, node.inputs, strict=False):
        if wanted := _find_operator(tree):
            maker = makers.get(value)
            if maker is None or maker.op != wanted:
                return False
    return True


def _match_inputs(
    trees: Sequence[ast.expr],
    node: Node,
    values: dict[str, str],
    nodes: tuple[Node, ...],
    makers: dict[str, Node],
    found: Inferred,
) -> Iterator[_State]:
    """Yield all ways to match the first inputs of a node with one pattern each."""
    states: list[_State] = [(values, nodes)]
    for tree, value in zip(trees, node.inputs, strict=False):
        states = [
            after
            for known, covered in states
            for after in _match(tree, value, known, covered, makers, found)
        ]
    yield from states


def is_same(a: float | None, b: float) -> bool:
    """Return whether a constant equals, within rounding, the number in a rule."""
    return a is not None and bool(np.isclose(a, b, rtol=_CLOSE, atol=0))
