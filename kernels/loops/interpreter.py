"""Formulas that are data: the elementwise kernel of libraries made for a set of ops.

Forward   outs = formulas(ins), as `map`, whose formula is part of the kernel; here it is words
Error     that of the functions it names; no product and sum become one operation

A library for an op set must run formulas that nobody has seen when it is compiled.  The kernel
interprets them block by block: each instruction is a vector loop over a block in the first-level
cache, so that the cost of its choice is shared by `BLOCK` elements.
"""

from __future__ import annotations

from engine.kernels.target import Target
from engine.kernels.vocabulary.instructions import BLOCK, HEAD, MOVES, WORDS
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


@kernel("program:i64* work:u8* g:i64[]", operands=lambda domain: ("...*",))
def formula(target: Target, domain: str) -> Body:
    """outs[r, j] = formulas(ins[r, j]) over rows r of outer dimensions and j < n.

    program: rows, n, whether threads share the columns, bytes of work of a thread, rank, number of
    instructions and their place; the `rank` outer dimensions; `rank` strides of each operand; the
    instructions.  g: pointers of the operands, inputs first.  An output may be a same-shape input.
    Overwrites.
    """
    run = Native("formula", (domain,))

    def body(program, work, g, tid, nthreads):
        rows, n, rank, count = program[0], program[1], program[4], program[5]
        first, last = 0, rows
        begin, end = 0, n
        if program[2] != 0:
            begin, end = share_blocks(n, 64, tid, nthreads)
        else:
            first, last = share(rows, tid, nthreads)
        registers, start = off(work, tid * program[3]), off(program, program[6])
        dims = off(program, HEAD)
        for r in range(first, last):
            j = begin
            while j < end:
                k = imin(end - j, BLOCK)
                code = start
                for _ in range(count):
                    place = 0
                    if code[0] < MEMORY:
                        place = j * code[3]
                        strides = off(dims, (code[2] + 1) * rank)
                        rest = r
                        for d in range(rank - 1, -1, -1):
                            quotient = udiv(rest, dims[d])
                            place += (rest - quotient * dims[d]) * strides[d]
                            rest = quotient
                    run(code, registers, g, place, k)
                    code = off(code, WORDS)
                j += BLOCK

    return body


KERNELS = (formula,)
