"""Sums along rows and along columns of fused formulas: the vector loops under channel statistics.

Operands are given by words that hold their addresses and strides (row_program.py).  Sums are added
to what is in memory, so that a caller closes blocks of rows and sums come in two levels.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir import elementary
from engine.kernels.vector_ir.rows import count_lanes, start_row_loop
from engine.kernels.vector_ir.scalars import Emitter, element, float_op, memory, read, vector
from engine.kernels.vector_ir.vectors import I64, NUMBA, counted, reserve, settle, splat, store
from engine.kernels.vocabulary.row_program import Program, list_column_fields
from engine.plan.words import Words

WIDTH = 4  # vectors of columns whose sums stay in registers


class _Columns:
    """Writes the loops: blocks of WIDTH vectors of columns, single vectors, single columns."""

    def __init__(self, b: Any, target: Target, program: Program, args: list[Any]) -> None:
        self.b, self.program, self.target = b, program, target
        self.lanes = count_lanes(program, target)
        words, self.row, self.rows, self.j, self.n, self.beside, self.out, self.ld = args
        count = len(program.ins) - 1  # the last operand is `beside`
        self.bases = [
            b.load(self._word(words, "operands", i), typ=ir.PointerType()) for i in range(count)
        ]
        self.strides = [b.load(self._word(words, "steps", i), typ=I64) for i in range(count)]

    def _word(self, words: Any, name: str, i: int) -> Any:
        """Return the place of a word of operand i."""
        layout = Words("columns", **list_column_fields(len(self.program.ins) - 1))
        at = I64(layout.members[name].offset + i)
        return self.b.gep(words, [at], source_etype=I64)

    def run(self) -> None:
        wide = self.lanes * WIDTH
        i = counted(self.b, I64(0), self.n, wide, lambda i: self._sum_block(i, self.lanes, WIDTH))
        i = counted(self.b, i, self.n, self.lanes, lambda i: self._sum_block(i, self.lanes, 1))
        counted(self.b, i, self.n, 1, lambda i: self._sum_block(i, 1, 1))

    def _load(self, base: Any, at: Any, kind: str, lanes: int) -> Any:
        shape = vector(memory(kind), lanes)
        value = self.b.load(self.b.gep(base, [at], source_etype=memory(kind)), typ=shape)
        value.align = ITEMSIZE[kind]
        if self.program.selects:
            value = settle(self.b, value)
        return read(self.b, value, kind, self.target)

    def _fixed(self, j: int, i: Any, column: Any, lanes: int, steps: list[Any]) -> Any:
        """Return the vectors of operand j if all rows share them, otherwise None."""
        source, b = self.program.ins[j], self.b
        if j == len(self.bases):
            return [self._load(self.beside, b.add(i, u), source.dtype, lanes) for u in steps]
        if source.kind == "c":
            at = [b.add(column, u) for u in steps]
            return [self._load(self.bases[j], a, source.dtype, lanes) for a in at]
        if source.kind == "s":
            scalar = self._load(self.bases[j], I64(0), source.dtype, 1)
            return [splat(b, scalar, lanes) if lanes > 1 else scalar] * len(steps)
        return None

    def _sum_block(self, i: Any, lanes: int, width: int) -> None:
        """Sum `width` vectors of columns from column i on."""
        b, reductions = self.b, self.program.reductions
        slots = []
        for kind, _ in reductions:
            nil = Emitter(b, lanes, self.target).constant(0, kind)
            slots.append([reserve(b, nil.type) for _ in range(width)])
            for slot in slots[-1]:
                b.store(nil, slot)
        kinds, formulas = self.program.kinds, self.program.give_types()
        steps = [I64(u * lanes) for u in range(width)]
        column = b.add(self.j, i)
        fixed = [self._fixed(j, i, column, lanes, steps) for j in range(len(kinds))]

        def add_row(r: Any) -> None:
            line = b.add(self.row, r)
            for u, step in enumerate(steps):
                values = []
                for j, known in enumerate(fixed):
                    if known is None:
                        at = b.add(b.mul(line, self.strides[j]), b.add(column, step))
                        values.append(self._load(self.bases[j], at, kinds[j], lanes))
                    else:
                        values.append(known[u])
                results = Emitter(b, lanes, self.target).emit(formulas, values)
                for (kind, _), mine, value in zip(reductions, slots, results, strict=True):
                    old = b.load(mine[u], typ=vector(element(kind), lanes))
                    b.store(float_op(b, "add", [old, value]), mine[u])

        counted(b, I64(0), self.rows, 1, add_row)
        for k, ((kind, _), mine) in enumerate(zip(reductions, slots, strict=True)):
            for u, slot in enumerate(mine):
                at = b.add(b.mul(I64(k), self.ld), b.add(i, I64(u * lanes)))
                old = self._load(self.out, at, kind, lanes)
                total = b.load(slot, typ=vector(element(kind), lanes))
                into = b.gep(self.out, [at], source_etype=memory(kind))
                store(b, float_op(b, "add", [old, total]), into, ITEMSIZE[kind])


def column_sums(target: Target, program: Program) -> Any:
    """column_sums(words, row, rows, j, n, beside, out, ld): out[k ld + c] += sums over rows.

    Of formula k over the operands at rows row..row+rows and columns j + c, c < n.  `words` begin
    with the fields of `list_column_fields`.  The last operand of the program is beside[c].
    """
    kind = NUMBA[program.reductions[0][0]]

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        saved = elementary.fused.set(target.fma)
        _Columns(b, target, program, list(args)).run()
        elementary.fused.reset(saved)
        return context.get_dummy_value()

    def op(
        typingctx: Any,
        words: Any,
        row: Any,
        rows: Any,
        j: Any,
        n: Any,
        beside: Any,
        out: Any,
        ld: Any,
    ) -> Any:
        T = types.CPointer(kind)
        return types.void(types.CPointer(types.int64), *[types.int64] * 4, T, T, types.int64), emit

    return op


def row_sums(target: Target, program: Program, rank: int) -> Any:
    """row_sums(words, r, j, n, out, ld): out[k ld] += sum of formula k over n elements of row r.

    `words`, r and j: as for `map_rows`.
    """
    kind = NUMBA[program.reductions[0][0]]

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        words, r, j, n, out, ld = args
        saved = elementary.fused.set(target.fma)
        sums = start_row_loop(b, program, target, rank, (words, r, j)).run(n)
        elementary.fused.reset(saved)
        for k, total in enumerate(sums):
            at = b.gep(out, [b.mul(I64(k), ld)])
            b.store(float_op(b, "add", [b.load(at), total]), at)
        return context.get_dummy_value()

    def op(typingctx: Any, words: Any, r: Any, j: Any, n: Any, out: Any, ld: Any) -> Any:
        words_type = types.CPointer(types.int64)
        return types.void(words_type, *[types.int64] * 3, types.CPointer(kind), types.int64), emit

    return op
