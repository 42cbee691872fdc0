"""Elementary functions as LLVM IR: scalars and vectors, float and double, the same bits everywhere.

Every emitter takes an IRBuilder and values, and emits straight-line code: IEEE basic operations,
`llvm.fma`, integer operations and selects; no branch, no table in memory, no call into libm.  So a
scalar loop and its vectorised form give the same bits, on AVX-512, AVX2 and NEON alike.  Only
arguments of sin, cos and tan beyond 2**20 (float) or 2**30 (double) branch, to a function of the
same module with a table (`argument_reduction.py`).
Flags: operations are emitted without fast-math flags, and stay so when numba, which adds its own to
every bare float operation of a module, passes over them (`reassoc` would fold `t + M - M` to `t`).
FMA: `fused.set(False)` makes `fma` emit `llvm.fmuladd`, for targets without the instruction, where
`llvm.fma` would become a call of `fmaf` (x86-64-v2 and older, wasm).  The bounds hold unfused too,
except for pow on double, which is then good to about |y log x| ulp.
Error: the bound in each docstring is in units in the last place of the result, for float and double
alike and all arguments if nothing else is said; tests/ops/test_math.py measures it.
Source: reductions after W. Cody and W. Waite, Software Manual for the Elementary Functions (1980),
S. Moshier's Cephes and Sun's FDLIBM; coefficients are own minimax fits (Remez, weighted by the
relative error of the function, rounded one by one and the rest refitted).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from llvmlite import ir

from engine.kernels.vector_ir.vectors import Vector

fused: ContextVar[bool] = ContextVar("fused", default=True)


class _Format(NamedTuple):
    """Constants of one width; polynomials lowest power first."""

    bits: int
    mant: int  # bits of the stored significand
    ln2: tuple[float, float]  # high part short: k * ln2[0] is exact
    exp_range: tuple[float, float]  # results outside round to 0 and inf
    one_at: float  # tanh(x) rounds to 1, expm1(-2x) to -1
    exp: Sequence[float]
    log: Sequence[float]
    erf_split: tuple[float, float]  # polynomial below, 1 above
    erf: Sequence[float]
    erfc: Sequence[float]


# fmt: off
_F32 = _Format(
    bits=32, mant=23, ln2=(0.693359375, -0.00021219444), exp_range=(-104.0, 89.0), one_at=9.2,
    exp=(0.49999997, 0.16666538, 0.04166774, 0.008367319, 0.001383801),
    log=(0.66666776, 0.39977568, 0.29871574),
    erf_split=(0.9, 4.0),
    erf=(0.12837915, -0.37612504, 0.11281922, -0.026770493, 0.004998959, -0.00060207985),
    erfc=(0.00015282475, 1.1278545, 0.6368782, 0.1042009, -0.022357877, 0.0030763487,
          -0.00019934276),
)
_F64 = _Format(
    bits=64, mant=52, ln2=(0.6931471803691238, 1.9082149292705877e-10), exp_range=(-746.0, 710.0),
    one_at=19.5, erf_split=(1.0, 6.0),
    exp=(0.5, 0.16666666666666677, 0.04166666666666667, 0.008333333333321721, 0.0013888888888900508,
         0.00019841269885644965, 2.4801587267021977e-05, 2.755724476588756e-06,
         2.755733850772582e-07, 2.5108844180962094e-08, 2.0891465452570362e-09),
    log=(0.6666666666666735, 0.39999999999409325, 0.28571428743697064, 0.22222198428183,
         0.1818357232315414, 0.1531383641592304, 0.14798168603010414),
    erf=(0.12837916709551256, -0.37612638903183343, 0.1128379167093695, -0.026866170641959154,
         0.005223977596736243, -0.0008548325485021054, 0.00012055280496281657,
         -1.492446557367124e-05, 1.644414824038183e-06, -1.618395418960537e-07,
         1.3616418495680875e-08, -7.606985343670935e-10),
    erfc=(4.7005280683594933e-07, 1.1283743953773322, 0.636642303123892, 0.10270697824189193,
          -0.01899670473090264, -0.00040181117685469513, 0.0019069082823861055,
          -0.0007634709720608714, 0.00013058582346269727, 2.245811112316516e-05,
          -2.3670677808758314e-05, 8.924523411477901e-06, -2.1961455017679614e-06,
          3.840731508305897e-07, -4.782728659413098e-08, 4.0605943979125854e-09,
          -2.1149666338260956e-10, 5.108540203649716e-12),
)
_LOG_TAIL = (0.3999999999999998, 0.2857142857144387, 0.22222222217778612, 0.18181818845733708,
             0.15384558290873177, 0.13336270354779384, 0.11675652824657794, 0.11982879700634094)
# fmt: on


class _Bare(list[str]):
    """Fast-math flags that stay empty: numba's pass appends its own to what has none."""

    def append(self, flag: str) -> None:
        """Refuse."""

    add = append


