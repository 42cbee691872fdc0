"""Scalar expressions as vector IR: the meaning of every function of `expression.py` on registers.

Floats keep their order of operations and NaN; a product and a sum may become one fused operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llvmlite import ir

from engine.base.element_types import ELEMENT_TYPES, HALVES, REALS, UNSIGNED
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir import bf16, elementary, f16, trigonometric, vectors
from engine.kernels.vector_ir.vectors import Vector
from engine.kernels.vocabulary.expression import PHILOX_M, PHILOX_ROUNDS, PHILOX_W
from engine.kernels.vocabulary.terms import Typed, TypedTerm

I1, I8 = ir.IntType(1), ir.IntType(8)


class BFloat(ir.Type):
    """LLVM's type of a bf16, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


_HALF: Mapping[str, Any] = {"f16": f16, "bf16": bf16}  # by integers
_OWN = {"bf16": BFloat(), "f16": ir.HalfType()}  # LLVM's types, of casts that have instructions


def element(name: str) -> Any:
    """Return the LLVM type of an element in a register; booleans are i1 there, a byte in memory.

    Half floats are f32 there.
    """
    if is_real(name):
        return vectors.LLVM["f32" if name in HALVES else name]
    return I1 if name == "b1" else ir.IntType(ELEMENT_TYPES[name].bits)


def memory(name: str) -> Any:
    """Return the LLVM type of one element in memory."""
    if name in HALVES:
        return ir.IntType(16)
    return I8 if name == "b1" else element(name)


def is_real(name: str) -> bool:
    """Return whether the element type is computed with as a float."""
    return name in REALS


def read(b: Any, v: Any, kind: str, target: Target) -> Any:
    """Return a value loaded from memory, in the form it has in registers."""
    if kind == "f16" and kind in target.casts:
        v = b.bitcast(v, elementary.like(v.type, _OWN[kind]))
        return b.fpext(v, elementary.like(v.type, vectors.LLVM["f32"]))
    if kind in HALVES:
        return _HALF[kind].unpack(b, v)
    return b.trunc(v, vector(I1, getattr(v.type, "count", 1))) if kind == "b1" else v


def written(b: Any, v: Any, kind: str, target: Target) -> Any:
    """Return a value from registers, in the form it has in memory.

    A half float is the nearest, ties to even.  x86's instruction for bf16 takes numbers below
    2^-126 for 0, as its products do.
    """
    if kind in target.casts:
        v = b.fptrunc(v, elementary.like(v.type, _OWN[kind]))
        return b.bitcast(v, elementary.like(v.type, vectors.I16))
    if kind in HALVES:
        return _HALF[kind].pack(b, v)
    return b.zext(v, vector(I8, getattr(v.type, "count", 1))) if kind == "b1" else v


def packs_pairs(kinds: Iterable[str], target: Target) -> bool:
    """Return whether vectors of these types are best written two at a time.

    Integer operations round to those that the target cannot convert to.  x86 has no instruction
    that packs the words of one vector, but one that packs the words of two.
    """
    return target.arch == "x86_64" and any(k in HALVES and k not in target.casts for k in kinds)


def joined(b: Any, x: Any, y: Any) -> Any:
    """Return one vector of the lanes of two."""
    lanes = range(2 * x.type.count)
    return b.shuffle_vector(x, y, ir.Constant(Vector(vectors.I32, len(lanes)), [*lanes]))


def vector(kind: Any, lanes: int) -> Any:
    """Return the LLVM type of `lanes` elements; of one element the scalar itself."""
    return Vector(kind, lanes) if lanes > 1 else kind


