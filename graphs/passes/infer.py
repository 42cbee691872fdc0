"""Type inference for every value, and constant folding of values that no input changes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

import numpy as np

from engine.base import limits
from engine.base.aliases import Array
from engine.base.element_types import MAX_RANK
from engine.base.errors import (
    EngineError,
    InternalError,
    NameNotFoundError,
    ShapeError,
    UnknownValueError,
    UnsupportedOpError,
    suggest_nearest,
)
from engine.graphs.io import reference
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.ir.sites import Answers, get_declaration, list_facts, make_site, run_rule
from engine.graphs.ir.symbols import Inferred, Walk, evaluate, infer_by_trial, list_symbols, rename
from engine.graphs.passes.sizes import fold_sizes
from engine.kernels.vocabulary.facts import Scaling
from engine.kernels.vocabulary.op import Dim, Op, Site, TensorType
from engine.kernels.vocabulary.terms import Formulas
from engine.kernels.vocabulary.units import check_units

FOLD_BYTES = 1 << 20  # of the operands and results that constant folding takes
REPEATED = 64  # elements of a constant that repeats another; readers of a larger one repeat it
# From this size on, products read a quantised matrix as it is; see passes/quantised.py.
QUANTISED = 64
_MOST_TRIED = 8  # symbols that are given the number 1, each alone


def note_output_types(graph: Graph) -> Graph:
    """Note the types of outputs that the file of a model does not tell, in place.

    Files that are made of the graph must tell them.

    Raises:
        EngineError: as `infer`.
    """
    if any(name not in graph.types and name not in graph.inputs for name in graph.outputs):
        graph.types = {**infer(graph.copy()).types, **graph.types}
    return graph


# --- concrete shapes


def bind(graph: Graph, shapes: Mapping[str, Sequence[int]], *, is_loose: bool = False) -> Graph:
    """Return a copy of the graph with concrete shapes for some inputs.

    Every symbolic dimension gets the size that the shapes give it, wherever it stands.

    shapes, is_loose: see `find_sizes`.

    Before   x: f32[batch,3], labels: i64[batch]; shapes {"x": (8, 3)}
    After    x: f32[8,3],     labels: i64[8]

    A dimension that is a polynomial of symbols, such as `8*batch`, gets its value.

    Raises:
        NameNotFoundError, ShapeError: see `find_sizes`.
    """
    out = resize(graph, find_sizes(graph, shapes, is_loose=is_loose))
    for name, shape in shapes.items():
        out.inputs[name] = out.inputs[name].but([int(d) for d in shape])
    return out


def resize(graph: Graph, sizes: Mapping[str, Dim]) -> Graph:
    """Return a copy of the graph in which symbolic dimensions have these sizes."""
    out = graph.copy()
    rename(out, sizes)
    return out


def find_sizes(
    graph: Graph, shapes: Mapping[str, Sequence[int]], *, is_loose: bool = False
) -> dict[str, int]:
    """Return the size that shapes give each symbolic dimension of the inputs.

    shapes: by name of the input.
    is_loose: accept several sizes for one symbol, as long as every input has one size for it, and
        take the first.  Some models reshape their inputs, so that different sizes fit.  Sizes 1 and
        n are not accepted together, because the input of size 1 would be broadcast silently.

    Raises:
        NameNotFoundError: a shape names something other than an input.
        ShapeError: a shape does not fit its input, or one symbol would get two sizes.
    """
    known: dict[str, tuple[int, str]] = {}  # symbol -> its value, and the input that gave it
    for name, shape in shapes.items():
        declared = graph.inputs.get(name)
        if declared is None:
            raise NameNotFoundError(
                f"{graph.name}: no input {name!r}; inputs: {', '.join(graph.inputs)}"
                f"{suggest_nearest(name, graph.inputs)}"
            )
        if len(shape) != declared.rank:
            raise ShapeError(
                f"input {name!r}: the shape {list(shape)} has rank {len(shape)}; expected "
                f"{declared}"
            )
        for axis, (want, size) in enumerate(zip(declared.shape, shape, strict=True)):
            if isinstance(want, str):
                value, giver = known.setdefault(want, (int(size), name))
                if value != size and (giver == name or not is_loose or 1 in (value, size)):
                    raise ShapeError(
                        f"input {name!r}: dimension {axis} ({want!r}) is {size}, but {value} in "
                        f"input {giver!r}"
                    )
            elif want != size:
                raise ShapeError(
                    f"input {name!r}: dimension {axis} is {size}; expected {want} ({declared})"
                )
            if size < 0:
                raise ShapeError(f"input {name!r}: dimension {axis} is {size}; expected 0 or more")
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


class NodeResults(NamedTuple):
    """Results of a node: the types of its outputs, and their values if those are constant."""

    types: tuple[TensorType, ...]
    values: tuple[Array, ...] = ()


def infer(
    graph: Graph, settled: bool = False, answers: Answers[NodeResults] | None = None
) -> Inferred:
    """Find the types of all values and fold constants, in place.

    A value is folded if it depends on constants and on known shapes alone; the node that makes it
    becomes an initializer.  Symbolic dimensions are handled by trial with numbers, see `symbols`,
    so any op may compute shapes.  Symbols that fit only when they are equal become one.  If no
    numbers fit, the shape rules get the symbols themselves.

    settled: all inputs have concrete shapes, and every other value must get one.
    answers: results of rules for nodes of this graph; new results are added.

    Before   x: f32[batch,4,4]; s = Shape(x); b = Slice(s, [0], [1]); t = Concat(b, [-1]);
             y = Reshape(x, t)
    After    y: f32[batch,16]

    Raises:
        UnknownValueError: a shape depends on the value of an input.
        UnsupportedOpError: nodes have no declaration (the message lists them all), or a shape rule
            does not support its node.
        ShapeError, DTypeError: the operands of a node do not fit.
        LimitError: the constants would take too many bytes.
    """
    answers = Answers() if answers is None else answers
    inferred = _InferenceWalk(graph, answers, settled).run() if settled else _infer(graph, answers)
    kept = []
    if not list_symbols(graph):
        graph.sized |= _find_made_of_sizes(graph) & inferred.constants.keys()
    for node in graph.nodes:
        outputs = inferred.constants.keys() & node.outputs
        if outputs and len(outputs) == len([o for o in node.outputs if o]):
            graph.initializers.update((o, inferred.constants[o]) for o in node.outputs if o)
        else:
            kept.append(node)
    graph.nodes = kept
    graph.types.update(inferred.types)
    return inferred


def _find_made_of_sizes(graph: Graph) -> set[str]:
    """Return the values that depend on the shape of a value other than an initializer, or on
    initializers that do.
    """
    out: set[str] = set(graph.sized)
    for node in graph.nodes:
        asks = node.op in ("Shape", "Size") and not node.domain
        is_asked = asks and any(i not in graph.initializers for i in node.inputs)
        if is_asked or not out.isdisjoint(node.inputs):
            out.update(filter(None, node.outputs))
    return out


def _infer(graph: Graph, answers: Answers[NodeResults]) -> Inferred:
    """Infer a graph whose inputs may have symbolic dimensions."""
    if not list_symbols(graph):
        return _InferenceWalk(graph, answers).run()
    try:
        return _infer_with_numbers(graph, answers)
    except ShapeError as failure:
        try:
            return _InferenceWalk(graph, answers).run()
        except InternalError:
            raise
        except EngineError:  # the error of the trial with numbers says more
            return _infer_with_one(graph, answers, failure)


def _infer_with_numbers(graph: Graph, answers: Answers[NodeResults]) -> Inferred:
    """Infer a graph with any numbers instead of its symbols; see `infer_by_trial`."""

    def walk_of(graph: Graph, answers: Answers[NodeResults]) -> Walk:
        def walk(sizes: Mapping[str, int]) -> Inferred:
            concrete = graph.copy()
            rename(concrete, sizes)
            for name, t in concrete.inputs.items():
                if any(isinstance(d, int) and d < 0 for d in t.shape):
                    raise ShapeError(
                        f"{graph.name}: the input {name!r} would be {t}; expected sizes "
                        "of 0 or more"
                    )
            return _InferenceWalk(concrete, answers).run()

        return walk

    return infer_by_trial(graph, walk_of(graph, answers), lambda part: walk_of(part, Answers()))


def _infer_with_one(graph: Graph, answers: Answers[NodeResults], failure: ShapeError) -> Inferred:
    """Infer a graph that accepts only 1 for one of its symbols, and give that symbol the number.

    Files say that a batch may vary where it cannot: a state beside it or a Reshape has 1 written
    out.

    Raises:
        ShapeError: `failure`, because no symbol is such.
    """
    for symbol in list_symbols(graph)[:_MOST_TRIED]:
        fixed = graph.copy()
        rename(fixed, {symbol: 1})
        try:
            if list_symbols(fixed):
                inferred = _infer_with_numbers(fixed, answers)
            else:
                inferred = _InferenceWalk(fixed, answers).run()
        except InternalError:
            raise
        except EngineError:
            continue
        graph.inputs, graph.types = fixed.inputs, fixed.types
        return inferred
    raise failure from None


def list_sources(graph: Graph, name: str, constants: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the inputs of a graph on which a value depends; none if it is a known constant."""
    makers, waiting = graph.find_producers(), [name]
    seen: dict[str, None] = {}
    while waiting:
        value = waiting.pop()
        if value not in seen and value not in constants:
            seen[value] = None
            waiting += makers[value].list_reads() if value in makers else ()
    return tuple(n for n in seen if n in graph.inputs)