class Lanes:
    """A float, integer or mask value, scalar or vector, with operators that emit through `b`.

    Comparisons are ordered: false on NaN.  Python numbers stand for constants of the other side.
    """

    def __init__(self, b: Any, value: Any) -> None:
        self.b, self.value = b, value
        self.element = value.type.element if isinstance(value.type, ir.VectorType) else value.type
        self.format = _F32 if self.element == ir.FloatType() else _F64

    def _wrap(self, other: Any) -> Any:
        return other.value if isinstance(other, Lanes) else const(self.value.type, other)

    def _emit(self, name: str, x: Any, y: Any) -> Lanes:
        real = not isinstance(self.element, ir.IntType)
        instr = getattr(self.b, f"f{name}" if real else name)(self._wrap(x), self._wrap(y))
        if real:
            instr.flags = _Bare()
        return Lanes(self.b, instr)

    def _compare(self, op: str, other: Any) -> Lanes:
        if isinstance(self.element, ir.IntType):
            return Lanes(self.b, self.b.icmp_signed(op, self.value, self._wrap(other)))
        instr = self.b.fcmp_ordered(op, self.value, self._wrap(other))
        instr.flags = _Bare()
        return Lanes(self.b, instr)

    # fmt: off
    def __add__(self, y: Any) -> Lanes: return self._emit("add", self, y)
    def __sub__(self, y: Any) -> Lanes: return self._emit("sub", self, y)
    def __rsub__(self, y: Any) -> Lanes: return self._emit("sub", y, self)
    def __mul__(self, y: Any) -> Lanes: return self._emit("mul", self, y)
    def __truediv__(self, y: Any) -> Lanes: return self._emit("div", self, y)
    def __neg__(self) -> Lanes: return Lanes(self.b, self.b.fneg(self.value))
    def __and__(self, y: Any) -> Lanes: return self._emit("and_", self, y)
    def __or__(self, y: Any) -> Lanes: return self._emit("or_", self, y)
    def __invert__(self) -> Lanes: return Lanes(self.b, self.b.not_(self.value))
    def __lshift__(self, n: Any) -> Lanes: return self._emit("shl", self, n)
    def __rshift__(self, n: int) -> Lanes: return self._emit("ashr", self, n)
    def __lt__(self, y: Any) -> Lanes: return self._compare("<", y)
    def __gt__(self, y: Any) -> Lanes: return self._compare(">", y)
    def equal(self, y: Any) -> Lanes: return self._compare("==", y)
    # fmt: on

    @property
    def raw(self) -> Lanes:
        """The bits, as integers."""
        return Lanes(self.b, bitcast_int(self.b, self.value))

    @property
    def real(self) -> Lanes:
        """Integers read as the bits of floats of that width."""
        kind = ir.FloatType() if self.element.width == 32 else ir.DoubleType()
        return Lanes(self.b, self.b.bitcast(self.value, like(self.value.type, kind)))

    def call(self, name: str, *others: Any) -> Lanes:
        """`llvm.<name>(self, *others)`."""
        return Lanes(self.b, _call(self.b, name, self.value, *map(self._wrap, others)))

    def fma(self, y: Any, z: Any) -> Lanes:
        """`self * y + z`, rounded once."""
        return Lanes(self.b, fma(self.b, self.value, self._wrap(y), self._wrap(z)))


def like(shape: Any, element: Any) -> Any:
    """Return the type `element`, with as many lanes as the type `shape` has."""
    return Vector(element, shape.count) if isinstance(shape, ir.VectorType) else element


