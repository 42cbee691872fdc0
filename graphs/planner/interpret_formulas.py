"""Closed plans: calls of kernels compiled for one formula become calls of a formula interpreter.

A library for a set of ops is compiled before its plans are known, so its set of kernels must be
finite.  Kernels with a formula among their parameters would make it infinite.  Therefore, in a
closed plan a formula is data, which one kernel for all formulas reads
(kernels/loops/interpreter.py).  The reductions of a library have no formulas of their own; calls of
the interpreter before and after them compute these.

    Before   map("a:f32[] -> y:f32[] = tanh(a)", 0)(x, y)
             reduce_rows("f32", "sum", "x * x", "sqrt(total)", "-")(x, y)
    After    formula("real")(words, work, x, y)
             formula("real")(words, work, x, t); reduce_rows("f32", "sum", "x", "total", "-")(t, u);
             formula("real")(words, work, u, y)
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.base.errors import UnsupportedOpError
from engine.graphs.planner.draft import Draft, DraftCall
from engine.kernels.loops import fold, interpreter
from engine.kernels.loops import map as maps
from engine.kernels.loops.fold import COLUMN_WORDS, ROW_WORDS
from engine.kernels.loops.map import collapse, map_words
from engine.kernels.ops import noise
from engine.kernels.ops.noise import PLAIN
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.instructions import FORMULA_WORDS, SLOT, encode
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.vocabulary.row_program import Program
from engine.kernels.vocabulary.terms import Formulas
from engine.plan.plan import KernelSpec, Mode

_BARE = ("x", "total", "-")  # the parameters of a fold without formulas


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of a formula.

    arg: its mode and the value it is; "" is the null pointer.
    dtype: its element type.
    strides: elements from one index to the next, for each axis.
    """

    arg: tuple[Mode, str]
    dtype: str
    strides: tuple[int, ...]


def interpret_formulas(draft: Draft, threads: int, kernels: Container[KernelSpec] = ()) -> Draft:
    """Replace the calls of a draft whose kernels have formulas as parameters, in place.

    kernels: those among them that are there nevertheless, whose calls stay.

    Raises:
        UnsupportedOpError: no kernel for formulas computes with the types that a formula has.
    """
    job = _Closing(draft, threads)
    for call in draft.calls:
        if call.spec in kernels:
            job.calls.append(call)
        else:
            job.visit(call)
    draft.calls = job.calls
    return draft


