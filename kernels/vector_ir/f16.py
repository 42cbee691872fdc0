"""Half precision as LLVM IR: f16 is stored, f32 is computed with.

Integer operations, so that no target without instructions that convert needs a library for it.
Source: F. Giesen, "Float->half variants", 2012, and its inverse.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from engine.kernels.vector_ir.elementary import Lanes, const, like, pick

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
INFINITE = 0x7F800000


def unpack(b: Any, bits: Any) -> Any:
    """Return the f32 of the i16 bits of f16, exact."""
    wide = like(bits.type, _INT)
    h = Lanes(b, b.zext(bits, wide))
    rest = (h & 0x7FFF) << 13
    value = (rest.real * 2.0**112).raw  # exponents differ by 112, subnormals too
    value = pick(rest > (0x7BFF << 13), rest | INFINITE, value)
    return (value | ((h & 0x8000) << 16)).real.value


def pack(b: Any, x: Any) -> Any:
    """Return the i16 bits of the f16 nearest to an f32, ties to even; beyond 65520 infinity."""
    bits = Lanes(b, x).raw
    sign, rest = bits & ~0x7FFFFFFF, bits & 0x7FFFFFFF
    odd = Lanes(
        b, b.and_(b.lshr(rest.value, const(rest.value.type, 13)), const(rest.value.type, 1))
    )
    normal = (rest - (112 << 23) + 0xFFF + odd) >> 13
    small = (rest.real + 0.5).raw - Lanes(b, const(x.type, 0.5)).raw  # aligned to 2^-24
    large = pick(rest > INFINITE, 0x7E00, Lanes(b, const(rest.value.type, 0x7C00)))
    rounded = pick(rest < (113 << 23), small, normal)
    rounded = pick(rest > (0x47800000 - 1), large, rounded)
    packed = b.or_(rounded.value, b.lshr(sign.value, const(sign.value.type, 16)))
    return b.trunc(packed, like(x.type, ir.IntType(16)))


def narrow(b: Any, x: Any) -> Any:
    """f64 to f32 towards zero, the last bit set where that is not exact: rounds on as f64 would."""
    cut = Lanes(b, b.fptrunc(x, like(x.type, _FLOAT)))
    back = Lanes(b, b.fpext(cut.value, x.type))
    v = Lanes(b, x)
    above = back.call("fabs") > v.call("fabs")
    bits = pick(above, cut.raw - 1, cut.raw)
    inexact = ~back.equal(v) & v.equal(v)
    return pick(inexact, bits | 1, bits).real.value
