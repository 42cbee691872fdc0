"""Row programs: what one vector loop computes.  `vector_ir/rows.py` turns them into code.

The grammar of their texts is in `expression.py`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.element_types import FLOATS, NUMPY
from engine.kernels.vocabulary.expression import (
    Expr,
    dtype,
    element_type,
    operand_names,
    parse,
    text,
    walk,
)
from engine.kernels.vocabulary.kernel import Native
from engine.runtime.words import Field

FOLDS = ("sum", "prod", "max", "min")
ACCESS = {"v": "[]", "s": "*", "k": "", "i": "..", "c": "[column]"}  # as texts have it

_OPERAND = re.compile(r"([a-z_A-Z]\w*)(?::(\w+))?(\[\]|\[column\]|\*|\.\.|)")
_OUTPUT = re.compile(r"([a-z_A-Z]\w*)(?::(\w+))?\[\](?: ?=(?!=)(.*))?")
_VALUE = re.compile(r"([a-z_A-Z]\w*) ?=(?!=)(.*)")


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

    @classmethod
    def of(cls, source: str, T: str = "", **functions: Expr) -> Program:
        """The program of a text, e.g. `"x[] mean -> y[] = x - mean; sum(x)"`.

        T: the element type where none is written.  functions: expressions that the formulas call.

        Raises:
            ValueError: the text breaks the grammar, or the type of an output is not its formula's.
        """
        return _parsed(source, T) if not functions else _parse(source, T, functions)

    def text(self, T: str = "") -> str:
        """The text of a program, one for each; types other than T are written.

        `Program.of(p.text(T), T) == p`, where the results are of the types of their formulas.
        """
        names = operand_names(len(self.ins))

        def typed(name: str, kind: str, access: str) -> str:
            return f"{name}{'' if kind == T else f':{kind}'}{access}"

        ins = [typed(n, i.dtype, ACCESS[i.kind]) for n, i in zip(names, self.ins, strict=True)]
        outs = [
            f"{typed('y' if len(self.outs) == 1 else f'y{j}', kind, '[]')} = {text(e)}"
            for j, (kind, e) in enumerate(self.outs)
        ]
        folds = [f"{name}({text(e)})" for _, name, e in self.reductions]
        return " ".join([*ins, "->", "; ".join([*outs, *folds])])


@functools.lru_cache(maxsize=4096)
def _parsed(source: str, T: str) -> Program:
    """The program of a text that calls no functions; planning asks for the same many times."""
    return _parse(source, T, {})


def _parse(source: str, T: str, functions: Mapping[str, Expr]) -> Program:
    """See `Program.of`."""
    head, arrow, body = " ".join(source.split()).partition("->")
    if not arrow:
        raise ValueError(f"a program without '->': {source!r}")
    names, ins = [], []
    for word in head.split():
        match = _OPERAND.fullmatch(word)
        if match is None or match[1] in names:
            raise ValueError(f"{word!r} is no operand, or a second one of its name")
        names.append(match[1])
        kind = next(k for k, mark in ACCESS.items() if mark == match[3])
        ins.append(Input(element_type(match[2] or "", T), kind))
    outs, reductions = [], []
    values: dict[str, Expr] = {n: ("in", i) for i, n in enumerate(names)}
    kinds = [i.dtype for i in ins]
    for statement in (part.strip() for part in body.split(";")):
        if match := _OUTPUT.fullmatch(statement):
            e = parse(match[3] or match[1], T=T, values=values, functions=functions)
            kind = element_type(match[2] or "", T)
            if dtype(e, kinds) not in (None, kind):
                raise ValueError(f"{statement!r} writes {dtype(e, kinds)} as {kind}")
            outs.append((kind, e))
        elif match := _VALUE.fullmatch(statement):
            e = parse(match[2], T=T, values=values, functions=functions)
            values[match[1]] = e
        else:
            fold = _fold_of(statement)
            e = parse(fold.formula, T=T, values=values, functions=functions)
            reductions.append((dtype(e, kinds) or element_type("", T), fold.name, e))
    return Program(tuple(ins), tuple(outs), tuple(reductions))


class _Fold(NamedTuple):
    """A fold over all elements, and the text of what it folds."""

    name: str
    formula: str


def _fold_of(statement: str) -> _Fold:
    """The fold a statement is; a formula alone is the sum of one element."""
    match ast.parse(statement, mode="eval").body:
        case ast.Call(func=ast.Name(id=name), args=[x], keywords=[]) if name in FOLDS:
            return _Fold(name, ast.unparse(x))
    return _Fold("sum", statement)


def loop(T: str, source: str, **functions: Expr) -> Native:
    """The native run(in..., out..., n) of a row program; it returns what the program folds."""
    return Native("rows", (Program.of(source, T, **functions),))


def operands(count: int, rank: int) -> dict[str, Field]:
    """Fields for the `count` operands of a row program that runs over `rank` outer dimensions."""
    return {
        "operands": Field("the operands, inputs first", count=count, address=True),
        "dims": Field("the outer dimensions", count=rank),
        "steps": Field("of each operand its strides along them, in elements", count=count * rank),
    }


def column_operands(count: int) -> dict[str, Field]:
    """Fields for the `count` operands whose columns are summed."""
    return {
        "operands": Field("the operands", count=count, address=True),
        "steps": Field("their strides from row to row, 0 where all rows are one", count=count),
    }


def has_select(program: Program) -> bool:
    """Whether a formula has a `where`."""
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
