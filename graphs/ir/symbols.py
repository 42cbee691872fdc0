"""Symbolic dimensions by trial: a graph is inferred for several choices of numbers.

Shape rules work with numbers.  To infer a graph with symbolic inputs, every symbol is given a
number, the graph is inferred, and the same is done with other numbers.  Results that are the same
each time do not depend on the symbols.  A size that differs is named: by the symbol whose number it
always is, otherwise by a polynomial of symbols whose value it always is (`8*batch`, `batch*len -
batch`), otherwise by a new symbol.  So two sizes have one name if they were equal in all choices.

The choices are made such that sizes that can differ do differ:

- Two of primes, above 64 unless the model refuses these.  Primes are unlikely to be equal to a
  constant of the model, or to a sum or product of others.  If the model refuses different numbers,
  all symbols get the same number; then groups of equal symbols are split in two as long as the
  model accepts it.
- Small numbers, and numbers with many divisors: n % 2 and min(n, 10) are the same for all large
  primes and yet depend on n.
- A symbol that is also the size of a value that other inputs decide, by the types of the file, has
  the number of this size: the labels of scores of the shape [batch, dim_0] have the shape [batch,
  dim_0], and dim_0 may be any function of the width of a picture.  This is tried where the model
  refuses numbers that are independent, so a file that is wrong about a size does no harm.
- 1 for each symbol, for several of a group, and for all.  A size of 1 is broadcast, so symbols that
  fit at all other sizes only if they are equal may still differ, and the size of a result of both
  is neither.
- The numbers at which two sides of a comparison are equal, and one more and one less: n == 4 is
  false for all numbers but one.
- Numbers at which a value that was the same in all choices differs, as for n // 4 == 3, n * m ==
  12, (n == 4) & (m == 5) or bool(n - 4).  They are searched in the part of the graph that computes
  such values from shapes, which is small: every number up to 64 for each group, small numbers for
  all pairs of groups, and the numbers of comparisons together.

A choice that the model refuses is left out.  So is one for which a value has another rank, for
example after Squeeze without axes, because types have one rank.  Symbols that are equal in all
remaining choices must be equal, such as `batch` of the scores and `batch_1` of their labels, and
become one symbol.

A polynomial may be the size of an input: the labels of scores of the shape [8*batch, classes] have
the shape [8*batch].  It gets its value from the numbers of its symbols.
"""

from __future__ import annotations

import ast
import functools
import itertools
import keyword
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import EngineError, InternalError, ShapeError
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Movement
from engine.kernels.vocabulary.op import Dim, TensorType

_PRIMES = tuple(n for n in range(5, 400) if all(n % d for d in range(2, int(n**0.5) + 1)))
_POOLS = (tuple(n for n in _PRIMES if n > 64), tuple(n for n in _PRIMES if n < 64))
_OTHERS = (840, 2)  # further choices: multiples of these, 1 times for the first symbol and so on
_MAX_SPLIT = 8  # symbols in the largest group that is split, which is possible in 127 ways
_MAX_PARTS = 4  # symbols in the largest group whose parts are all tried at size 1
_MAX_TEXT = 100  # characters of the longest polynomial that is read
_MAX_SIZE = 1 << 20  # the largest size at which a comparison is tried
_SCANNED = 64  # numbers that are tried for each group in the parts that compute with shapes
_PAIRED = 16  # and for each of two groups
_MOST_CHOICES = 1 << 10  # at most so many of them are tried
_MOST_NODES = 1 << 15  # that are computed for them in all
_COMPARES = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max"})

Groups = tuple[tuple[str, ...], ...]
Choice = dict[str, int]  # a number for each symbol
Polynomial = dict[tuple[str, ...], int]  # for each product of symbols the factor before it


class Inferred(NamedTuple):
    """Types of all values, and the arrays of the constant ones, initializers included.

    varying: the values that are constant for given sizes, and depend on these sizes.
    """

    types: dict[str, TensorType]
    constants: dict[str, Array]
    varying: frozenset[str] = frozenset()


