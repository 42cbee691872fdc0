"""A kernel call with its operands and its numbers by name: what all parts of the engine ask.

Plans hold a call as pointers and numbers in the order of the kernel's parameters.  `KernelCall`
gives both by the names of the signature, and answers what the declaration of the kernel says of
this call: how far it reaches into each operand, how many multiply-adds it is, how it is cut into
samples.  A declaration that is a function, because no expression of a signature says it, is given
a `KernelCall`:

    def _reach(c: KernelCall) -> Reach:
        return {"x": c.span(0, (c.rows, c.step), (c.n, 1))}

A reach is how many elements of an operand the call may touch, counted from its start.  It must hold
for all data: operands other than constants may hold anything.  Numbers are at least 0 and below
`MOST` unless they are declared `signed` or `any`, and Python's integers do not overflow, so nothing
that a kernel computes of them does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np

from engine.base.element_types import ITEMSIZE
from engine.base.errors import PlanError
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import OPERANDS, Template
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Words

MOST = 1 << 42  # of numbers that are not `any`: beyond all sizes, and far from 64 bits

Reach: TypeAlias = Mapping[str, "int | Sequence[int]"]
Walk: TypeAlias = tuple[int, int]  # how many, and how far apart
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a target that the numbers of calls are made for.

    vector: bytes of a vector.  rows, vectors: of the register tile, `mr` and `nv` of `Target`.
    """

    vector: int
    rows: int
    vectors: int

    @classmethod
    def of(cls, target: Target) -> Machine:
        """Return the properties of a target."""
        return cls(target.vector, target.mr, target.nv)


