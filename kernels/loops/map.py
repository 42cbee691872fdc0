"""The elementwise kernel and what lowers to it: fused formulas with broadcasting, any layout.

Any family may call it; the ops it was made for are in elementwise.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from engine.base.element_types import HALVES, ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.kernel import (
    OPERANDS,
    Body,
    Intrinsic,
    Numbers,
    Parameters,
    kernel,
    list_same_size,
    name_pointer,
    share,
    share_blocks,
)
from engine.kernels.vocabulary.op import Lowering, Operand, Site, TensorType
from engine.kernels.vocabulary.row_program import Input, Program, list_fields
from engine.kernels.vocabulary.terms import Formulas, TermWriter, move_term
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Packed, Words


def _list_operands(program: str, rank: int) -> tuple[str, ...]:
    """Return the types of the pointers of `map`.  Copies of one type take all types of its size."""
    made = Program.of(program)
    dtypes = [*made.kinds, *made.outs]
    copies = made.formulas.is_copy and len(set(dtypes)) == 1
    return tuple(name_pointer(t, *(list_same_size(t) if copies else ())) for t in dtypes)


@functools.cache
def map_words(program: str, rank: int) -> Words:
    """Return the words of `map`."""
    made = Program.of(program)
    return Words(
        "map",
        **list_fields(len(made.ins) + len(made.outs), rank),
        rows="product of the outer dimensions",
        n="elements of a row",
        by_columns="whether threads share the columns, or else the rows",
    )


def _tiling(params: Parameters, numbers: Numbers) -> Tiling | None:
    """Return the rows of one outer dimension, or elements where there is none."""
    program, rank = Program.of(str(params[0])), int(params[1])
    layout = map_words(str(params[0]), rank)
    words = layout.unpack(numbers)
    kinds = [*program.kinds, *program.outs]
    if rank == 1:
        steps = tuple(ITEMSIZE[t] * s for t, s in zip(kinds, words["steps"], strict=True))
        counts = layout.place("dims"), layout.place("rows")
        return Tiling(words["rows"], steps, counts, {layout.place("by_columns"): 0})
    if rank == 0:
        walked = [i.kind == "v" for i in program.ins] + [True] * len(program.outs)
        steps = tuple(ITEMSIZE[t] * v for t, v in zip(kinds, walked, strict=True))
        return Tiling(words["n"], steps, (layout.place("n"),), {layout.place("by_columns"): 0})
    return None


def walk_outer(
    c: KernelCall, kinds: Sequence[str], dims: Sequence[int], steps: Sequence[int], n: int
) -> list[int]:
    """Return the reach into operands that lie along outer dimensions.

    kinds: of `Input`, "v" or "s".  steps: of each operand along each dimension.
    """
    rank = len(dims)
    return [
        c.span(0, *zip(dims, steps[i * rank : (i + 1) * rank], strict=True), (n, int(kind != "s")))
        for i, kind in enumerate(kinds)
    ]


def _reach(c: KernelCall) -> Reach:
    program = Program.of(str(c.params[0]))
    kinds = [i.kind for i in program.ins] + ["v"] * len(program.outs)
    c.limit_rows(c.dims, c.rows)
    return {OPERANDS: walk_outer(c, kinds, c.dims, c.steps, c.n if c.rows else 0)}


def _writes(c: KernelCall) -> Iterator[int]:
    program = Program.of(str(c.params[0]))
    return iter(range(len(program.ins), len(program.ins) + len(program.outs)))


@kernel(
    "g: i64[]", words={"g": map_words}, operands=_list_operands, reach=_reach, writes=_writes,
    tiling=_tiling,
)  # fmt: skip
def map(target: Target, program: str, rank: int) -> Body:
    """outs[r, j] = formula(ins[r, j]) over rows r of `rank` outer dimensions and j < n.

    program: the text of a row program, e.g. "a:f32[] b:f32* -> y:f32[] = add(a,b)".  An output may
    be a same-shape input.  Overwrites.
    """
    run = Intrinsic("map_rows", (Program.of(program), rank))

    def body(g, tid, nthreads):
        first, last, begin, end = 0, g.rows, 0, g.n
        if g.by_columns != 0:
            begin, end = share_blocks(end, 64, tid, nthreads)
        else:
            first, last = share(last, tid, nthreads)
        run(g.operands, first, last, begin, end - begin)

    return body


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], list[list[int]]]:
    """Return the fewest loop dimensions that walk all operands.

    Takes axes in storage `order`, drops axes of size 1 and joins neighbours which every operand
    walks as one.  Returns dimensions and, for each operand, their strides.
    """
    dims: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis in order:
        if shape[axis] == 1:
            continue
        mine = [s[axis] for s in strides]
        if dims and all(s[-1] == m * shape[axis] for s, m in zip(steps, mine, strict=True)):
            dims[-1] *= shape[axis]
            for s, m in zip(steps, mine, strict=True):
                s[-1] = m
        else:
            dims.append(shape[axis])
            for s, m in zip(steps, mine, strict=True):
                s.append(m)
    return dims or [1], steps if dims else [[1] for _ in strides]


def broadcast_strides(t: TensorType, shape: Sequence[int]) -> list[int]:
    """Return the stride of each axis of `shape` when a tensor of type `t` is broadcast to it."""
    lead = len(shape) - t.rank
    own = [0 if d == 1 else s for d, s in zip(t.dims, t.strides, strict=True)]
    return [0] * lead + own


def lower_map(
    lowering: Lowering, formulas: Sequence[Expr], ins: Sequence[Operand], outs: Sequence[Operand]
) -> None:
    """Call `map`: outs[j] = formulas[j](ins...), all outputs of one shape and layout."""
    lower_formulas(lowering, Formulas.of(*formulas), ins, outs)


def widen_integers(lowering: Lowering, x: Operand) -> Operand:
    """Return an operand as i64; convert it first if it has another type."""
    if x.type.dtype == "i64":
        return x
    wide = lowering.temp("i64", x.type.dims)
    lower_map(lowering, [("cast", "i64", ("in", 0))], [x], [wide])
    return wide


def lower_formulas(
    lowering: Lowering, formulas: Formulas, ins: Sequence[Operand], outs: Sequence[Operand]
) -> None:
    """Do the same as `lower_map`, for formulas that may share values.

    Formulas that only copy move half floats of one type as their bits.
    """
    if formulas.is_copy and len({o.type.dtype for o in (*ins, *outs)}) == 1:
        ins, outs = ([_make_movable(o) for o in side] for side in (ins, outs))
    if outs[0].type.size == 0:
        return
    types, made = [o.type for o in ins], [o.type for o in outs]
    call = lowering.once(
        (_call_of, formulas, len(ins), *[(t.dtype, t.last) for t in (*types, *made)]),
        [t.dims for t in (*types, *made)],
        functools.partial(_call_of, formulas, types, made, lowering.threads),
    )
    if isinstance(call, int):
        operand = ins[call]
        lowering.site.fail(
            f"operand {operand.name!r}, {operand.type}, is stored in another order than the result"
        )
    operands: list[Any] = [("r", x) for x in ins] + [("w", o) for o in outs]
    lowering.call(map(*call.params), operands=operands, may_alias=call.may_alias, g=call.words)


class _Call(NamedTuple):
    """A call of `map`: its parameters, its words, and which operands may share bytes."""

    params: tuple[str, int]
    words: Packed
    may_alias: tuple[tuple[int, int], ...]


def _call_of(
    formulas: Formulas, ins: Sequence[TensorType], outs: Sequence[TensorType], threads: int
) -> _Call | int:
    """Return how `map` is called for operands of these types.

    If it cannot walk them, the place of the first such operand among `ins`.
    """
    out = outs[0]
    order = out.order
    strides = [broadcast_strides(t, out.dims) for t in (*ins, *outs)]
    dims, steps = collapse(out.dims, strides, order)
    inputs = []
    for i, (t, step) in enumerate(zip(ins, steps, strict=False)):
        if step[-1] not in (0, 1):
            return i
        inputs.append(Input(t.dtype, "v" if step[-1] else "s"))
    outer = dims[:-1]
    program = Program(tuple(inputs), formulas, tuple(t.dtype for t in outs)).text()
    rows, n = math.prod(outer), dims[-1]
    params = (program, len(outer))
    words = map_words(*params).pack(
        dims=outer,
        steps=[x for step in steps for x in step[:-1]],
        rows=rows,
        n=n,
        by_columns=int(rows < 4 * threads and n >= 256),
    )
    alias = tuple(
        (len(ins) + j, i)
        for j, o in enumerate(outs)
        for i, x in enumerate(ins)
        if x.dtype == o.dtype and steps[i] == steps[len(ins) + j]
    )
    return _Call(params, words, alias)


def _make_movable(o: Operand) -> Operand:
    return Operand(o.name, replace(o.type, dtype="i16")) if o.type.dtype in HALVES else o


def update(lowering: Lowering, formula: Expr, ins: Sequence[Operand], target: Operand) -> None:
    """Call `map` in place: target = formula(ins...), where ins[0] is the target."""
    flat = target.type.size
    inputs = tuple(Input(o.type.dtype, "v" if o.type.rank else "s") for o in ins)
    program = Program.computing(inputs, [(target.type.dtype, formula)]).text()
    used: list[Any] = [("r" if i else "u", o) for i, o in enumerate(ins)] + [("u", target)]
    words = map_words(program, 0).pack(dims=(), steps=(), rows=1, n=flat, by_columns=1)
    lowering.call(map(program, 0), operands=used, may_alias=[(len(ins), 0)], g=words)


def inline_constants(site: Site) -> tuple[Formulas, list[int]]:
    """Return an elementwise node's formula, constants in it, and the inputs that it reads."""
    formula = site.formula()
    kept: list[int] = []
    writer = TermWriter()
    inputs: list[int] = []
    for i in range(len(site.ins)):
        value = site.value(i)
        if value is not None and value.size == 1:
            inputs.append(writer.const(value.reshape(()).item()))
        else:
            inputs.append(writer.put("in", len(kept)))
            kept.append(i)
    if len(kept) < len(inputs):
        formula = writer.formulas(writer.copy(formula, inputs))
    return (_simplified(formula) if "pow" in formula.list_functions() else formula), kept


def _simplified(formulas: Formulas) -> Formulas:
    """Return the formulas with products in the place of small whole powers."""
    writer = TermWriter()
    places: list[int] = []
    for term in formulas.terms:
        exponent = formulas.terms[term[2]] if term[0] == "pow" else ("",)
        if exponent[0] == "cast":
            exponent = formulas.terms[exponent[2]]
        if exponent[0] == "const" and exponent[1] in (1, 2, 3):
            place = base = places[term[1]]
            for _ in range(int(exponent[1]) - 1):
                place = writer.put("mul", place, base)
            places.append(place)
        else:
            places.append(writer.put(*move_term(term, places)))
    return writer.formulas([places[r] for r in formulas.results])


MAP_KERNELS = (map,)  # what `lower_map` and `update` call
KERNELS = (map,)
