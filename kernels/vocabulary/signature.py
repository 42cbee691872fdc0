"""Signatures of kernels: names, types, shapes, access and aliasing of their parameters, as text.

    x: T[rows, n]   y: out T[rows, n] may alias x   rows, n: i64

A parameter is one or more names, a colon, a type, and clauses:

    x: T[rows, n]               a pointer to rows * n elements of the type T that the kernel reads
    y: out T[n]                 elements that it writes; `update`: reads and writes; `scratch`: uses
    q: u8|i8[n]                 elements of one of these types
    x: S[n]                     elements of the type in the compile-time parameter S, or T without S
    x: T[...]                   a function (`reach=`) returns how many elements the kernel touches
    fault: update i64[1 record] a pointer to that many records of the `words` declared for it
    n: i64    scale: f64        numbers; an i64 is at least 0 and below `MOST`
    n: signed i64               a number that may be negative; `any i64`: any number
    g: i64[]                    the last parameter: the numbers that follow, laid out by its `words`

    ... if mean                 the operand is touched only if this holds; otherwise it may be null
    ... updates if adds         an `out` operand is also read if this holds
    ... may alias x, z          an `out` operand may share the bytes of these
    ... within x.n              its elements choose elements of x; the kernel refuses any from n on
    ... where 1 <= k <= n       calls for which this does not hold are refused

Sizes and conditions are Python expressions of the numbers of the call, of the compile-time
parameters of the kernel, and of `threads`, `lanes` (elements of a vector), `tile_columns` and the
bits of a mode.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

Access = Literal["r", "w", "u", "s"]

_ACCESS: Mapping[str, Access] = {"out": "w", "update": "u", "scratch": "s"}
_RANGES = ("signed", "any")
_NAMES = re.compile(r"([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*:")
_TYPE = re.compile(r"(?:(out|update|scratch|signed|any)\s+)?([A-Za-z]\w*(?:\|\w+)*)\s*(\[|$|\s)")
_CLAUSE = re.compile(r"\b(updates if|if|may alias|within|where)\b")
_RECORDS = re.compile(r"^(.*?)\s*\brecords?$", re.DOTALL)


ACCUMULATE, BIAS, RELU = 1, 2, 4  # bits of the `mode` of a register tile
SIX, HARD_SWISH = 8, 16  # and of convolutions: at most 6, and x min(1, max(0, x / 6 + 1/2))
CURVES = RELU | SIX | HARD_SWISH


def round_to_unit(n: int, unit: int) -> int:
    """Return n rounded up to a multiple of unit."""
    return -(-n // unit) * unit


def count_words(k: int, P: str) -> int:
    """Return the words of 32 bits that k factors of a type of 16 bits take; P "": as many."""
    return -(-k // 2) if P else k


FUNCTIONS = {
    "__builtins__": {}, "up": round_to_unit, "min": min, "max": max, "prod": math.prod, "len": len,
    "words": count_words,
    "ACCUMULATE": ACCUMULATE, "BIAS": BIAS, "RELU": RELU, "CURVES": CURVES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One parameter of a kernel.

    kind: "T*", "f32*": a pointer; "i64", "f64": a number; "i64[]": the words that follow.
    access: how a call uses a pointer: "r" read, "w" written, "u" updated, "s" scratch memory.
    shape: the extents of an operand, expressions; () if a function says them.
    size: the elements that a call touches, an expression; "" if a function says it.
    condition: when the operand is touched; "" always.
    updates: when an operand that is written is read before; "" never.
    aliases: the operands that a written one may share its bytes with.
    within: the table and the number that bound the elements of an index; ("", "") for no index.
    where: a condition on the numbers of a call; "" for none.
    range: of a number: "" from 0 on, "signed" or "any".
    """

    name: str
    kind: str
    access: Access = "r"
    shape: tuple[str, ...] = ()
    size: str = ""
    condition: str = ""
    updates: str = ""
    aliases: tuple[str, ...] = ()
    within: tuple[str, str] = ("", "")
    where: str = ""
    range: str = ""

    @property
    def is_pointer(self) -> bool:
        """True if it points to an operand."""
        return self.kind.endswith("*")

    @property
    def is_number(self) -> bool:
        """True if it is one number."""
        return self.kind in ("i64", "f64")

    @property
    def reach(self) -> str:
        """The elements that a call touches, with the condition, as one expression."""
        condition = f"({self.condition})"
        return f"({self.size}) if {condition} else 0" if self.condition else self.size