class Emitter:
    """Writes formulas as straight-line IR, each of their values once."""

    def __init__(self, b: Any, lanes: int, target: Target) -> None:
        self.b, self.lanes, self.target = b, lanes, target

    def emit(self, formulas: Typed, ins: list[Any]) -> list[Any]:
        """Return the values of the results.

        ins: the values of the operands, in the form they have in registers.
        """
        values: list[Any] = []
        for step in formulas.steps:
            values.append(self._emit(step, formulas.steps, values, ins))
        return [values[r] for r in formulas.results]

    def _emit(
        self, step: TypedTerm, steps: tuple[TypedTerm, ...], values: list[Any], ins: list[Any]
    ) -> Any:
        """Return the value of a step; values: of the steps before it."""
        if step.function == "in":
            return ins[step.data]
        if step.function == "const":
            return self.constant(step.data, step.kind)
        args = [values[i] for i in step.arguments]
        kind = steps[step.arguments[0]].kind
        if step.function == "cast":
            return self.cast(args[0], kind, step.kind)
        if step.function == "where":
            return self.b.select(*args)
        if is_real(kind):
            return float_op(self.b, step.function, args)
        return integer_op(self.b, step.function, args, signed=kind not in UNSIGNED)

    def constant(self, value: Any, kind: str) -> Any:
        """Return a constant in every lane."""
        number = float(value) if is_real(kind) else int(value)
        shape = vector(element(kind), self.lanes)
        return ir.Constant(shape, [number] * self.lanes if self.lanes > 1 else number)

    def cast(self, v: Any, source: str, to: str) -> Any:
        """Cast as ONNX: float to integer truncates, anything to bool is `!= 0`.

        A value that does not fit becomes the nearest that does, NaN 0.
        """
        b, shape = self.b, vector(element(to), self.lanes)
        if source == to:
            return v
        if to == "b1":
            zero = self.constant(0, source)
            differs = b.fcmp_unordered if is_real(source) else b.icmp_signed
            return differs("!=", v, zero)
        unsigned = source == "b1" or source in UNSIGNED
        if is_real(source) and is_real(to):
            if to in HALVES:  # only what these can hold
                return self._round(f16.narrow(b, v) if source == "f64" else v, to)
            return resized(b, v, shape, b.fpext, b.fptrunc)
        if is_real(source):
            return truncated(b, v, to, self.lanes)
        if is_real(to):
            v = b.uitofp(v, shape) if unsigned else b.sitofp(v, shape)
            return self._round(v, to) if to in HALVES else v
        return resized(b, v, shape, b.zext if unsigned else b.sext, b.trunc)

    def _round(self, v: Any, half: str) -> Any:
        """Return the f32 of the half float nearest to an f32."""
        return read(self.b, written(self.b, v, half, self.target), half, self.target)


def resized(b: Any, v: Any, shape: Any, widen: Any, cut: Any) -> Any:
    """Return a value in a wider or narrower type of its kind, or the same."""
    bits = [
        {ir.FloatType(): 32, ir.DoubleType(): 64}.get(k) or k.width
        for k in (getattr(t, "element", t) for t in (v.type, shape))
    ]
    if bits[0] == bits[1]:
        return v
    return widen(v, shape) if bits[0] < bits[1] else cut(v, shape)


def truncated(b: Any, v: Any, to: str, lanes: int) -> Any:
    """Return a float cut to an integer; beyond the range its nearest end, NaN 0."""
    width, signed = ELEMENT_TYPES[to].bits, to not in UNSIGNED
    if width < 32:  # by way of i32; floats hold both ends, and are cut to them without branches
        low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
        ends = [elementary.const(v.type, float(end)) for end in (low, high)]
        v = b.select(b.fcmp_unordered("!=", v, v), elementary.const(v.type, 0.0), v)
        v = b.select(b.fcmp_ordered("<", v, ends[0]), ends[0], v)
        v = b.select(b.fcmp_ordered(">", v, ends[1]), ends[1], v)
        wide = b.fptosi(v, vector(vectors.I32, lanes))
        return b.trunc(wide, vector(ir.IntType(width), lanes))
    shape = vector(ir.IntType(width), lanes)
    kind = "f64" if getattr(v.type, "element", v.type) == ir.DoubleType() else "f32"
    count = f"v{lanes}" if lanes > 1 else ""
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{count}i{width}.{count}{kind}"
    return b.call(vectors.intrinsic(b.module, name, shape, [v.type]), [v])