def const(kind: Any, value: float) -> Any:
    """`value` as a constant of a scalar type, or in every lane of a vector type."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _call(b: Any, name: str, *args: Any) -> Any:
    kind = args[0].type
    lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    symbol = f"llvm.{name}.{lanes}{getattr(kind, 'element', kind).intrinsic_name}"
    target = b.module.globals.get(symbol) or ir.Function(
        b.module, ir.FunctionType(kind, [kind] * len(args)), symbol
    )
    call = b.call(target, args)
    call.fastmath = _Bare()
    return call


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """`x * y + z` rounded once; in a context where `fused` is False, twice if that is faster."""
    return _call(b, "fma" if fused.get() else "fmuladd", x, y, z)


def _intrinsic(name: str) -> Callable[..., Any]:
    return lambda b, *args: _call(b, name, *args)


floor = _intrinsic("floor")  # exact, as the next; both keep -0
round_even = _intrinsic("roundeven")  # ties to even
fabs = _intrinsic("fabs")  # clears the sign bit, of NaN too
copysign = _intrinsic("copysign")  # |x| with the sign of y
sqrt = _intrinsic("sqrt")  # correctly rounded; NaN below -0


def fmin(b: Any, x: Any, y: Any) -> Any:
    """Return the smaller; NaN if either is, as numpy.minimum and ONNX Min; of equals (-0, 0) y."""
    if _tells_equals(y):
        return pick(Lanes(b, y) < Lanes(b, x), Lanes(b, y), Lanes(b, x)).value
    return _first(Lanes(b, x), Lanes(b, x) < Lanes(b, y), y)


def fmax(b: Any, x: Any, y: Any) -> Any:
    """Return the larger; NaN if either is, as numpy.maximum and ONNX Max; of equals (-0, 0) y."""
    if _tells_equals(y):
        return pick(Lanes(b, y) > Lanes(b, x), Lanes(b, y), Lanes(b, x)).value
    return _first(Lanes(b, x), Lanes(b, x) > Lanes(b, y), y)


def _tells_equals(y: Any) -> bool:
    """Return whether y is a constant that has the bits of whatever equals it, so neither 0 nor NaN.

    One comparison chooses then, as x86's instructions do, which return what they read last if they
    read a NaN.
    """
    if not isinstance(y, ir.Constant):
        return False
    lanes = y.constant if isinstance(y.type, ir.VectorType) else [y]
    return all(isinstance(v.constant, float) and abs(v.constant) > 0 for v in lanes)


def _first(x: Lanes, mask: Lanes, y: Any) -> Any:
    return pick(mask | ~x.equal(x), x, Lanes(x.b, y)).value


def pick(mask: Lanes, yes: Any, no: Any) -> Lanes:
    """`yes` where the mask is set, otherwise `no`; one of them may be a number."""
    side = yes if isinstance(yes, Lanes) else no
    return Lanes(mask.b, mask.b.select(mask.value, side._wrap(yes), side._wrap(no)))


def bitcast_int(b: Any, x: Any) -> Any:
    """Return the bits of x as integers of its width and lane count."""
    width = 32 if getattr(x.type, "element", x.type) == ir.FloatType() else 64
    return b.bitcast(x, like(x.type, ir.IntType(width)))


def polynomial(x: Lanes, coefficients: Sequence[Any]) -> Any:
    """Horner's rule, lowest power first."""
    return functools.reduce(x.fma, reversed(coefficients))


def round_scaled(x: Lanes, scale: float) -> tuple[Lanes, Lanes]:
    """n = scale * x rounded, as a float, and integers with n's low bits; |n| < 2**(mant - 1)."""
    magic = 1.5 * 2.0**x.format.mant  # adding it pushes the fraction out
    t = x.fma(scale, magic)
    return t - magic, t.raw


def _raise_two(x: Lanes, power: int = 0) -> int:
    """Return the bits of 2**power in x's format."""
    return int(2 ** (x.format.bits - x.format.mant - 2) - 1 + power) << x.format.mant


def _exp_parts(x: Lanes) -> tuple[Lanes, Lanes]:
    """exp(x) = 2**n (1 + q): q, and the integers n << mant.  r = x - n ln 2, q = r + r**2 P(r)."""
    n, i = round_scaled(x, 1 / math.log(2))
    r = n.fma(-x.format.ln2[1], n.fma(-x.format.ln2[0], x))
    return (r * r).fma(polynomial(r, x.format.exp), r), i << x.format.mant


