"""Reaches of the kernels of `kernels/loops/`: maps, folds, products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from engine.element_types import ITEMSIZE
from engine.kernels.loops.quantised import DEPTH
from engine.kernels.reach.call import OPERANDS, Call, Reach, Table, if_, reach, up
from engine.kernels.vocabulary.instructions import (
    BLOCK,
    DOMAINS,
    FORMULA_WORDS,
    INSTRUCTION,
    MOVES,
    SLOT,
    Primitive,
    codes,
)
from engine.kernels.vocabulary.kernel import ACCUMULATE, BIAS, RELU
from engine.kernels.vocabulary.row_program import Program

TABLE: Table = {}
MODES = ACCUMULATE | BIAS | RELU


def _program(c: Call) -> Program:
    return Program.of(str(c.params[0]))


def _outs(c: Call) -> Iterator[int]:
    program = _program(c)
    return iter(range(len(program.ins), len(program.ins) + len(program.outs)))


def walked(
    c: Call, kinds: list[str], dims: tuple[int, ...], steps: tuple[int, ...], n: int
) -> list[int]:
    """The reach into operands that lie along outer dimensions; kinds: of `Input`, "v" or "s"."""
    rank = len(dims)
    return [
        c.span(0, *zip(dims, steps[i * rank : (i + 1) * rank], strict=True), (n, int(kind != "s")))
        for i, kind in enumerate(kinds)
    ]


@reach(TABLE, "map", writes=OPERANDS, written=_outs)
def _map(c: Call) -> Reach:
    program = _program(c)
    kinds = [i.kind for i in program.ins] + ["v"] * len(program.outs)
    c.limit_rows(c.dims, c.rows)
    return {OPERANDS: walked(c, kinds, c.dims, c.steps, c.n if c.rows else 0)}


def _moved(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """What an instruction moves, and as which type; None if it computes."""
    return MOVES[record["code"]] if record["code"] < len(MOVES) else None


def _formula_stores(c: Call) -> Iterator[int]:
    for record in _instructions(c)[1]:
        move = _moved(record)
        if move is not None and move[0] == "store":
            yield record["first"]


def _instructions(c: Call) -> tuple[Mapping[str, Any], list[Mapping[str, Any]], tuple[int, ...]]:
    """The words of a formula, its instructions, and the words behind those with a name."""
    values = c.content("program")
    if len(values) < FORMULA_WORDS.size:
        c.refuse(f"a formula of {len(values)} words")
    words = FORMULA_WORDS.unpack(values.tolist())
    rest, code, size = words["rest"], words["code"], INSTRUCTION.size
    c.check_words({n: v for n, v in words.items() if n != "rest"}, FORMULA_WORDS)
    if code + words["count"] * size > len(rest):
        c.refuse(f"{words['count']} instructions behind word {code} of {len(rest)}")
    found: list[Mapping[str, Any]] = [
        INSTRUCTION.unpack(rest[code + i * size : code + (i + 1) * size])
        for i in range(words["count"])
    ]
    return words, found, rest


@reach(TABLE, "formula", writes=f"work {OPERANDS}", written=_formula_stores)
def _formula(c: Call) -> Reach:
    domain = str(c.params[0])
    if domain not in DOMAINS:
        c.refuse(f"the domain {domain!r}")
    words, instructions, rest = _instructions(c)
    rows, n, rank = words["rows"], words["n"], words["rank"]
    count = len(c.elements) - 2  # operands besides the program and work
    if rank * (count + 1) > len(rest):
        c.refuse(f"{rank} dimensions of {count} operands in {len(rest)} words")
    dims, table = rest[:rank], {number: what for what, number in codes(domain).items()}
    c.limit_rows(dims, rows)
    found, registers = [0] * count, 0
    for record in instructions:
        what = table.get(record["code"])
        if what is None:
            continue  # the kernel passes over it
        used = [record["register"]]
        move = _moved(record)
        if move is not None:
            at = record["first"]
            steps = rest[(at + 1) * rank : (at + 2) * rank]
            if not 0 <= at < count or record["second"] not in (0, 1):
                c.refuse(f"an instruction moves operand {at} by {record['second']}")
            own = c.span(0, *zip(dims, steps, strict=True), (n, record["second"]))
            if move[0] != "splat" and not record["second"]:
                own = own and own + min(n, BLOCK) - 1
            found[at] = max(found[at], if_(rows, own * ITEMSIZE[move[1]]))
        elif isinstance(what, Primitive):
            used += [record[name] for name in ("first", "second", "third")[: len(what.kinds)]]
        c.check_range("registers", tuple(used))
        registers = max(registers, *used)
    sizes = [-(-size // c.itemsize(i)) for i, size in enumerate(found)]
    return {
        "program": len(rest) + FORMULA_WORDS.size,
        "work": c.scratch(words["room"], if_(instructions, (registers + 1) * SLOT)),
        OPERANDS: sizes,
    }


def folded(c: Call, form: str) -> str:
    """The letters of the form of a fold."""
    found = form.strip("-")
    if found not in ("", "m", "u"):
        c.refuse(f"a fold of the form {form!r}")
    return found


@reach(TABLE, "reduce_rows", writes="y")
def _reduce_rows(c: Call) -> Reach:
    form = folded(c, str(c.params[4]))
    return {
        "x": c.rows * c.n if c.parts else 0,
        "m": if_(form == "m", c.rows),
        "y": c.rows * c.parts,
        "flag": if_(form == "u", 1),
    }


@reach(TABLE, "reduce_cols", writes="y work")
def _reduce_cols(c: Call) -> Reach:
    c.positive("block")
    form = folded(c, str(c.params[4]))
    return {
        "x": c.outer * c.n * c.cols,
        "m": if_(form == "m", c.outer * c.cols),
        "y": c.outer * c.parts * c.cols,
        "flag": if_(form == "u", 1),
        "work": c.scratch(c.block, min(c.block, c.cols)),
    }


@reach(TABLE, "gemm", writes="c work")
def _gemm(c: Call) -> Reach:
    c.positive("kc", "nc", "grid")
    c.at_most("mode", MODES)
    m, n, k = c.m, c.n, c.k
    trans_a, trans_b = c.flag(1), c.flag(2)
    count, inside = math.prod(c.batch), m * n * k * math.prod(c.batch)
    if not m * n * count:
        return {}
    direct = not trans_b and c.direct
    if direct and (n % c.lanes or c.nc % c.lanes):
        c.refuse(f"B of {n} columns, {c.nc} at a time, is read where it is, by {c.lanes}")
    a = ((k, c.lda), (m, 1)) if trans_a else ((m, c.lda), (k, 1))
    b = ((n, c.ldb), (k, 1)) if trans_b else ((k, c.ldb), (n, 1))
    panels = min(c.kc, k) * up(min(c.nc, n), c.tile_columns)
    return {
        "a": if_(inside, c.span(0, *zip(c.batch, c.a_step, strict=True), *a)),
        "b": if_(inside, c.span(0, *zip(c.batch, c.b_step, strict=True), *b)),
        "c": if_(inside, (count - 1) * m * n + c.span(0, (m, c.ldc), (n, 1))),
        "bias": if_(c.mode & BIAS, n),
        "reset": if_(c.resets, 1),
        "work": if_(inside and not direct, c.scratch(c.per_thread, panels, math.prod(c.grid))),
    }


def quantised(c: Call, rows: int, columns: int) -> dict[str, int]:
    """The reach into a matrix of small integers with scales and zero points of blocks."""
    c.positive("block")
    if c.bits not in (2, 4, 8) or c.zero_bits not in (-1, 0, 1, 2, 4, 8):
        c.refuse(f"integers of {c.bits} bits, zero points of {c.zero_bits}")
    if not rows * columns:
        return {}
    down, beside = (rows - 1) // c.block[0], (columns - 1) // c.block[1]
    by_column = c.block[1] == 1
    last_scale = down * c.scale[0] + (columns - 1 if by_column else beside * c.scale[1])
    last_zero = down * c.zero[0] + (columns - 1 if by_column else beside * c.zero[1])
    zero_bits = c.bits if by_column else c.zero_bits
    return {
        "q": (((rows - 1) * c.row + columns) * c.bits + 7) // 8,
        "s": last_scale + 1,
        "z": if_(c.zero_bits > 0, ((last_zero + 1) * zero_bits + 7) // 8),
        "f": if_(c.zero_bits < 0, last_zero + 1),
    }


@reach(
    TABLE,
    "quantised_gemm",
    writes="c work",
    signed="zero_bits",
    free="flip offset zero_flip zero_offset",
)
def _quantised_gemm(c: Call) -> Reach:
    c.positive("kc", "nc", "grid")
    c.at_most("mode", MODES)
    if not c.m * c.n * c.k:
        return {}
    trans = c.flag(1)
    spare = max(DEPTH, c.tile_columns) + (c.lanes * DEPTH if trans else 0)
    panels = min(c.kc, c.k) * up(min(c.nc, c.n), c.tile_columns)
    used = max(panels, c.kc * c.nc + spare)
    return {
        "a": c.m * c.k,
        "c": c.m * c.n,
        "bias": if_(c.mode & BIAS, c.n),
        "work": c.scratch(c.per_thread, used, math.prod(c.grid)),
        **quantised(c, c.n if trans else c.k, c.k if trans else c.n),
    }


@reach(
    TABLE,
    "quantised_rows",
    writes="y fault work",
    signed="zero_bits",
    free="flip offset zero_flip zero_offset",
)
def _quantised_rows(c: Call) -> Reach:
    return {
        "index": c.count,
        "y": c.count * c.columns,
        "fault": 4,
        "work": c.scratch(c.columns, c.columns),
        **quantised(c, c.rows, c.columns),
    }