# --- symbols of a graph


def list_symbols(graph: Graph) -> list[str]:
    """Return the symbolic dimensions of the inputs, except polynomials of other symbols."""
    return [d for d in _list_dims(graph) if not _is_derived(d, _list_dims(graph))]


def rename(graph: Graph, names: Mapping[str, Dim]) -> None:
    """Replace symbolic dimensions of a graph's inputs and known types, in place.

    names: for each symbol its number or its new name.  A polynomial of symbols that have numbers is
        replaced by its value.
    """

    def rename_dims(t: TensorType) -> TensorType:
        return t.but([evaluate(d, names) if isinstance(d, str) else d for d in t.shape])

    graph.inputs = {name: rename_dims(t) for name, t in graph.inputs.items()}
    graph.types = {name: rename_dims(t) for name, t in graph.types.items()}


def evaluate(d: str, names: Mapping[str, Dim]) -> Dim:
    """Return the replacement of a symbolic dimension; itself if too little is known.

    names: for each symbol its number or its new name.
    """
    if d in names or not _is_derived(d, names):
        return names.get(d, d)
    total = 0
    for monomial, factor in (_parse_polynomial(d) or {}).items():
        numbers = [names[name] for name in monomial]
        if not all(isinstance(n, int) for n in numbers):
            return d
        total += factor * math.prod(n for n in numbers if isinstance(n, int))
    return total


def _list_dims(graph: Graph) -> dict[str, None]:
    """Return all symbolic dimensions of the inputs, in order."""
    return {d: None for t in graph.inputs.values() for d in t.shape if isinstance(d, str)}


def _is_derived(d: str, known: Mapping[str, object]) -> bool:
    """Return whether a dimension is a polynomial of known symbols but not a symbol itself."""
    terms = _parse_polynomial(d)
    names = {name for monomial in terms or () for name in monomial}
    return bool(names) and d not in names and known.keys() >= names


# --- polynomials


