"""Inference: the type of every value, and the values that do not depend on any input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.errors import (
    EngineError,
    ModelError,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
    nearest,
)
from engine.graphs import convert
from engine.graphs.ir import Graph, Node, type_of
from engine.graphs.sites import declaration, site_of
from engine.kernels._op import Array, Dim, Op, Site, TensorType

FOLD_BYTES = 1 << 20  # nothing larger is folded, and nothing folded from larger

# Sizes tried for symbolic dimensions, in turn.  Primes: a size that two symbols make by chance, or
# that a model has anyway, would be taken for another one.
_LARGE = (67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151)
_SMALL = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)


class Inferred(NamedTuple):
    """`types` of all values; `constants` are those whose value is known, initializers included."""

    types: dict[str, TensorType]
    constants: dict[str, Array]


# --- concrete shapes


def bind(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """A copy of the graph for concrete shapes of some inputs.  A symbol has one value everywhere.

    Before   x: f32[batch,3], labels: i64[batch]; shapes {"x": (8, 3)}
    After    x: f32[8,3],     labels: i64[8]

    Raises:
        NameNotFoundError: a shape for something that is no input.
        ShapeError: a shape does not fit its input, or one symbol would have two values.
    """
    known: dict[str, tuple[int, str]] = {}  # symbol -> its value, and the input that gave it
    for name, shape in shapes.items():
        declared = graph.inputs.get(name)
        if declared is None:
            raise NameNotFoundError(
                f"{graph.name}: no input {name!r}; inputs: {', '.join(graph.inputs)}"
                f"{nearest(name, graph.inputs)}"
            )
        if len(shape) != declared.rank:
            raise ShapeError(
                f"input {name!r}: shape {list(shape)} of rank {len(shape)}; expected {declared}"
            )
        for axis, (want, found) in enumerate(zip(declared.shape, shape, strict=True)):
            if isinstance(want, str):
                value, giver = known.setdefault(want, (int(found), name))
                if value != found:
                    raise ShapeError(
                        f"input {name!r}: dimension {axis} ({want!r}) is {found}, but {value} in "
                        f"input {giver!r}"
                    )
            elif want != found:
                raise ShapeError(
                    f"input {name!r}: dimension {axis} is {found}; expected {want} ({declared})"
                )
            if found < 0:
                raise ShapeError(f"input {name!r}: dimension {axis} is {found}")
    return _replace(graph, {symbol: value for symbol, (value, _) in known.items()})


def _replace(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """A copy of the graph with some symbols replaced by numbers."""

    def real(t: TensorType) -> TensorType:
        return t.but([sizes.get(d, d) if isinstance(d, str) else d for d in t.shape])

    out = graph.copy()
    out.inputs = {name: real(t) for name, t in graph.inputs.items()}
    out.types = {name: real(t) for name, t in graph.types.items()}
    return out


# --- inference


def infer(graph: Graph) -> Inferred:
    """Find all types; nodes whose outputs are known become initializers, in place.

    Known is what depends on constants and on shapes alone.  Where input dimensions are symbolic the
    walk is done for two choices of sizes: what comes out the same both times is known, and a size
    that differs is a symbol.  So every rule works with numbers, and shapes may be computed by any
    ops.  If no choice of sizes fits, the rules are given the symbols themselves.

    Before   x: f32[batch,4,4]; s = Shape(x); b = Slice(s, [0], [1]); t = Concat(b, [-1]);
             y = Reshape(x, t)
    After    y: f32[batch,16]

    Raises:
        UnsupportedOpError: nodes without a declaration, all of them, or one that is not supported.
        ShapeError, DTypeError: operands of a node do not fit.
    """
    found = _infer(graph)
    kept = []
    for node in graph.nodes:
        outputs = [o for o in node.outputs if o]
        if outputs and all(o in found.constants for o in outputs):
            graph.initializers.update((o, found.constants[o]) for o in outputs)
        else:
            kept.append(node)
    graph.nodes = kept
    graph.types.update(found.types)
    return found


def _infer(graph: Graph) -> Inferred:
    symbols = list(
        dict.fromkeys(d for t in graph.inputs.values() for d in t.shape if isinstance(d, str))
    )
    if not symbols:
        return _Walk(graph).run()
    failure: ShapeError | None = None
    for first, second in _choices(symbols):
        try:
            pair = [_Walk(_replace(graph, sizes)).run() for sizes in (first, second)]
        except ShapeError as error:
            tried = ", ".join(f"{s}={n}" for s, n in first.items())
            failure = failure or ShapeError(f"{error} (with {tried})")
            continue
        return _merge(graph, pair[0], pair[1], first, second)
    try:
        return _Walk(graph).run()
    except EngineError:  # what went wrong with numbers says more
        assert failure is not None
        raise failure from None


def _choices(symbols: Sequence[str]) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Pairs of sizes to try: all different, then all equal; large first, then small."""
    for pool in (_LARGE, _SMALL):
        count = min(len(symbols), len(pool) // 2)
        yield (
            {s: pool[i % count] for i, s in enumerate(symbols)},
            {s: pool[count + i % count] for i, s in enumerate(symbols)},
        )
        yield dict.fromkeys(symbols, pool[0]), dict.fromkeys(symbols, pool[1])


def _merge(
    graph: Graph, a: Inferred, b: Inferred, first: Mapping[str, int], second: Mapping[str, int]
) -> Inferred:
    """What is the same for both sizes is known; a size that differs gets a symbol."""
    names: dict[tuple[int, int], str] = {}
    for symbol in first:
        names.setdefault((first[symbol], second[symbol]), symbol)

    def dim(x: Dim, y: Dim) -> Dim:
        if x == y:
            return x
        assert isinstance(x, int)
        assert isinstance(y, int)
        return names.setdefault((x, y), f"dim_{len(names)}")

    types = dict(graph.inputs)
    for name, t in a.types.items():
        other = b.types[name]
        if t.rank != other.rank:
            raise ShapeError(f"{graph.name}: the rank of {name!r} depends on the input shapes")
        types.setdefault(
            name, t.but([dim(x, y) for x, y in zip(t.shape, other.shape, strict=True)])
        )
    constants = {
        name: value
        for name, value in a.constants.items()
        if name in b.constants and _same(value, b.constants[name])
    }
    return Inferred(types, constants)


def _same(a: Array, b: Array) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


@dataclass(slots=True)
class _Walk:
    """One pass over the nodes of a graph."""

    graph: Graph
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # node without a declaration -> text

    def run(self) -> Inferred:
        self.constants.update(self.graph.initializers)
        self.types.update(self.graph.inputs)
        self.types.update((n, type_of(a)) for n, a in self.graph.initializers.items())
        for node in self.graph.nodes:
            self.node(node)
        if self.missing:
            first, *others = self.missing.values()
            raise UnsupportedOpError("\n".join([first, *(f"also: {n}" for n in others)]))
        return Inferred(self.types, self.constants)

    def node(self, node: Node) -> None:
        try:
            op = declaration(self.graph, node)
        except UnsupportedOpError as error:
            values = self.reference(node)
            if values:
                self.keep(node, values)
            else:
                text = f"{node.op} {node.name!r}" if self.missing else str(error)
                self.missing[node.name or node.outputs[0]] = text
            return
        if any(i and i not in self.types for i in node.inputs):
            return  # behind a node in `missing`
        self.declared(node, op)

    def declared(self, node: Node, op: Op) -> None:
        site = site_of(self.graph, node, self.types, self.constants)
        found = _infer_op(op, site)
        if len(found) < len(node.outputs):
            site.fail(f"{len(node.outputs)} outputs", f"{len(found)}")
        self.types.update((o, t) for o, t in zip(node.outputs, found, strict=False) if o)
        if node.inputs and any(_nbytes(t) > FOLD_BYTES for t in found):
            return
        if op.fold is None:
            values = self.reference(node)
        elif self.is_known(node) or self.is_shape(node):
            values = list(op.fold(site))
        else:
            return
        if values:
            self.keep(node, values)

    def is_shape(self, node: Node) -> bool:
        """Whether the node asks for a shape, and that shape is known."""
        asks = node.op in ("Shape", "Size") and not node.domain
        return asks and all(isinstance(d, int) for d in self.types[node.inputs[0]].shape)

    def is_known(self, node: Node) -> bool:
        """Whether all inputs are constants, small enough to compute with here."""
        known = [self.constants.get(i) for i in node.reads()]
        return all(v is not None and v.nbytes <= FOLD_BYTES for v in known)

    def reference(self, node: Node) -> list[Array]:
        """The outputs by onnx's reference; empty if they cannot be known."""
        if not self.is_known(node):
            return []
        values = [self.constants.get(i) if i else None for i in node.inputs]
        done = convert.evaluate(node, self.graph.opsets, values)
        plain = [np.asarray(v) for v in done]
        small = all(v.nbytes <= FOLD_BYTES and v.dtype.kind in "fiub" for v in plain)
        return plain if small and len(plain) == len(node.outputs) else []

    def keep(self, node: Node, values: Sequence[Array]) -> None:
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                self.constants[name] = value
                self.types[name] = type_of(value)


def _infer_op(op: Op, site: Site) -> tuple[TensorType, ...]:
    """The types of a node's outputs; whatever a malformed node does to a rule names the node."""
    try:
        return op.infer(site)
    except EngineError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{site.where()}: malformed node ({reason})") from error


def _nbytes(t: TensorType) -> int:
    """At most this many bytes; of an unknown size more than will be folded."""
    if any(isinstance(d, str) for d in t.shape):
        return FOLD_BYTES + 1
    return t.size * 8
