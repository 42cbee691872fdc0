"""Formulas as words: the instructions of the `formula` kernel, and what writes them.

A formula becomes three-address code over registers, blocks of `BLOCK` elements: every operand is
loaded, every sub-expression computed once, every result stored.  An instruction is the words
`INSTRUCTION`.  A domain is a set of element types that one kernel computes with; moves are of all.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.element_types import ELEMENT_TYPES, FLOATS, HALVES, ITEMSIZE, NUMPY, REALS
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import FUNCTIONS, Expr
from engine.kernels.vocabulary.row_program import Input, Program
from engine.runtime.words import OPEN, Field, Packed, Words

BLOCK = 256  # elements of a register
SLOT = 8 * BLOCK  # bytes of a register
INSTRUCTION = Words(
    "instruction",
    code="which one, its number in the domain",
    register="register of the result; of a store, of what is stored",
    first="register of the first argument; of a move, the operand; of a constant, its bits",
    second="register of the second argument; of a move, the operand's step along a row, 1 or 0",
    third="register of the third argument",
)
FORMULA_WORDS = Words(
    "formula",
    rows="product of the outer dimensions",
    n="elements of a row",
    by_columns="whether threads share the columns, or else the rows",
    room="bytes of work of a thread: its registers",
    rank="number of outer dimensions",
    count="number of instructions",
    code="where they begin, in words behind those with a name",
    rest=Field("the dimensions, of each operand its strides, the instructions", count=OPEN),
)
OPERANDS = Words("operands", operands=Field("inputs, then outputs", count=OPEN, address=True))
# by item size: the type that moves it
RAW = dict(sorted((t.itemsize, t.name) for t in ELEMENT_TYPES.values() if t.kind == "unsigned"))

# domain -> types it computes with, smallest first
DOMAINS = {
    "real": ("f32", "i64", "i32", "b1"),
    "double": ("f32", "f64", "i64", "i32", "b1"),
    "whole": ("f32", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "b1"),
    "all": ("f32", "f64", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "b1"),
}
MOVES = tuple((move, RAW[n]) for move in ("load", "splat", "store") for n in (1, 2, 4, 8))


@dataclass(frozen=True, slots=True)
class Primitive:
    """What one instruction computes: a function of registers of some types."""

    function: str
    kinds: tuple[str, ...]
    result: str

    @property
    def program(self) -> Program:
        """The loop of it."""
        ins: list[Expr] = [("in", i) for i in range(len(self.kinds))]
        e: Expr = (self.function, *ins)
        if self.function == "cast":
            e = ("cast", self.result, *ins)
        return Program(tuple(Input(k) for k in self.kinds), ((self.result, e),))


@functools.cache
def codes(domain: str) -> dict[tuple[str, ...] | Primitive, int]:
    """Numbers of a domain's instructions: moves by (move, type), constants by type, primitives."""
    kinds = DOMAINS[domain]
    rows: list[tuple[str, ...] | Primitive] = [*MOVES, *(("const", raw) for raw in RAW.values())]
    for name, f in FUNCTIONS.items():
        for kind in kinds:
            ins = ("b1", kind, kind) if name == "where" else (kind,) * f.arity
            formula: Expr = (name, *(("in", i) for i in range(f.arity)))
            if not expression.misfit(formula, ins) and _is_computed(name, kind):
                rows.append(Primitive(name, ins, "b1" if f.kind == "b1" else kind))
    sources = (*kinds, *(k for k in ("u8", "f16") if k not in kinds))
    rows += [Primitive("cast", (a,), b) for a in sources for b in sources if a != b]
    return {row: i for i, row in enumerate(rows)}


def _is_computed(name: str, kind: str) -> bool:
    """Whether a function of values of a type has code of its own."""
    if name.startswith("philox"):
        return kind == "u32"
    if kind == "b1":
        return name in ("and_", "or_", "xor", "not_", "eq", "ne", "where")
    return kind in FLOATS or name not in ("floor", "ceil", "round")


def encode(
    formulas: Sequence[Expr], ins: Sequence[tuple[str, int]], outs: Sequence[str]
) -> tuple[str, list[Packed], int] | None:
    """The smallest domain that has all of the formulas, their instructions, and the registers used.

    ins: element type and step along a row of each input; outs: element types of the results.
    None: no domain has them.
    """
    for domain in DOMAINS:
        code = Code(domain, [kind for kind, _ in ins], [step for _, step in ins])
        try:
            code.write(formulas, outs)
        except KeyError:
            continue
        return domain, code.instructions, code.registers
    return None


