"""Vector loops over rows, made from scalar expressions: every memory-bound kernel runs these.

A `Program` says what one loop over n elements computes: outputs written element by element and
reductions returned as scalars.  Loads, arithmetic and stores of an iteration are explicit vectors,
so an output may be the very array an input is: each element is read before it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.kernels import _math
from engine.kernels._expr import FLOATS, Expr, dtype
from engine.kernels._target import Target
from engine.kernels._tile import I64, counted, splat, store

I1, I8, I32 = ir.IntType(1), ir.IntType(8), ir.IntType(32)
UNROLL = 4  # independent accumulators of a reduction: covers the latency of an addition

_BITS = {"i64": 64, "u64": 64, "i32": 32, "u32": 32, "i16": 16, "u16": 16, "i8": 8, "u8": 8}
_BYTES = {"f32": 4, "f64": 8, "b1": 1} | {k: v // 8 for k, v in _BITS.items()}


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a row program.

    `kind`: "v" a vector, one element per iteration; "s" a pointer to one element used for all;
    "k" a scalar value.
    """

    dtype: str
    kind: str = "v"


@dataclass(frozen=True, slots=True)
class Program:
    """One loop: `outs` are (dtype, expression), `reductions` (dtype, sum|max|min|prod, expression).

    Expressions read input i as `("in", i)`.
    """

    ins: tuple[Input, ...]
    outs: tuple[tuple[str, Expr], ...] = ()
    reductions: tuple[tuple[str, str, Expr], ...] = ()


def element(name: str) -> Any:
    """The LLVM type of one element in a register; booleans are i1 there and a byte in memory."""
    if name in FLOATS:
        return ir.FloatType() if name == "f32" else ir.DoubleType()
    return I1 if name == "b1" else ir.IntType(_BITS[name])


def memory(name: str) -> Any:
    """The LLVM type of one element in memory."""
    return I8 if name == "b1" else element(name)


def _shape(kind: Any, lanes: int) -> Any:
    return ir.VectorType(kind, lanes) if lanes > 1 else kind


def lanes_of(program: Program, target: Target) -> int:
    """Elements per iteration: one register of the widest float (or integer) the program touches."""
    names = [i.dtype for i in program.ins] + [o[0] for o in program.outs]
    names += [r[0] for r in program.reductions]
    floats = [_BYTES[n] for n in names if n in FLOATS]
    return target.vector // max(floats or [_BYTES[n] for n in names])


class Emitter:
    """Writes expressions as straight-line IR; equal sub-expressions are emitted once."""

    def __init__(self, b: Any, lanes: int, ins: list[Any], kinds: list[str]) -> None:
        self.b, self.lanes, self.ins, self.kinds = b, lanes, ins, kinds
        self.done: dict[tuple[Expr, str], Any] = {}

    def emit(self, e: Expr, want: str) -> Any:
        """The value of `e` as element type `want`, the type of its constants."""
        key = (e, want)
        if key not in self.done:
            self.done[key] = self._emit(e, want)
        return self.done[key]

    def _emit(self, e: Expr, want: str) -> Any:
        match e:
            case ("in", i):
                return self.ins[i]
            case ("const", v):
                return self.constant(v, want)
            case ("cast", to, x):
                source = dtype(x, self.kinds) or to
                return self.cast(self.emit(x, source), source, to)
            case ("where", c, x, y):
                kind = dtype(e, self.kinds) or want
                return self.b.select(self.emit(c, "b1"), self.emit(x, kind), self.emit(y, kind))
        kind = next((t for t in (dtype(x, self.kinds) for x in e[1:]) if t), None) or want
        args = [self.emit(x, kind) for x in e[1:]]
        if kind in FLOATS:
            return _float(self.b, e[0], args)
        return _integer(self.b, e[0], args, signed=not kind.startswith("u"))

    def constant(self, value: Any, kind: str) -> Any:
        """A constant in every lane."""
        number = float(value) if kind in FLOATS else int(value)
        shape = _shape(element(kind), self.lanes)
        return ir.Constant(shape, [number] * self.lanes if self.lanes > 1 else number)

    def cast(self, v: Any, source: str, to: str) -> Any:
        """Cast as ONNX: float to integer truncates, anything to bool is `!= 0`."""
        b, shape = self.b, _shape(element(to), self.lanes)
        if source == to:
            return v
        if to == "b1":
            zero = self.constant(0, source)
            return (
                b.fcmp_unordered("!=", v, zero)
                if source in FLOATS
                else b.icmp_signed("!=", v, zero)
            )
        unsigned = source == "b1" or source.startswith("u")
        if source in FLOATS and to in FLOATS:
            return b.fpext(v, shape) if to == "f64" else b.fptrunc(v, shape)
        if source in FLOATS:
            return b.fptoui(v, shape) if to.startswith("u") else b.fptosi(v, shape)
        if to in FLOATS:
            return b.uitofp(v, shape) if unsigned else b.sitofp(v, shape)
        width, new = element(source).width, element(to).width
        if width == new:
            return v
        if new < width:
            return b.trunc(v, shape)
        return b.zext(v, shape) if unsigned else b.sext(v, shape)


