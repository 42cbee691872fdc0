"""Formulas that are data: the elementwise kernel of libraries made for a set of ops.

Forward   outs = formulas(ins), as `map`, whose formula is part of the kernel; here it is words
Error     as of the functions it names; no product and sum become one operation

A library for an op set must run formulas that nobody has seen when it is compiled.  The kernel
interprets them block by block: each instruction is a vector loop over a block in the first-level
cache, so that the cost of its choice is shared by `BLOCK` elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.instructions import (
    BLOCK,
    DOMAINS,
    FORMULA_WORDS,
    INSTRUCTION,
    MOVES,
    OPERANDS,
    SLOT,
    Primitive,
    assign_codes,
)
from engine.kernels.vocabulary.kernel import OPERANDS as CALL_OPERANDS
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    imin,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)

MEMORY = len(MOVES)  # instructions below read or write an operand


def _read_move(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what an instruction moves, and as which type; None if it computes."""
    return MOVES[record["code"]] if record["code"] < len(MOVES) else None


def _writes(c: KernelCall) -> Iterator[int]:
    for record in _read_instructions(c)[1]:
        move = _read_move(record)
        if move is not None and move[0] == "store":
            yield record["first"]


def _read_instructions(
    c: KernelCall,
) -> tuple[Mapping[str, Any], list[Mapping[str, Any]], tuple[int, ...]]:
    """Return the words of a formula, its instructions, and the words after those with a name."""
    values = c.content("program")
    if len(values) < FORMULA_WORDS.size:
        c.refuse(f"a formula of {len(values)} words")
    words = FORMULA_WORDS.unpack(values.tolist())
    rest, code, size = words["rest"], words["code"], INSTRUCTION.size
    c.check_words({n: v for n, v in words.items() if n != "rest"}, FORMULA_WORDS)
    if code + words["count"] * size > len(rest):
        c.refuse(f"{words['count']} instructions after word {code} of {len(rest)}")
    instructions: list[Mapping[str, Any]] = [
        INSTRUCTION.unpack(rest[code + i * size : code + (i + 1) * size])
        for i in range(words["count"])
    ]
    return words, instructions, rest


def _reach(c: KernelCall) -> Reach:
    domain = str(c.params[0])
    if domain not in DOMAINS:
        c.refuse(f"the domain {domain!r}")
    words, instructions, rest = _read_instructions(c)
    rows, n, rank = words["rows"], words["n"], words["rank"]
    count = len(c.elements) - 2  # operands besides the program and work
    if rank * (count + 1) > len(rest):
        c.refuse(f"{rank} dimensions of {count} operands in {len(rest)} words")
    dims, table = rest[:rank], {number: what for what, number in assign_codes(domain).items()}
    c.limit_rows(dims, rows)
    reached, registers = [0] * count, 0
    for record in instructions:
        what = table.get(record["code"])
        if what is None:
            continue  # the kernel passes over it
        used = [record["register"]]
        move = _read_move(record)
        if move is not None:
            at = record["first"]
            steps = rest[(at + 1) * rank : (at + 2) * rank]
            if not 0 <= at < count or record["second"] not in (0, 1):
                c.refuse(f"an instruction moves operand {at} by {record['second']}")
            own = c.span(0, *zip(dims, steps, strict=True), (n, record["second"]))
            if move[0] != "splat" and not record["second"]:
                own = own and own + min(n, BLOCK) - 1
            reached[at] = max(reached[at], own * ITEMSIZE[move[1]] if rows else 0)
        elif isinstance(what, Primitive):
            used += [record[name] for name in ("first", "second", "third")[: len(what.kinds)]]
        c.check_range("registers", tuple(used))
        registers = max(registers, *used)
    sizes = [-(-size // c.itemsize(i)) for i, size in enumerate(reached)]
    return {
        "program": len(rest) + FORMULA_WORDS.size,
        "work": c.scratch(words["room"], (registers + 1) * SLOT if instructions else 0),
        CALL_OPERANDS: sizes,
    }


@kernel(
    "program: i64[...]   work: scratch u8[...]   g: i64[]",
    words={"program": FORMULA_WORDS, "g": OPERANDS},
    operands=lambda domain: ("...*",),
    reach=_reach,
    writes=_writes,
)
def formula(target: Target, domain: str) -> Body:
    """outs[r, j] = formulas(ins[r, j]) over rows r of outer dimensions and j < n.

    An output may be a same-shape input.  Overwrites.
    """
    run, instructions = Intrinsic("formula", (domain,)), Intrinsic("records", (INSTRUCTION,))

    def body(program, work, g, tid, nthreads):
        rows, n, rank, dims = program.rows, program.n, program.rank, program.rest
        first, last = 0, rows
        begin, end = 0, n
        if program.by_columns != 0:
            begin, end = share_blocks(n, 64, tid, nthreads)
        else:
            first, last = share(rows, tid, nthreads)
        registers = off(work, tid * program.room)
        start = instructions(off(program.rest, program.code))
        for r in range(first, last):
            j = begin
            while j < end:
                k = imin(end - j, BLOCK)
                for c in range(program.count):
                    code = off(start, c)
                    place = 0
                    if code.code < MEMORY:
                        place = j * code.second
                        strides = off(dims, (code.first + 1) * rank)
                        rest = r
                        for d in range(rank - 1, -1, -1):
                            quotient = udiv(rest, dims[d])
                            place += (rest - quotient * dims[d]) * strides[d]
                            rest = quotient
                    run(code, registers, g.operands, place, k)
                j += BLOCK

    return body


KERNELS = (formula,)
