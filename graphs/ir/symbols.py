"""Symbolic dimensions by trial: a graph's types for all sizes, from its types for some.

Shape rules work with numbers.  A graph with symbolic inputs is therefore walked for two choices of
sizes: what comes out the same both times does not depend on them, and a size that differs is a
symbol.  The sizes are primes, so that one that symbols make by chance, or that the model has
anyway, is not taken for another.  Further choices, small and of many divisors, tell what is the
same for primes only (n % 2, min(n, 10)); sizes that fit nowhere in the model tell nothing.

Symbols that fit only when equal (the `batch` of one input and the `batch_1` of another) are found
by trying: all different; if that fails all equal, then each group of equal ones split in two as
long as the parts may differ.  They become one symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.errors import EngineError, InternalError, ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import Array, Dim, TensorType

_PRIMES = tuple(n for n in range(5, 400) if all(n % d for d in range(2, int(n**0.5) + 1)))
_POOLS = (tuple(n for n in _PRIMES if n > 64), tuple(n for n in _PRIMES if n < 64))
_OTHERS = (840, 2)  # multiples of these, the first for the first symbol
_MAX_SPLIT = 8  # symbols of a group that is searched for a split: 127 ways

Groups = tuple[tuple[str, ...], ...]


class Inferred(NamedTuple):
    """`types` of all values; `constants` are those whose value is known, initializers included."""

    types: dict[str, TensorType]
    constants: dict[str, Array]


def symbols_of(graph: Graph) -> list[str]:
    """The symbolic dimensions of the inputs."""
    dims = (d for t in graph.inputs.values() for d in t.shape if isinstance(d, str))
    return list(dict.fromkeys(dims))


def rename(graph: Graph, names: Mapping[str, Dim]) -> None:
    """Replace symbols of a graph's inputs and known types."""

    def real(t: TensorType) -> TensorType:
        return t.but([names.get(d, d) if isinstance(d, str) else d for d in t.shape])

    graph.inputs = {name: real(t) for name, t in graph.inputs.items()}
    graph.types = {name: real(t) for name, t in graph.types.items()}


def infer_by_trial(graph: Graph, walk: Callable[[Mapping[str, int]], Inferred]) -> Inferred:
    """What `walk` finds for all sizes of the symbols, of which equal ones become one, in place.

    Before   x: f32[n,3], y: f32[m,3];  z = Add(x, y)
    After    x: f32[n,3], y: f32[n,3];  z: f32[n,3]

    Raises:
        ShapeError: no sizes fit; what went wrong with the first ones.
    """
    return _Trials(graph, walk).run()


class _Trials:
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
        """One group in two, if some sizes of the parts fit that are not equal."""
        for i, group in enumerate(groups):
            for parts in _halves(group):
                finer = (*groups[:i], *parts, *groups[i + 1 :])
                found = self.attempt(finer, pool)
                if found is not None:
                    return finer, found
        return None

    def attempt(self, groups: Groups, pool: Sequence[int]) -> Inferred | None:
        """The walk for two choices of sizes, one number a group; None if they do not fit."""
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
        """The walk for one choice of sizes; None if the model refuses them."""
        try:
            return self.walk(choice)
        except InternalError:
            raise
        except EngineError:
            return None


def _choice(groups: Groups, numbers: Sequence[int]) -> dict[str, int]:
    """One number for the symbols of each group."""
    return {s: n for group, n in zip(groups, numbers, strict=False) for s in group}


def _ranks(found: Inferred) -> dict[str, int]:
    return {name: t.rank for name, t in found.types.items()}


def _halves(group: tuple[str, ...]) -> Iterator[Groups]:
    """The ways to part a group in two."""
    if len(group) > _MAX_SPLIT:
        return
    for bits in range(1, 2 ** (len(group) - 1)):
        right = [s for i, s in enumerate(group[1:]) if bits >> i & 1]
        yield tuple(s for s in group if s not in right), tuple(right)


def _merge(
    graph: Graph, found: Sequence[Inferred], sizes: Sequence[Mapping[str, int]], groups: Groups
) -> Inferred:
    """What is the same for all sizes is known; a size that differs gets a symbol."""
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
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
