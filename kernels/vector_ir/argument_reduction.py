"""Arguments of sin, cos and tan reduced by multiples of pi/2, right for every finite number.

Way: r = x - n pi/2 by a few subtractions, pi/2 being cut into parts (Cody and Waite).  That holds
for |x| below a limit.  Where a lane is beyond it, a branch calls a function that finds the place on
the circle by the bits of 2/pi that matter at x's exponent (Payne and Hanek), in 32-bit digits:
64-bit products of them need no library function on any target.
FMA: with it a part may be a full significand.  Without, the products of n and a part would be
rounded, so the parts are short, there are more of them and the limit is lower.
Source: W. Cody and W. Waite, Software Manual for the Elementary Functions (1980); M. Payne and
R. Hanek, Radian reduction for trigonometric functions (SIGNUM Newsletter 18, 1983).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from engine.kernels.vector_ir.elementary import Lanes, fused, pick, round_scaled
from engine.kernels.vector_ir.vectors import counted


class _ReductionFormat(NamedTuple):
    """The constants for one width of floats."""

    significand: int  # bits, the leading one counted
    parts: tuple[float, ...]  # of pi/2, each a full significand
    limit: float  # arguments below it are reduced by these
    short_limit: float  # and without fused multiply-add by `_cut_short`
    digits: int  # in a significand
    window: int  # digits of 2/pi that tell where on the circle a large argument is


_F32 = _ReductionFormat(
    significand=24,
    parts=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    limit=2.0**20,
    short_limit=2.0**11,
    digits=1,
    window=3,
)
_F64 = _ReductionFormat(
    significand=53,
    parts=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
    limit=2.0**30,
    short_limit=2.0**20,
    digits=2,
    window=6,
)

_DIGIT = 2**32 - 1
_INT = ir.IntType(32)
_LONG = ir.IntType(64)
_ZEROS = 2  # digits of the table of 2/pi before its binary point: windows may begin there


@functools.cache
def _compute_pi(bits: int) -> int:
    """pi 2**bits, cut off, by J. Machin's pi = 4 (4 atan(1/5) - atan(1/239))."""
    one = 1 << (bits + 32)

    def atan(inverse: int) -> int:
        term = total = one // inverse
        for n in range(3, bits, 2):
            term = -term // inverse**2
            total += term // n
        return total

    return 4 * (4 * atan(5) - atan(239)) >> 32


@functools.cache
def _cut_short(fmt: _ReductionFormat) -> tuple[float, ...]:
    """pi/2 in parts; all but the last are exact times an n below short_limit."""
    width = fmt.significand - int(math.log2(fmt.short_limit))
    rest, low, parts = _compute_pi(255), 257, []  # pi/2 2**256, of 257 bits
    for _ in range(3):
        low -= width
        parts.append(math.ldexp(rest >> low, low - 256))
        rest &= (1 << low) - 1
    return (*parts, math.ldexp(rest, -256))


def _format(x: Lanes) -> _ReductionFormat:
    return _F32 if x.element == ir.FloatType() else _F64


def reduce_by_quarters(x: Lanes) -> tuple[Lanes, Lanes]:
    """r and integers q with x = q pi/2 + r, |r| <= pi/4 and a little; NaN unless x is finite.

    Of q, as wide as x, the two lowest bits are meant.  r is good to one unit in its last place.
    The branch stands in a function that is always inlined: the code emitted here stays one block.
    """
    n, q = round_scaled(x, 2 / math.pi)
    r = x
    for part in _format(x).parts if fused.get() else _cut_short(_format(x)):
        r = n.fma(-part, r)
    b, count = x.b, getattr(x.value.type, "count", 0)
    name = f"circle_{x.format.bits}x{count}_{'fused' if fused.get() else 'unfused'}"
    fn, is_fresh = _internal(b.module, name, "alwaysinline", x, r, q)
    if is_fresh:
        _write_branch(fn, count)
    pair = b.call(fn, [x.value, r.value, q.value])
    return Lanes(b, b.extract_value(pair, 0)), Lanes(b, b.extract_value(pair, 1))