@functools.cache
def _parse_polynomial(text: str) -> Polynomial | None:
    """Return the polynomial that a dimension such as `8*batch` denotes, or None."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _read(node: ast.expr) -> Polynomial:
    """Return the polynomial of a syntax tree, or raise ValueError."""
    match node:
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.Constant(value=int(value)):
            return {(): int(value)}
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = 1 if isinstance(op, ast.Add) else -1
            terms = [*_read(left).items(), *((m, sign * f) for m, f in _read(right).items())]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            pairs = itertools.product(_read(left).items(), _read(right).items())
            terms = [(tuple(sorted((*a, *b))), x * y) for (a, x), (b, y) in pairs]
        case _:
            raise ValueError
    out: Polynomial = {}
    for monomial, factor in terms:
        out[monomial] = out.get(monomial, 0) + factor
    return out


def _write(terms: Polynomial) -> str:
    """Return a polynomial as text: `batch*len - 2*batch + 1`."""
    text = ""
    for monomial, factor in sorted(terms.items(), key=lambda t: (t[1] < 0, -len(t[0]), t[0])):
        parts = [*([str(abs(factor))] if abs(factor) != 1 or not monomial else []), *monomial]
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {'*'.join(parts)}" if text else f"{sign}{'*'.join(parts)}".lstrip("+")
    return text


def _list_numbers(sizes: Sequence[Dim]) -> list[int] | None:
    """Return sizes as numbers; None if one of them is a name, such as a size that data decide."""
    numbers = [n for n in sizes if isinstance(n, int)]
    return numbers if len(numbers) == len(sizes) else None


def _fit(values: Sequence[int], choices: Sequence[Choice], symbols: Sequence[str]) -> str | None:
    """Return the polynomial that has these values for these choices, or None.

    It tries polynomials of up to two symbols, each of power 0 or 1, and multiples of one product.
    """
    plain = [s for s in symbols if s.isidentifier() and not keyword.iskeyword(s)]
    for count in (1, 2):
        for chosen in itertools.combinations(plain, count):
            monomials = [m for k in range(count + 1) for m in itertools.combinations(chosen, k)]
            terms = _solve(values, choices, monomials)
            if terms:
                return _write(terms)
    for count in range(3, len(plain) + 1):
        for chosen in itertools.combinations(plain, count):
            terms = _solve(values, choices, [chosen])
            if terms:
                return _write(terms)
    return None


def _solve(
    values: Sequence[int], choices: Sequence[Choice], monomials: Sequence[tuple[str, ...]]
) -> Polynomial | None:
    """Return the sum of multiples of monomials that has these values, or None."""
    rows = [[math.prod(choice[s] for s in m) for m in monomials] for choice in choices]
    if len({tuple(row) for row in rows}) <= len(monomials):
        return None  # some polynomial always fits so few points
    solution = np.linalg.lstsq(np.array(rows, float), np.array(values, float), rcond=None)[0]
    factors = [round(f) for f in solution]
    made = (sum(f * n for f, n in zip(factors, row, strict=True)) for row in rows)
    if any(a != b for a, b in zip(made, values, strict=True)):
        return None
    return {tuple(sorted(m)): f for m, f in zip(monomials, factors, strict=True) if f}


# --- trials


Walk = Callable[[Mapping[str, int]], Inferred]  # infers a graph with a number for each symbol


def infer_by_trial(
    graph: Graph, walk: Walk, walk_of: Callable[[Graph], Walk] | None = None
) -> Inferred:
    """Infer a graph with `walk` for any numbers instead of its symbols.

    Symbols of the graph that must be equal are joined, in place.

    walk: infers the graph.
    walk_of: returns a function that infers a part of it; if None, parts are not examined.

    Before   x: f32[n,3], y: f32[m,3], w: f32[m,4], b: f32[k];  z = Add(x, y); v = MatMul(b, w)
    After    x: f32[n,3], y: f32[m,3], w: f32[m,4], b: f32[m];  z: f32[dim_0,3]; v: f32[4]

    Raises:
        ShapeError: the model refuses all numbers; the message is the one for the first choice.
    """
    return _Trials(graph, walk, walk_of).run()


class _Dependent(NamedTuple):
    """Symbols that are sizes of values, by the types of the file, and the part that makes those.

    places: for each symbol the value, and the axis.
    """

    places: Mapping[str, tuple[str, int]]
    part: Graph


class _Trials:
    """Search for groups of symbols, and for numbers, that a model accepts.

    choices, found: the accepted choices, and the result of inference for each.
    measure: returns a choice with the numbers of the dependent symbols.
    """

    def __init__(
        self, graph: Graph, walk: Walk, walk_of: Callable[[Graph], Walk] | None = None
    ) -> None:
        self.graph, self.walk, self.walk_of = graph, walk, walk_of
        self.roots: dict[str, set[int]] = {}  # of comparisons, by the first symbol of a group
        self.choices: list[Choice] = []
        self.found: list[Inferred] = []
        self.failure: ShapeError | None = None
        self.measure: Callable[[Choice], Choice] = lambda choice: choice

    def run(self) -> Inferred:
        groups = self.find_groups()
        for step in _OTHERS:
            self.add(_make_choice(groups, [step * (i + 1) for i in range(len(groups))]))
        base = self.choices[0]
        for group in groups:
            for part in _list_parts(group):
                self.add({**base, **dict.fromkeys(part, 1)})
        self.add(dict.fromkeys(base, 1))
        for choice in self.find_equalities(groups):
            self.add(choice)
        for choice in self.find_exceptions(groups):
            self.add(choice)
        return self.merge()

    # --- the search

    def find_groups(self) -> Groups:
        """Return the groups of symbols that the model accepts only if they are equal, or 1.

        Dependent symbols (`measure`) are in none.
        """
        symbols = list_symbols(self.graph)
        if groups := self.find_independent(symbols):
            return groups
        dependent = None if self.walk_of is None else _find_dependent(self.graph, symbols)
        if dependent is not None and self.walk_of is not None:
            plain, walk = self.measure, self.walk_of(dependent.part)
            self.measure = functools.partial(_measure_sizes, dependent.places, walk)
            others = [s for s in symbols if s not in dependent.places]
            if groups := self.find_independent(others) or self.find_equal(others):
                return groups
            self.measure = plain
        if groups := self.find_equal(symbols):
            return groups
        assert self.failure is not None
        raise self.failure

    def find_independent(self, symbols: Sequence[str]) -> Groups:
        """Return a group for each symbol if the model accepts that, otherwise none."""
        groups = tuple((s,) for s in symbols)
        return groups if any(self.is_accepted(groups, pool) for pool in _POOLS) else ()

    def find_equal(self, symbols: Sequence[str]) -> Groups:
        """Return as many groups as the model accepts, or none."""
        for pool in _POOLS:
            groups: Groups = (tuple(symbols),)
            if self.is_accepted(groups, pool):
                while (finer := self.split(groups, pool)) is not None:
                    groups = finer
                return groups
        return ()

    def split(self, groups: Groups, pool: Sequence[int]) -> Groups | None:
        """Return the groups with one split in two, or None."""
        for i, group in enumerate(groups):
            for parts in _list_halves(group):
                finer = (*groups[:i], *parts, *groups[i + 1 :])
                if self.is_accepted(finer, pool):
                    return finer
        return None

    def is_accepted(self, groups: Groups, pool: Sequence[int]) -> bool:
        """Return whether the model accepts one number for each group; if so, note the choices as
        the base.
        """
        count = len(groups)
        if 2 * count > len(pool):
            return False
        choices = [_make_choice(groups, pool[k * count :]) for k in range(2)]
        try:
            choices = [self.measure(choice) for choice in choices]
            inferred = [self.walk(choice) for choice in choices]
            first, second = map(_find_ranks, inferred)
            for name, rank in first.items():
                if second[name] != rank:
                    raise ShapeError(
                        f"{self.graph.name}: the rank of {name!r} depends on the input shapes"
                    )
        except ShapeError as error:
            tried = ", ".join(f"{s}={n}" for s, n in choices[0].items())
            self.failure = self.failure or ShapeError(f"{error} (with {tried})")
            return False
        self.choices, self.found = choices, inferred
        return True

    def add(self, choice: Choice) -> Inferred | None:
        """Add a choice to the base, and return its result; None if the model refuses the choice."""
        try:
            choice = self.measure(choice)
            if choice in self.choices:
                return self.found[self.choices.index(choice)]
            inferred = self.walk(choice)
        except InternalError:
            raise
        except EngineError:
            return None
        if _find_ranks(inferred) != _find_ranks(self.found[0]):
            return None
        self.choices.append(choice)
        self.found.append(inferred)
        return inferred

    def find_equalities(self, groups: Groups) -> list[Choice]:
        """Return choices at which the two sides of a comparison are equal, or almost.

        The difference of the sides is assumed to be linear in the number of each group, with the
        other numbers as in the base.
        """
        pairs = [
            pair
            for node in self.graph.nodes
            if node.op in _COMPARES and not node.domain
            for pair in itertools.combinations(node.inputs, 2)
            if self.varies(*pair)
        ]
        if not pairs:
            return []
        base, other = self.choices[:2]
        out: list[Choice] = []
        for group in groups:
            at, step = base[group[0]], other[group[0]] - base[group[0]]
            moved = self.add({**base, **{s: other[s] for s in group}})
            roots: set[int] = set()
            if moved is None:
                continue
            for a, b in pairs:
                here, there = _subtract(self.found[0], a, b), _subtract(moved, a, b)
                if here is not None and there is not None and here.shape == there.shape:
                    slopes = (there - here) / step
                    for difference, slope in zip(here.flat, slopes.flat, strict=True):
                        if slope:
                            root = at - Fraction(difference) / Fraction(slope)
                            roots |= {math.ceil(root) - 1, round(root), math.floor(root) + 1}
            self.roots[group[0]] = solutions = {n for n in roots if 0 < n < _MAX_SIZE}
            out += [{**base, **dict.fromkeys(group, n)} for n in sorted(solutions)]
        return out

    def find_exceptions(self, groups: Groups) -> list[Choice]:
        """Return choices at which a value that has been the same for all choices differs."""
        part = None if self.walk_of is None else self.cut_part()
        if part is None or self.walk_of is None:
            return []
        walk, first = self.walk_of(part), self.found[0].constants
        waiting, out = list(part.outputs), list[Choice]()
        most = min(_MOST_CHOICES, _MOST_NODES // len(part.nodes))
        for choice in itertools.islice(self.list_candidates(groups), most):
            try:
                constants = walk(choice).constants
            except InternalError:
                raise
            except EngineError:
                continue
            other = [n for n in waiting if n in constants and not _is_same(constants[n], first[n])]
            if other:
                out.append(choice)
                waiting = [n for n in waiting if n not in other]
                if not waiting:
                    break
        return out

    def list_candidates(self, groups: Groups) -> Iterator[Choice]:
        """Yield choices in which to search for exceptions."""
        base = self.choices[0]
        for group in groups:
            for n in range(1, _SCANNED + 1):
                yield {**base, **dict.fromkeys(group, n)}
        few = [sorted(self.roots.get(group[0], ()))[:_PAIRED] for group in groups]
        for a, b in itertools.combinations(range(len(groups)), 2):
            for i, j in itertools.product(few[a], few[b]):
                yield {**base, **dict.fromkeys(groups[a], i), **dict.fromkeys(groups[b], j)}
        if len(groups) > 2:
            every = [numbers or [base[g[0]]] for numbers, g in zip(few, groups, strict=True)]
            for numbers in itertools.islice(itertools.product(*every), _SCANNED):
                yield _make_choice(groups, numbers)
        for a, b in itertools.combinations(range(len(groups)), 2):
            for i, j in itertools.product(range(1, _PAIRED + 1), repeat=2):
                yield {**base, **dict.fromkeys(groups[a], i), **dict.fromkeys(groups[b], j)}

    def cut_part(self) -> Graph | None:
        """Return the part of the graph that computes values from sizes which have not differed so
        far.

        Its inputs are the values whose shapes it reads, with polynomials for their sizes.  The
        result is None if there are no such values.
        """
        constants, initializers = self.found[0].constants, self.graph.initializers
        inputs: dict[str, TensorType] = {}
        nodes: list[Node] = []
        taken = set(initializers)
        wanted: list[str] = []
        for node in self.graph.nodes:
            if any(name and name not in constants for name in node.outputs):
                continue
            if node.op in ("Shape", "Size") and not node.domain:
                asked = node.inputs[0]
                if asked not in taken and not self.take_input(asked, inputs):
                    continue
            elif not taken.issuperset(node.list_reads()):
                continue
            nodes.append(node)
            taken.update(filter(None, node.outputs))
            if not _changes_with_sizes(node) and self.is_still(node):
                wanted.append(node.outputs[0])
        if not wanted:
            return None
        kept, read = _keep_makers(nodes, wanted)
        held = {n: a for n, a in initializers.items() if n in read}
        used = {n: t for n, t in inputs.items() if n in read}
        name, opsets = self.graph.name, dict(self.graph.opsets)
        return Graph(name, used, wanted, held, kept, opsets)

    def take_input(self, name: str, inputs: dict[str, TensorType]) -> bool:
        """Make a value an input of the part, if only its shape matters; return whether that was
        possible.
        """
        if name not in inputs:
            types = [inferred.types[name] for inferred in self.found]
            shapes = zip(*(t.shape for t in types), strict=True)
            dims = [self.find_polynomial(sizes) for sizes in shapes]
            known = [d for d in dims if d is not None]
            if len(known) == len(dims):
                inputs[name] = types[0].but(known)
        return name in inputs

    def is_still(self, node: Node) -> bool:
        """Return whether a node has made the same constant for all choices from others that
        differed.
        """
        name = node.outputs[0]
        first, *others = (inferred.constants for inferred in self.found)
        if name not in first or not all(n in first for n in node.list_reads()):
            return False
        if not all(name in o and _is_same(o[name], first[name]) for o in others):
            return False
        return any(
            not (n in o and _is_same(o[n], first[n]))
            for n in node.list_reads()
            if n not in self.graph.initializers
            for o in others
        )

    def find_polynomial(self, sizes: Sequence[Dim]) -> Dim | None:
        """Return the number or polynomial that a size was for all choices, or None."""
        if len(set(sizes)) == 1:
            return sizes[0]
        symbols, numbers = list_symbols(self.graph), _list_numbers(sizes)
        if numbers is None:
            return None
        for symbol in symbols:
            if numbers == [choice[symbol] for choice in self.choices]:
                return symbol
        return _fit(numbers, self.choices, symbols)

    def varies(self, a: str, b: str) -> bool:
        """Return whether the difference of two constants depends on the choice."""
        differences = [_subtract(f, a, b) for f in self.found]
        known = [d for d in differences if d is not None]
        return any(d.shape != known[0].shape or (d != known[0]).any() for d in known[1:])

    # --- facts common to all choices

    def merge(self) -> Inferred:
        """Join the results of all choices: a size that differs among them gets a name."""
        symbols, dims = list_symbols(self.graph), _list_dims(self.graph)
        sizes = {d: tuple(evaluate(d, choice) for choice in self.choices) for d in dims}
        names: dict[tuple[Dim, ...], str] = {}
        for s in symbols:
            names.setdefault(sizes[s], s)
        free = list(names.values())

        def merge_dims(sizes: tuple[Dim, ...]) -> Dim:
            if len(set(sizes)) == 1:
                return sizes[0]
            if sizes not in names:
                numbers = _list_numbers(sizes)
                fitted = None if numbers is None else _fit(numbers, self.choices, free)
                unused = (n for k in itertools.count() if (n := f"dim_{k}") not in taken)
                names[sizes] = fitted or next(unused)
                taken.add(names[sizes])
            return names[sizes]

        taken = set(dims)
        rename(self.graph, {d: merge_dims(inferred) for d, inferred in sizes.items()})
        first, *others = self.found
        types = {}
        for name, t in first.types.items():
            shapes = (inferred.types[name].shape for inferred in self.found)
            types[name] = t.but([merge_dims(d) for d in zip(*shapes, strict=True)])
        constants = {
            name: value
            for name, value in first.constants.items()
            if all(name in o.constants and _is_same(value, o.constants[name]) for o in others)
        }
        known = frozenset[str]().union(*(inferred.constants for inferred in self.found))
        return Inferred(types, constants, known - constants.keys())


def _changes_with_sizes(node: Node) -> bool:
    """Return whether the result of a node differs whenever its sizes do, unless it leaves them out.

    A node that converts sizes may give the same result for different ones, such as a Cast to bool.
    """
    op = list_ops().get((node.domain, node.op))
    others = (Movement.COMPUTED, Movement.CONVERTED)
    return op is not None and (op.movement not in others or 0 in op.type_only)


def _make_choice(groups: Groups, numbers: Sequence[int]) -> Choice:
    """Return the choice that gives all symbols of a group the same number."""
    return {s: n for group, n in zip(groups, numbers, strict=False) for s in group}


def _find_ranks(found: Inferred) -> dict[str, int]:
    """Return the rank of every value."""
    return {name: t.rank for name, t in found.types.items()}


def _keep_makers(nodes: Sequence[Node], wanted: Sequence[str]) -> tuple[list[Node], set[str]]:
    """Return copies of the nodes that some values need, in order, and all values that they read."""
    read, kept = set(wanted), list[Node]()
    for node in reversed(nodes):
        if not read.isdisjoint(node.outputs):
            kept.append(copy(node))
            read.update(node.list_reads())
    return kept[::-1], read


def _find_dependent(graph: Graph, symbols: Sequence[str]) -> _Dependent | None:
    """Return the symbols of inputs that are sizes of values which those inputs do not decide."""
    places: dict[str, tuple[str, int]] = {}
    made = [name for node in graph.nodes for name in node.outputs if name in graph.types]
    for symbol in symbols:
        reached = {name for name, t in graph.inputs.items() if symbol in t.shape}
        for node in graph.nodes:
            if not reached.isdisjoint(node.list_reads()):
                reached.update(node.outputs)
        for name in made:
            if name not in reached and symbol in graph.types[name].shape:
                places[symbol] = (name, graph.types[name].shape.index(symbol))
                break
    if not places:
        return None
    wanted = [name for name, _ in places.values()]
    kept, read = _keep_makers(graph.nodes, wanted)
    inputs = {name: t for name, t in graph.inputs.items() if name in read}
    if any(not places.keys().isdisjoint(t.shape) for t in inputs.values()):
        return None
    held = {name: a for name, a in graph.initializers.items() if name in read}
    part = Graph(graph.name, inputs, wanted, held, kept, dict(graph.opsets))
    return _Dependent(places, part)


def _measure_sizes(
    places: Mapping[str, tuple[str, int]], walk: Walk, choice: Mapping[str, int]
) -> Choice:
    """Return a choice with the sizes that values have for it.

    Raises:
        ShapeError: such a size is not a number, or the value has no such axis.
    """
    free = {s: n for s, n in choice.items() if s not in places}
    types = walk(free).types
    for symbol, (name, axis) in places.items():
        size = dict(enumerate(types[name].shape)).get(axis)
        if not isinstance(size, int):
            raise ShapeError(f"dimension {axis} of {name!r} is not known: {types[name]}")
        free[symbol] = size
    return free


def _list_halves(group: tuple[str, ...]) -> Iterator[Groups]:
    """Yield all ways to split a group in two; none for a group of more than `_MAX_SPLIT`."""
    if len(group) > _MAX_SPLIT:
        return
    for bits in range(1, 2 ** (len(group) - 1)):
        right = [s for i, s in enumerate(group[1:]) if bits >> i & 1]
        yield tuple(s for s in group if s not in right), tuple(right)


def _list_parts(group: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield all parts of a small group; for a large one each symbol, all but each symbol, and
    all.
    """
    count = len(group)
    for size in range(1, count + 1):
        if count <= _MAX_PARTS or size in (1, count - 1, count):
            yield from itertools.combinations(group, size)


def _subtract(found: Inferred, a: str, b: str) -> Array | None:
    """Return the difference of two numeric constants; None if they are not, or do not fit."""
    values = [found.constants.get(name) for name in (a, b)]
    if any(v is None or v.dtype.kind not in "iuf" for v in values):
        return None
    x, y = (np.asarray(v, np.float64) for v in values)
    try:
        with np.errstate(invalid="ignore"):
            difference = np.asarray(x - y)
    except ValueError:
        return None
    return difference if np.isfinite(difference).all() else None


def _is_same(a: Array, b: Array) -> bool:
    """Return whether two arrays have the same type, shape and bytes."""
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