_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def _float(b: Any, name: str, args: list[Any]) -> Any:
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
            return _math.fabs(b, x)
        case "max":
            return _math.fmax(b, *args)
        case "min":
            return _math.fmin(b, *args)
        case "round":
            return _math.round_even(b, x)
        case "ceil":
            return b.fneg(_math.floor(b, b.fneg(x)))
        case "isnan":
            return b.fcmp_unordered("uno", x, x)
        case "isinf":
            return b.fcmp_ordered("==", _math.fabs(b, x), _math.const(x.type, float("inf")))
        case "sign":
            zero, one = _math.const(x.type, 0.0), _math.const(x.type, 1.0)
            signed = b.select(b.fcmp_ordered("<", x, zero), b.fneg(one), x)
            return b.select(b.fcmp_ordered(">", x, zero), one, signed)
    return getattr(_math, name)(b, *args)


def _integer(b: Any, name: str, args: list[Any], *, signed: bool) -> Any:
    compare = b.icmp_signed if signed else b.icmp_unsigned
    x = args[0]
    zero = ir.Constant(x.type, [0] * x.type.count if isinstance(x.type, ir.VectorType) else 0)
    if name in _COMPARE:
        return compare(_COMPARE[name], *args)
    match name:
        case "add" | "sub" | "mul":
            return getattr(b, name)(*args)
        case "div":
            return b.sdiv(*args) if signed else b.udiv(*args)
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
        case "xor":
            return b.xor(*args)
        case "not_":
            return b.not_(x)
        case "sign":
            positive = b.zext(compare(">", x, zero), x.type)
            return b.sub(positive, b.zext(compare("<", x, zero), x.type))
        case "floor" | "ceil" | "round":
            return x
    raise KeyError(f"{name} of integers")