def _internal(module: Any, name: str, inlining: str, x: Lanes, r: Lanes, q: Lanes) -> Any:
    """Return the function (x, r, q) -> {r, q} of this name, and whether it needs a body."""
    if name in module.globals:
        return module.globals[name], False
    kinds = [v.value.type for v in (x, r, q)]
    fn = ir.Function(module, ir.FunctionType(ir.LiteralStructType(kinds[1:]), kinds), name)
    fn.linkage = "internal"
    fn.attributes.add(inlining)
    return fn, True


def _is_large(x: Lanes) -> Lanes:
    """Return whether x is finite and beyond what the parts of pi/2 reduce."""
    fmt, a = _format(x), x.call("fabs")
    return ~(a < (fmt.limit if fused.get() else fmt.short_limit)) & (a < math.inf)


def _write_branch(fn: Any, count: int) -> None:
    """Write the body of the inlined function, which calls another if any lane is large."""
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    x, r, q = (Lanes(b, a) for a in fn.args)
    some = _is_large(x).value
    if count:
        name = f"llvm.vector.reduce.or.v{count}i1"
        kind = ir.FunctionType(some.type.element, [some.type])
        some = b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), [some])
    large, is_fresh = _internal(b.module, fn.name + "_large", "noinline", x, r, q)
    if is_fresh:
        large.attributes.add("cold")
        _write_large(large, count)
    with b.if_then(some, likely=False):
        b.ret(b.call(large, fn.args))
    both = b.insert_value(ir.Constant(large.ftype.return_type, ir.Undefined), r.value, 0)
    b.ret(b.insert_value(both, q.value, 1))


def _write_large(fn: Any, count: int) -> None:
    """Write the body of a function that replaces r and q in the large lanes, one by one."""
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    slots = [b.alloca(a.type) for a in fn.args]
    for slot, a in zip(slots, fn.args, strict=True):
        b.store(a, slot)

    def lane(i: Any) -> None:
        kinds = [getattr(a.type, "element", a.type) for a in fn.args]
        places = [
            b.gep(b.bitcast(slot, kind.as_pointer()), [i])
            for slot, kind in zip(slots, kinds, strict=True)
        ]
        x, r, q = (Lanes(b, b.load(place)) for place in places)
        new_r, new_q = _reduce_large(x)
        b.store(pick(_is_large(x), new_r, r).value, places[1])
        b.store(pick(_is_large(x), new_q, q).value, places[2])

    counted(b, _LONG(0), _LONG(count or 1), 1, lane)
    both = ir.Constant(fn.ftype.return_type, ir.Undefined)
    for i in range(2):
        both = b.insert_value(both, b.load(slots[1 + i]), i)
    b.ret(both)


def _low(digits: Lanes) -> Lanes:
    return digits & _DIGIT


def _high(digits: Lanes) -> Lanes:
    return (digits >> 32) & _DIGIT


