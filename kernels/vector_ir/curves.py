"""Vector IR of the curves that convolutions apply to their sums; NaN comes through all of them."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.elementary import const
from engine.kernels.vector_ir.vectors import (
    I64,
    LLVM,
    NUMBA,
    Vector,
    call_outlined,
    counted,
    first_lanes,
    load,
    load_part,
    store,
    store_part,
)


def at_least(b: Any, v: Any, low: Any) -> Any:
    """max(v, low)."""
    return b.select(b.fcmp_ordered("<", v, low), low, v)


def at_most(b: Any, v: Any, high: Any) -> Any:
    """min(v, high)."""
    return b.select(b.fcmp_ordered(">", v, high), high, v)


def at_most_six(b: Any, v: Any) -> Any:
    """min(v, 6)."""
    return at_most(b, v, const(v.type, 6.0))


def hard_swish(b: Any, v: Any) -> Any:
    """v min(1, max(0, v / 6 + 1/2))."""
    part = b.fadd(b.fmul(v, const(v.type, 1 / 6)), const(v.type, 0.5))
    part = at_most(b, at_least(b, part, const(v.type, 0.0)), const(v.type, 1.0))
    return b.fmul(v, part)


def bend(target: Target, T: str) -> Any:
    """bend(c, ldc, rows, columns): C = hard_swish(C), where C[i, j] is c[i ldc + j]."""
    size = ITEMSIZE[T]
    lanes = target.lanes(size)

    def emit_row(b: Any, c: Any, ldc: Any, columns: Any, i: Any) -> None:
        row, vector = b.gep(c, [b.mul(i, ldc)]), Vector(LLVM[T], lanes)

        def change(j: Any, kind: Any, count: int = 1) -> None:
            at = [b.gep(row, [b.add(j, I64(n * lanes))]) for n in range(count)]
            for p, v in [(p, hard_swish(b, load(b, p, kind, size))) for p in at]:
                store(b, v, p, size)

        # Most rows are as wide as a tile.
        j = I64(0)
        for count in (target.nv, 1):
            j = counted(
                b, j, columns, count * lanes, functools.partial(change, kind=vector, count=count),
                rolled=True,
            )  # fmt: skip
        if target.masks:
            left = b.sub(columns, j)
            with b.if_then(b.icmp_signed(">", left, I64(0))):
                at, mask = b.gep(row, [j]), first_lanes(b, left, lanes)
                bent = hard_swish(b, load_part(b, at, vector, size, mask))
                store_part(b, bent, at, size, mask)
        else:
            counted(b, j, columns, 1, functools.partial(change, kind=LLVM[T]), rolled=True)

    def build(fn: Any) -> None:
        c, ldc, rows, columns = fn.args
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        counted(b, I64(0), rows, 1, functools.partial(emit_row, b, c, ldc, columns))
        b.ret_void()

    emit = call_outlined(f"bend_{T}_{lanes}", build)

    def op(typingctx: Any, c: Any, ldc: Any, rows: Any, columns: Any) -> Any:
        return types.void(types.CPointer(NUMBA[T]), *[types.int64] * 3), emit

    return op
