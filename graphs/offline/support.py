"""Support for training of each node of a model: the node is planned alone, then its gradient.

A node is tried with the types that it has in the model.  Symbolic dimensions are given numbers,
and others where a node does not take those: a pyramid of features wants pictures whose sizes are
multiples of 32, and a spectrogram sounds that are longer than its window.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS
from engine.base.errors import EngineError, NoInfluenceError
from engine.base.representation import shorten_name
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, Subgraph, find_type
from engine.graphs.ir.symbols import Inferred, list_symbols, rename
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.offline.precision import describe_halves, find_half_weights, tell, widen_graph
from engine.graphs.offline.untrained import advise
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.system.paths import Paths

TRAINABLE, NEUTRAL = "trainable", "needs no gradient"
FORWARD, UNSUPPORTED = "forward only", "unsupported"

# For symbolic dimensions, one after another; the first axes of inputs take only `PRIMES`.
PRIMES = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73)
MULTIPLES, LARGE = range(64, 384, 32), range(512, 1152, 64)
_LOST = "the type of {} is not known"
SMALL = 64  # least elements of a constant of floats that counts as a trained weight


@dataclass(frozen=True, slots=True)
class Support:
    """Node of a model, its status, and the reason if it cannot be trained.

    module: the submodule of the node, if the exporter has recorded it.
    """

    node: str
    op: str
    domain: str
    opset: int
    status: str
    reason: str = ""
    module: str = ""

    @property
    def follows(self) -> bool:
        """True if the reason is another node whose output is unknown."""
        before, after = _LOST.split("{}")
        return self.reason.startswith(before) and self.reason.endswith(after)


class SupportTable(list[Support]):
    """Table of the nodes of a model, in order; `str` formats it, without the middle of long names.

    notes: sentences after the rows, on folded nodes that make the model train differently from the
        exported module, and on weights of integers or half floats.
    """

    notes: tuple[str, ...] = ()

    def count(self, status: object) -> int:
        """Return the number of nodes of a status."""
        return sum(row.status == status for row in self)

    def __str__(self) -> str:
        known = any(r.module for r in self)  # otherwise there is no such column
        rows = [["node", *["module"] * known, "op", "opset", "status", ""]]
        for r in self:
            op = f"{r.domain}::{r.op}" if r.domain else r.op
            names = map(shorten_name, (r.node, *[r.module] * known))
            rows.append([*names, op, str(r.opset), r.status, r.reason])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
            for row in rows
        ]
        kinds = (TRAINABLE, NEUTRAL, FORWARD, UNSUPPORTED)
        total = ", ".join(f"{self.count(kind)} {kind}" for kind in kinds if self.count(kind))
        lacking = (r for r in self if r.status in (FORWARD, UNSUPPORTED) and not r.follows)
        advised: dict[str, list[str]] = {}
        for r in lacking:
            advised.setdefault(advise(r.domain, r.op), []).append(r.node)
        todo = [f"what to do about {', '.join(advised[what])}: {what}" for what in advised if what]
        end = [f"{len(self)} nodes: {total}", *todo, *(f"warning: {note}" for note in self.notes)]
        return "\n".join([*(line.rstrip() for line in lines), *end])


def check_support(model: onnx_io.Model) -> SupportTable:
    """Try every node of a model.

    Raises:
        FileError, ModelError, DTypeError, UnsupportedOpError: the model cannot be read.
    """
    graph = name_nodes(onnx_io.load(model))
    half = find_half_weights(graph)
    graph = widen_graph(graph) if half else graph
    paths = Paths.of(graph.metadata)
    table = SupportTable(
        replace(row, module=paths.find_module(row.node)) for row in _check_graph(graph)
    )
    told = tell(graph, list_parameters(graph))
    more = (describe_halves(half),) if half else ()
    table.notes = (*graph.notes, *([told] if told else ()), *more)
    return table


def _check_graph(graph: Graph) -> SupportTable:
    """Return the rows for the nodes of a graph."""
    with contextlib.suppress(EngineError):
        unroll(graph)
        infer(merged := graph.copy())
        graph.inputs = merged.inputs  # where symbols that must be equal are one
    best: SupportTable | None = None
    for sizes in _list_sizes(graph):
        trial = graph.copy()
        rename(trial, sizes)
        table = _Trial(trial).run()
        if best is None or _count_faults(table) < _count_faults(best):
            best = table
        if not _count_faults(best):
            break
    assert best is not None
    return best


def _count_faults(table: SupportTable) -> int:
    return table.count(UNSUPPORTED)


def _list_sizes(graph: Graph) -> Iterator[dict[str, int]]:
    """Yield numbers for the symbols, all different or all equal, the most telling ones first."""
    symbols = list_symbols(graph)
    first = {t.shape[0] for t in graph.inputs.values() if t.shape}
    seen = list[dict[str, int]]()
    for numbers, is_equal in itertools.product((PRIMES, MULTIPLES, LARGE), (False, True)):
        ranges = {s: PRIMES if s in first else numbers for s in symbols}
        sizes = {s: r[0 if is_equal else i % len(r)] for i, (s, r) in enumerate(ranges.items())}
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


class _Verdict(NamedTuple):
    """Status of a node and the reason; types and constant values of its outputs, otherwise None."""

    status: str
    reason: str
    types: tuple[TensorType | None, ...]
    values: tuple[Array | None, ...]


class _Trial:
    """Walk over a graph of concrete inputs.

    types, constants: the types and constants of the values so far.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types: dict[str, TensorType] = dict(graph.inputs)
        self.constants: dict[str, Array] = dict(graph.initializers)
        self.known: dict[object, _Verdict] = {}  # by the facts of a node

    def run(self) -> SupportTable:
        table = SupportTable()
        for node in self.graph.nodes:
            status, reason = self.try_node(node)
            opset = self.graph.opsets.get(node.domain, 1)
            table.append(Support(node.name, node.op, node.domain, opset, status, reason))
        return table

    def try_node(self, node: Node) -> tuple[str, str]:
        """Return the status of a node and the reason; note the types of its outputs."""
        lost = [i for i in node.list_reads() if i not in self.types and i not in self.constants]
        if lost:
            self.trust_types(node)
            return UNSUPPORTED, _LOST.format(repr(lost[0]))
        one = self.isolate(node)
        key = _describe(node, one)
        made = self.known.get(key) if key is not None else None
        if made is None:
            try:
                inferred = infer(unroll(one.copy()), settled=True)
            except EngineError as error:
                self.trust_types(node)
                return UNSUPPORTED, _explain(error)
            made = self.try_known(node, one, inferred)
            if key is not None:
                self.known[key] = made
        for output, t, value in zip(node.outputs, made.types, made.values, strict=True):
            if t is not None:
                self.types[output] = t
            if value is not None:
                self.constants[output] = value
        return made.status, made.reason

    def trust_types(self, node: Node) -> None:
        """Note the model's types of a node's outputs, because they cannot be inferred."""
        for o in node.outputs:
            t = self.graph.types.get(o)
            if t is not None and all(isinstance(d, int) for d in t.shape):
                self.types[o] = t

    def isolate(self, node: Node) -> Graph:
        """Return the graph of one node, whose operands are inputs, or constants other than
        weights.
        """
        constants, inputs = {}, {}
        for i in node.list_reads():
            value = self.constants.get(i)
            if value is not None and (value.dtype.kind != "f" or value.size < SMALL):
                constants[i] = value
            else:
                inputs[i] = self.types[i] if value is None else find_type(value)
        outputs = [o for o in node.outputs if o]
        return Graph(node.name, inputs, outputs, constants, [node], self.graph.opsets)

    def try_known(self, node: Node, one: Graph, inferred: Inferred) -> _Verdict:
        """Return the verdict on a node with known types: plan it, then its gradient."""
        types, constants = inferred.types, inferred.constants
        values = tuple(constants.get(o) if o else None for o in node.outputs)
        is_constant = all(o in constants for o in node.outputs if o)
        status, reason = (NEUTRAL, "") if is_constant else self.plan(one, inferred)
        return _Verdict(status, reason, tuple(types.get(o) for o in node.outputs), values)

    def plan(self, one: Graph, inferred: Inferred) -> tuple[str, str]:
        """Return the status and the reason of a node that is computed when the model runs."""
        try:
            make_plan(one, {}, target=detect_host(), threads=1)
        except EngineError as error:
            return UNSUPPORTED, _explain(error)
        losses = [o for o in one.outputs if inferred.types[o].dtype in FLOATS]
        wrt = [i for i in (*one.inputs, *one.initializers) if inferred.types[i].dtype in FLOATS]
        if not losses or not wrt:
            return NEUTRAL, ""
        reasons = []
        for output, name in itertools.product(losses, wrt):
            try:
                make_plan(_make_gradient(one, output, name), {}, target=detect_host(), threads=1)
                return TRAINABLE, ""
            except EngineError as error:
                reasons.append((type(error), _explain(error)))
        refused = [text for kind, text in reasons if kind is not NoInfluenceError]
        return (FORWARD, refused[0]) if refused else (NEUTRAL, "its gradient is zero everywhere")