def _window(x: Lanes, exponent: Lanes) -> list[Lanes]:
    """Return digits of 2/pi that place m 2**exponent on the circle, the least first, 64 bits each.

    Higher bits of 2/pi times it give multiples of 4 quarters.  So the product of the window and m,
    cut to the window's length, is the argument in quarters: two bits of them, then the fraction.
    """
    b, fmt = x.b, _format(x)
    longest = 2 ** (x.format.bits - x.format.mant - 2) - 1 - x.format.mant  # of finite arguments
    digits = _ZEROS + longest // 32 + fmt.window + 2
    name = f"two_over_pi_{x.format.bits}"
    table = b.module.globals.get(name)
    if table is None:
        places = 32 * (digits - _ZEROS)
        bits = (1 << (2 * places + 65)) // _compute_pi(places + 64)
        kind = ir.ArrayType(_INT, digits)
        table = ir.GlobalVariable(b.module, kind, name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = kind([bits >> 32 * i & _DIGIT for i in reversed(range(digits))])
    first = exponent + (32 * _ZEROS - 2)  # of the table's bits
    first = pick(first < 0, 0, first)  # an argument so small is not used
    index, shift = (b.zext(v.value, _LONG) for v in (first >> 5, first & 31))
    places = [b.gep(table, [_LONG(0), b.add(index, _LONG(i))]) for i in range(fmt.window + 1)]
    held = [Lanes(b, b.zext(b.load(place), _LONG)) for place in places]
    pairs = [high << 32 | low for high, low in itertools.pairwise(held)]
    return [_high(pair << Lanes(b, shift)) for pair in reversed(pairs)]


def _product(window: Sequence[Lanes], factor: Sequence[Lanes]) -> list[Lanes]:
    """Return the lowest digits of the product of two numbers, as many as the first one has."""
    zero = window[0] - window[0]
    result = [zero for _ in window]
    for j, digit in enumerate(factor):
        carry = zero
        for i in range(j, len(window)):
            total = window[i - j] * digit + result[i] + carry  # at most 2**64 - 1
            result[i], carry = _low(total), _high(total)
    return result


def _reduce_large(x: Lanes) -> tuple[Lanes, Lanes]:
    """r, rounded once, and q of a finite scalar x, by the bits of 2/pi (Payne and Hanek)."""
    b, fmt, (bits, mant) = x.b, _format(x), x.format[:2]
    bias = 2 ** (bits - mant - 2) - 1
    raw = x.raw & (2 ** (bits - 1) - 1)
    exponent = (raw >> mant) - (bias + mant)
    m = Lanes(b, _resized(b, ((raw & (2**mant - 1)) | 2**mant).value, _LONG))
    digits = [_low(m), _high(m)][: fmt.digits]
    quarters = _product(_window(x, Lanes(b, _resized(b, exponent.value, _INT))), digits)

    q = ((quarters[-1] + 2**29) >> 30) & 3  # the nearest; the fraction then has a sign
    shifted = [quarters[0] << 2] + [
        high << 2 | low >> 30 for low, high in itertools.pairwise(quarters)
    ]
    negative = (_low(shifted[-1]) >> 31).equal(1)
    fraction = [pick(negative, _DIGIT - _low(d), _low(d)) for d in reversed(shifted)]

    # No float is nearer to a multiple of pi/2 than 2**-62 of a quarter: one digit at most is 0.
    is_empty = fraction[0].equal(0)
    fraction.append(fraction[0] - fraction[0])
    top, middle, last = (pick(is_empty, fraction[i + 1], fraction[i]) for i in range(3))
    zeros = _leading_zeros(top)
    high, low = _high((top << 32 | middle) << zeros), _high((middle << 32 | last) << zeros)
    pi = _compute_pi(62)  # pi/2 2**63
    r = high * (pi >> 32) + _high(high * (pi & _DIGIT)) + _high(low * (pi >> 32))
    parts = [_high(r)] if fmt.digits == 1 else [_high(r), _low(r)]
    distance = functools.reduce(lambda s, d: s * 2.0**32 + d, (_real(x, d) for d in parts))
    place = bias + 1 - 32 * len(parts) - zeros - pick(is_empty, 32, zeros - zeros)
    scale = (Lanes(b, _resized(b, place.value, raw.element)) << mant).real
    distance = distance * scale
    distance = pick(negative, -distance, distance)
    q = Lanes(b, _resized(b, q.value, raw.element))
    return pick(x < 0, -distance, distance), pick(x < 0, 0 - q, q)


def _resized(b: Any, value: Any, kind: Any) -> Any:
    """Return an integer in another width, extended by zeros or cut, or the same."""
    if value.type == kind:
        return value
    return b.zext(value, kind) if value.type.width < kind.width else b.trunc(value, kind)


def _leading_zeros(digit: Lanes) -> Lanes:
    """Return the number of zeros above the highest bit set, of 32."""
    b, name = digit.b, "llvm.ctlz.i32"
    kind = ir.FunctionType(_INT, [_INT, ir.IntType(1)])
    count = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    return Lanes(b, b.zext(b.call(count, [b.trunc(digit.value, _INT), ir.IntType(1)(0)]), _LONG))


def _real(x: Lanes, digit: Lanes) -> Lanes:
    """Return a digit as a float of x's type, rounded once."""
    return Lanes(x.b, x.b.uitofp(x.b.trunc(digit.value, _INT), x.element))
