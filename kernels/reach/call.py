"""Reaches that are still declared beside their kernels, by name; see `KernelCall`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.kernels.vocabulary.call import MOST, OPERANDS, KernelCall, Reach, Walk
from engine.kernels.vocabulary.signature import up

__all__ = ["OPERANDS", "Pair", "Reach", "up"]

Call = KernelCall
Pair = Walk


def check_numbers(call: KernelCall, declared: Declared) -> None:
    """Refuse numbers that are negative, or too large, without being declared so."""
    layout = call.template.trailing(call.params)
    fields = {} if layout is None else layout.fields
    for name, value in call.numbers.items():
        if name in declared.free or (name in fields and fields[name].of is not None):
            continue
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(v, float) for v in values):
            continue
        least = -MOST if name in declared.signed else 0
        if values and (max(values) >= MOST or min(values) < least):
            call.refuse(f"{name} is {value}")


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


def if_(holds: object, size: int) -> int:
    """The size, or 0."""
    return size if holds else 0
