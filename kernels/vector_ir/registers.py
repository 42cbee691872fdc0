"""Vector IR of multiply-adds on registers alone: as many a second as a core can do."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.vectors import (
    I64,
    LLVM,
    NUMBA,
    Vector,
    call_outlined,
    intrinsic,
    load,
    store,
)


def count_chains(target: Target) -> int:
    """Return how many multiply-adds are under way at once: a register tile's, at most 16.

    16 are latency times throughput of the widest cores we know, Apple's, with 4 pipes of 4 cycles.
    """
    return min(16, target.mr * target.nv)


def multiply_adds(target: Target, T: str) -> Any:
    """multiply_adds(p, n): n >= 1 rounds of a = a x + x for `chains` vectors a.

    x: the vector at p, which receives the sum of all a.  They begin as x + 0, x + 1, ..., so that
    LLVM cannot make one of two.  Returns how many operations that were, two an element and round.
    """
    lanes, size = target.lanes(ITEMSIZE[T]), ITEMSIZE[T]
    vt = Vector(LLVM[T], lanes)
    P = types.CPointer(NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        p, n = fn.args
        name = f"llvm.{'fma' if target.fma else 'fmuladd'}.v{lanes}{T}"
        fma = intrinsic(fn.module, name, vt, [vt] * 3)
        x = load(b, p, vt, size)
        starts = [
            b.fadd(x, ir.Constant(vt, [float(i)] * lanes)) for i in range(count_chains(target))
        ]
        entry, inside, done = b.block, b.append_basic_block("rounds"), b.append_basic_block("done")
        b.branch(inside)
        b.position_at_end(inside)
        i = b.phi(I64)
        i.add_incoming(I64(0), entry)
        values = [b.phi(vt) for _ in starts]
        sums = [b.call(fma, [value, x, x]) for value in values]
        for phi, first, later in zip(values, starts, sums, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, inside)
        after = b.add(i, I64(1))
        i.add_incoming(after, inside)
        b.cbranch(b.icmp_signed("<", after, n), inside, done)
        b.position_at_end(done)
        total = sums[0]
        for value in sums[1:]:
            total = b.fadd(total, value)
        store(b, total, p, size)
        b.ret_void()

    run = call_outlined(f"multiply_adds_{T}_{lanes}", body)

    def op(typingctx, p, n):
        def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
            run(context, b, sig, args)
            return b.mul(args[1], I64(2 * lanes * count_chains(target)))

        return types.int64(P, types.int64), emit

    return op
