"""Circular and hyperbolic functions and their inverses as LLVM IR, by the rules of `elementary.py`.

Error: as in `elementary.py`, tests/ops/test_math.py.
Range: sin, cos and tan hold for every finite argument (`argument_reduction.py`).
Source: the inverses' reductions after Cody and Waite (1980), Cephes and FDLIBM; own minimax fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from engine.kernels.vector_ir.argument_reduction import reduce_by_quarters
from engine.kernels.vector_ir.elementary import (
    Lanes,
    const,
    expm1_lanes,
    log1p_lanes,
    log_sum,
    pick,
    polynomial,
    split,
)


class _TrigonometricFormat(NamedTuple):
    """Constants of one width; polynomials lowest power first."""

    pio2: tuple[float, float]  # pi/2 in two parts, each a full significand
    sin: Sequence[float]
    cos: Sequence[float]
    atan: Sequence[float]
    asin: Sequence[float]


# fmt: off
_F32 = _TrigonometricFormat(
    pio2=(1.5707963705062866, -4.371138828673793e-08),
    sin=(-0.16666651, 0.008331911, -0.0001948129),
    cos=(0.041666638, -0.0013886952, 2.4392413e-05),
    atan=(-0.33333316, 0.19998533, -0.1424451, 0.10600164, -0.060926944),
    asin=(0.16666754, 0.07495249, 0.04547666, 0.024148202, 0.04221956),
)
_F64 = _TrigonometricFormat(
    pio2=(1.5707963267948966, 6.123233995736766e-17),
    sin=(-0.166666666666666, 0.008333333333314286, -0.00019841269823383888, 2.7557311501499666e-06,
         -2.5050422142180606e-08, 1.5877764475934477e-10),
    cos=(0.04166666666666652, -0.0013888888888860624, 2.480158728135591e-05, -2.755731208993513e-07,
         2.0875426919519115e-09, -1.134485986195438e-11),
    atan=(-0.333333333333332, 0.19999999999953819, -0.14285714280220535, 0.11111110784676746,
          -0.09090897792845701, 0.07692060836090693, -0.06663111015218724, 0.05847938979101753,
          -0.05039522965961795, 0.038069949366833826, -0.0179129294362129),
    asin=(0.16666666666665378, 0.0750000000034445, 0.04464285682210036, 0.030381959394618352,
          0.022371751913219204, 0.017359796055500244, 0.013884350199203489, 0.012174901524648474,
          0.0065039221891662535, 0.019592572542185677, -0.016322855337750127, 0.03197835256976166),
)
# fmt: on


def _format(x: Lanes) -> _TrigonometricFormat:
    return _F32 if x.element == ir.FloatType() else _F64


# --- circular


def _quadrant(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """sin(r), cos(r) and q with x = q pi/2 + r, |r| <= pi/4 and a little."""
    fmt = _format(x)
    r, q = reduce_by_quarters(x)
    z = r * r
    sine = (z * r).fma(polynomial(z, fmt.sin), r)
    return sine, (z * z).fma(polynomial(z, fmt.cos), z.fma(-0.5, 1)), q


def _flip(x: Lanes, bit: Lanes, place: int) -> Lanes:
    """x with its sign flipped where the bit at `place` is set."""
    return (x.raw + ((bit & (1 << place)) << (x.format.bits - 1 - place))).real


def sin(b: Any, x: Any) -> Any:
    """Sine of any finite number.  Error <= 2 ulp."""
    v = Lanes(b, x)
    sine, cosine, q = _quadrant(v)
    y = _flip(pick((q & 1).equal(0), sine, cosine), q, 1)
    return pick(v.equal(0), v, y).value


def cos(b: Any, x: Any) -> Any:
    """Cosine of any finite number.  Error <= 2 ulp."""
    v = Lanes(b, x)
    sine, cosine, q = _quadrant(v)
    return _flip(pick((q & 1).equal(0), cosine, sine), q + 1, 1).value


def tan(b: Any, x: Any) -> Any:
    """sin(r)/cos(r) or -cos(r)/sin(r), of any finite number.  Error <= 4 ulp."""
    v = Lanes(b, x)
    sine, cosine, q = _quadrant(v)
    even = (q & 1).equal(0)
    y = _flip(pick(even, sine, cosine) / pick(even, cosine, sine), q, 0)
    return pick(v.equal(0), v, y).value


def atan(b: Any, x: Any) -> Any:
    """r + r**3 P(r**2), plus pi/4 with r = (x - 1)/(x + 1) or pi/2 with -1/x.  Error <= 2 ulp."""
    v = Lanes(b, x)
    a, (high, low) = v.call("fabs"), _format(v).pio2
    middle, top = a > math.tan(math.pi / 8), a > math.tan(3 * math.pi / 8)
    r = pick(top, -1, pick(middle, a - 1, a)) / pick(top, a, pick(middle, a + 1, 1))
    z = r * r

    def base(part: float) -> Lanes:
        return pick(top, part, pick(middle, Lanes(b, const(x.type, part / 2)), 0.0))

    y = base(high) + (r + (z * r).fma(polynomial(z, _format(v).atan), base(low)))
    return y.call("copysign", v).value


def _asin_parts(a: Lanes) -> tuple[Lanes, Lanes]:
    """Return the mask a > 1/2, and asin(a), there asin(sqrt((1 - a)/2)); NaN above 1."""
    top = a > 0.5
    z = pick(top, (1 - a) * 0.5, a * a)
    r = pick(top, z.call("sqrt"), a)
    return top, (z * r).fma(polynomial(z, _format(a).asin), r)


def asin(b: Any, x: Any) -> Any:
    """r + r**3 P(r**2), above 1/2 pi/2 - 2 asin(sqrt((1 - x)/2)).  Error <= 3 ulp."""
    v = Lanes(b, x)
    high, low = _format(v).pio2
    top, y = _asin_parts(v.call("fabs"))
    return pick(top, high - (y * 2 - low), y).call("copysign", v).value


def acos(b: Any, x: Any) -> Any:
    """pi/2 - asin(x); above 1/2 2 asin(sqrt((1 - x)/2)), below -1/2 pi - that.  Error <= 2 ulp."""
    v = Lanes(b, x)
    high, low = _format(v).pio2
    top, y = _asin_parts(v.call("fabs"))
    outer = pick(v < 0, 2 * high - (y * 2 - 2 * low), y * 2)
    return pick(top, outer, high - (y.call("copysign", v) - low)).value


# --- hyperbolic


def _quarter(a: Lanes) -> Lanes:
    """expm1(a) / 4 for a >= 0, finite as long as sinh(a) is."""
    top = 89.42 if a.format.bits == 32 else 710.48  # just past log(2 max)
    return expm1_lanes(pick(a > top, top, a), 2)


def sinh(b: Any, x: Any) -> Any:
    """(e + e/(e + 1)) / 2 with e = expm1(|x|).  Error <= 3 ulp."""
    v = Lanes(b, x)
    a = v.call("fabs")
    e = _quarter(a)
    y = ((e + e / (e * 4 + 1)) * 2).call("copysign", v)
    return pick(a < 2.0 ** -(v.format.mant // 2 + 2), v, y).value


def cosh(b: Any, x: Any) -> Any:
    """(e + 1/e) / 2 with e = exp(|x|).  Error <= 2.5 ulp."""
    v = Lanes(b, x)
    e = _quarter(v.call("fabs")) + 0.25
    return ((e + Lanes(b, const(x.type, 0.0625)) / e) * 2).value


def _log_sum1p(t: Lanes, a: Lanes) -> Lanes:
    """log1p(t), or log(2 a) where a is so large that this is the same; inf and NaN as a."""
    large = a > 2.0 ** (a.format.mant // 2 + 2)
    u = pick(large, a, t + 1)
    k, m = split(u)
    c = pick(large, 0, (t - (u - 1)) / u)
    return pick(a < math.inf, log_sum(pick(large, k + 1, k), m, c), a)


def asinh(b: Any, x: Any) -> Any:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))), a = |x|.  Error <= 2.5 ulp."""
    v = Lanes(b, x)
    a = v.call("fabs")
    z = a * a
    return _log_sum1p(a + z / ((z + 1).call("sqrt") + 1), a).call("copysign", v).value


def acosh(b: Any, x: Any) -> Any:
    """log1p(t + sqrt(2 t + t**2)), t = x - 1; NaN below 1.  Error <= 2.5 ulp."""
    v = Lanes(b, x)
    t = v - 1
    y = _log_sum1p(t + t.fma(t, t * 2).call("sqrt"), v)
    return pick(v < 1, math.nan, y).value


def atanh(b: Any, x: Any) -> Any:
    """log1p(2 a / (1 - a)) / 2, a = |x|; NaN above 1.  Error <= 2.5 ulp."""
    v = Lanes(b, x)
    a = v.call("fabs")
    y = pick(a < 1, log1p_lanes(a * 2 / (1 - a)) * 0.5, pick(a.equal(1), math.inf, a * math.nan))
    return y.call("copysign", v).value
