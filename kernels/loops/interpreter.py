"""Formulas that are data: the elementwise kernel of libraries made for a set of ops.

Forward   outs = formulas(ins), as `map`, whose formula is part of the kernel; here it is words
Error     that of the functions it names; no product and sum become one operation

A library for an op set must run formulas that nobody has seen when it is compiled.  The kernel
interprets them block by block: each instruction is a vector loop over a block in the first-level
cache, so that the cost of its choice is shared by `BLOCK` elements.
"""

from __future__ import annotations

from engine.kernels.target import Target
from engine.kernels.vocabulary.instructions import (
    BLOCK,
    FORMULA_WORDS,
    INSTRUCTION,
    MOVES,
    OPERANDS,
)
from engine.kernels.vocabulary.kernel import (
    Body,
    Native,
    imin,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)

MEMORY = len(MOVES)  # instructions below read or write an operand


@kernel(
    "program:i64* work:u8* g:i64[]",
    words={"program": FORMULA_WORDS, "g": OPERANDS},
    operands=lambda domain: ("...*",),
)
def formula(target: Target, domain: str) -> Body:
    """outs[r, j] = formulas(ins[r, j]) over rows r of outer dimensions and j < n.

    An output may be a same-shape input.  Overwrites.
    """
    run, instructions = Native("formula", (domain,)), Native("records", (INSTRUCTION,))

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