def _exp(x: Lanes, tail: Lanes | None = None) -> Lanes:
    """exp(x + tail), scaled by 2**n in two steps: the first is exact, so the result rounds once."""
    low, high = x.format.exp_range
    q, i = _exp_parts(pick(x > high, high, pick(x < low, low, x)))
    if tail is not None:
        q = (q + 1).fma(tail, q)
    bottom = -64 << x.format.mant
    j = pick(i < bottom, bottom, i)
    s = (j + _raise_two(x, -1)).real
    return q.fma(s, s) * (i - j + _raise_two(x, 1)).real


def expm1_lanes(x: Lanes, j: int) -> Lanes:
    """2**-j expm1(x) for -2 one_at < x < exp_range[1]: q 2**(n-j) + (2**(n-j) - 2**-j)."""
    q, i = _exp_parts(x)
    s = (i + _raise_two(x, -j)).real
    return q.fma(s, s - 2.0**-j)


def split(x: Lanes) -> tuple[Lanes, Lanes]:
    """x = 2**k m with sqrt(1/2) <= m < sqrt(2), for 0 < x < inf: k as a float, and m."""
    fmt = x.format
    lift = fmt.mant + 1.0
    tiny = x < 2.0 ** (2 - 2 ** (fmt.bits - fmt.mant - 2))
    x = pick(tiny, x * 2.0**lift, x)
    root = 0x3F3504F3 if fmt.bits == 32 else 0x3FE6A09E667F3BCD  # sqrt(1/2)
    i = (x.raw - root) >> fmt.mant
    k = (i + (_raise_two(x, fmt.mant) | 1 << (fmt.mant - 1))).real - 1.5 * 2.0**fmt.mant
    return pick(tiny, k - lift, k), (x.raw - (i << fmt.mant)).real


def log_sum(k: Lanes, m: Lanes, c: Any = 0.0) -> Lanes:
    """k ln 2 + log(m) + c, c small: with f = m - 1, s = f / (2 + f) and log(m) = 2 s + s R(s**2).

    In FDLIBM's form, f - (f**2/2 - s (f**2/2 + R)), which keeps f exact; R(z) = z P(z).
    """
    f = m - 1
    s = f / (f + 2)
    z = s * s
    half = f * 0.5 * f
    y = s.fma(z.fma(polynomial(z, m.format.log), half), k.fma(m.format.ln2[1], c))
    return k.fma(m.format.ln2[0], f - (half - y))


def _log_edges(y: Lanes, x: Lanes) -> Lanes:
    """y for 0 < x < inf, otherwise the limit of log(x), or NaN."""
    y = pick(x < 0, math.nan, pick(x < math.inf, y, x))
    return pick(x.equal(0), -math.inf, y)


def log1p_lanes(x: Lanes) -> Lanes:
    """log(u) + (1 + x - u) / u with u = 1 + x rounded, for -1 < x < inf."""
    u = x + 1
    return log_sum(*split(u), (x - (u - 1)) / u)


