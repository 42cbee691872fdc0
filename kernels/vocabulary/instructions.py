"""Formulas as words: the instructions of the `formula` kernel, and what writes them.

A formula becomes three-address code over registers, blocks of `BLOCK` elements: every operand is
loaded, every sub-expression computed once, every result stored.  An instruction is the words
`INSTRUCTION`.  A domain is a set of element types that one kernel computes with; moves are of all.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.element_types import ELEMENT_TYPES, FLOATS, ITEMSIZE, NUMPY, REALS
from engine.kernels.vocabulary.expression import FUNCTIONS, Expr
from engine.kernels.vocabulary.row_program import Input, Program
from engine.kernels.vocabulary.terms import Formulas, TermWriter, Typed, TypedTerm, widened
from engine.plan.words import OPEN, Field, Packed, Words

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
    code="where they begin, in the words after those with a name",
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
    """One instruction: a function of registers of some types."""

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
        return Program.computing([Input(k) for k in self.kinds], [(self.result, e)])


@functools.cache
def assign_codes(domain: str) -> dict[tuple[str, ...] | Primitive, int]:
    """Number a domain's instructions: moves by (move, type), constants by type, primitives."""
    kinds = DOMAINS[domain]
    rows: list[tuple[str, ...] | Primitive] = [*MOVES, *(("const", raw) for raw in RAW.values())]
    for name, f in FUNCTIONS.items():
        for kind in kinds:
            ins = ("b1", kind, kind) if name == "where" else (kind,) * f.arity
            formula = Formulas.of((name, *(("in", i) for i in range(f.arity))))
            if not formula.explain_misfit(ins) and _is_computed(name, kind):
                rows.append(Primitive(name, ins, "b1" if f.kind == "b1" else kind))
    sources = (*kinds, *(k for k in ("u8", "f16") if k not in kinds))
    rows += [Primitive("cast", (a,), b) for a in sources for b in sources if a != b]
    return {row: i for i, row in enumerate(rows)}


def _is_computed(name: str, kind: str) -> bool:
    """Return whether a function of values of a type has code of its own."""
    if name.startswith("philox"):
        return kind == "u32"
    if kind == "b1":
        return name in ("and_", "or_", "xor", "not_", "eq", "ne", "where")
    return kind in FLOATS or name not in ("floor", "ceil", "round")


def encode(
    formulas: Formulas, ins: Sequence[tuple[str, int]], outs: Sequence[str]
) -> tuple[str, list[Packed], int] | None:
    """Return the smallest domain for the formulas, their instructions, and the registers used.

    ins: element type and step along a row of each input; outs: element types of the results.
    None: no domain has them.
    """
    kinds, steps = [kind for kind, _ in ins], [step for _, step in ins]
    typed = _as_types(widened(formulas, kinds), kinds, outs).give_types(kinds, outs)
    for domain in DOMAINS:
        code = Code(domain, kinds, steps)
        try:
            code.write(typed, outs)
        except KeyError:
            continue
        return domain, code.instructions, code.registers
    return None


def _as_types(formulas: Formulas, kinds: Sequence[str], outs: Sequence[str]) -> Formulas:
    """Return the formulas with a cast after each result that is written as another type."""
    writer = TermWriter()
    places = writer.copy(formulas, [writer.put("in", i) for i in range(len(kinds))])
    own = formulas.infer_results(kinds)
    results = [
        place if mine in (None, kind) else writer.put("cast", kind, place)
        for place, kind, mine in zip(places, outs, own, strict=True)
    ]
    return writer.formulas(results)


class Code:
    """Writes the instructions of formulas; `access` is 1 for a vector operand, 0 for a scalar."""

    def __init__(self, domain: str, kinds: Sequence[str], access: Sequence[int]) -> None:
        self.codes, self.kinds, self.access = assign_codes(domain), kinds, access
        self.instructions: list[Packed] = []
        self.registers = 0
        self._free: list[int] = []

    def write(self, formulas: Typed, results: Sequence[str]) -> None:
        """Write instructions for all formulas; results: the operands after the inputs.

        Raises:
            KeyError: the domain has no instruction for a step.
        """
        steps = formulas.steps
        uses = [0] * len(steps)
        for place in (*formulas.results, *(p for step in steps for p in step.arguments)):
            uses[place] += 1
        made: dict[int, int] = {}  # step -> register of its value
        loads = sorted((step.data, n) for n, step in enumerate(steps) if step.function == "in")
        for i, n in loads:  # before any store: an output may be an input
            made[n] = self._take()
            move = "load" if self.access[i] else "splat"
            self._put((move, RAW[ITEMSIZE[self.kinds[i]]]), made[n], i, self.access[i])
        for n, step in enumerate(steps):
            if step.function == "const":
                made[n] = self._take()
                self._put(
                    ("const", RAW[ITEMSIZE[step.kind]]), made[n], pack_bits(step.data, step.kind)
                )
            elif step.function != "in":
                made[n] = self._compute(step, steps, made, uses)
        for j, (place, kind) in enumerate(zip(formulas.results, results, strict=True)):
            self._put(("store", RAW[ITEMSIZE[kind]]), made[place], len(self.kinds) + j, 1)

    def _compute(
        self, step: TypedTerm, steps: Sequence[TypedTerm], made: Mapping[int, int], uses: list[int]
    ) -> int:
        """Return the register of a function's value; arguments not read again free theirs."""
        kinds = tuple(steps[p].kind for p in step.arguments)
        # a wider result would overtake its argument
        widens = any(ITEMSIZE[k] < ITEMSIZE[step.kind] for k in kinds)
        out = self._take() if widens else -1
        for p in step.arguments:
            uses[p] -= 1
            if not uses[p]:
                self._free.append(made[p])
        out = out if widens else self._take()
        self._put(
            Primitive(step.function, kinds, step.kind), out, *(made[p] for p in step.arguments)
        )
        return out

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


def pack_bits(value: float | int, kind: str) -> int:
    """Return the bits of a constant as a signed word."""
    width = ITEMSIZE[kind]
    if kind in REALS:
        raw = struct.pack(f"<{np.dtype(NUMPY[kind]).char}", float(value))
    else:
        raw = (int(value) % 256**width).to_bytes(width, "little")
    return int.from_bytes(raw, "little", signed=True)
