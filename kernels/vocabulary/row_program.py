"""Row programs: what one vector loop computes.  `rows.py` turns them into code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.element_types import FLOATS, NUMPY
from engine.kernels.vocabulary.expression import Expr, walk


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a row program.

    `kind`: "v" a vector, one element per iteration; "s" a pointer to one element used for all;
    "k" a scalar value; "i" the number of the element, counted from a scalar i64 value; in sums of
    columns "c" a vector that is the same for all rows.
    """

    dtype: str
    kind: str = "v"


@dataclass(frozen=True, slots=True)
class Program:
    """One loop: `outs` are (dtype, expression), `reductions` (dtype, sum|max|min|prod, expression).

    Expressions read input i as `("in", i)`.
    """

    ins: tuple[Input, ...]
    outs: tuple[tuple[str, Expr], ...] = ()
    reductions: tuple[tuple[str, str, Expr], ...] = ()


def has_select(program: Program) -> bool:
    """Whether a formula chooses between values."""
    formulas = [e for _, e in program.outs] + [e for _, _, e in program.reductions]
    return any(x[0] == "where" for e in formulas for x in walk(e))


def start_value(op: str, kind: str) -> float | int:
    """The neutral element of a reduction."""
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    if kind in FLOATS:
        return float("-inf") if op == "max" else float("inf")
    limits = np.iinfo(NUMPY[kind])
    return int(limits.min if op == "max" else limits.max)
