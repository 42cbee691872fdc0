"""Quantisation: integers that stand for reals, their products, and training as if quantised.

Forward   quantise q = clip(round(x / scale) + zero, low, high), ties to even, to q's range
          dequantise x = (q - zero) scale
          scale and zero: one, one a slice of an axis, or one a block of an axis
          integer products are exact: float products of the differences to the zero points, in f32
          while every partial sum stays below 2^24, else in f64
Backward  of dequantise: dscale = sum dx (q - zero).  None through integers; so in a training graph
          a quantise with its dequantise becomes FakeQuant, whose gradient passes straight through
          inside the range: dx = dy where low <= round(x / scale) + zero <= high, else 0
Source    Jacob et al., "Quantization and training of neural networks for efficient
          integer-arithmetic-only inference", CVPR 2018; Bengio et al., arXiv 1308.3432
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.element_types import FLOATS, NUMPY, OF_ONNX
from engine.kernels.ops import matmul
from engine.kernels.ops.conv import conv
from engine.kernels.vocabulary.formula import elementwise, infer
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Kind,
    Nodes,
    Op,
    Site,
    TensorType,
    normal_axis,
)

_CODE = {dtype: code for code, dtype in OF_ONNX.items()}
QUANTISED = ("u8", "i8", "u16", "i16")
EXACT = 2**24 // 255**2  # products of 8 bits whose sum f32 holds


# --- scales and zero points


def _check(s: Site, i: int) -> None:
    """Refuse a scale or zero point that is neither single, nor of an axis, nor of blocks."""
    x, t = s.type(0), s.type(i)
    if t.rank == 0 or t.shape == (1,):
        return
    axis = normal_axis(s, s.attrs["axis"], x.rank)
    block = s.attrs.get("block_size", 0)
    if block == 0:
        s.shaped(i, (x.shape[axis],))
        return
    size = x.shape[axis]
    blocks = -(-size // block) if isinstance(size, int) else size
    s.shaped(i, (*x.shape[:axis], blocks, *x.shape[axis + 1 :]))


def _spread(n: Nodes, i: int) -> str:
    """Input i, a scale or zero point, in a shape that broadcasts to input 0."""
    s, t = n.site, n.site.type(i)
    if t.rank == 0 or t.shape == (1,):
        return n.x(i)
    rank = s.type(0).rank
    axis = normal_axis(s, s.attrs["axis"], rank)
    if s.attrs.get("block_size", 0) == 0:
        return str(n.op("Reshape", n.x(i), n.const(_along(axis, rank), "i64")))
    size = s.type(0).shape[axis]
    if not isinstance(size, int):
        s.fail(f"blocks of an axis of unknown size {size!r}", "a size known beforehand")
    blocks = np.arange(size) // s.attrs["block_size"]
    return str(n.op("Gather", n.x(i), n.const(blocks, "i64"), axis=axis))


def _along(axis: int, rank: int) -> list[int]:
    """The shape of a vector that lies along one axis."""
    return [1] * axis + [-1] + [1] * (rank - axis - 1)


def limits(dtype: str) -> tuple[int, int]:
    """Least and largest value of an integer type."""
    found = np.iinfo(NUMPY[dtype])
    return int(found.min), int(found.max)


def _saturate(n: Nodes, x: str, zero: str, T: str, dtype: str) -> str:
    """Round x, add the zero point ("" for none), and cast what fits."""
    x = n.op("Round", x)
    if zero:
        x = n.op("Add", x, n.op("Cast", zero, to=_CODE[T]))
    low, high = (n.const(v, T) for v in limits(dtype))
    return str(n.op("Cast", n.op("Clip", x, low, high), to=_CODE[dtype]))


# --- QuantizeLinear, DequantizeLinear


def _quantised(s: Site) -> str:
    """The element type of what QuantizeLinear makes."""
    code = s.attrs.get("output_dtype", 0)
    dtype = s.type(2).dtype if s.has(2) else OF_ONNX.get(code) if code else "u8"
    if dtype not in QUANTISED:
        s.fail(f"quantisation to {dtype or f'ONNX type {code}'}", ", ".join(QUANTISED))
    return dtype


def _quantize_infer(s: Site) -> tuple[TensorType, ...]:
    if s.type(0).dtype not in (*FLOATS, "i32"):
        s.fail(f"input 0 is {s.type(0)}", "f32, f64, i32")
    s.real(1)
    for i in (1, 2)[: 1 + s.has(2)]:
        _check(s, i)
    return (s.type(0).but(dtype=_quantised(s)),)


def _quantize(n: Nodes) -> tuple[str, ...]:
    s, T = n.site, n.site.type(1).dtype
    x = n.x(0) if s.type(0).dtype == T else n.op("Cast", n.x(0), to=_CODE[T])
    zero = _spread(n, 2) if s.has(2) else ""
    return (_saturate(n, n.op("Div", x, _spread(n, 1)), zero, T, _quantised(s)),)


def _dequantize_infer(s: Site) -> tuple[TensorType, ...]:
    x, scale = s.type(0), s.real(1)
    if x.dtype not in (*QUANTISED, "i32"):
        s.fail(f"dequantisation of {x.dtype}", ", ".join((*QUANTISED, "i32")))
    for i in (1, 2)[: 1 + s.has(2)]:
        _check(s, i)
    if s.has(2) and s.type(2).dtype != x.dtype:
        s.fail(f"zero point {s.type(2).dtype} of {x.dtype}", "one type")
    code = s.attrs.get("output_dtype", 0)
    dtype = OF_ONNX.get(code) if code else scale.dtype
    if dtype not in FLOATS:
        s.fail(f"output of {dtype or f'ONNX type {code}'}", ", ".join(FLOATS))
    return (x.but(dtype=dtype),)


def _dequantize(n: Nodes) -> tuple[str, ...]:
    s, T = n.site, n.site.type(1).dtype
    x = n.x(0)
    if s.has(2) and s.type(0).dtype == "i32":  # which f32 does not hold
        x = n.op("Cast", n.op("Sub", x, _spread(n, 2)), to=_CODE[T])
    else:
        x = n.op("Cast", x, to=_CODE[T])
        if s.has(2):
            x = n.op("Sub", x, n.op("Cast", _spread(n, 2), to=_CODE[T]))
    y = n.op("Mul", x, _spread(n, 1))
    (out,) = _dequantize_infer(s)
    return (y if out.dtype == T else n.op("Cast", y, to=_CODE[out.dtype]),)


def _dynamic(n: Nodes) -> tuple[str, ...]:
    """Scale and zero point from the least and the largest element, and 0."""
    zero, top = n.like(0.0, 0), n.like(255.0, 0)
    low = n.op("Min", n.op("ReduceMin", n.x(0), keepdims=0), zero)
    high = n.op("Max", n.op("ReduceMax", n.x(0), keepdims=0), zero)
    span = n.op("Sub", high, low)
    one = n.like(1.0, 0)
    scale = n.op("Where", n.op("Equal", span, zero), one, n.op("Div", span, top))
    point = _saturate(n, n.op("Div", n.op("Neg", low), scale), "", n.site.type(0).dtype, "u8")
    return (n.op("QuantizeLinear", n.x(0), scale, point), scale, point)


def _dynamic_infer(s: Site) -> tuple[TensorType, ...]:
    T = s.real(0).dtype
    return (s.type(0).but(dtype="u8"), TensorType(T, ()), TensorType("u8", ()))


# --- products of integers


_PRODUCTS = {op.name: op for op in (*conv.OPS, *matmul.OPS) if not op.domain}


def _as_reals(s: Site, name: str, a: int, b: int) -> TensorType:
    """The output type that the op `name` would have for inputs a and b if they were floats."""
    for i in (a, b):
        if s.type(i).dtype not in ("u8", "i8"):
            s.fail(f"input {i} is {s.type(i)}", "u8, i8")
    ins = tuple(s.type(i).but(dtype="f32") for i in (a, b))
    (out,) = _PRODUCTS[name].infer(replace(s, op=name, ins=ins, values=(None, None), n_outs=1))
    return out


def _centred(n: Nodes, i: int, zero: int, T: str, shape: Sequence[int] | None) -> str:
    """Input i minus its zero point, which is reshaped to `shape` if it has one element a slice."""
    x = n.op("Cast", n.x(i), to=_CODE[T])
    if not n.site.has(zero):
        return str(x)
    point = n.op("Cast", _shaped(n, zero, shape), to=_CODE[T])
    return str(n.op("Sub", x, point))


def _shaped(n: Nodes, i: int, shape: Sequence[int] | None) -> str:
    """Input i, reshaped to `shape` if it is a vector of more than one element."""
    t = n.site.type(i)
    if shape is None or t.rank != 1 or t.shape == (1,):
        return n.x(i)
    return str(n.op("Reshape", n.x(i), n.const(list(shape), "i64")))


def _product(n: Nodes, name: str, count: int, places: Sequence[int], shapes: Sequence[Any]) -> str:
    """The i32 product of inputs a and b less their zero points; `count` products a sum."""
    a, a_zero, b, b_zero = places
    T = "f32" if count <= EXACT else "f64"
    left, right = _centred(n, a, a_zero, T, shapes[0]), _centred(n, b, b_zero, T, shapes[1])
    known = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
    attrs = {k: v for k, v in n.site.attrs.items() if k in known}
    return str(n.op("Cast", n.op(name, left, right, **attrs), to=_CODE["i32"]))


def _matmul(n: Nodes, *places: int) -> str:
    count = int(n.site.type(places[0]).dims[-1])
    return _product(n, "MatMul", count, places, ([-1, 1], None))


def _conv(n: Nodes, *places: int) -> str:
    w = n.site.type(places[2])
    return _product(n, "Conv", math.prod(w.dims[1:]), places, (None, _along(0, w.rank)))


def _requantise(n: Nodes, total: str, scales: Sequence[str], zero: int) -> str:
    """y = saturate(total a_scale b_scale / y_scale + y_zero)"""
    a, b, y = (n.op("Cast", scale, to=_CODE["f32"]) for scale in scales)
    factor = n.op("Div", n.op("Mul", a, b), y)
    real = n.op("Mul", n.op("Cast", total, to=_CODE["f32"]), factor)
    return _saturate(n, real, n.x(zero), "f32", n.site.type(zero).dtype)


def _qlinear_matmul(n: Nodes) -> tuple[str, ...]:
    rows = [-1, 1]
    scales = [_shaped(n, 1, rows), n.x(4), _shaped(n, 6, rows)]
    return (_requantise(n, _matmul(n, 0, 2, 3, 5), scales, 7),)


def _qlinear_conv(n: Nodes) -> tuple[str, ...]:
    total, across = _conv(n, 0, 2, 3, 5), _along(1, n.site.type(0).rank)
    if n.site.has(8):
        total = n.op("Add", total, n.op("Reshape", n.x(8), n.const(across, "i64")))
    return (_requantise(n, total, [n.x(1), _shaped(n, 4, across), n.x(6)], 7),)


def _qlinear(name: str) -> Any:
    def types(s: Site) -> tuple[TensorType, ...]:
        if s.type(7).dtype not in ("u8", "i8"):
            s.fail(f"y_zero_point is {s.type(7)}", "u8, i8")
        return (_as_reals(s, name, 0, 3).but(dtype=s.type(7).dtype),)

    return types


# --- MatMulNBits


def _nbits_infer(s: Site) -> tuple[TensorType, ...]:
    a, (n, k, bits, block) = s.real(0), (s.attrs[x] for x in ("N", "K", "bits", "block_size"))
    if bits not in (2, 4, 8):
        s.fail(f"bits={bits}", "2, 4, 8")
    if s.has(4):
        s.fail("g_idx, an order of its own of the rows", "rows in their order")
    if a.rank < 1 or (a.shape[-1] not in (k,) and isinstance(a.shape[-1], int)):
        s.wrong(f"input 0 is {a}; its last axis must be K={k}")
    blocks = -(-k // block)
    if s.shaped(1, (n, blocks, block * bits // 8)).dtype != "u8":
        s.fail(f"input 1 is {s.type(1)}", "u8")
    if s.type(2).dtype != a.dtype or s.type(2).size != n * blocks:
        s.fail(f"scales are {s.type(2)}", f"{n * blocks} of {a.dtype}")
    return (a.but((*a.shape[:-1], n)),)


def _unpack(n: Nodes, packed: str, bits: int, rows: int) -> str:
    """Bytes as reals of `bits` bits each, the lowest first; [rows, -1]."""
    parts = []
    for i in range(8 // bits):
        part = n.op("Div", packed, n.const(2 ** (bits * i), "u8")) if i else packed
        part = n.op("Mod", part, n.const(2**bits, "u8")) if bits < 8 else part
        parts.append(n.op("Reshape", part, n.const([rows, -1, 1], "i64")))
    whole = n.op("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]
    flat = n.op("Reshape", whole, n.const([rows, -1], "i64"))
    return str(n.op("Cast", flat, to=_CODE[n.site.type(0).dtype]))


def _nbits(n: Nodes) -> tuple[str, ...]:
    """Y = A W^T + bias, W[N, K] = (B - zero) scale in blocks of K; the zero of none 2^(bits - 1)"""
    s, attrs = n.site, n.site.attrs
    rows, k, bits, block = (int(attrs[x]) for x in ("N", "K", "bits", "block_size"))
    blocks = -(-k // block)
    column = n.const([rows, blocks, 1], "i64")
    zero = n.like(2.0 ** (bits - 1), 0)
    if s.has(3):
        zero = n.x(3)
        if s.type(3).dtype == "u8":
            first = [n.const(v, "i64") for v in ([0], [blocks], [1])]
            zero = n.op("Slice", _unpack(n, zero, bits, rows), *first)
        zero = n.op("Reshape", zero, column)
    w = n.op("Reshape", _unpack(n, n.x(1), bits, rows), n.const([rows, blocks, block], "i64"))
    w = n.op("Mul", n.op("Sub", w, zero), n.op("Reshape", n.x(2), column))
    w = n.op("Reshape", w, n.const([rows, blocks * block], "i64"))
    if blocks * block != k:
        w = n.op("Slice", w, *(n.const(v, "i64") for v in ([0], [k], [1])))
    y = n.op("MatMul", n.x(0), n.op("Transpose", w, perm=[1, 0]))
    return (n.op("Add", y, n.x(5)) if s.has(5) else y,)


# --- training as if quantised


def _fake_infer(s: Site) -> tuple[TensorType, ...]:
    s.real(0), s.real(1)
    return (s.type(0).but(), s.type(0).but(dtype="b1"))[: s.n_outs]


def _fake(n: Nodes) -> tuple[str, ...]:
    ins = [n.x(i) for i in range(3)]
    attrs: dict[str, Any] = {k: float(n.site.attrs[k]) for k in ("quant_min", "quant_max")}
    value = n.op("FakeQuantValue", *ins, domain=OURS, **attrs)
    return (value, n.op("FakeQuantMask", *ins, domain=OURS, **attrs) if n.wants(1) else "")


def _fake_grad(g: Grad, dy: str, *_: str | None) -> tuple[str | None, ...]:
    """dX = dY where the quantised value was in the range, else 0."""
    return (g.op("FakeQuantGrad", dy, g.y(1, "_mask"), domain=MS), None, None)


def _round_trip(n: Nodes) -> tuple[str, ...]:
    """The FakeQuant of the input, with scale and zero point broadcast to the input's shape."""
    T = n.site.type(0).dtype
    zero = n.op("Cast", _spread(n, 2), to=_CODE[T]) if n.site.has(2) else n.like(0.0, 0)
    bounds = {k: n.site.attrs[k] for k in ("quant_min", "quant_max")}
    return (n.op("FakeQuant", n.x(0), _spread(n, 1), zero, domain=MS, **bounds),)


