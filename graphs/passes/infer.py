"""Inference: find the type of every value, and compute the values that no input decides."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

import numpy as np

from engine import limits
from engine.errors import (
    EngineError,
    InternalError,
    NameNotFoundError,
    ShapeError,
    UnknownValueError,
    UnsupportedOpError,
    nearest,
)
from engine.graphs.io import reference
from engine.graphs.ir.graph import MAX_RANK, Graph, Node, type_of
from engine.graphs.ir.sites import Answers, declaration, rule_of, site_of, told_of
from engine.graphs.ir.symbols import Inferred, Walk, evaluate, infer_by_trial, rename, symbols_of
from engine.graphs.passes.sizes import fold_sizes
from engine.kernels.vocabulary.op import Array, Dim, Op, Site, TensorType
from engine.kernels.vocabulary.terms import Formulas

FOLD_BYTES = 1 << 20  # of the operands and results that constant folding takes
REPEATED = 64  # elements of a constant that repeats another; readers of a larger one repeat it
# From this size on, products read a quantised matrix as it is; see passes/quantised.py.
QUANTISED = 64


# --- concrete shapes


def bind(graph: Graph, shapes: Mapping[str, Sequence[int]], *, is_loose: bool = False) -> Graph:
    """A copy of the graph with concrete shapes for some inputs.

    Every symbolic dimension gets the size that the shapes give it, wherever it stands.

    shapes, is_loose: as `sizes_of` says.

    Before   x: f32[batch,3], labels: i64[batch]; shapes {"x": (8, 3)}
    After    x: f32[8,3],     labels: i64[8]

    A dimension that is a polynomial of symbols, as `8*batch`, gets its value.

    Raises:
        NameNotFoundError, ShapeError: as `sizes_of`.
    """
    out = sized(graph, sizes_of(graph, shapes, is_loose=is_loose))
    for name, shape in shapes.items():
        out.inputs[name] = out.inputs[name].but([int(d) for d in shape])
    return out


def sized(graph: Graph, sizes: Mapping[str, Dim]) -> Graph:
    """A copy of the graph in which symbolic dimensions have these sizes."""
    out = graph.copy()
    rename(out, sizes)
    return out


def sizes_of(
    graph: Graph, shapes: Mapping[str, Sequence[int]], *, is_loose: bool = False
) -> dict[str, int]:
    """The size that shapes give each symbolic dimension of the inputs.

    shapes: by name of the input.
    is_loose: accept several sizes for one symbol, as long as every input has one size for it, and
        take the first.  Some models reshape their inputs and fit nevertheless.  Sizes 1 and n are
        not accepted together, because the input of size 1 would be broadcast without a word.

    Raises:
        NameNotFoundError: a shape for something that is no input.
        ShapeError: a shape does not fit its input, or one symbol would get two sizes.
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
                if value != found and (giver == name or not is_loose or 1 in (value, found)):
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
    sizes = {symbol: value for symbol, (value, _) in known.items()}
    for symbol, (size, giver) in known.items():
        follows = evaluate(symbol, {s: n for s, n in sizes.items() if s != symbol})
        if follows not in (symbol, size) and not is_loose:
            raise ShapeError(
                f"input {giver!r}: a dimension ({symbol!r}) is {size}, but the other inputs make "
                f"it {follows}"
            )
    return sizes


# --- inference


class Made(NamedTuple):
    """What a node makes: the types of its outputs, and their values if those are constant."""

    types: tuple[TensorType, ...]
    values: tuple[Array, ...] = ()


