"""Vector loops over rows, made from scalar expressions: every memory-bound kernel runs these.

A `Program` says what one loop over n elements computes: outputs written element by element and
reductions returned as scalars.  Loads, arithmetic and stores of an iteration are explicit vectors,
so an output may be the very array an input is: each element is read before it is written.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import FLOATS, ITEMSIZE, UNSIGNED
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir import elementary
from engine.kernels.vector_ir.scalars import (
    Emitter,
    element,
    float_op,
    integer_op,
    is_real,
    joined,
    memory,
    packs_pairs,
    read,
    vector,
    written,
)
from engine.kernels.vector_ir.vectors import (
    I64,
    NUMBA,
    Vector,
    counted,
    first_lanes,
    load_part,
    reserve,
    settle,
    splat,
    store,
    store_part,
)
from engine.kernels.vocabulary.row_program import (
    Input,
    Program,
    list_fields,
    start_value,
)
from engine.plan.words import Words

I32 = ir.IntType(32)
UNROLL = 4  # independent accumulators of a reduction: covers the latency of an addition


def count_lanes(program: Program, target: Target) -> int:
    """Return the elements per iteration: one register of the program's widest element type."""
    names = [i.dtype for i in program.ins if i.kind != "k"]
    names += [*program.outs, *(kind for kind, _ in program.reductions)]
    floats = [max(ITEMSIZE[n], 4) for n in names if is_real(n)]
    return target.vector // max(floats or [ITEMSIZE[n] for n in names])


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