def start_value(op: str, kind: str) -> float | int:
    """The neutral element of a reduction."""
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    if kind in FLOATS:
        return float("-inf") if op == "max" else float("inf")
    bits = element(kind).width
    low, high = (
        (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return low if op == "max" else high


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


class _Loop:
    """Writes the loop of a program: UNROLL vectors, then single vectors, then single elements."""

    def __init__(self, b: Any, program: Program, target: Target, ins: list[Any], outs: list[Any]):
        self.b, self.program, self.ins, self.outs = b, program, ins, outs
        self.lanes = lanes_of(program, target)
        self.kinds = [i.dtype for i in program.ins]
        self.splats: dict[int, Any] = {}
        self.slots: list[list[Any]] = []

    def run(self, n: Any) -> list[Any]:
        """Emit the loop over n elements; returns the reductions as scalars."""
        b, reductions = self.b, self.program.reductions
        unroll = UNROLL if reductions else 1
        for kind, op, _ in reductions:
            start = Emitter(b, self.lanes, [], []).constant(start_value(op, kind), kind)
            self.slots.append([self._slot(start) for _ in range(unroll)])
        for j, source in enumerate(self.program.ins):
            if source.kind != "v":
                value = self.ins[j]
                if source.kind == "s":
                    value = self._read(b.load(value, typ=memory(source.dtype)), source.dtype, 1)
                self.splats[j] = value
        i = I64(0)
        if unroll > 1:
            i = counted(b, i, n, self.lanes * unroll, lambda i: self._unrolled(i, unroll))
        i = counted(b, i, n, self.lanes, lambda i: self._body(i, 0, self.lanes))
        for r, (kind, op, _) in enumerate(reductions):
            self.slots[r] = [self._slot(self._combine(r, kind, op))]
        counted(b, i, n, 1, lambda i: self._body(i, 0, 1))
        return [
            b.load(s[0], typ=element(r[0])) for s, r in zip(self.slots, reductions, strict=True)
        ]

    def _slot(self, value: Any) -> Any:
        slot = cgutils.alloca_once(self.b, value.type)  # in the entry block: a register later
        self.b.store(value, slot)
        return slot

    def _unrolled(self, i: Any, unroll: int) -> None:
        for u in range(unroll):
            self._body(self.b.add(i, I64(u * self.lanes)), u, self.lanes)

    def _read(self, v: Any, kind: str, lanes: int) -> Any:
        return self.b.trunc(v, _shape(I1, lanes)) if kind == "b1" else v

    def _body(self, i: Any, slot: int, lanes: int) -> None:
        b, values = self.b, []
        for j, source in enumerate(self.program.ins):
            if source.kind != "v":
                scalar = self.splats[j]
                values.append(splat(b, scalar, lanes) if lanes > 1 else scalar)
                continue
            shape = _shape(memory(source.dtype), lanes)
            load = b.load(b.gep(self.ins[j], [i], source_etype=memory(source.dtype)), typ=shape)
            load.align = _BYTES[source.dtype]
            values.append(self._read(load, source.dtype, lanes))
        emitter = Emitter(b, lanes, values, self.kinds)
        results = [emitter.emit(e, kind) for kind, e in self.program.outs]
        for pointer, (kind, _), value in zip(self.outs, self.program.outs, results, strict=True):
            if kind == "b1":
                value = b.zext(value, _shape(I8, lanes))
            at = b.gep(pointer, [i], source_etype=memory(kind))
            store(b, value, at, _BYTES[kind])
        for r, (kind, op, e) in enumerate(self.program.reductions):
            place = self.slots[r][slot]
            old = b.load(place, typ=_shape(element(kind), lanes))
            b.store(self._join(op, kind, old, emitter.emit(e, kind)), place)

    def _join(self, op: str, kind: str, x: Any, y: Any) -> Any:
        if kind in FLOATS:
            return _float(self.b, _COMBINE[op], [x, y])
        return _integer(self.b, _COMBINE[op], [x, y], signed=not kind.startswith("u"))

    def _combine(self, r: int, kind: str, op: str) -> Any:
        """Accumulators of a reduction to one scalar, always in the same order."""
        b, shape = self.b, _shape(element(kind), self.lanes)
        values = [b.load(s, typ=shape) for s in self.slots[r]]
        total = values[0]
        for v in values[1:]:
            total = self._join(op, kind, total, v)
        width = self.lanes
        while width > 1:
            width //= 2
            undef = ir.Constant(total.type, ir.Undefined)
            low, high = (
                ir.Constant(ir.VectorType(I32, width), list(range(s, s + width)))
                for s in (0, width)
            )
            total = self._join(
                op, kind, b.shuffle_vector(total, undef, low), b.shuffle_vector(total, undef, high)
            )
        return b.extract_element(total, I32(0)) if self.lanes > 1 else total


_NUMBA = {
    "f32": types.float32, "f64": types.float64, "i64": types.int64, "i32": types.int32,
    "i16": types.int16, "i8": types.int8, "u64": types.uint64, "u32": types.uint32,
    "u16": types.uint16, "u8": types.uint8, "b1": types.uint8,
}  # fmt: skip

# numba wants a Python signature of the right length
_ARITY = (
    None,
    lambda f: lambda t, a: f(t, a),
    lambda f: lambda t, a, b: f(t, a, b),
    lambda f: lambda t, a, b, c: f(t, a, b, c),
    lambda f: lambda t, a, b, c, d: f(t, a, b, c, d),
    lambda f: lambda t, a, b, c, d, e: f(t, a, b, c, d, e),
    lambda f: lambda t, a, b, c, d, e, g: f(t, a, b, c, d, e, g),
    lambda f: lambda t, a, b, c, d, e, g, h: f(t, a, b, c, d, e, g, h),
    lambda f: lambda t, a, b, c, d, e, g, h, i: f(t, a, b, c, d, e, g, h, i),
    lambda f: lambda t, a, b, c, d, e, g, h, i, j: f(t, a, b, c, d, e, g, h, i, j),
    lambda f: lambda t, a, b, c, d, e, g, h, i, j, k: f(t, a, b, c, d, e, g, h, i, j, k),
    lambda f: lambda t, a, b, c, d, e, g, h, i, j, k, m: f(t, a, b, c, d, e, g, h, i, j, k, m),
)


def rows(target: Target, program: Program) -> Any:
    """rows(in..., out..., n): run a program over n elements; returns its reductions.

    One reduction returns a scalar, several a tuple, none nothing.
    """

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        count = len(program.ins)
        ins = list(args[:count])
        result = sig.return_type
        saved = _math.fused.set(target.fma)
        values = _Loop(b, program, target, ins, list(args[count:-1])).run(args[-1])
        _math.fused.reset(saved)
        if not values:
            return context.get_dummy_value()
        return values[0] if len(values) == 1 else context.make_tuple(b, result, values)

    pointers = [
        _NUMBA[i.dtype] if i.kind == "k" else types.CPointer(_NUMBA[i.dtype]) for i in program.ins
    ]
    pointers += [types.CPointer(_NUMBA[kind]) for kind, _ in program.outs]
    results = [_NUMBA[kind] for kind, _, _ in program.reductions]
    returned = types.void if not results else results[0]
    if len(results) > 1:
        returned = types.Tuple(tuple(results))

    def op(typingctx: Any, *args: Any) -> Any:
        return returned(*pointers, types.int64), emit

    make = _ARITY[len(pointers) + 1]
    assert make is not None
    return make(op)


def map_rows(target: Target, program: Program, rank: int) -> Any:
    """map_rows(words, r, j, n): run a map over n elements of outer row r, starting at element j.

    `words` are the argument words of an elementwise kernel with p = inputs + outputs operands:
    p pointers; then `rank` outer dimensions; then for each operand its `rank` outer strides, in
    elements.  The row index r runs over the outer dimensions, last fastest.
    """
    operands = [(i.dtype, i.kind) for i in program.ins] + [(kind, "v") for kind, _ in program.outs]
    count = len(operands)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        words, r, j, n = args

        def word(i: int) -> Any:
            return b.load(b.gep(words, [I64(i)], source_etype=I64), typ=I64)

        index: list[Any] = [None] * rank
        for d in reversed(range(rank)):
            size = word(count + d)
            index[d] = b.urem(r, size) if d else r
            r = b.udiv(r, size) if d else r
        pointers = []
        for i, (kind, access) in enumerate(operands):
            slot = b.gep(words, [I64(i)], source_etype=I64)
            base = b.load(slot, typ=ir.PointerType())
            offset = j if access == "v" else I64(0)
            for d in range(rank):
                offset = b.add(offset, b.mul(index[d], word(count + rank + i * rank + d)))
            pointers.append(b.gep(base, [offset], source_etype=memory(kind)))
        saved = _math.fused.set(target.fma)
        _Loop(b, program, target, pointers[: len(program.ins)], pointers[len(program.ins) :]).run(n)
        _math.fused.reset(saved)
        return context.get_dummy_value()

    def op(typingctx: Any, words: Any, r: Any, j: Any, n: Any) -> Any:
        return types.void(types.CPointer(types.int64), *[types.int64] * 3), emit

    return op
