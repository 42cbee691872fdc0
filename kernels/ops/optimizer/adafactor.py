"""Adafactor: gradients over the root of a second moment that is kept by rows and columns.

A parameter of two dimensions or more is a batch of matrices [r, c], its last two dimensions.  With
R [r] and C [c], one number a row and one a column instead of r c second moments:

Moments   f = t^beta2_decay;  R = R + f (mean of g^2 over the row - R), C alike over the column
          V = R C / max(mean of R, eps1);  a vector keeps C alone, V = C = C + f (g^2 - C)
Update    u = g / sqrt(max(V, eps1^2)),  divided by max(1, RMS(u) / d), the root mean square of one
          parameter tensor
Step      s = min(r, 1 / sqrt(t)) with `relative_step`, r without;  a = s max(eps2, RMS(p)) with
          `scale_parameter`, s without;  p = p (1 - r wd) - a u
          with beta1  m = beta1 m + (1 - beta1) a u,  p = p (1 - r wd) - m
Error     a step: about 10 roundings of float; sums over rows and parameters as in clipping.py, in
          one order, whatever the number of threads
Source    Shazeer, Stern, arXiv 1804.04235, Algorithms 4 and 5; torch.optim.Adafactor, whose steps
          are these with both options and without beta1; the first moment as in Hugging Face's

The letters are explained in node.py.  A parameter is cut into units of whole rows: some matrices
where they are small, a block of rows where one is large.  The cuts depend on its shape alone, so
the sums are the same for every number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from engine.base.element_types import ITEMSIZE, NUMPY
from engine.base.signatures import AT_LEAST_0, AT_LEAST_1, BELOW_1, Range
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import LINE, square_root
from engine.kernels.ops.optimizer.method import FIRST, Group, Method
from engine.kernels.ops.optimizer.node import OptimizerNode, ParameterRange, optimizer
from engine.kernels.ops.optimizer.ranges import RUN
from engine.kernels.ops.optimizer.update import factor_of, is_due
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Declared,
    Numbers,
    Parameters,
    Tile,
    imin,
    inline,
    kernel,
    off,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering
from engine.kernels.vocabulary.row_program import loop
from engine.plan.states import State
from engine.plan.words import OPEN, Field, Packed, Words

MOST_BLOCKS = 16  # of rows of one matrix: for each a row of sums over columns is kept meanwhile
MACHINE = -1.0  # as epsilon1: the machine epsilon of the element type

raised = loop("f64", "x y -> x ** y")  # of two doubles: raised(x, y, 1)


# --- options


@dataclass(frozen=True)
class Adafactor(Method):
    """Second moments by rows and columns, and clipped updates (Shazeer, Stern, arXiv 1804.04235).

    beta2_decay: at step t, the second moments keep the share 1 - t ** beta2_decay.
    eps: a pair: the first number regularises second moments, with None for the machine epsilon of
        the element type; the second is the smallest scale of a parameter.
    d: the root mean square above which updates are scaled down.
    weight_decay: the factor of the parameters that each step subtracts, times the learning rate.
    relative_step: whether the step is 1 / sqrt(t), with the learning rate, usually 0.01, as its
        upper bound.
    scale_parameter: whether steps are relative to the root mean square of each parameter tensor.
    beta1: the decay of a moving average of updates; with 0, there is none.
    """

    op = "AdafactorOptimizer"
    ranges: ClassVar = {
        "beta2_decay": Range(high=0),
        "eps": AT_LEAST_0,
        "d": AT_LEAST_1,
        "beta1": BELOW_1,
    }

    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    relative_step: bool = True
    scale_parameter: bool = True
    beta1: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        eps1, eps2 = self.eps
        return {
            "beta2_decay": float(self.beta2_decay),
            "epsilon1": MACHINE if eps1 is None else float(eps1),
            "epsilon2": float(eps2),
            "clipping": float(self.d),
            "weight_decay": float(self.weight_decay),
            "relative_step": int(self.relative_step),
            "scale_parameter": int(self.scale_parameter),
            "beta1": float(self.beta1),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        rows = State("row_second_moments", "rows")
        columns = State("column_second_moments", "columns")
        return (rows, columns, State(FIRST)) if attrs["beta1"] else (rows, columns)


# --- kernels

PART = Words(
    "adafactor_part",
    begin="first element of the parameter, of its gradient and of its first moment",
    size="elements",
    batch="matrices",
    rows="rows of a matrix",
    columns="elements of a row; the last row of a vector may have less",
    is_factored="1 where rows have a second moment, 0 for vectors",
    row_begin="first element of its second moments of rows",
    column_begin="first element of its second moments of columns",
    kept="second moments of columns",
    group="matrices of a unit",
    blocks="units of a matrix, where it has several",
    tall="rows of a unit",
    units="units",
    first_unit="units of the parameters before",
    partial="first element of its sums of columns, one for each block",
)
TABLE = Words("adafactor", parts=Field("the parameters", count=OPEN, of=PART))

_TABLE = f"signal: b1[1] if signalled   table: i64[count, {PART.size}]"
_COUNTS = "count, signalled: i64"
# Threads share the units of a parameter in blocks of `block`.  The others describe the only
# parameter, if that is a matrix; otherwise they are 0.
_UNITS = "units, tall, width: i64   block: i64 where block >= 1   clips: i64"


def _cut_units(*pointers: str) -> Tile:
    """Return how a kernel is cut whose numbers are count, signalled, UNITS, and others.

    pointers: the part of each that belongs to a unit: its elements, a number for each of its rows,
        one for each of its columns, two sums, or "" for nothing.
    """

    def tiling(params: Parameters, numbers: Numbers) -> Blocks | None:
        units, tall, width = map(int, numbers[2:5])
        size = ITEMSIZE[str(params[0])]
        steps = {
            "": 0, "elements": tall * width * size, "rows": tall * size, "columns": width * size,
            "sums": 2 * ITEMSIZE["f64"],
        }  # fmt: skip
        if not units:
            return None
        moves = tuple(steps[pointer] for pointer in pointers)
        return Blocks(units, moves, numbered=True, unit=tall * width, at=5)

    return tiling


@inline
def bounds(part, u):
    """Return the matrices [b, b_end) of unit u, and the rows [i, i_end) of each."""
    matrix = udiv(u, part.blocks)
    b, i = matrix * part.group, (u - matrix * part.blocks) * part.tall
    return b, imin(b + part.group, part.batch), i, imin(i + part.tall, part.rows)


@inline
def row_scale(rows, part, b, eps):
    """Return the factor of the second moments of rows of matrix b: 1 / max(their mean, eps)."""
    total = 0.0
    for i in range(part.rows):
        total += rows[part.row_begin + b * part.rows + i]
    mean = total / part.rows
    return 1.0 / (eps if mean < eps else mean)


def _parts(c: KernelCall) -> dict[str, int]:
    """Return the reach into each kind of operand, by the records of the parameters."""
    reach = dict.fromkeys(("elements", "rows", "columns", "kept", "partial", "joined", "sums"), 0)
    for q in c.records("table", PART, c.count):
        if min(q["tall"], q["blocks"], q["group"]) < 1:
            c.refuse(f"a parameter cut into {q['blocks']} blocks of {q['tall']} rows")
        if c.owned and q["begin"]:
            c.refuse("a parameter that does not begin where its tensor does")
        whole = q["batch"] * q["columns"]
        blocks = -(-q["rows"] // q["tall"])
        beside = min(whole, q["size"]) if q["rows"] == 1 else whole
        ends = {
            "elements": q["begin"] + min(q["size"], whole * q["rows"]),
            "rows": q["row_begin"] + q["batch"] * q["rows"] if q["is_factored"] else 0,
            "columns": q["column_begin"] + beside,
            "kept": q["column_begin"] + q["kept"],
            "partial": q["partial"] + ((blocks - 1) * whole + beside if blocks else 0),
            "joined": q["partial"] + (q["blocks"] - 1) * whole + q["kept"],
            "sums": 2 * (q["first_unit"] + q["units"]),
        }
        reach = {name: max(reach[name], end) for name, end in ends.items()}
    return reach


def _of(**kinds: str) -> Declared:
    """Return a reach by the kinds of operands that `_parts` knows."""

    def reach(c: KernelCall) -> Reach:
        ends = _parts(c)
        return {name: ends[kind] for name, kind in kinds.items()}

    return reach


@kernel(
    f"""
    step: i64[1]   {_TABLE}   g: T[...]   clip: f64[1] if clips   rows: update T[...]
    partial: out T[...]   {_COUNTS}   {_UNITS}   decay: f64
    """,
    words={"table": TABLE},
    reach=_of(g="elements", rows="rows", partial="partial"),
    tiling=_cut_units("", "", "", "elements", "", "rows", "columns"),
)
def adafactor_rows(target: Target, T: str) -> Body:
    """Update the second moments of rows; partial = sums of g^2 over the rows of each block.

    rows, partial: where `PART` says.
    """
    start = loop(T, "g[] k -> g = g * k; s[] = g * g; sum(g * g)")
    add = loop(T, "g[] s[] k -> g = g * k; s[] = s + g * g; sum(g * g)")

    def body(call, tid, nthreads):
        if is_due(call):
            k = factor_of(call)
            fresh = raised(float(call.step[0]), call.decay, 1)
            for r in range(call.count):
                part = off(call.table.parts, r)
                first, last = share_blocks(part.units, call.block, tid, nthreads)
                for u in range(first, last):
                    b_begin, b_end, i_begin, i_end = bounds(part, u)
                    for b in range(b_begin, b_end):
                        # Blocks of rows have sums of columns of their own, which no two threads
                        # share; `adafactor_columns` adds them up.
                        above = udiv(i_begin, part.tall)
                        sums = part.partial + (above * part.batch + b) * part.columns
                        for i in range(i_begin, i_end):
                            row = b * part.rows + i
                            n = imin(part.columns, part.size - row * part.columns)
                            total = 0.0
                            for c in range(0, n, RUN):
                                x = off(call.g, part.begin + row * part.columns + c)
                                y = off(call.partial, sums + c)
                                m = imin(RUN, n - c)
                                # The first row overwrites the sums, so nothing clears them.
                                if i == i_begin:
                                    total += start(x, k, y, m)
                                else:
                                    total += add(x, y, k, y, m)
                            if part.is_factored != 0:
                                old = call.rows[part.row_begin + row]
                                call.rows[part.row_begin + row] = old + fresh * (total / n - old)

    return body


@kernel(
    f"step: i64[1]   {_TABLE}   partial, columns: update T[...]   {_COUNTS}   decay: f64",
    words={"table": TABLE},
    reach=_of(partial="joined", columns="kept"),
)
def adafactor_columns(target: Target, T: str) -> Body:
    """Update the second moments of columns from the sums of all blocks, which it overwrites.

    columns, partial: where `PART` says.
    """
    add = loop(T, "s[] more[] -> s[] = s + more")
    blend = loop(T, "v[] s[] fresh mean -> v[] = v + fresh * (s * mean - v)")

    def body(call, tid, nthreads):
        if is_due(call):
            fresh = raised(float(call.step[0]), call.decay, 1)
            for r in range(call.count):
                part = off(call.table.parts, r)
                first, last = share_blocks(part.kept, LINE, tid, nthreads)
                n = last - first
                sums = off(call.partial, part.partial + first)
                for k in range(1, part.blocks):
                    more = off(call.partial, part.partial + k * part.batch * part.columns + first)
                    add(sums, more, sums, n)
                v = off(call.columns, part.column_begin + first)
                blend(v, sums, fresh, 1.0 / part.rows, v, n)

    return body


@kernel(
    f"""
    {_TABLE}   p, g: T[...]   clip: f64[1] if clips   rows, columns: T[...]   sums: out f64[...]
    {_COUNTS}   {_UNITS}   eps: f64
    """,
    words={"table": TABLE},
    reach=_of(p="elements", g="elements", rows="rows", columns="columns", sums="sums"),
    tiling=_cut_units("", "", "elements", "elements", "", "", "", "sums"),
)
def adafactor_norms(target: Target, T: str) -> Body:
    """sums[unit] = (sum of p^2, sum of u^2) over the elements of a unit.

    rows, columns: where `PART` says; sums: [units, 2].
    """
    run = loop(
        T, "p[] g[] c[] f k floor -> g = g * f; sum(p * p); sum((g * g) / max(k * c, floor))"
    )

    def body(call, tid, nthreads):
        if is_due(call):
            f, eps = factor_of(call), call.eps
            for r in range(call.count):
                part = off(call.table.parts, r)
                first, last = share_blocks(part.units, call.block, tid, nthreads)
                for u in range(first, last):
                    b_begin, b_end, i_begin, i_end = bounds(part, u)
                    pp = 0.0
                    uu = 0.0
                    for b in range(b_begin, b_end):
                        scale = row_scale(call.rows, part, b, eps) if part.is_factored != 0 else 1.0
                        for i in range(i_begin, i_end):
                            row = b * part.rows + i
                            n = imin(part.columns, part.size - row * part.columns)
                            k = scale
                            if part.is_factored != 0:
                                k *= call.rows[part.row_begin + row]
                            for c in range(0, n, RUN):
                                at = part.begin + row * part.columns + c
                                v = off(call.columns, part.column_begin + b * part.columns + c)
                                p_sum, u_sum = run(
                                    off(call.p, at),
                                    off(call.g, at),
                                    v,
                                    f,
                                    k,
                                    eps * eps,
                                    imin(RUN, n - c),
                                )
                                pp += p_sum
                                uu += u_sum
                    call.sums[2 * (part.first_unit + u)] = pp
                    call.sums[2 * (part.first_unit + u) + 1] = uu

    return body


@kernel(
    f"""
    lr: f32[1]   step: i64[1]   p: update T[...]   g: T[...]   clip: f64[1] if clips   {_TABLE}
    rows, columns: T[...]   m: update T[...]   sums: f64[...]   {_COUNTS}   {_UNITS}
    scale, eps, least, clipping, decay, beta1: f64
    """,
    words={"table": TABLE},
    reach=_of(
        p="elements", g="elements", rows="rows", columns="columns", m="elements", sums="sums"
    ),
    tiling=_cut_units("", "", "elements", "elements", "", "", "", "", "", "elements", ""),
)
def adafactor_apply(
    target: Target, T: str, is_moving: int, is_relative: int, is_scaled: int
) -> Body:
    """Update p by the family's formulas, and m if `is_moving`; without it, m is p.

    rows, columns: where `PART` says; sums: [units, 2].
    """
    if is_moving:
        outs = "m = beta1 * m + rest * u; m[]; p[] = p * keep - m"
    else:
        outs = "p = p * keep - u; p[]; m[] = p"
    run = loop(
        T,
        f"""p[] g[] c[] m[] f k floor rate keep beta1 rest ->
        u = rate * (g * f / sqrt(max(k * c, floor))); {outs}""",
    )

    def body(call, tid, nthreads):
        if is_due(call):
            keep = 1.0 - call.lr[0] * call.scale * call.decay
            f, eps = factor_of(call), call.eps
            for r in range(call.count):
                part = off(call.table.parts, r)
                first, last = share_blocks(part.units, call.block, tid, nthreads)
                pp = 0.0
                uu = 0.0
                if first < last:
                    # Norms are of the whole parameter: each thread adds up all units, in order.
                    for u in range(part.first_unit, part.first_unit + part.units):
                        pp += call.sums[2 * u]
                        uu += call.sums[2 * u + 1]
                rate = call.lr[0] * call.scale
                if is_relative != 0:
                    bound = 1.0 / square_root(float(call.step[0]), 1)
                    rate = bound if bound < rate else rate
                if is_scaled != 0:
                    size = square_root(pp / part.size, 1)
                    rate *= size if size > call.least else call.least
                # u / max(1, RMS(u) / d), as a factor of the step.
                excess = square_root(uu / part.size, 1) / call.clipping
                if excess > 1.0:
                    rate /= excess
                for u in range(first, last):
                    b_begin, b_end, i_begin, i_end = bounds(part, u)
                    for b in range(b_begin, b_end):
                        k_scale = (
                            row_scale(call.rows, part, b, eps) if part.is_factored != 0 else 1.0
                        )
                        for i in range(i_begin, i_end):
                            row = b * part.rows + i
                            n = imin(part.columns, part.size - row * part.columns)
                            k = k_scale
                            if part.is_factored != 0:
                                k *= call.rows[part.row_begin + row]
                            at = part.begin + row * part.columns
                            q, w = off(call.p, at), off(call.m, at)
                            v = off(call.columns, part.column_begin + b * part.columns)
                            one, two = (w, q) if is_moving else (q, w)
                            run(
                                q,
                                off(call.g, at),
                                v,
                                w,
                                f,
                                k,
                                eps * eps,
                                rate,
                                keep,
                                call.beta1,
                                1.0 - call.beta1,
                                one,
                                two,
                                n,
                            )

    return body


# --- lowering


def _cut(part: ParameterRange, first_unit: int, partial: int) -> Packed:
    """Return how a parameter is cut; a vector is matrices of one row, the last perhaps shorter."""
    row_begin, column_begin = part.states[:2]
    is_factored = len(part.shape) > 1
    if is_factored:
        rows, columns = part.shape[-2:]
        batch = math.prod(part.shape[:-2])
    else:
        rows, columns = 1, RUN
        batch = -(-part.size // RUN)
    blocks = max(1, min(MOST_BLOCKS, rows * columns // RUN, rows))
    tall = -(-rows // blocks)
    blocks = -(-rows // tall)
    group = max(1, RUN // (rows * columns)) if blocks == 1 else 1
    return PART.pack(
        begin=part.begin,
        size=part.size,
        batch=batch,
        rows=rows,
        columns=columns,
        is_factored=int(is_factored),
        row_begin=row_begin,
        column_begin=column_begin,
        kept=batch * columns if is_factored else part.size,
        group=group,
        blocks=blocks,
        tall=tall,
        units=-(-batch // group) * blocks,
        first_unit=first_unit,
        partial=partial,
    )


def _lower(lowering: Lowering) -> None:
    attrs = lowering.site.attrs
    node, records = OptimizerNode(lowering, Adafactor), list[Packed]()
    all_units = sums = 0
    for part in node.parts:
        if part.size:
            records.append(_cut(part, all_units, sums))
            words = dict(zip(PART.fields, records[-1].values, strict=True))
            all_units += words["units"]
            sums += words["blocks"] * words["batch"] * words["columns"]
    rows, columns, *first = node.states
    beta1, decay = node.real("beta1"), node.real("beta2_decay")
    eps = node.real("epsilon1")
    eps = float(np.finfo(NUMPY[node.T]).eps) if eps == MACHINE else eps
    table = lowering.const(np.array(TABLE.pack(parts=records).values, np.int64))
    partial, norms = lowering.temp(node.T, (sums,)), lowering.temp("f64", (all_units, 2))
    clips, signalled = node.flags
    words = dict(zip(PART.fields, records[0].values, strict=True)) if len(records) == 1 else {}
    is_matrix = words.get("batch") == words.get("is_factored") == 1
    units, tall, width = (words[name] if is_matrix else 0 for name in ("units", "tall", "columns"))
    shared: dict[str, Any] = {
        "signal": node.signal, "table": table, "count": len(records), "signalled": signalled
    }  # fmt: skip
    gradients: dict[str, Any] = {
        "g": node.g, "clip": node.clip, "rows": rows, "units": units, "tall": tall,
        "width": width, "block": 1, "clips": clips,
    }  # fmt: skip
    lowering.call(
        adafactor_rows(node.T), step=node.step, partial=partial, decay=decay, **shared, **gradients
    )
    lowering.call(
        adafactor_columns(node.T), step=node.step, partial=partial, columns=columns, decay=decay,
        **shared,
    )  # fmt: skip
    lowering.call(
        adafactor_norms(node.T), p=node.p, columns=columns, sums=norms, eps=eps, **shared,
        **gradients,
    )  # fmt: skip
    flags = (
        int(beta1 != 0),
        int(bool(attrs["relative_step"])),
        int(bool(attrs["scale_parameter"])),
    )
    lowering.call(
        adafactor_apply(node.T, *flags), lr=node.lr, step=node.step, p=node.p, columns=columns,
        m=first[0] if first else node.p, sums=norms, scale=node.scale, eps=eps,
        least=node.real("epsilon2"), clipping=node.real("clipping"),
        decay=node.real("weight_decay"), beta1=beta1, **shared, **gradients,
    )  # fmt: skip
    node.finish()


KERNELS = (adafactor_rows, adafactor_columns, adafactor_norms, adafactor_apply)
OPS = (optimizer(Adafactor, *KERNELS, lower=_lower),)
