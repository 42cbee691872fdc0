"""Row programs: what one vector loop computes.  `vector_ir/rows.py` turns them into code.

The grammar of their texts is in `expression.py`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.base.element_types import FLOATS, HALVES, NUMPY
from engine.kernels.vocabulary.expression import (
    VALUE,
    Expr,
    find_element_type,
    name_operands,
    parse,
)
from engine.kernels.vocabulary.kernel import Intrinsic
from engine.kernels.vocabulary.terms import Formulas, Typed, widened
from engine.plan.words import Field

FOLDS = ("sum", "prod", "max", "min")
_SINGLES = {"f32", *HALVES}  # are f32 in registers
ACCESS = {"v": "[]", "s": "*", "k": "", "i": "..", "c": "[column]"}  # as in texts

_OPERAND = re.compile(r"([a-z_A-Z]\w*)(?::(\w+))?(\[\]|\[column\]|\*|\.\.|)")
_OUTPUT = re.compile(r"([a-z_A-Z]\w*)(?::(\w+))?\[\](?: ?=(?!=)(.*))?")


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
    """One loop: the values of formulas are written element by element, or folded over all elements.

    ins: the operands; formulas read operand i as `("in", i)`.
    formulas: of all results, of the outputs first.
    outs: the element types of the outputs.
    reductions: of the results after the outputs, the element type and sum|max|min|prod.
    """

    ins: tuple[Input, ...]
    formulas: Formulas
    outs: tuple[str, ...] = ()
    reductions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def computing(
        cls,
        ins: Sequence[Input],
        outs: Sequence[tuple[str, Expr]] = (),
        reductions: Sequence[tuple[str, str, Expr]] = (),
    ) -> Program:
        """Return the program that writes expressions as these types, and folds others."""
        formulas = Formulas.of(*(e for _, e in outs), *(e for _, _, e in reductions))
        folds = tuple((kind, name) for kind, name, _ in reductions)
        return cls(tuple(ins), formulas, tuple(kind for kind, _ in outs), folds)

    @property
    def kinds(self) -> list[str]:
        """The element types of the operands."""
        return [i.dtype for i in self.ins]

    @property
    def selects(self) -> bool:
        """True if a formula has a `where`."""
        return "where" in self.formulas.list_functions()

    def give_types(self) -> Typed:
        """Return the steps that compute the results, outputs first."""
        wanted = [*self.outs, *(kind for kind, _ in self.reductions)]
        if not {*self.kinds, *wanted}.isdisjoint(HALVES):
            wanted = ["f32" if kind in HALVES else kind for kind in wanted]
            return widened(self.formulas, self.kinds).give_types(self.kinds, wanted)
        return self.formulas.give_types(self.kinds, wanted)

    @classmethod
    def of(cls, source: str, T: str = "", **functions: Expr) -> Program:
        """Return the program of a text, e.g. `"x[] mean -> y[] = x - mean; sum(x)"`.

        T: the element type where none is written.  functions: expressions that the formulas call.

        Raises:
            ValueError: the text breaks the grammar, or the type of an output is not its formula's.
        """
        return _parse_once(source, T) if not functions else _parse(source, T, functions)

    def text(self, T: str = "") -> str:
        """Return the text of a program, one for each; types other than T are written.

        Values that are read more than once are named, so a text is as long as the formulas.

        `Program.of(p.text(T), T) == p`, where the results are of the types of their formulas.
        """
        names = name_operands(len(self.ins))

        def write_typed(name: str, kind: str, access: str) -> str:
            return f"{name}{'' if kind == T else f':{kind}'}{access}"

        ins = [
            write_typed(n, i.dtype, ACCESS[i.kind]) for n, i in zip(names, self.ins, strict=True)
        ]
        shared, results = self.formulas.write_texts(names)
        count = len(self.outs)
        outs = [
            f"{write_typed('y' if count == 1 else f'y{j}', kind, '[]')} = {formula}"
            for j, (kind, formula) in enumerate(zip(self.outs, results[:count], strict=True))
        ]
        folds = [
            f"{name}({formula})"
            for (_, name), formula in zip(self.reductions, results[count:], strict=True)
        ]
        return " ".join([*ins, "->", "; ".join([*shared, *outs, *folds])])


@functools.lru_cache(maxsize=4096)
def _parse_once(source: str, T: str) -> Program:
    """Parse a text that calls no functions; planning asks for the same many times."""
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
            raise ValueError(f"{word!r} is not an operand, or the second of this name")
        names.append(match[1])
        kind = next(k for k, mark in ACCESS.items() if mark == match[3])
        ins.append(Input(find_element_type(match[2] or "", T), kind))
    values: dict[str, Expr] = {n: ("in", i) for i, n in enumerate(names)}
    outs: list[tuple[str, str]] = []  # of each its type, and its statement
    folds: list[str] = []
    written: list[Expr] = []
    folded: list[Expr] = []
    for statement in (part.strip() for part in body.split(";")):
        if match := _OUTPUT.fullmatch(statement):
            e = parse(match[3] or match[1], T=T, values=values, functions=functions)
            outs.append((find_element_type(match[2] or "", T), statement))
            written.append(e)
        elif match := VALUE.fullmatch(statement):
            values[match[1]] = parse(match[2], T=T, values=values, functions=functions)
        else:
            fold = _fold_of(statement)
            folds.append(fold.name)
            folded.append(parse(fold.formula, T=T, values=values, functions=functions))
    formulas = Formulas.of(*written, *folded)
    kinds = [i.dtype for i in ins]
    computed = formulas if set(kinds).isdisjoint(HALVES) else widened(formulas, kinds)
    dtypes = computed.infer_results(kinds)
    for (kind, statement), made in zip(outs, dtypes, strict=False):
        if made not in (None, kind) and not {made, kind} <= _SINGLES:
            raise ValueError(f"{statement!r} writes {made} as {kind}")
    reductions = tuple(
        ("f32" if made in HALVES else made or find_element_type("", T), name)
        for name, made in zip(folds, dtypes[len(outs) :], strict=True)
    )
    return Program(tuple(ins), formulas, tuple(kind for kind, _ in outs), reductions)


class _Fold(NamedTuple):
    """A fold over all elements, and the text of what it folds."""

    name: str
    formula: str


def _fold_of(statement: str) -> _Fold:
    """Return the fold a statement is; a formula alone is the sum of one element."""
    match ast.parse(statement, mode="eval").body:
        case ast.Call(func=ast.Name(id=name), args=[x], keywords=[]) if name in FOLDS:
            return _Fold(name, ast.unparse(x))
    return _Fold("sum", statement)


def loop(T: str, source: str, S: str = "", /, **functions: Expr) -> Intrinsic:
    """Return the intrinsic run(in..., out..., length) of a row program, which returns its folds.

    A call by name passes each operand under its name in the text, one that is read and written
    once, and the number of elements as `length`.  It may pass operands that this program lacks:
    variants of a kernel share a call.

    S: the type of operands written as `x:S[]`; T if empty.
    """
    source = re.sub(r"\b(\w+):S\b", rf"\1:{S}" if S else r"\1", source)
    program = Program.of(source, T, **functions)
    return Intrinsic("rows", (program,), (*_list_names(source), "length"))


def _list_names(source: str) -> list[str]:
    """Return the names of the inputs and the outputs in the text of a program.

    Raises:
        ValueError: an operand is named `length`.
    """
    head, _, body = source.partition("->")
    statements = (" ".join(part.split()) for part in body.split(";"))
    matches = [
        *(_OPERAND.fullmatch(word) for word in head.split()),
        *(_OUTPUT.fullmatch(statement) for statement in statements),
    ]
    names = [match[1] for match in matches if match]
    if "length" in names:
        raise ValueError(f"an operand named length, which is the number of elements: {source!r}")
    return names


def list_fields(count: int, rank: int) -> dict[str, Field]:
    """List the fields for `count` operands of a row program over `rank` outer dimensions."""
    return {
        "operands": Field("the operands, inputs first", count=count, address=True),
        "dims": Field("the outer dimensions", count=rank),
        "steps": Field("of each operand its strides along them, in elements", count=count * rank),
    }


def list_column_fields(count: int) -> dict[str, Field]:
    """Return the fields for the `count` operands whose columns are summed."""
    return {
        "operands": Field("the operands", count=count, address=True),
        "steps": Field("their strides from row to row, 0 where all rows are one", count=count),
    }


def start_value(op: str, kind: str) -> float | int:
    """Return the neutral element of a reduction."""
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    if kind in FLOATS:
        return float("-inf") if op == "max" else float("inf")
    limits = np.iinfo(NUMPY[kind])
    return int(limits.min if op == "max" else limits.max)