def infer(graph: Graph, settled: bool = False, answers: Answers[Made] | None = None) -> Inferred:
    """Find the types of all values, and fold constants, in place.

    A value is folded if it depends on constants and on known shapes alone; the node that makes it
    becomes an initializer.  Symbolic dimensions are handled by trial with numbers, see `symbols`,
    so that any ops may compute shapes.  Symbols that fit only when they are equal become one.  If
    no numbers fit, the shape rules get the symbols themselves.

    settled: all inputs have concrete shapes, and every other value must get one.
    answers: what rules have answered about nodes of this graph; it is added to.

    Before   x: f32[batch,4,4]; s = Shape(x); b = Slice(s, [0], [1]); t = Concat(b, [-1]);
             y = Reshape(x, t)
    After    y: f32[batch,16]

    Raises:
        UnknownValueError: a shape depends on the value of an input.
        UnsupportedOpError: nodes have no declaration (the message lists them all), or a shape rule
            does not support its node.
        ShapeError, DTypeError: the operands of a node do not fit.
        LimitError: constants of too many bytes would be made.
    """
    answers = Answers() if answers is None else answers
    found = _Walk(graph, answers, settled).run() if settled else _infer(graph, answers)
    kept = []
    if not symbols_of(graph):
        graph.sized |= _made_of_sizes(graph) & found.constants.keys()
    for node in graph.nodes:
        outputs = found.constants.keys() & node.outputs
        if outputs and len(outputs) == len([o for o in node.outputs if o]):
            graph.initializers.update((o, found.constants[o]) for o in node.outputs if o)
        else:
            kept.append(node)
    graph.nodes = kept
    graph.types.update(found.types)
    return found


def _made_of_sizes(graph: Graph) -> set[str]:
    """The values that depend on the shape of a value that is no initializer."""
    out: set[str] = set()
    for node in graph.nodes:
        asks = node.op in ("Shape", "Size") and not node.domain
        is_asked = asks and any(i not in graph.initializers for i in node.inputs)
        if is_asked or not out.isdisjoint(node.inputs):
            out.update(filter(None, node.outputs))
    return out


def _infer(graph: Graph, answers: Answers[Made]) -> Inferred:
    """What is found for a graph whose inputs may have symbolic dimensions."""
    if not symbols_of(graph):
        return _Walk(graph, answers).run()

    def walk_of(graph: Graph, answers: Answers[Made]) -> Walk:
        def walk(sizes: Mapping[str, int]) -> Inferred:
            concrete = graph.copy()
            rename(concrete, sizes)
            for name, t in concrete.inputs.items():
                if any(isinstance(d, int) and d < 0 for d in t.shape):
                    raise ShapeError(f"{graph.name}: the input {name!r} would be {t}")
            return _Walk(concrete, answers).run()

        return walk

    try:
        return infer_by_trial(graph, walk_of(graph, answers), lambda part: walk_of(part, Answers()))
    except ShapeError as failure:
        try:
            return _Walk(graph, answers).run()
        except InternalError:
            raise
        except EngineError:  # the error of the trial with numbers tells more
            raise failure from None


def sources(graph: Graph, name: str, constants: Mapping[str, Array]) -> tuple[str, ...]:
    """The inputs of a graph on which a value depends; a known constant depends on none."""
    makers, waiting = graph.producers(), [name]
    seen: dict[str, None] = {}
    while waiting:
        value = waiting.pop()
        if value not in seen and value not in constants:
            seen[value] = None
            waiting += makers[value].reads() if value in makers else ()
    return tuple(n for n in seen if n in graph.inputs)


@contextlib.contextmanager
def naming_sources(graph: Graph, node: Node, constants: Mapping[str, Array]) -> Iterator[None]:
    """Add to an UnknownValueError of a node the graph inputs on which the unknown value depends."""
    try:
        yield
    except UnknownValueError as error:
        if error.index < len(node.inputs):
            error.inputs = error.inputs or sources(graph, node.inputs[error.index], constants)
        raise


