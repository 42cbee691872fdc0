"""bfloat16 as LLVM IR: the upper half of an f32 is stored, f32 is computed with.

Integer operations, for targets without instructions that convert: rounded to nearest, ties to even;
subnormals stay.  A NaN stays one.
Source: Intel, "BFLOAT16 - Hardware Numerics Definition", 2018.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from engine.kernels.vector_ir.elementary import Lanes, const, like, pick

_INT = ir.IntType(32)
QUIET = 0x00400000


def unpack(b: Any, bits: Any) -> Any:
    """Return the f32 of the i16 bits of bf16, exact."""
    wide = b.zext(bits, like(bits.type, _INT))
    return (Lanes(b, wide) << 16).real.value


def pack(b: Any, x: Any) -> Any:
    """Return the i16 bits of the bf16 nearest to an f32, ties to even."""
    value = Lanes(b, x)
    bits = value.raw
    odd = Lanes(
        b, b.and_(b.lshr(bits.value, const(bits.value.type, 16)), const(bits.value.type, 1))
    )
    rounded = bits + 0x7FFF + odd
    # Of a NaN whose upper half has no bit of the fraction set, rounding would make infinity, and of
    # one with all of them 0.  A float that is unlike itself takes one instruction to find.
    rounded = pick(value.equal(value), rounded, bits | QUIET)
    upper = b.lshr(rounded.value, const(rounded.value.type, 16))
    return b.trunc(upper, like(x.type, ir.IntType(16)))