def _describe(node: Node, one: Graph) -> object | None:
    """Return the facts that decide the verdict on a node, without names, as a key.

    Layers repeat each other, so most nodes of a deep model have the facts of an earlier one.  The
    key is None for a node with subgraphs, which may read any value of the graph.

    one: the graph of the node alone.
    """
    attrs = sorted(node.attrs.items())
    if any(isinstance(value, Subgraph) for _, value in attrs):
        return None
    read = [
        (node.inputs.index(i), one.inputs[i] if i in one.inputs else _freeze(one.initializers[i]))
        if i
        else None
        for i in node.inputs
    ]
    told = [(name, _freeze(value)) for name, value in attrs]
    places = [bool(o) for o in node.outputs]
    return (node.domain, node.op, tuple(told), tuple(places), tuple(read))


def _freeze(value: object) -> object:
    """Return a constant or an attribute as a part of a key: all of its bytes, not only its text."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple(map(_freeze, value))
    return type(value), repr(value)


def _make_gradient(one: Graph, output: str, wrt: str) -> Graph:
    """Return the graph of the gradient, with respect to `wrt`, of the sum of squares of an
    output.
    """
    graph = unroll(one.copy())
    graph.nodes.append(Node("Mul", (output, output), ("/square",)))
    graph.nodes.append(Node("ReduceSum", ("/square",), ("/loss",), {"keepdims": 0}))
    types = infer(name_nodes(graph).copy()).types
    graph.outputs = [differentiate(graph, "/loss", [wrt], types)[wrt]]
    return graph


def _explain(error: EngineError) -> str:
    """Return the text of an error in one line, without the name of the node at its beginning."""
    text = " ".join(str(error).split())
    node = r"[\w.:]+ '[^']*' \(opset \d+[^)]*\)( in '[^']*')?"
    return re.sub(f"^(.*: no gradient for )?{node}", "", text).lstrip(": ") or "no gradient"