@contextlib.contextmanager
def naming_sources(graph: Graph, node: Node, constants: Mapping[str, Array]) -> Iterator[None]:
    """Add to an UnknownValueError of a node the graph inputs on which the unknown value depends."""
    try:
        yield
    except UnknownValueError as error:
        if error.index < len(node.inputs):
            error.inputs = error.inputs or list_sources(graph, node.inputs[error.index], constants)
        raise


@dataclass(slots=True)
class _InferenceWalk:
    """Walk over the nodes, which collects types and constants."""

    graph: Graph
    answers: Answers[NodeResults]
    settled: bool = False
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # node without a declaration -> text
    symbols: set[str] = field(default_factory=set)
    made: int = 0  # bytes of the constants that it has computed

    def run(self) -> Inferred:
        self.constants.update(self.graph.initializers)
        one_of = self.answers.share_type
        self.types.update((n, one_of(t)) for n, t in self.graph.inputs.items())
        self.types.update((n, one_of(find_type(a))) for n, a in self.graph.initializers.items())
        self.symbols.update(d for t in self.types.values() for d in _list_symbols(t))
        for node in self.graph.nodes:
            self.infer_node(node)
        if self.missing:
            first, *others = self.missing.values()
            raise UnsupportedOpError("\n".join([first, *(f"also: {n}" for n in others)]))
        return Inferred(self.types, self.constants)

    def infer_node(self, node: Node) -> None:
        """Find the types of a node's outputs, and their values if those are constant."""
        told = list_facts(self.graph, node, self.types, self.constants)
        made = self.answers.get(told)
        if made is not None:
            self.keep(node, made)
            return
        try:
            op = get_declaration(self.graph, node)
        except UnsupportedOpError as error:
            values = self.run_reference(node)
            if values:
                self.keep(node, _make_results(values))
            else:
                text = f"{node.op} {node.name!r}" if self.missing else str(error)
                self.missing[node.name or node.outputs[0]] = text
            return
        if any(i and i not in self.types for i in node.inputs):
            return  # an input comes from a node in `missing`
        site = make_site(self.graph, node, self.types, self.constants)
        made = self.infer_declared(node, op, site)
        made = NodeResults(tuple(map(self.answers.share_type, made.types)), made.values)
        self.keep(node, made)
        if not any(_list_symbols(t) for t in made.types):
            self.answers.keep(told, site, made)

    def infer_declared(self, node: Node, op: Op, site: Site) -> NodeResults:
        """Return the results of a node whose op has a declaration."""
        with (
            naming_sources(self.graph, node, self.constants),
            run_rule(op, "the shape rule", site, node),
        ):
            types = _infer_op(op, site)
        if len(types) < len(node.outputs):
            site.fail(f"the node has {len(node.outputs)} outputs", f"up to {len(types)}")
        highest = max((t.rank for t in types), default=0)
        if highest > MAX_RANK:
            site.fail(f"an output has {highest} dimensions", f"up to {MAX_RANK}")
        types = self.make_own_symbols(site, types)
        if self.settled and not all(isinstance(d, int) for t in types for d in t.shape):
            self.refuse_unknown(node, site)
        if not self.is_known(node, op):
            return NodeResults(types)
        if node.inputs and any(_estimate_bytes(t) > FOLD_BYTES for t in types):
            return NodeResults(types)
        if (op.domain, op.name) == ("", "Expand") and types[0].size > REPEATED:
            return NodeResults(types)
        if op.scaling is Scaling.DEQUANTISES and _is_matrix(types[0]):
            return NodeResults(types)
        if op.fold is None:
            values = self.run_reference(node) if op.by_reference else []
        else:
            with run_rule(op, "the computation of a constant", site, node):
                values = _fold_op(op, site)
        if node.inputs:  # otherwise it is a Constant, whose bytes are the model's
            self.made += sum(v.nbytes for v in values)
            limits.check("CONSTANT_BYTES", self.made, site.where, "with constants folded before,")
        return _make_results(values, types)

    def make_own_symbols(self, site: Site, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Return the output types of a node, with symbols that no other node uses.

        Rules name new symbols after the node, but nodes need not have names, and names may repeat.
        """
        symbols = [d for t in types for d in _list_symbols(t)]
        if not symbols:
            return tuple(types)
        old = {d for t in site.ins if t for d in _list_symbols(t)}
        new: dict[Dim, Dim] = {}
        for made in dict.fromkeys(d for d in symbols if d not in old):
            tried = (f"{made}_{k}" if k else made for k in itertools.count())
            new[made] = name = next(n for n in tried if n not in self.symbols)
            self.symbols.add(name)
        return tuple(replace(t, shape=tuple(new.get(d, d) for d in t.shape)) for t in types)

    def refuse_unknown(self, node: Node, site: Site) -> NoReturn:
        """Refuse a node whose output shapes depend on values that are not known.

        The message names the inputs that are likely to decide the shape: scalars and vectors after
        the first input, only the integers if there are any.  If there are none, it names all
        inputs.
        """
        free = [i for i in node.inputs if i and i not in self.constants]
        short = [i for i in free if i != node.inputs[0] and self.types[i].rank < 2]
        deciding = [i for i in short if self.types[i].dtype[0] in "iu"] or short or free
        inputs = [n for i in deciding for n in list_sources(self.graph, i, self.constants)]
        raise UnknownValueError(
            f"{site.where()}: the shape of its output depends on the values of {deciding}, which "
            f"must be constants known before lowering",
            inputs=tuple(dict.fromkeys(inputs)),
        )

    def is_known(self, node: Node, op: Op | None = None) -> bool:
        """Return whether the inputs decide the outputs: they are constants of at most `FOLD_BYTES`.

        If a node reads only the type of an input, the shape must be known instead.
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

    def run_reference(self, node: Node) -> list[Array]:
        """Return the outputs by onnx's reference; none if an input is unknown, or onnx cannot
        compute them.
        """
        if not self.is_known(node):
            return []
        known = (self.constants.get(i) if i else None for i in node.inputs)
        values = [None if v is None else np.asarray(v) for v in known]
        done = reference.evaluate(node, self.graph.opsets, values)
        plain = [np.asarray(v) for v in done]
        small = all(v.nbytes <= FOLD_BYTES and v.dtype.kind in "fiub" for v in plain)
        return plain if small and len(plain) == len(node.outputs) else []

    def keep(self, node: Node, made: NodeResults) -> None:
        """Note the results of a node."""
        for name, t in zip(node.outputs, made.types, strict=False):
            if name:
                self.types[name] = t
        for name, value in zip(node.outputs, made.values, strict=False):
            if name:
                self.constants[name] = value


def _make_results(values: Sequence[Array], types: Sequence[TensorType] = ()) -> NodeResults:
    """Return the results of a node whose first outputs have these values.

    types: the types of all outputs, from the shape rule.
    """
    return NodeResults((*map(find_type, values), *types[len(values) :]), tuple(values))


def _infer_op(op: Op, site: Site) -> tuple[TensorType, ...]:
    """Return the types of a node's outputs by its op's shape rule; check that its formula takes
    them.
    """
    check_units(op, site)
    types = op.infer(site)
    if op.expr is not None:
        kinds = [t.dtype if t else "" for t in site.ins]
        formula = site.formula()
        if misfit := formula.explain_misfit(kinds) or _find_signed(formula, kinds):
            site.fail(
                misfit,
                "real functions of floats, logic of b1, bit operations of integers, all "
                "other functions of numbers",
            )
    for t in types:
        if any(isinstance(d, int) and d < 0 for d in t.shape):
            site.wrong(
                f"an output would have the shape {list(t.shape)}; expected sizes of 0 or more"
            )
    return types


def _find_signed(formula: Formulas, kinds: Sequence[str]) -> str:
    """Return the part of a formula that negates or subtracts truth values, which have no sign, or
    "".
    """
    if "b1" not in kinds:
        return ""
    dtypes = formula.infer_dtypes(kinds)
    for name, *places in formula.terms:
        if name in ("neg", "sub") and any(dtypes[p] == "b1" for p in places):
            return f"it would compute {name} of b1"
    return ""


def _fold_op(op: Op, site: Site) -> list[Array]:
    """Return the values of a node whose inputs are known."""
    assert op.fold is not None
    values = fold_sizes(op, site)
    if values is not None:
        return values
    with np.errstate(all="ignore"):
        return list(op.fold(site))


def _is_matrix(t: TensorType) -> bool:
    """Return whether products may read a quantised value of this type directly: a matrix or 1x1
    taps.
    """
    return t.rank >= 2 and set(t.shape[2:]) <= {1} and t.size >= QUANTISED


def _list_symbols(t: TensorType) -> list[str]:
    """Return the symbolic dimensions of a type."""
    return [d for d in t.shape if isinstance(d, str)]


def _estimate_bytes(t: TensorType) -> int:
    """Return an upper bound of a value's bytes; more than `FOLD_BYTES` if the shape is unknown."""
    if _list_symbols(t):
        return FOLD_BYTES + 1
    return t.size * 8
