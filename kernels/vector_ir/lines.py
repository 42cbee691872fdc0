"""Vector loops whose operands lie equal steps apart: the transforms of tiles."""

from __future__ import annotations

import hashlib
from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels.machine.target import Target
from engine.kernels.vector_ir import elementary
from engine.kernels.vector_ir.rows import emit_loop
from engine.kernels.vector_ir.vectors import I64, NUMBA, call_outlined
from engine.kernels.vocabulary.row_program import Program


def lines(target: Target, program: Program, count: int) -> Any:
    """lines(x, x_step, begin, end, y, y_step, limit, outside, more..., n): run a program.

    It runs over n elements.  Of its vectors input k < `count` is at x + k x_step, or at `outside`
    unless begin <= k < end; output k is at y + k y_step, or at `outside` unless k < limit.  These
    inputs are all of one type, and so are the outputs; either may be of 16 bits, and `outside` is
    of the wider type.  more: the inputs after the first `count`.  It is a function of its own, so
    that its loop has registers for so many pointers, and is not unrolled.
    """
    of, *rest = (types.CPointer(NUMBA[i.dtype]) for i in program.ins[count - 1 :])
    to = types.CPointer(NUMBA[program.outs[0]])
    wide = max(of, to, key=lambda p: p.dtype.bitwidth)

    def body(fn: Any) -> None:
        fn.attributes.add("optsize")
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        x, x_step, begin, end, y, y_step, limit, outside, *more, n = fn.args

        def line(first: Any, k: int, step: Any, *inside: Any) -> Any:
            at = b.gep(first, [b.mul(step, I64(k))])
            for holds in inside:
                at = b.select(holds, at, b.bitcast(outside, at.type))
            return at

        ins = [
            line(x, k, x_step, b.icmp_signed("<=", begin, I64(k)), b.icmp_signed(">", end, I64(k)))
            for k in range(count)
        ]
        outs = [
            line(y, k, y_step, b.icmp_signed(">", limit, I64(k))) for k in range(len(program.outs))
        ]
        saved = elementary.fused.set(target.fma)
        emit_loop(b, program, target, [*ins, *more], outs, n)
        elementary.fused.reset(saved)
        b.ret_void()

    text = f"{count} {program.text()}"
    emit = call_outlined(f"lines_{hashlib.sha256(text.encode()).hexdigest()[:12]}", body)

    def op(typingctx: Any, *args: Any) -> Any:
        i = types.int64
        return types.void(of, i, i, i, to, i, i, wide, *rest, i), emit

    return op