def parse(text: str) -> tuple[KernelParameter, ...]:
    """Return the parameters of a signature in order.

    Raises:
        ValueError: the text is not a signature; the message has the part that is not understood.
    """
    parameters: list[KernelParameter] = []
    heads = list(_NAMES.finditer(text))
    if (text[: heads[0].start()] if heads else text).strip():
        raise ValueError(f"signature {text!r}: expected `name: type` first")
    for i, head in enumerate(heads):
        end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
        for name in re.split(r"\s*,\s*", head[1]):
            parameters.append(_parse_parameter(name, text[head.end() : end].strip()))
    names = [p.name for p in parameters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"signature {text!r}: {', '.join(twice)} is there twice")
    pointers = {p.name for p in parameters if p.is_pointer}
    for p in parameters:
        for other in (*p.aliases, *filter(None, p.within[:1])):
            if other not in pointers:
                raise ValueError(f"signature of {p.name!r}: {other!r} is not one of its operands")
    return tuple(parameters)


def _parse_parameter(name: str, text: str) -> KernelParameter:
    start = _TYPE.match(text)
    if start is None:
        raise ValueError(f"parameter {name!r}: expected a type, got {text!r}")
    word, element, mark = start.groups()
    rest, kind = text[start.end() :], element
    shape: tuple[str, ...] = ()
    if mark == "[":
        inside, rest = _split_bracketed(name, rest)
        kind = f"{element}*" if inside else f"{element}[]"
        shape = _parse_shape(name, inside) if inside not in ("", "...") else ()
    clauses = _parse_clauses(name, rest)
    table, _, bound = clauses.get("within", "").partition(".")
    made = KernelParameter(
        name,
        kind,
        _ACCESS.get(word, "r"),
        shape,
        " * ".join([f"({extent})" for extent in shape]),
        clauses.get("if", ""),
        clauses.get("updates if", ""),
        tuple(filter(None, re.split(r"\s*,\s*", clauses.get("may alias", "")))),
        (table, bound),
        clauses.get("where", ""),
        word if word in _RANGES else "",
    )
    if made.is_pointer == (word in _RANGES) and word:
        raise ValueError(f"parameter {name!r}: {word!r} does not go with {kind!r}")
    if not made.is_pointer and (made.aliases or made.condition or made.updates or table):
        raise ValueError(f"parameter {name!r}: a clause of operands on a number: {text!r}")
    return made


def _split_bracketed(name: str, text: str) -> tuple[str, str]:
    """Return the text up to the bracket that closes, and the rest."""
    depth = 1
    for at, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if not depth:
            return text[:at].strip(), text[at + 1 :]
    raise ValueError(f"parameter {name!r}: '[' is never closed in {text!r}")


def _parse_shape(name: str, sizes: str) -> tuple[str, ...]:
    """Return the extents of a shape; of records their number and their words."""
    records = _RECORDS.match(sizes)
    if records is not None:
        return records[1], f"record_words[{name!r}]"
    dims, depth = [""], 0
    for letter in sizes:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            dims.append("")
        else:
            dims[-1] += letter
    if not all(map(str.strip, dims)):
        raise ValueError(f"parameter {name!r}: {sizes!r} is not a shape")
    return tuple([" ".join(d.split()) for d in dims])


def _parse_clauses(name: str, text: str) -> dict[str, str]:
    clauses: dict[str, str] = {}
    parts = _CLAUSE.split(text)
    if parts[0].strip():
        raise ValueError(f"parameter {name!r}: {parts[0].strip()!r} is not a clause")
    for key, value in zip(parts[1::2], parts[2::2], strict=True):
        if key in clauses:
            raise ValueError(f"parameter {name!r}: two clauses {key!r}")
        clauses[key] = " ".join(value.split())
    return clauses


def compile_expression(expression: str) -> CodeType:
    """Return an expression of a signature as code for `eval` with `FUNCTIONS`.

    Raises:
        ValueError: it is not a Python expression.
    """
    try:
        return compile(expression, "<signature>", "eval")
    except SyntaxError as error:
        raise ValueError(f"signature: {expression!r} is not an expression") from error


def evaluate(code: CodeType, names: Mapping[str, Any]) -> Any:
    """Return the value of a compiled expression for these numbers."""
    return eval(code, FUNCTIONS, names)