class _Closing:
    """Rewrites the calls of one draft."""

    def __init__(self, draft: Draft, threads: int) -> None:
        self.draft, self.threads = draft, threads
        self.calls: list[DraftCall] = []

    def visit(self, call: DraftCall) -> None:
        """Append a call, or the calls that replace it."""
        match call.spec.template:
            case maps.map.name:
                self._replace_map(call)
            case fold.reduce_rows.name | fold.reduce_cols.name if call.spec.params[2:] != _BARE:
                self._split_fold(call)
            case noise.draw.name if call.spec.params not in PLAIN:
                self._draw(call)
            case _:
                self.calls.append(call)

    def _add_temporary(self, call: DraftCall, dtype: str, shape: Sequence[int]) -> str:
        """Add a work value for a call; return its name."""
        name = f"{call.source}#f{len(self.draft.values)}"
        self.draft.add(name, TensorType(dtype, tuple(shape)))
        return name

    # --- elementwise

    def _replace_map(self, call: DraftCall) -> None:
        """Replace a call of a map, whose formulas, dimensions and strides are in its parameters."""
        text, rank = call.spec.params
        program = Program.of(str(text))
        words = map_words(str(text), int(rank)).unpack(call.consts)
        dims, flat = words["dims"], iter(words["steps"])
        strides = [[next(flat) for _ in dims] for _ in call.args]
        steps = [int(i.kind == "v") for i in program.ins] + [1] * len(program.outs)
        dtypes = [*program.kinds, *program.outs]
        head = {name: words[name] for name in ("rows", "n", "by_columns")}
        self._append_call(
            call, program.formulas, head, dims, call.args, dtypes, steps, strides, call.inplace
        )

    def _append_call(
        self,
        call: DraftCall,
        formulas: Formulas,
        head: Mapping[str, int],
        dims: Sequence[int],
        args: Sequence[tuple[Mode, str]],
        dtypes: Sequence[str],
        steps: Sequence[int],
        strides: Sequence[Sequence[int]],
        inplace: Sequence[tuple[int, int]],
    ) -> None:
        """Append a call of the kernel `formula`.

        formulas: one for each output; their operands are the inputs.
        head: the words rows, n and by_columns of the kernel.
        dims: the outer dimensions, around rows of n elements.
        args, dtypes, steps, strides: for all inputs, then all outputs: the argument, the element
            type, the stride inside a row, and the strides of the outer dimensions.
        inplace: as in `DraftCall`, by positions in `args`.
        """
        count = len(args) - len(formulas.results)
        ins = list(zip(dtypes[:count], steps, strict=False))
        encoded = encode(formulas, ins, dtypes[count:])
        if encoded is None:
            raise UnsupportedOpError(
                f"{call.source}: no kernel for formulas computes {formulas} of {', '.join(dtypes)}"
            )
        domain, code, registers = encoded
        room, walk = registers * SLOT, [*dims, *(s for row in strides for s in row)]
        words = FORMULA_WORDS.pack(
            **head,
            room=room,
            rank=len(dims),
            count=len(code),
            code=len(walk),
            rest=[*walk, *(word for instruction in code for word in instruction.values)],
        )
        name = f"{call.source}#p{len(self.draft.values)}"
        data = np.array(words.values, np.int64)
        self.draft.add(name, TensorType("i64", data.shape), region="const", data=data)
        work = self._add_temporary(call, "u8", (self.threads * room,))
        self.calls.append(
            replace(
                call,
                spec=KernelSpec(interpreter.formula.name, (domain,)),
                args=(("r", name), ("s", work), *args),
                consts=(),
                inplace=tuple((w + 2, r + 2) for w, r in inplace),
                operands=tuple(self.draft.values[value].type.dtype for _, value in args),
            )
        )

    def _append_formula(
        self,
        call: DraftCall,
        formula: Expr,
        shape: Sequence[int],
        ins: Sequence[_Operand],
        out: _Operand,
    ) -> None:
        """Append a call that computes out = formula(ins...) at every index of a shape."""
        dims, steps = collapse(shape, [o.strides for o in (*ins, out)], range(len(shape)))
        outer, n = dims[:-1], dims[-1]
        rows = math.prod(outer)
        by_columns = int(rows < 4 * self.threads and n >= 256)
        head = {"rows": rows, "n": n, "by_columns": by_columns}
        self._append_call(
            call,
            Formulas.of(formula),
            head,
            outer,
            [o.arg for o in (*ins, out)],
            [o.dtype for o in (*ins, out)],
            [s[-1] for s in steps],
            [s[:-1] for s in steps],
            (),
        )

    def _draw(self, call: DraftCall) -> None:
        """Draw plain random numbers, and scale, shift or compare them by a formula after that."""
        T, first, _ = (str(p) for p in call.spec.params)
        plain = next((row for row in PLAIN if first.startswith(row[1])), None)
        if plain is None:
            raise UnsupportedOpError(f"{call.source}: no kernel draws {first}")
        y, size = call.args[0][1], int(call.consts[0])
        made = self._add_temporary(call, plain[0], (size,))
        args: tuple[tuple[Mode, str], ...] = (("w", made), *call.args[1:])
        self.calls.append(replace(call, spec=KernelSpec(noise.draw.name, plain), args=args))
        formula = expression.parse(f"drawn{first[len(plain[1]) :]}", ("drawn",))
        source = _Operand(("r", made), plain[0], (1,))
        self._append_formula(call, formula, (size,), [source], _Operand(("w", y), T, (1,)))

    # --- folds

    def _split_fold(self, call: DraftCall) -> None:
        """Split a fold: the formula before it, the fold without formulas, the formula after it."""
        T, op, before, after, form = (str(p) for p in call.spec.params)
        by_rows = call.spec.template == fold.reduce_rows.name
        words = (ROW_WORDS if by_rows else COLUMN_WORDS).unpack(call.consts)
        outer, cols = (words["rows"], 1) if by_rows else (words["outer"], words["cols"])
        n, parts, count = words["n"], words["parts"], words["count"]
        x, m, y, flag = call.args[:4]
        about = [_Operand(m, T, (cols, 0, 1))] if form == "m" else []
        if before != "x":
            made = self._add_temporary(call, T, (outer * n * cols,))
            whole = (n * cols, cols, 1)
            shape = (outer, n, cols)
            out = _Operand(("w", made), T, whole)
            ins = [_Operand(x, T, whole), *about]
            self._append_formula(call, expression.parse(before, ("x", "m"), T=T), shape, ins, out)
            x = ("r", made)
        plain = replace(call, spec=KernelSpec(call.spec.template, (T, op, *_BARE)), inplace=())
        target = y[1] if after == "total" else self._add_temporary(call, T, (outer * parts * cols,))
        args = (x, ("r", ""), ("w", target), ("r", ""), *call.args[4:])
        self.calls.append(replace(plain, args=args))
        if after == "total":
            return
        small = (parts * cols, cols, 1)
        ins = [_Operand(("r", target), T, small)]
        values: dict[str, Expr] = {"total": ("in", 0), "count": ("const", count)}
        if form == "m":
            ins += about
            values["m"] = ("in", 1)
        elif form == "u":
            ins += [_Operand(("u", y[1]), T, small), _Operand(("r", flag[1]), "b1", (0, 0, 0))]
            values |= {"y": ("in", 1), "flag": ("in", 2)}
        formula = expression.parse(after, T=T, values=values)
        mode: Mode = "u" if form == "u" else "w"
        out = _Operand((mode, y[1]), T, small)
        self._append_formula(call, formula, (outer, parts, cols), ins, out)
