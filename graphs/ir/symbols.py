"""Symbolic dimensions by trial: a graph is inferred for several choices of numbers.

Shape rules work with numbers.  To infer a graph with symbolic inputs, every symbol is given a
number, the graph is inferred, and the same is done with other numbers.  A size that is the same
both times does not depend on the symbols.  A size that differs is a symbol: an old one if it always
is the number of that symbol, else a new one.

The numbers are primes, above 64 unless the model refuses these.  Primes are unlikely to be equal to
a constant of the model, or to a sum or product of others.  Some sizes are the same for all these
primes and yet depend on the symbol, as n % 2 and min(n, 10) do.  To find these, further choices are
tried, of small numbers and of numbers with many divisors.  A choice that the model refuses is left
out.

Some symbols have to be equal, as `batch` of one input and `batch_1` of another.  To find them, all
symbols are first given different numbers.  If the model refuses that, all get the same number; then
groups of equal symbols are split in two as long as the model accepts it.  The symbols of one group
become one symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.errors import EngineError, InternalError, ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import Array, Dim, TensorType

_PRIMES = tuple(n for n in range(5, 400) if all(n % d for d in range(2, int(n**0.5) + 1)))
_POOLS = (tuple(n for n in _PRIMES if n > 64), tuple(n for n in _PRIMES if n < 64))
_OTHERS = (840, 2)  # further choices: multiples of these, 1 times for the first symbol and so on
_MAX_SPLIT = 8  # symbols in the largest group that is split: it can be done in 127 ways

Groups = tuple[tuple[str, ...], ...]


class Inferred(NamedTuple):
    """The types of all values, and the arrays of those that are constant, initializers included."""

    types: dict[str, TensorType]
    constants: dict[str, Array]


def symbols_of(graph: Graph) -> list[str]:
    """The symbolic dimensions of the inputs."""
    dims = (d for t in graph.inputs.values() for d in t.shape if isinstance(d, str))
    return list(dict.fromkeys(dims))


def rename(graph: Graph, names: Mapping[str, Dim]) -> None:
    """Replace symbolic dimensions of a graph's inputs and known types, in place.

    names: for each symbol its number or its new name.
    """

    def real(t: TensorType) -> TensorType:
        return t.but([names.get(d, d) if isinstance(d, str) else d for d in t.shape])

    graph.inputs = {name: real(t) for name, t in graph.inputs.items()}
    graph.types = {name: real(t) for name, t in graph.types.items()}


def infer_by_trial(graph: Graph, walk: Callable[[Mapping[str, int]], Inferred]) -> Inferred:
    """What `walk` finds for any numbers in the place of the symbols of a graph.

    Symbols of the graph that have to be equal are joined, in place.

    walk: infers the graph with a number for each symbol.

    Before   x: f32[n,3], y: f32[m,3];  z = Add(x, y)
    After    x: f32[n,3], y: f32[n,3];  z: f32[n,3]

    Raises:
        ShapeError: the model refuses all numbers; the message is that of the first choice.
    """
    return _Trials(graph, walk).run()


class _Trials:
    """The search for groups of symbols, and for numbers, that a model accepts."""

    def __init__(self, graph: Graph, walk: Callable[[Mapping[str, int]], Inferred]) -> None:
        self.graph, self.walk = graph, walk
        self.failure: ShapeError | None = None

    def run(self) -> Inferred:
        symbols = symbols_of(self.graph)
        for pool in _POOLS:
            found = self.attempt(tuple((s,) for s in symbols), pool)
            if found is not None:
                return found
        for pool in _POOLS:
            groups: Groups = (tuple(symbols),)
            found = self.attempt(groups, pool)
            if found is None:
                continue
            while (finer := self.split(groups, pool)) is not None:
                groups, found = finer
            rename(self.graph, {s: group[0] for group in groups for s in group})
            return found
        assert self.failure is not None
        raise self.failure

    def split(self, groups: Groups, pool: Sequence[int]) -> tuple[Groups, Inferred] | None:
        """The groups with one split in two, and what is found; None if none can be split."""
        for i, group in enumerate(groups):
            for parts in _halves(group):
                finer = (*groups[:i], *parts, *groups[i + 1 :])
                found = self.attempt(finer, pool)
                if found is not None:
                    return finer, found
        return None

    def attempt(self, groups: Groups, pool: Sequence[int]) -> Inferred | None:
        """What is found with one number for each group; None if the model refuses that."""
        count = len(groups)
        if 2 * count > len(pool):
            return None
        sizes = [_choice(groups, pool[k * count :]) for k in range(2)]
        try:
            found = [self.walk(choice) for choice in sizes]
            for step in _OTHERS:
                choice = _choice(groups, [step * (i + 1) for i in range(count)])
                other = self.fits(choice)
                if other is not None and _ranks(other) == _ranks(found[0]):
                    found.append(other)
                    sizes.append(choice)
            return _merge(self.graph, found, sizes, groups)
        except ShapeError as error:
            tried = ", ".join(f"{s}={n}" for s, n in sizes[0].items())
            self.failure = self.failure or ShapeError(f"{error} (with {tried})")
            return None

    def fits(self, choice: Mapping[str, int]) -> Inferred | None:
        """What is found for one choice of numbers; None if the model refuses them."""
        try:
            return self.walk(choice)
        except InternalError:
            raise
        except EngineError:
            return None


def _choice(groups: Groups, numbers: Sequence[int]) -> dict[str, int]:
    """The choice that gives all symbols of a group the same number."""
    return {s: n for group, n in zip(groups, numbers, strict=False) for s in group}


def _ranks(found: Inferred) -> dict[str, int]:
    """The rank of every value."""
    return {name: t.rank for name, t in found.types.items()}


def _halves(group: tuple[str, ...]) -> Iterator[Groups]:
    """All ways to split a group in two; none for a group of more than `_MAX_SPLIT`."""
    if len(group) > _MAX_SPLIT:
        return
    for bits in range(1, 2 ** (len(group) - 1)):
        right = [s for i, s in enumerate(group[1:]) if bits >> i & 1]
        yield tuple(s for s in group if s not in right), tuple(right)


def _merge(
    graph: Graph, found: Sequence[Inferred], sizes: Sequence[Mapping[str, int]], groups: Groups
) -> Inferred:
    """Join what was found for several choices: a size that differs among them becomes a symbol."""
    names: dict[tuple[Dim, ...], str] = {
        tuple(choice[g[0]] for choice in sizes): g[0] for g in groups
    }
    taken = {s for g in groups for s in g}

    def dim(sizes: tuple[Dim, ...]) -> Dim:
        if len(set(sizes)) == 1:
            return sizes[0]
        if sizes not in names:
            fresh = next(n for n in (f"dim_{k}" for k in range(len(taken) + 1)) if n not in taken)
            taken.add(fresh)
            names[sizes] = fresh
        return names[sizes]

    types = {}
    for name, t in found[0].types.items():
        shapes = [other.types[name].shape for other in found]
        if len({len(shape) for shape in shapes}) > 1:
            raise ShapeError(f"{graph.name}: the rank of {name!r} depends on the input shapes")
        types[name] = t.but([dim(d) for d in zip(*shapes, strict=True)])
    constants = {
        name: value
        for name, value in found[0].constants.items()
        if all(name in o.constants and _same(value, o.constants[name]) for o in found[1:])
    }
    return Inferred(types, constants)


def _same(a: Array, b: Array) -> bool:
    """Whether two arrays have the same type, shape and bytes."""
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
