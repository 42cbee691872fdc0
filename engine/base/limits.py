"""Table of limits: the amounts that a model, file or message may ask for.  Each has a switch.

A short file can ask for much: functions that call each other twice double the nodes at each level,
one node makes a constant of terabytes.  Code that is about to do such work computes its amount
first, and calls `check`.  A limit is raised by an environment variable, which the error names;
docs/limits.md says how each default was chosen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from engine.base.arguments import check_nbytes
from engine.base.errors import EngineError, LimitError, suggest_nearest

PREFIX = "EDGEGRAD_MAX_"
_UNITS = ((10**9, "GB"), (10**6, "MB"), (1, "bytes"))


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of one kind of amount.

    default: the limit without a switch.
    unit: what it counts; "bytes" are given with a unit, as "48 MB".
    meaning: the thing that it limits.
    """

    default: int
    unit: str
    meaning: str

    def describe(self) -> str:
        """Return the default with its unit, the largest one that divides it."""
        if self.unit != "bytes":
            return f"{self.default} {self.unit}"
        size, name = next((s, n) for s, n in _UNITS if self.default % s == 0)
        return f"{self.default // size} {name}"


LIMITS = {
    "NODES": Limit(100_000, "nodes", "a graph with functions inlined and loops unrolled"),
    "DEPTH": Limit(64, "levels", "nested subgraphs or functions"),
    "CONSTANT_BYTES": Limit(
        200_000_000, "bytes", "the constants that planning makes, in addition to the model's own"
    ),
    "PLAN_BYTES": Limit(1_000_000_000_000, "bytes", "the memory of a plan"),
    "PIXELS": Limit(89_478_485, "pixels", "a picture that is decoded"),
    "FILE_BYTES": Limit(
        2_147_483_647,
        "bytes",
        "a file that is read as a whole; weights of models may be external data",
    ),
}


def refuse_unknown(prefix: str, names: Collection[str]) -> None:
    """Refuse an environment that sets a variable of this prefix with another name.

    Raises:
        EngineError: it does; the message has the nearest names.
    """
    for key in os.environ:
        if key.startswith(prefix) and key[len(prefix) :] not in names:
            nearest = suggest_nearest(key, [prefix + name for name in names])
            raise EngineError(f"unknown switch {key}{nearest}; `edgegrad switches` lists them")


def limit(name: str) -> int:
    """Return the limit of this name: its switch `EDGEGRAD_MAX_<name>`, or otherwise its default.

    Raises:
        EngineError: the switch is not a number of at least 1, or another variable of the
            environment has the prefix of these switches but an unknown name.
    """
    refuse_unknown(PREFIX, LIMITS)
    row, text = LIMITS[name], os.environ.get(PREFIX + name, "").strip()
    if not text:
        return row.default
    if not (text.isascii() and text.isdecimal()):
        if row.unit == "bytes":
            return check_nbytes(PREFIX + name, text)
        raise EngineError(f"{PREFIX}{name}={text!r}: expected a whole number of {row.unit}")
    if len(text) > 18 or int(text) < 1:
        raise EngineError(f"{PREFIX}{name}={text!r}: expected 1 to 10**18 - 1 {row.unit}")
    return int(text)


def check(name: str, value: int, where: str | Callable[[], str], what: str = "") -> None:
    """Refuse more than a limit allows.

    Args:
        name: the limit, a key of `LIMITS`.
        value: how much there would be, in its unit.
        where: what asks for it, or a function that says it; begins the message.
        what: stands before the value in the message, as "unrolled it is".

    Raises:
        LimitError: it is more; the message names limit, value and switch.
        EngineError: see `limit`.
    """
    most = limit(name)
    if value > most:
        row, size = LIMITS[name], value if value < 10**18 else "10**18 or more"
        where = where if isinstance(where, str) else where()
        raise LimitError(
            f"{where}: {what}{' ' if what else ''}{size} {row.unit}; the limit for {row.meaning} "
            f"is {most}. If you trust it, set {PREFIX}{name} to what it needs",
            name,
            value,
            most,
        )