@dataclass(slots=True)
class _Walk:
    """One walk over the nodes of a graph, which collects types and constants."""

    graph: Graph
    answers: Answers[Made]
    settled: bool = False
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # node without a declaration -> text
    symbols: set[str] = field(default_factory=set)
    made: int = 0  # bytes of the constants that it has computed

    def run(self) -> Inferred:
        self.constants.update(self.graph.initializers)
        one_of = self.answers.one_of
        self.types.update((n, one_of(t)) for n, t in self.graph.inputs.items())
        self.types.update((n, one_of(type_of(a))) for n, a in self.graph.initializers.items())
        self.symbols.update(d for t in self.types.values() for d in _symbols(t))
        for node in self.graph.nodes:
            self.node(node)
        if self.missing:
            first, *others = self.missing.values()
            raise UnsupportedOpError("\n".join([first, *(f"also: {n}" for n in others)]))
        return Inferred(self.types, self.constants)

    def node(self, node: Node) -> None:
        """Find the types of a node's outputs, and their values if those are constant."""
        told = told_of(self.graph, node, self.types, self.constants)
        made = self.answers.get(told)
        if made is not None:
            self.keep(node, made)
            return
        try:
            op = declaration(self.graph, node)
        except UnsupportedOpError as error:
            values = self.reference(node)
            if values:
                self.keep(node, _made(values))
            else:
                text = f"{node.op} {node.name!r}" if self.missing else str(error)
                self.missing[node.name or node.outputs[0]] = text
            return
        if any(i and i not in self.types for i in node.inputs):
            return  # an input comes from a node in `missing`
        site = site_of(self.graph, node, self.types, self.constants)
        made = self.declared(node, op, site)
        made = Made(tuple(map(self.answers.one_of, made.types)), made.values)
        self.keep(node, made)
        if not any(_symbols(t) for t in made.types):
            self.answers.keep(told, site, made)

    def declared(self, node: Node, op: Op, site: Site) -> Made:
        """What a node makes whose op has a declaration."""
        with (
            naming_sources(self.graph, node, self.constants),
            rule_of(op, "the shape rule", site, node),
        ):
            found = _infer_op(op, site)
        if len(found) < len(node.outputs):
            site.fail(f"{len(node.outputs)} outputs", f"{len(found)}")
        highest = max((t.rank for t in found), default=0)
        if highest > MAX_RANK:
            site.fail(f"{highest} dimensions", f"up to {MAX_RANK}")
        found = self.own_symbols(site, found)
        if self.settled and not all(isinstance(d, int) for t in found for d in t.shape):
            self.refuse_unknown(node, site)
        if not self.is_known(node, op):
            return Made(found)
        if node.inputs and any(_nbytes(t) > FOLD_BYTES for t in found):
            return Made(found)
        if (op.domain, op.name) == ("", "Expand") and found[0].size > REPEATED:
            return Made(found)
        if op.name == "DequantizeLinear" and _is_matrix(found[0]):
            return Made(found)
        if op.fold is None:
            values = self.reference(node) if op.by_reference else []
        else:
            with rule_of(op, "the computation of a constant", site, node):
                values = _fold_op(op, site)
        if node.inputs:  # else a Constant, whose bytes are the model's
            self.made += sum(v.nbytes for v in values)
            limits.check("CONSTANT_BYTES", self.made, site.where, "with what is folded before,")
        return _made(values, found)

    def own_symbols(self, site: Site, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """The output types of a node; symbols that the node makes are not those of other nodes.

        Rules name new symbols after the node, and nodes need not have names, or different ones.
        """
        symbols = [d for t in types for d in _symbols(t)]
        if not symbols:
            return tuple(types)
        old = {d for t in site.ins if t for d in _symbols(t)}
        new: dict[Dim, Dim] = {}
        for made in dict.fromkeys(d for d in symbols if d not in old):
            tried = (f"{made}_{k}" if k else made for k in itertools.count())
            new[made] = name = next(n for n in tried if n not in self.symbols)
            self.symbols.add(name)
        return tuple(replace(t, shape=tuple(new.get(d, d) for d in t.shape)) for t in types)

    def refuse_unknown(self, node: Node, site: Site) -> NoReturn:
        """Refuse a node whose output shapes depend on values that are not known.

        The message names the inputs that are likely to decide: scalars and vectors behind the first
        input, those of integers if there are some.  If there are none, it names all inputs.
        """
        free = [i for i in node.inputs if i and i not in self.constants]
        short = [i for i in free if i != node.inputs[0] and self.types[i].rank < 2]
        deciding = [i for i in short if self.types[i].dtype[0] in "iu"] or short or free
        inputs = [n for i in deciding for n in sources(self.graph, i, self.constants)]
        raise UnknownValueError(
            f"{site.where()}: the shape of its output depends on the values of {deciding}, which "
            f"must be constants known before lowering",
            inputs=tuple(dict.fromkeys(inputs)),
        )

    def is_known(self, node: Node, op: Op | None = None) -> bool:
        """Whether the inputs decide the outputs: they are constants of at most `FOLD_BYTES`.

        Of inputs whose type alone is read the shape must be known.
        """
        type_only = op.type_only if op is not None else frozenset[int]()
        if op is not None and type_only and op.fold is None:
            return False
        for k, name in enumerate(node.inputs):
            if k in type_only:
                if name and any(isinstance(d, str) for d in self.types[name].shape):
                    return False
            elif name and ((v := self.constants.get(name)) is None or v.nbytes > FOLD_BYTES):
                return False
        return True

    def reference(self, node: Node) -> list[Array]:
        """The outputs by onnx's reference; empty if an input is not known, or it cannot compute."""
        if not self.is_known(node):
            return []
        known = (self.constants.get(i) if i else None for i in node.inputs)
        values = [None if v is None else np.asarray(v) for v in known]
        done = reference.evaluate(node, self.graph.opsets, values)
        plain = [np.asarray(v) for v in done]
        small = all(v.nbytes <= FOLD_BYTES and v.dtype.kind in "fiub" for v in plain)
        return plain if small and len(plain) == len(node.outputs) else []

    def keep(self, node: Node, made: Made) -> None:
        """Note what a node makes."""
        for name, t in zip(node.outputs, made.types, strict=False):
            if name:
                self.types[name] = t
        for name, value in zip(node.outputs, made.values, strict=False):
            if name:
                self.constants[name] = value


def _made(values: Sequence[Array], types: Sequence[TensorType] = ()) -> Made:
    """What a node makes whose outputs, or the first of them, have these values.

    types: those of all outputs, as the shape rule says.
    """
    return Made((*map(type_of, values), *types[len(values) :]), tuple(values))


def _infer_op(op: Op, site: Site) -> tuple[TensorType, ...]:
    """The types of a node's outputs by the shape rule of its op; its formula must take them."""
    types = op.infer(site)
    if op.expr is not None:
        kinds = [t.dtype if t else "" for t in site.ins]
        formula = site.formula()
        if misfit := formula.misfit(kinds) or _signed(formula, kinds):
            site.fail(misfit, "functions of reals, logic of b1, bits of integers, the rest of all")
    for t in types:
        if any(isinstance(d, int) and d < 0 for d in t.shape):
            site.wrong(f"an output of the shape {list(t.shape)}")
    return types


def _signed(formula: Formulas, kinds: Sequence[str]) -> str:
    """What of a formula negates or subtracts truth values, which have no sign; "" if nothing."""
    if "b1" not in kinds:
        return ""
    found = formula.dtypes(kinds)
    for name, *places in formula.terms:
        if name in ("neg", "sub") and any(found[p] == "b1" for p in places):
            return f"{name} of b1"
    return ""


def _fold_op(op: Op, site: Site) -> list[Array]:
    """The values of a node whose inputs are known."""
    assert op.fold is not None
    values = fold_sizes(op, site)
    if values is not None:
        return values
    with np.errstate(all="ignore"):
        return list(op.fold(site))


def _is_matrix(t: TensorType) -> bool:
    """Whether products may read a quantised value of this type as it is: a matrix, or 1x1 taps."""
    return t.rank >= 2 and set(t.shape[2:]) <= {1} and t.size >= QUANTISED


def _symbols(t: TensorType) -> list[str]:
    """The symbolic dimensions of a type."""
    return [d for d in t.shape if isinstance(d, str)]


def _nbytes(t: TensorType) -> int:
    """An upper bound of the bytes of a value; for an unknown shape more than `FOLD_BYTES`."""
    if _symbols(t):
        return FOLD_BYTES + 1
    return t.size * 8