def _round_trip_infer(s: Site) -> tuple[TensorType, ...]:
    for i in (1, 2)[: 1 + s.has(2)]:
        _check(s, i)
    return (s.real(0).but(),)


_LEVEL = "round(x / scale) + zero"
_INPUTS = "x scale zero"
_BOUNDS: dict[str, Kind] = {"quant_min": "float", "quant_max": "float"}
_NONE = frozenset(range(9))
_CONV = {"group": 1, "auto_pad": "NOTSET"}


def _linear(domain: str) -> tuple[Op, Op]:
    attrs = {"axis": 1, "block_size": 0}
    return (
        Op(
            name="QuantizeLinear", domain=domain, attrs=attrs, infer=_quantize_infer,
            expand=_quantize, becomes="Add Cast Clip Div Gather Reshape Round", stop=_NONE,
        ),
        Op(
            name="DequantizeLinear", domain=domain, attrs=attrs, infer=_dequantize_infer,
            expand=_dequantize, becomes="Cast Gather Mul Reshape Sub",
        ),
    )  # fmt: skip


_CENTRED = "Cast Reshape Sub"  # what is computed with integers less their zero points
_REQUANTISED = "Add Clip Div Mul Round"  # and what brings it back to 8 bits
OPS = (
    *_linear(""),
    *_linear(MS),
    Op(
        name="DynamicQuantizeLinear", infer=_dynamic_infer, expand=_dynamic, stop=_NONE,
        becomes="Cast Clip Div Equal Max Min Neg QuantizeLinear ReduceMax ReduceMin Round Sub "
        "Where",
    ),
    Op(
        name="MatMulInteger", stop=_NONE, expand=lambda n: (_matmul(n, 0, 2, 1, 3),),
        infer=lambda s: (_as_reals(s, "MatMul", 0, 1).but(dtype="i32"),),
        becomes=f"MatMul {_CENTRED}",
    ),
    Op(
        name="ConvInteger", stop=_NONE, expand=lambda n: (_conv(n, 0, 2, 1, 3),), attrs=_CONV,
        infer=lambda s: (_as_reals(s, "Conv", 0, 1).but(dtype="i32"),),
        becomes=f"Conv {_CENTRED}",
    ),
    Op(
        name="QLinearMatMul", stop=_NONE, expand=_qlinear_matmul, infer=_qlinear("MatMul"),
        becomes=f"MatMul {_CENTRED} {_REQUANTISED}",
    ),
    Op(
        name="QLinearConv", stop=_NONE, expand=_qlinear_conv, infer=_qlinear("Conv"), attrs=_CONV,
        becomes=f"Conv {_CENTRED} {_REQUANTISED}",
    ),
    Op(
        name="MatMulNBits", domain=MS, needs={"N": "int", "K": "int"},
        takes={"accuracy_level": "int", "weight_prepacked": "int"},
        infer=_nbits_infer, expand=_nbits,
        becomes="Add Cast Concat Div MatMul Mod Mul Reshape Slice Sub Transpose",
        attrs={"bits": 4, "block_size": 32},
    ),
    Op(
        name="FakeQuant", domain=MS, infer=_fake_infer, expand=_fake, grad=_fake_grad,
        becomes=f"{OURS}::FakeQuantMask {OURS}::FakeQuantValue",
        attrs={"quant_min": 0, "quant_max": 255}, stop=frozenset((1, 2)),
    ),
    elementwise("FakeQuantGrad", "where(mask, dy, 0)", inputs="dy mask", domain=MS, infer=infer),
    elementwise(
        "FakeQuantValue", f"(min(quant_max, max(quant_min, {_LEVEL})) - zero) * scale",
        inputs=_INPUTS, domain=OURS, needs=_BOUNDS,
    ),
    elementwise(
        "FakeQuantMask", f"and_({_LEVEL} >= quant_min, {_LEVEL} <= quant_max)", inputs=_INPUTS,
        domain=OURS, needs=_BOUNDS,
    ),
    Op(
        name="QuantizeDequantize", domain=OURS, needs={"quant_min": "int", "quant_max": "int"},
        infer=_round_trip_infer, expand=_round_trip,
        becomes=f"Cast Gather Reshape {MS}::FakeQuant",
        attrs={"axis": 1, "block_size": 0}, stop=frozenset((1, 2)),
    ),
)  # fmt: skip