class _Loop:
    """Writes the loop of a program: UNROLL vectors, then single vectors, then single elements."""

    def __init__(self, b: Any, program: Program, target: Target, ins: list[Any], outs: list[Any]):
        self.b, self.program, self.ins, self.outs = b, program, ins, outs
        self.target = target
        self.lanes = count_lanes(program, target)
        self.formulas = program.give_types()
        self.selects = program.selects
        self.splats: dict[int, Any] = {}
        self.slots: list[list[Any]] = []

    def run(self, n: Any, *, whole: bool = False) -> list[Any]:
        """Emit the loop over n elements; returns the reductions as scalars.

        `whole`: the last vector is computed in full, past the end of the arrays.
        """
        b, reductions = self.b, self.program.reductions
        unroll = UNROLL if reductions else 1
        for kind, op in reductions:
            start = Emitter(b, self.lanes, self.target).constant(start_value(op, kind), kind)
            self.slots.append([self._slot(start) for _ in range(unroll)])
        for j, source in enumerate(self.program.ins):
            if source.kind != "v":
                value = self.ins[j]
                if source.kind == "s":
                    value = b.load(value, typ=memory(source.dtype))
                    value = read(b, value, source.dtype, self.target)
                elif source.kind == "i" and source.dtype != "i64":
                    value = b.trunc(value, element(source.dtype))
                self.splats[j] = value
        i = I64(0)
        if whole:
            counted(
                b,
                i,
                b.add(n, I64(self.lanes - 1)),
                self.lanes,
                lambda i: self._emit_body(i, 0, self.lanes),
            )
            return []
        if unroll > 1:
            i = counted(b, i, n, self.lanes * unroll, lambda i: self._emit_unrolled(i, unroll))
        elif packs_pairs(self.program.outs, self.target) and self.lanes > 1:
            i = counted(b, i, n, 2 * self.lanes, self._emit_pair)
        i = counted(b, i, n, self.lanes, lambda i: self._emit_body(i, 0, self.lanes))
        for r, (kind, op) in enumerate(reductions):
            self.slots[r] = [self._slot(self._combine(r, kind, op))]
        if self._can_mask():
            left = b.sub(n, i)
            with b.if_then(b.icmp_signed(">", left, I64(0))):
                self._emit_body(i, 0, self.lanes, first_lanes(b, left, self.lanes))
        elif self.lanes > 1:
            counted(b, i, n, 1, lambda i: self._emit_body(i, 0, 1))
        return [
            b.load(s[0], typ=element(r[0])) for s, r in zip(self.slots, reductions, strict=True)
        ]

    def _can_mask(self) -> bool:
        """Return whether the elements that fill no vector are computed as a part of one.

        As a loop LLVM would write them several times: by vectors, by halves of them, one by one.
        Only memory of words has masks everywhere, only floats are computed without traps where
        nothing was loaded, and sums of single elements have an order of their own.
        """
        program = self.program
        vectors = [*(i.dtype for i in program.ins if i.kind == "v"), *program.outs]
        return (
            self.target.masks
            and self.lanes > 1
            and not program.reductions
            and all(is_real(kind) and ITEMSIZE[kind] >= 4 for kind in vectors)
            and all(is_real(step.kind) or step.kind == "b1" for step in self.formulas.steps)
        )

    def _slot(self, value: Any) -> Any:
        slot = reserve(self.b, value.type)  # in the entry block: a register later
        self.b.store(value, slot)
        return slot

    def _emit_unrolled(self, i: Any, unroll: int) -> None:
        for u in range(unroll):
            self._emit_body(self.b.add(i, I64(u * self.lanes)), u, self.lanes)

    def _emit_pair(self, i: Any) -> None:
        """Emit two vectors from i on, one after the other, whose results are stored together."""
        b = self.b
        pairs = zip(
            *(self._compute(b.add(i, I64(u * self.lanes)), self.lanes) for u in range(2)),
            strict=True,
        )
        for pointer, kind, pair in zip(self.outs, self.program.outs, pairs, strict=True):
            at = b.gep(pointer, [i], source_etype=memory(kind))
            store(b, written(b, joined(b, *pair), kind, self.target), at, ITEMSIZE[kind])

    def _emit_body(self, i: Any, slot: int, lanes: int, mask: Any = None) -> None:
        """Emit `lanes` elements from i on; mask: the lanes that exist, if that is not all."""
        b, results = self.b, self._compute(i, lanes, mask)
        for pointer, kind, value in zip(self.outs, self.program.outs, results, strict=False):
            at = b.gep(pointer, [i], source_etype=memory(kind))
            if mask is not None:
                store_part(b, value, at, ITEMSIZE[kind], mask)
                continue
            store(b, written(b, value, kind, self.target), at, ITEMSIZE[kind])
        for r, (kind, op) in enumerate(self.program.reductions):
            place = self.slots[r][slot]
            old = b.load(place, typ=vector(element(kind), lanes))
            b.store(self._join(op, kind, old, results[len(self.outs) + r]), place)

    def _compute(self, i: Any, lanes: int, mask: Any = None) -> list[Any]:
        """Return the results for `lanes` elements from i on; mask: as of `_emit_body`."""
        b, values = self.b, []
        for j, source in enumerate(self.program.ins):
            if source.kind != "v":
                values.append(self._scalar(j, source, i, lanes))
                continue
            shape = vector(memory(source.dtype), lanes)
            if mask is not None:
                at = b.gep(self.ins[j], [i], source_etype=memory(source.dtype))
                values.append(load_part(b, at, shape, ITEMSIZE[source.dtype], mask))
                continue
            load = b.load(b.gep(self.ins[j], [i], source_etype=memory(source.dtype)), typ=shape)
            load.align = ITEMSIZE[source.dtype]
            value = settle(b, load) if self.selects else load
            values.append(read(b, value, source.dtype, self.target))
        return Emitter(b, lanes, self.target).emit(self.formulas, values)

    def _join(self, op: str, kind: str, x: Any, y: Any) -> Any:
        if kind in FLOATS:
            return float_op(self.b, _COMBINE[op], [x, y])
        return integer_op(self.b, _COMBINE[op], [x, y], signed=kind not in UNSIGNED)

    def _scalar(self, j: int, source: Input, i: Any, lanes: int) -> Any:
        """Return an operand that is not an array: a value in all lanes, or the element numbers."""
        b, value = self.b, self.splats[j]
        if source.kind == "i":
            value = b.add(value, b.trunc(i, value.type) if value.type != I64 else i)
        if lanes == 1:
            return value
        values = splat(b, value, lanes)
        if source.kind == "i":
            values = b.add(values, ir.Constant(values.type, list(range(lanes))))
        return values

    def _combine(self, r: int, kind: str, op: str) -> Any:
        """Combine the accumulators of a reduction to one scalar, always in the same order."""
        b, shape = self.b, vector(element(kind), self.lanes)
        values = [b.load(s, typ=shape) for s in self.slots[r]]
        total = values[0]
        for v in values[1:]:
            total = self._join(op, kind, total, v)
        width = self.lanes
        while width > 1:
            width //= 2
            undef = ir.Constant(total.type, ir.Undefined)
            low, high = (
                ir.Constant(Vector(I32, width), list(range(s, s + width))) for s in (0, width)
            )
            total = self._join(
                op, kind, b.shuffle_vector(total, undef, low), b.shuffle_vector(total, undef, high)
            )
        return b.extract_element(total, I32(0)) if self.lanes > 1 else total