class Code:
    """Writes the instructions of formulas; `access` is 1 for a vector operand, 0 for a scalar."""

    def __init__(self, domain: str, kinds: Sequence[str], access: Sequence[int]) -> None:
        self.codes, self.kinds, self.access = codes(domain), kinds, access
        self.instructions: list[Packed] = []
        self.registers = 0
        self._free: list[int] = []
        self._made: dict[tuple[Expr, str], int] = {}
        self._uses: dict[tuple[Expr, str], int] = {}

    def write(self, formulas: Sequence[Expr], results: Sequence[str]) -> None:
        """Instructions for all formulas; results are the operands behind the inputs."""
        formulas = [e if e[0] == "in" else _widen(e, self.kinds) for e in formulas]
        own = [expression.dtype(e, self.kinds) for e in formulas]
        formulas = [
            ("cast", kind, e) if mine not in (None, kind) else e
            for e, kind, mine in zip(formulas, results, own, strict=True)
        ]
        for e, kind in zip(formulas, results, strict=True):
            self._count(e, kind)
        for i, kind in enumerate(self.kinds):  # before any store: an output may be an input
            key = (("in", i), kind)
            if key in self._uses:
                move = "load" if self.access[i] else "splat"
                self._made[key] = self._take()
                self._put((move, RAW[ITEMSIZE[kind]]), self._made[key], i, self.access[i])
        places = [self._emit(e, kind) for e, kind in zip(formulas, results, strict=True)]
        for j, (place, kind) in enumerate(zip(places, results, strict=True)):
            self._put(("store", RAW[ITEMSIZE[kind]]), place, len(self.kinds) + j, 1)

    def _put(
        self,
        key: tuple[str, ...] | Primitive,
        register: int,
        first: int,
        second: int = 0,
        third: int = 0,
    ) -> None:
        code = self.codes[key]
        self.instructions.append(
            INSTRUCTION.pack(code=code, register=register, first=first, second=second, third=third)
        )

    def _take(self) -> int:
        if not self._free:
            self._free.append(self.registers)
            self.registers += 1
        return self._free.pop()

    def _arguments(self, e: Expr, want: str) -> list[tuple[Expr, str]]:
        """Sub-expressions of a function and the types they are wanted in, as `Emitter` has it."""
        if e[0] == "cast":
            return [(e[2], expression.dtype(e[2], self.kinds) or e[1])]
        if e[0] == "where":
            kind = expression.dtype(e, self.kinds) or want
            return [(e[1], "b1"), (e[2], kind), (e[3], kind)]
        found = (expression.dtype(x, self.kinds) for x in e[1:])
        kind = next((k for k in found if k), want)
        return [(x, kind) for x in e[1:]]

    def _key(self, e: Expr, want: str) -> tuple[Expr, str]:
        """The value of an expression: one in a type of its own has that whatever is wanted."""
        while e[0] == "cast" and expression.dtype(e[2], self.kinds) in (None, e[1]):
            want, e = e[1], e[2]  # a cast to the type it is of
        own = expression.dtype(e, self.kinds)
        if e[0] in ("floor", "ceil", "round") and own not in (None, *FLOATS):
            return self._key(e[1], want)
        return e, own or want

    def _count(self, e: Expr, want: str) -> None:
        key = self._key(e, want)
        self._uses[key] = self._uses.get(key, 0) + 1
        if self._uses[key] == 1 and key[0][0] not in ("in", "const"):
            for argument in self._arguments(*key):
                self._count(*argument)

    def _emit(self, e: Expr, want: str) -> int:
        """The register an expression is in; arguments nobody reads again give theirs back."""
        key = e, kind = self._key(e, want)
        if key in self._made:
            return self._made[key]
        if e[0] == "const":
            out = self._take()
            self._put(("const", RAW[ITEMSIZE[kind]]), out, bits_of(e[1], kind))
        else:
            arguments = self._arguments(e, kind)
            places = [self._emit(*a) for a in arguments]
            kinds = tuple(self._key(*a)[1] for a in arguments)
            # a wider result would overtake its argument
            widens = any(ITEMSIZE[k] < ITEMSIZE[kind] for k in kinds)
            out = self._take() if widens else -1
            for a in arguments:
                self._release(self._key(*a))
            out = out if widens else self._take()
            self._put(Primitive(e[0], kinds, kind), out, *places)
        self._made[key] = out
        return out

    def _release(self, key: tuple[Expr, str]) -> None:
        self._uses[key] -= 1
        if not self._uses[key]:
            self._free.append(self._made[key])


def _widen(e: Expr, kinds: Sequence[str]) -> Expr:
    """An expression with the values of `HALVES` as f32, which is what they are computed with."""
    if e[0] == "cast" and e[1] in HALVES:
        return ("cast", "f32", ("cast", e[1], _widen(e[2], kinds)))
    if e[0] == "in":
        return ("cast", "f32", e) if kinds[e[1]] in HALVES else e
    if e[0] == "const":
        return e
    head = 2 if e[0] == "cast" else 1
    return (*e[:head], *(_widen(x, kinds) for x in e[head:]))


def bits_of(value: float | int, kind: str) -> int:
    """The bits of a constant as a signed word."""
    width = ITEMSIZE[kind]
    if kind in REALS:
        raw = struct.pack(f"<{np.dtype(NUMPY[kind]).char}", float(value))
    else:
        raw = (int(value) % 256**width).to_bytes(width, "little")
    return int.from_bytes(raw, "little", signed=True)