def _log_pair(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) = high + low to 2**-65, for 0 < x < inf in double, with s = (m - 1) / (m + 1).

    k ln 2 + 2 s + 2/3 s**3 + s**5 P(s**2): all but the last term carry a low part.
    """
    k, m = split(x)
    d = m + 1
    s = (m - 1) / d
    s_low = (-s).fma(m - (d - 1), (-s).fma(d, m - 1)) / d
    z = s * s
    cube = z * s
    cube_low = z.fma(s, -cube) + s.fma(s, -z) * s + z * s_low * 3
    t = cube * (2 / 3)
    t_low = cube.fma(2 / 3, -t) + cube_low * (2 / 3) + cube * (2.0**-54 * 2 / 3)  # 2/3 - fl(2/3)
    first = k * x.format.ln2[0]
    second = first + s * 2
    third = second + t
    low = (cube * z).fma(polynomial(z, _LOG_TAIL), k * x.format.ln2[1]) + (s_low * 2 + t_low)
    low = s * 2 - (second - first) + (t - (third - second)) + low
    high = third + low
    return high, low - (high - third)


# --- functions


def exp(b: Any, x: Any) -> Any:
    """exp(x) = 2**n exp(r), |r| <= ln(2)/2.  Error <= 1.2 ulp, subnormal results included."""
    return _exp(Lanes(b, x)).value


def expm1(b: Any, x: Any) -> Any:
    """exp(x) - 1 = 2**n (q + 1) - 1.  Error <= 2 ulp; keeps -0 and subnormals."""
    v = Lanes(b, x)
    low, high = -2 * v.format.one_at, v.format.exp_range[1]
    y = expm1_lanes(pick(v > high, high, pick(v < low, low, v)), 1) * 2
    return pick(v.call("fabs") < 2.0 ** -(v.format.mant + 2), v, y).value


def log(b: Any, x: Any) -> Any:
    """k ln 2 + log(m), sqrt(1/2) <= m < sqrt(2).  Error <= 1 ulp; log(0) = -inf, NaN below."""
    v = Lanes(b, x)
    return _log_edges(log_sum(*split(v)), v).value


def log1p(b: Any, x: Any) -> Any:
    """log(1 + x), the rounding of 1 + x made good.  Error <= 1 ulp; log1p(-1) = -inf, NaN below."""
    v = Lanes(b, x)
    return copysign(b, _log_edges(log1p_lanes(v), v + 1).value, x)


def softplus(b: Any, x: Any) -> Any:
    """log(1 + exp(x)) = log1p(exp(-|x|)) + max(x, 0).  Error <= 2 ulp."""
    v = Lanes(b, x)
    return (log1p_lanes(_exp(-v.call("fabs"))) + pick(v < 0, 0, v)).value


def sigmoid(b: Any, x: Any) -> Any:
    """c / (c + c z), z = exp(-x), c = 2**-64 in float: c z is in range wherever the result is not
    0 or 1.  Error <= 2.5 ulp, subnormals too.
    """
    v = Lanes(b, x)
    low, high = v.format.exp_range[0], 2 * v.format.one_at
    q, i = _exp_parts(-pick(v > high, high, pick(v < low, low, v)))
    down = -(1 << (v.format.bits - v.format.mant - 3))
    s = (i + _raise_two(v, down)).real
    c = Lanes(b, const(x.type, 2.0**down))
    return (c / (q.fma(s, s) + c)).value


def tanh(b: Any, x: Any) -> Any:
    """h / (h + 1), h = expm1(2 |x|) / 2, with the sign of x.  Error <= 3 ulp."""
    v = Lanes(b, x)
    a, top = v.call("fabs"), v.format.one_at
    h = expm1_lanes(pick(a > top, top, a) * 2, 1)
    return (h / (h + 1)).call("copysign", v).value


def erf(b: Any, x: Any) -> Any:
    """x + x P(x**2), beyond a split 1 - exp(-Q(|x|)), Q = -log(erfc).  Error <= 1.5 ulp."""
    v = Lanes(b, x)
    a, (near, far) = v.call("fabs"), v.format.erf_split
    q, i = _exp_parts(-polynomial(pick(a > far, far, a), v.format.erfc))
    s = (i + _raise_two(v)).real
    inner = a.fma(polynomial(a * a, v.format.erf), a)
    return pick(a < near, inner, 1 - q.fma(s, s)).call("copysign", v).value


def pow(b: Any, x: Any, y: Any) -> Any:
    """x**y = exp(y log|x|), signed; float by way of double, double with log|x| in two parts.

    Error <= 0.51 ulp in float, 1.2 ulp in double.  Special cases are C99's and numpy.power's.
    """
    narrow, wide = x.type, like(x.type, ir.DoubleType())
    v, w = (Lanes(b, i if i.type == wide else b.fpext(i, wide)) for i in (x, y))
    a, tail = v.call("fabs"), None
    if narrow == wide:
        high, low = _log_pair(a)
        high = _log_edges(high, a)
        p = w * high
        tail = pick(p.call("fabs") < 1e3, w.fma(high, -p) + w * low, 0)
    else:
        p = w * _log_edges(log_sum(*split(a)), a)
    r = pick(a.equal(1) | w.equal(0), 1, _exp(p, tail))
    whole = w.call("floor").equal(w)
    odd = whole & ~(w * 0.5).call("floor").equal(w * 0.5)
    r = pick((v < 0) & (v > -math.inf) & ~whole, math.nan, r)
    r = pick(odd & (v.raw < 0), -r, r)
    return r.value if narrow == wide else b.fptrunc(r.value, narrow)