def emit_loop(
    b: Any,
    program: Program,
    target: Target,
    ins: list[Any],
    outs: list[Any],
    n: Any,
    *,
    whole: bool = False,
) -> None:
    """Emit a program's loop at the builder's place; `whole`: see `_Loop.run`."""
    _Loop(b, program, target, ins, outs).run(n, whole=whole)


def rows(target: Target, program: Program) -> Any:
    """rows(in..., out..., n): run a program over n elements; returns its reductions.

    One reduction returns a scalar, several a tuple, none nothing.
    """

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        count = len(program.ins)
        ins = list(args[:count])
        result = sig.return_type
        saved = elementary.fused.set(target.fma)
        values = _Loop(b, program, target, ins, list(args[count:-1])).run(args[-1])
        elementary.fused.reset(saved)
        if not values:
            return context.get_dummy_value()
        return values[0] if len(values) == 1 else context.make_tuple(b, result, values)

    passed = {"i": lambda kind: types.int64, "k": lambda kind: kind}
    pointers = [passed.get(i.kind, types.CPointer)(NUMBA[i.dtype]) for i in program.ins]
    pointers += [types.CPointer(NUMBA[kind]) for kind in program.outs]
    results = [NUMBA[kind] for kind, _ in program.reductions]
    returned = types.void if not results else results[0]
    if len(results) > 1:
        returned = types.Tuple(tuple(results))

    def op(typingctx: Any, *args: Any) -> Any:
        return returned(*pointers, types.int64), emit

    return op


def start_row_loop(
    b: Any, program: Program, target: Target, rank: int, args: tuple[Any, ...]
) -> _Loop:
    """Start the loop of a program over a row; args: its words, the row, the first element."""
    words, r, j = args
    own = [(i.dtype, i.kind) for i in program.ins] + [(kind, "v") for kind in program.outs]
    places = Words("rows", **list_fields(len(own), rank)).members

    def word(name: str, i: int) -> Any:
        at = I64(places[name].offset + i)
        return b.load(b.gep(words, [at], source_etype=I64), typ=I64)

    index: list[Any] = [None] * rank
    for d in reversed(range(rank)):
        size = word("dims", d)
        index[d] = b.urem(r, size) if d else r
        r = b.udiv(r, size) if d else r
    pointers = []
    for i, (kind, access) in enumerate(own):
        slot = b.gep(words, [I64(places["operands"].offset + i)], source_etype=I64)
        base = b.load(slot, typ=ir.PointerType())
        offset = j if access == "v" else I64(0)
        for d in range(rank):
            offset = b.add(offset, b.mul(index[d], word("steps", i * rank + d)))
        pointers.append(b.gep(base, [offset], source_etype=memory(kind)))
    return _Loop(b, program, target, pointers[: len(program.ins)], pointers[len(program.ins) :])


def map_rows(target: Target, program: Program, rank: int) -> Any:
    """map_rows(words, first, last, j, n): run a map over n elements from j on of outer rows.

    `words` begin with the fields of the inputs and outputs, see `row_program.list_fields`.  The
    row index, from `first` to before `last`, runs over the outer dimensions, last fastest.
    """

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        words, first, last, j, n = args
        saved = elementary.fused.set(target.fma)

        def run_row(r: Any) -> None:
            start_row_loop(b, program, target, rank, (words, r, j)).run(n)

        counted(b, first, last, 1, run_row, rolled=True)
        elementary.fused.reset(saved)
        return context.get_dummy_value()

    def op(typingctx: Any, words: Any, first: Any, last: Any, j: Any, n: Any) -> Any:
        return types.void(types.CPointer(types.int64), *[types.int64] * 4), emit

    return op