_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def float_op(b: Any, name: str, args: list[Any]) -> Any:
    """Return a function of floats, scalars or vectors."""
    if name in _FLOAT_OPS:
        # Own flags keep numba's away: `reassoc` would make (x - m) - log s lose digits.
        return getattr(b, _FLOAT_OPS[name])(*args, flags=("contract",))
    if name == "ne":
        return b.fcmp_unordered("!=", *args)
    if name in _COMPARE:
        return b.fcmp_ordered(_COMPARE[name], *args)
    x = args[0]
    match name:
        case "neg":
            return b.fneg(x)
        case "abs":
            return elementary.fabs(b, x)
        case "max":
            return elementary.fmax(b, *args)
        case "min":
            return elementary.fmin(b, *args)
        case "round":
            return elementary.round_even(b, x)
        case "ceil":
            return b.fneg(elementary.floor(b, b.fneg(x)))
        case "isnan":
            return b.fcmp_unordered("uno", x, x)
        case "isinf":
            return b.fcmp_ordered(
                "==", elementary.fabs(b, x), elementary.const(x.type, float("inf"))
            )
        case "fmod" | "mod":
            return remainder(b, name, *args)
        case "sign":
            zero, one = elementary.const(x.type, 0.0), elementary.const(x.type, 1.0)
            signed = b.select(b.fcmp_ordered("<", x, zero), b.fneg(one), x)
            return b.select(b.fcmp_ordered(">", x, zero), one, signed)
    return getattr(elementary if hasattr(elementary, name) else trigonometric, name)(b, *args)


def remainder(b: Any, name: str, x: Any, y: Any) -> Any:
    """x - q y with q = x / y cut towards zero (fmod) or down (mod); float by way of double.

    Exact for |q| < 2**53, beyond it NaN; without FMA for |q| < 2**29, in double to |q| ulp of y.
    """
    narrow, wide = x.type, vector(ir.DoubleType(), getattr(x.type, "count", 1))
    v, w = (elementary.Lanes(b, i if i.type == wide else b.fpext(i, wide)) for i in (x, y))
    pick = elementary.pick
    a, d = v.call("fabs"), w.call("fabs")
    q = (a / d).call("floor")
    r = (-q).fma(d, a)
    r = pick(r < 0, r + d, r)
    r = pick(a < d, a, pick(r < d, r, r - d))
    is_exact = narrow == wide or elementary.fused.get()
    r = pick(q < 2.0 ** (53 if is_exact else 29), r, float("nan")).call("copysign", v)
    if name == "mod":
        one = elementary.Lanes(b, elementary.const(wide, 1.0))
        apart = one.call("copysign", r) * one.call("copysign", w) < 0
        r = pick(apart, pick(r.equal(0), r.call("copysign", w), r + w), r)
    return r.value if narrow == wide else b.fptrunc(r.value, narrow)


def divide(b: Any, x: Any, y: Any, zero: Any, *, signed: bool) -> Any:
    """x / y towards zero; 0 where y is 0.  Processors trap on that, and on the least x / -1."""
    by_zero = b.icmp_signed("==", y, zero)
    one = b.zext(by_zero, y.type)
    if not signed:
        return b.select(by_zero, zero, b.udiv(x, b.or_(y, one)))
    negated = b.icmp_signed("==", y, b.not_(zero))
    safe = b.select(negated, zero, y)
    quotient = b.sdiv(x, b.or_(safe, b.zext(b.icmp_signed("==", safe, zero), y.type)))
    return b.select(negated, b.neg(x), b.select(by_zero, zero, quotient))


def shift(b: Any, name: str, x: Any, by: Any, *, signed: bool) -> Any:
    """x shifted left or right.  A shift by the width or more gives 0, or all sign bits."""
    width = getattr(x.type, "element", x.type).width
    most = elementary.const(x.type, width - 1)
    inside = b.icmp_unsigned("<=", by, most)
    by = b.select(inside, by, most)
    if name == "shr" and signed:
        return b.ashr(x, by)
    moved = b.shl(x, by) if name == "shl" else b.lshr(x, by)
    return b.select(inside, moved, elementary.const(x.type, 0))