@dataclass(slots=True)
class KernelCall:
    """One kernel call.

    template, params: the kernel and its compile-time parameters.
    consts: the numbers of the call, in order.
    threads: how many share the work: the plan's threads, or tiles that get their numbers.
    machine: the target that the numbers are made for; None if nobody asks of it.
    elements, itemsizes: of each operand by name, the elements its buffer holds and their bytes.
    contents: the bytes of operands that are constants.
    owned: operands with room for one tile for each thread, the tile that it is at.
    """

    template: Template
    params: tuple[str | int, ...]
    consts: Sequence[int | float]
    threads: int = 1
    machine: Machine | None = None
    elements: Mapping[str, int] = field(default_factory=dict)
    itemsizes: Mapping[str, int] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    owned: frozenset[str] = frozenset()
    numbers: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = self.template.named(self.params, self.consts)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.numbers[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def T(self) -> str:
        """The element type that the kernel computes with."""
        return str(self.params[0])

    @property
    def S(self) -> str:
        """The element type of operands that are stored as another than T; empty: of none."""
        return self.type_of("S")

    def type_of(self, parameter: str) -> str:
        """Return a compile-time parameter that is an element type; empty if it is not given."""
        return str(self.template.bound(self.params).get(parameter, ""))

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        assert self.machine is not None
        return self.machine.vector // ITEMSIZE[self.T]

    @property
    def tile_columns(self) -> int:
        """Columns of the register tile."""
        assert self.machine is not None
        return self.machine.vectors * self.lanes

    @property
    def tile_rows(self) -> int:
        """Rows of the register tile."""
        assert self.machine is not None
        return self.machine.rows

    def itemsize(self, at: int) -> int:
        """Return the bytes of an element of operand `at` of those that the parameters decide."""
        return self.itemsizes[f"{OPERANDS}{at}"]

    def flag(self, at: int) -> int:
        """Return a compile-time parameter that is an integer."""
        value = self.params[at]
        if not isinstance(value, int):
            self.refuse(f"parameter {at} is {value!r}; expected an integer")
        return value

    # --- what the declaration of the kernel says of this call

    def reach(self) -> dict[str, int | Sequence[int]]:
        """Return how many elements of each operand the call may touch, by signature and `reach=`.

        Raises:
            PlanError: there is no answer for these numbers.
        """
        self.check_numbers()
        template, names = self.template, self._extents()
        for p in template.parameters:
            if p.where and not template.value(p.where, names):
                values = [
                    f"{n} is {self.numbers[n]}" for n in _WORD.findall(p.where) if n in self.numbers
                ]
                self.refuse(f"{', '.join(values)}; expected {p.where}")
        reach = template.shaped_reach(names)
        if template.reach is not None:
            answers = template.reach(self)
            unknown = answers.keys() - template.order.shapeless
            assert not unknown, f"{template.name}: reach= answers for {sorted(unknown)}"
            reach |= answers
            for p in template.order.pointers:
                if p.condition and not p.size and not template.holds(p.condition, names):
                    reach[p.name] = 0
        return reach

    def overreach(self, checked: Container[str] | None = None) -> tuple[str, int] | None:
        """Return the first operand that the call reaches outside of, and how far; None if none.

        checked: the operands that are looked at; None for all.

        Raises:
            PlanError: the numbers of the call are refused.
        """
        reach = self.reach()
        for name, elements in self.elements.items():
            if checked is None or name in checked:
                size = reach_into(reach, name)
                if size > elements:
                    return name, size
        return None

    def multiply_adds(self) -> int:
        """Return the multiply-adds of the call; 0 of kernels that only move or map elements."""
        count = self.template.multiply_adds
        if not count:
            return 0
        return count(self) if callable(count) else int(self.template.value(count, self.names()))

    def samples(self) -> Tiling | None:
        """Return how the call is cut into samples, or into rows, as many to each; None if not."""
        template = self.template
        if callable(template.samples):
            return template.samples(self)
        if template.samples:
            return self.by_extent(template.samples)
        return None if template.tiling is None else template.tiling(self.params, tuple(self.consts))

    def written(self) -> set[str]:
        """Return the names of the operands that the call writes."""
        names = {p.name for p in self.template.parameters if p.is_pointer and p.access != "r"}
        if self.template.writes is not None:
            names |= {f"{OPERANDS}{i}" for i in self.template.writes(self)}
        return names

    # --- for declarations

    def by_extent(self, number: str) -> Tiling | None:
        """Return the tiling of so many samples, by the operands whose first extent counts them."""
        names = self.names()
        steps = {
            p.name: math.prod([self.template.value(extent, names) for extent in p.shape[1:]])
            for p in self.template.parameters
            if p.is_pointer and p.shape[:1] == (number,)
        }
        return self.cut(names[number], steps, counts=(self.template.place(number, self.params),))

    def cut(self, count: int, steps: Mapping[str, int], **more: Any) -> Tiling | None:
        """Return the tiling of so many samples; None of a single one.

        steps: elements from sample to sample, by operand; all samples use the same of the others.
        """
        if count < 2:
            return None
        nbytes = [
            self.itemsizes[name] * steps.get(name, 0) if elements else 0
            for name, elements in self.elements.items()
        ]
        return Tiling(count, tuple(nbytes), **more)

    def refuse(self, text: str) -> NoReturn:
        """Raise a PlanError: these numbers have no reach."""
        raise PlanError(text)

    def positive(self, *names: str) -> None:
        """Refuse numbers that are 0."""
        for name in names:
            value = self.numbers[name]
            if min(value) < 1 if isinstance(value, tuple) else value < 1:
                self.refuse(f"{name} is {value}; expected 1 at least")

    def at_most(self, name: str, most: int) -> None:
        """Refuse a number that is larger."""
        if self.numbers[name] > most:
            self.refuse(f"{name} is {self.numbers[name]}; expected at most {most}")

    def scratch(self, stride: int, size: int, threads: int | None = None) -> int:
        """Return the reach into scratch memory with `size` elements for each thread.

        stride: elements from thread to thread.  threads: how many there are at most.
        """
        count = self.threads if threads is None else min(threads, self.threads)
        return (count - 1) * stride + size if count > 0 and size > 0 else 0

    def span(self, start: int, *walks: Walk) -> int:
        """Return the elements up to the last of a walk, which must not begin before the operand."""
        low = high = start
        for count, step in walks:
            if count <= 0:
                return 0
            low += min((count - 1) * step, 0)
            high += max((count - 1) * step, 0)
        if low < 0:
            self.refuse(f"it begins {-low} elements before an operand")
        return high + 1

    def limit_rows(self, dims: Sequence[int], rows: int) -> None:
        """Refuse more rows of outer dimensions than there are."""
        if rows > math.prod(dims):
            self.refuse(f"{rows} rows of the dimensions {list(dims)}")

    def content(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the integers of an operand that decide where the kernel reads and writes.

        They must be constants of the plan: a step may write anything.
        """
        if name not in self.contents:
            self.refuse(f"{name} decides what is read and written, and is not a constant")
        return np.frombuffer(self.contents[name], np.dtype("<i8"))

    def records(self, name: str, layout: Words, count: int) -> list[Mapping[str, Any]]:
        """Return the first records of an operand, or of the numbers at the end of the call."""
        values = self.numbers[name] if name in self.numbers else self.content(name).tolist()
        size = layout.size
        if count * size > len(values):
            self.refuse(f"{count} records of {layout.title} in {len(values)} words")
        unpacked: list[Mapping[str, Any]] = [
            layout.unpack(values[i * size : (i + 1) * size]) for i in range(count)
        ]
        for record in unpacked:
            self.check_words(record, layout)
        return unpacked

    def _extents(self) -> dict[str, Any]:
        """Return all that shapes of the signature may name, with its value."""
        names = self.names()
        if any("record_words" in p.size for p in self.template.parameters):
            layouts = self.template.layouts(self.params)
            names["record_words"] = {name: words.size for name, words in layouts.items()}
        return names

    def check_numbers(self) -> None:
        """Refuse numbers that are negative or too large without being declared so."""
        for p in self.template.parameters:
            if p.kind == "i64" and p.range != "any":
                self.check_range(p.name, self.numbers[p.name], p.range == "signed")
        layout = self.template.trailing(self.params)
        if layout is not None:
            self.check_words(self.numbers, layout)

    def check_words(self, numbers: Mapping[str, Any], layout: Words) -> None:
        """Refuse fields of a record that are negative or too large without being declared so.

        Records inside are checked where they are taken apart.
        """
        for name, word in layout.fields.items():
            if word.of is None and word.range != "any" and name in numbers:
                self.check_range(name, numbers[name], word.range == "signed")

    def check_range(self, name: str, value: int | tuple[int, ...], is_signed: bool = False) -> None:
        """Refuse numbers that are negative, unless they may be, or too large."""
        values = value if isinstance(value, tuple) else (value,)
        if values and (max(values) >= MOST or min(values) < (-MOST if is_signed else 0)):
            self.refuse(f"{name} is {value}")

    def names(self) -> dict[str, Any]:
        """Return all that expressions of the signature may name, with its value."""
        named: dict[str, Any] = {"threads": self.threads, **self.template.bound(self.params)}
        if self.machine is not None and self.T in ITEMSIZE:
            named |= {"lanes": self.lanes, "tile_columns": self.tile_columns}
        return named | self.numbers


def list_outer_walks(c: KernelCall, steps: int) -> list[list[Walk]]:
    """Return the outer dimensions of `walk` with each of the `steps` strides along them."""
    rank = c.rank
    if len(c.walk) < rank * (1 + steps):
        c.refuse(f"{rank} outer dimensions, with {steps} strides each, in {len(c.walk)} words")
    dims = c.walk[:rank]
    c.limit_rows(dims, c.rows)
    at = range(rank, rank * (1 + steps), rank) if rank else [0] * steps
    return [list(zip(dims, c.walk[i : i + rank], strict=True)) for i in at]


def reach_into(reach: Reach, name: str) -> int:
    """Return the reach into one operand, by its name in `Template.operand_names`."""
    if not name.startswith(OPERANDS):
        size = reach.get(name, 0)
        assert isinstance(size, int)
        return size
    sizes, at = reach.get(OPERANDS, ()), int(name[len(OPERANDS) :])
    assert not isinstance(sizes, int)
    return sizes[at] if at < len(sizes) else 0
