"""The words that reaches are declared in: a kernel call, as plans have it, and what is asked of it.

A kernel's declaration is a function of a `Call`.  It returns how many elements of each operand the
call may touch, counted from the operand's begin, and refuses numbers for which there is no answer:
divisors of 0, positions before the begin, tables that point elsewhere.

    @reach("scale", writes="y")
    def _scale(c: Call) -> Reach:
        return {"x": c.rows * c.n, "y": c.rows * c.n}

What it says must hold for all data: operands other than those of region `const` may hold anything.
All numbers are at least 0 and below `MOST`, unless they are declared to be `signed` or `free`, and
Python's integers do not overflow; so nothing that a kernel computes of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

from engine.element_types import ITEMSIZE
from engine.errors import PlanError
from engine.kernels.levels import LEVELS
from engine.kernels.target import TILES, Target
from engine.kernels.vocabulary.kernel import Parameters
from engine.runtime.words import Words

MOST = 1 << 42  # of numbers that are not free: beyond all sizes, and far from 64 bits
OPERANDS = "..."  # stands for the operands whose number the parameters decide

Reach: TypeAlias = Mapping[str, "int | Sequence[int]"]
Pair = tuple[int, int]  # how many, and how far apart


@dataclass(frozen=True, slots=True)
class Machine:
    """What the words of plans are made for: bytes of a vector, the register tile.

    vector, rows, vectors: as `vector`, `mr` and `nv` of `Target`.
    """

    vector: int
    rows: int
    vectors: int

    @classmethod
    def of(cls, target: Target) -> Machine:
        """That of a target."""
        return cls(target.vector, target.mr, target.nv)

    @classmethod
    def named(cls, name: str) -> Machine:
        """That of a target, by its name or by that of a kernel set for a level.

        Raises:
            PlanError: Python runs no plans for such a target.
        """
        for level in LEVELS:
            if level.name in name.split():
                return cls.of(level.target())
        arch, vector = name.split()[-1].split("/")[0], name.rpartition("/v")[2]
        known = {"x86_64": ("avx512", "avx2", "sse"), "aarch64": ("neon",)}.get(arch, ())
        for row in (TILES[tile] for tile in known):
            if str(row[0]) == vector:
                return cls(*row[:3])
        raise PlanError(f"plans for {name!r}, which no process runs")


class Call:
    """One kernel call: what its numbers say, by the names that the kernel has for them.

    params: of the kernel.
    threads: how many share the work: those of the plan, or tiles that are told their numbers.
    elements: of each operand, the elements that its buffer holds.
    owned: operands of which every thread has only the tile that it is at.
    """

    def __init__(
        self,
        params: Parameters,
        numbers: Mapping[str, Any],
        threads: int,
        machine: Machine,
        elements: Mapping[str, int],
        contents: Mapping[str, bytes],
        owned: frozenset[str],
        declared: Declared,
    ) -> None:
        self.params, self.numbers, self.threads = params, numbers, threads
        self.machine, self.elements, self.owned = machine, elements, owned
        self._contents, self._declared = contents, declared
        self.itemsizes: dict[str, int] = {}  # of an element of each operand, in bytes

    def __getattr__(self, name: str) -> Any:
        try:
            return self.numbers[name]
        except KeyError:
            raise AttributeError(name) from None

    def itemsize(self, at: int) -> int:
        """Bytes of an element of operand `at` of those whose number the parameters decide."""
        return self.itemsizes[f"{OPERANDS}{at}"]

    @property
    def T(self) -> str:
        """The element type that the kernel computes with."""
        return str(self.params[0])

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.machine.vector // ITEMSIZE[self.T]

    @property
    def tile_columns(self) -> int:
        """Columns of the register tile."""
        return self.machine.vectors * self.lanes

    def flag(self, at: int) -> int:
        """A parameter of the kernel that is a whole number."""
        found = self.params[at]
        if not isinstance(found, int):
            self.refuse(f"parameter {at} is {found!r}; expected an integer")
        return found

    def refuse(self, text: str) -> NoReturn:
        """There is no reach for these numbers."""
        raise PlanError(text)

    def positive(self, *names: str) -> None:
        """These numbers must not be 0."""
        for name in names:
            found = self.numbers[name]
            if min(found) < 1 if isinstance(found, tuple) else found < 1:
                self.refuse(f"{name} is {found}; expected 1 at least")

    def at_most(self, name: str, most: int) -> None:
        """A number must not be larger."""
        if self.numbers[name] > most:
            self.refuse(f"{name} is {self.numbers[name]}; expected at most {most}")

    def scratch(self, stride: int, size: int, threads: int | None = None) -> int:
        """The reach into scratch of which each thread has `size` elements, `stride` apart."""
        count = self.threads if threads is None else min(threads, self.threads)
        return (count - 1) * stride + size if count > 0 and size > 0 else 0

    def span(self, start: int, *walks: Pair) -> int:
        """The elements up to the last of a walk, which must not begin before the operand."""
        low = high = start
        for count, step in walks:
            if count <= 0:
                return 0
            low += min((count - 1) * step, 0)
            high += max((count - 1) * step, 0)
        if low < 0:
            self.refuse(f"it begins {-low} elements before an operand")
        return high + 1

    def rows_of(self, dims: Sequence[int], rows: int) -> None:
        """The number of rows of outer dimensions must not be more than there are."""
        count = 1
        for d in dims:
            count *= d
        if rows > count:
            self.refuse(f"{rows} rows of the dimensions {list(dims)}")

    def content(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The integers of an operand that decide where the kernel reads and writes.

        They must be constants of the plan: what a step writes may be anything.
        """
        if name not in self._contents:
            self.refuse(f"{name} decides what is read and written, and is no constant")
        return np.frombuffer(self._contents[name], np.dtype("<i8"))

    def records(self, name: str, layout: Words, count: int) -> list[Mapping[str, Any]]:
        """The first records of an operand, or of the numbers at the end of the call."""
        values = self.numbers[name] if name in self.numbers else self.content(name).tolist()
        size = layout.size
        if count * size > len(values):
            self.refuse(f"{count} records of {layout.title} in {len(values)} words")
        found: list[Mapping[str, Any]] = [
            layout.unpack(values[i * size : (i + 1) * size]) for i in range(count)
        ]
        for record in found:
            self.check(record, layout.fields)
        return found

    def check(self, numbers: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        """Refuse numbers that are negative, or too large, without being declared so.

        fields: the layout's; records inside are checked where they are taken apart.
        """
        signed, free = self._declared.signed, self._declared.free
        for name, found in numbers.items():
            field = fields.get(name)
            if name in free or (field is not None and field.of is not None):
                continue
            values = found if isinstance(found, tuple) else (found,)
            if values and (max(values) >= MOST or min(values) < (-MOST if name in signed else 0)):
                self.refuse(f"{name} is {found}")


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of one kernel.

    writes: the operands that it writes, `OPERANDS` for those that `written` tells by their places.
    signed, free: numbers, and fields of records, that may be negative, or anything.
    """

    reach: Callable[[Call], Reach]
    writes: frozenset[str]
    written: Callable[[Call], Iterator[int]] | None
    signed: frozenset[str]
    free: frozenset[str]


Table = dict[str, Declared]


def reach(
    table: Table,
    name: str,
    *,
    writes: str,
    written: Callable[[Call], Iterator[int]] | None = None,
    signed: str = "",
    free: str = "",
) -> Callable[[Callable[[Call], Reach]], Callable[[Call], Reach]]:
    """Declare the reach of a kernel; see `Declared`.  Names are separated by spaces."""

    def declare(function: Callable[[Call], Reach]) -> Callable[[Call], Reach]:
        table[name] = Declared(
            function,
            frozenset(writes.split()),
            written,
            frozenset(signed.split()),
            frozenset(free.split()),
        )
        return function

    return declare


def up(n: int, unit: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // unit) * unit


def if_(holds: object, size: int) -> int:
    """The size, or 0."""
    return size if holds else 0