def power(b: Any, x: Any, y: Any, *, signed: bool) -> Any:
    """x**y of integers, modulo 2**width; of a negative y, x**y cut to an integer."""
    zero, one = elementary.const(x.type, 0), elementary.const(x.type, 1)
    # beyond 63 only 0, 1 and -1 have powers that fit, and of those the parity of y tells
    large = b.icmp_unsigned(">", y, elementary.const(x.type, 63))
    bits = b.select(large, b.or_(b.and_(y, one), elementary.const(x.type, 62)), y)
    out, square = one, x
    for i in range(6):
        bit = b.and_(bits, elementary.const(x.type, 1 << i))
        out = b.select(b.icmp_signed("!=", bit, zero), b.mul(out, square), out)
        square = b.mul(square, square)
    if not signed:
        return out
    unit = b.icmp_unsigned("<=", b.add(x, one), elementary.const(x.type, 2))  # -1, 0, 1
    cut = b.select(b.and_(unit, b.icmp_signed("!=", x, zero)), out, zero)
    return b.select(b.icmp_signed("<", y, zero), cut, out)


def philox(b: Any, low: Any, high: Any, key: Any) -> tuple[Any, Any]:
    """Return two words of Philox2x32-10 (`expression.philox`); 64 bits a lane, the low 32 count."""
    narrow, wide = low.type, vector(ir.IntType(64), getattr(low.type, "count", 1))
    multiplier, half, ones = (elementary.const(wide, v) for v in (PHILOX_M, 32, 2**32 - 1))
    low, high, key = (b.zext(v, wide) for v in (low, high, key))
    for i in range(PHILOX_ROUNDS):
        product = b.mul(b.and_(low, ones), multiplier)
        word = b.xor(b.add(key, elementary.const(wide, PHILOX_W * i)), high)
        low, high = b.xor(b.lshr(product, half), word), product
    return b.trunc(low, narrow), b.trunc(high, narrow)


def integer_op(b: Any, name: str, args: list[Any], *, signed: bool) -> Any:
    """Return a function of integers or booleans, scalars or vectors."""
    compare = b.icmp_signed if signed else b.icmp_unsigned
    x = args[0]
    zero = ir.Constant(x.type, [0] * x.type.count if isinstance(x.type, ir.VectorType) else 0)
    if name in _COMPARE:
        return compare(_COMPARE[name], *args)
    match name:
        case "add" | "sub" | "mul":
            return getattr(b, name)(*args)
        case "div":
            return divide(b, x, args[1], zero, signed=signed)
        case "neg":
            return b.neg(x)
        case "abs":
            return b.select(compare("<", x, zero), b.neg(x), x)
        case "max":
            return b.select(compare(">", *args), *args)
        case "min":
            return b.select(compare("<", *args), *args)
        case "and_" | "or_":
            return getattr(b, name)(*args)
        case "xor" | "bitxor":
            return b.xor(*args)
        case "bitand" | "bitor":
            return getattr(b, f"{name[3:]}_")(*args)
        case "not_" | "bitnot":
            return b.not_(x)
        case "shl" | "shr":
            return shift(b, name, x, args[1], signed=signed)
        case "philox0" | "philox1":
            return philox(b, *args)[int(name[-1])]
        case "pow":
            return power(b, x, args[1], signed=signed)
        case "fmod" | "mod":
            y = args[1]
            r = b.sub(x, b.mul(divide(b, x, y, zero, signed=signed), y))
            r = b.select(b.icmp_signed("==", y, zero), zero, r)
            if name == "fmod" or not signed:
                return r
            apart = b.icmp_signed("<", b.xor(r, y), zero)
            return b.select(b.and_(apart, b.icmp_signed("!=", r, zero)), b.add(r, y), r)
        case "sign":
            positive = b.zext(compare(">", x, zero), x.type)
            return b.sub(positive, b.zext(compare("<", x, zero), x.type))
        case "floor" | "ceil" | "round":
            return x
    raise KeyError(f"{name} of integers")
