"""Quantisation: integers that represent real numbers, and their products.

Forward   quantise q = clip(round(x / scale) + zero, low, high), ties to even, to q's range
          dequantise x = (q - zero) scale
          scale and zero: one, one a slice of an axis, or one a block of an axis
          integer products are exact: float products of the differences to the zero points, in f32
          while every partial sum stays below 2^24, otherwise in f64
Backward  of dequantise: dscale = sum dx (q - zero).  None through integers; so in a training graph
          a quantise with its dequantise becomes FakeQuant (fake_quantization.py)
Source    Jacob et al., "Quantization and training of neural networks for efficient
          integer-arithmetic-only inference", CVPR 2018
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.base.element_types import FLOATS, NUMPY, OF_ONNX, ONNX_CODE, name_onnx_type
from engine.base.limits import check
from engine.kernels.ops import matmul
from engine.kernels.ops.conv import conv
from engine.kernels.vocabulary.facts import CONV, MATMUL, Each, Factors, Role, Scaling, Units
from engine.kernels.vocabulary.op import MS, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis

QUANTISED = ("u8", "i8", "u16", "i16")
EXACT = 2**24 // 255**2  # products of 8 bits whose sum f32 holds


# --- scales and zero points


def check_extent(site: Site, i: int) -> None:
    """Refuse a scale or zero point that is neither single, nor of an axis, nor of blocks."""
    x, t = site.type(0), site.type(i)
    block = site.attrs.get("block_size", 0)
    if block < 0:
        site.fail(f"block_size is {block}", "0, or the number of elements of a block")
    if t.rank == 0 or t.shape == (1,):
        # A vector may have a single block.
        if block and (t.rank != x.rank or x.rank == 0):
            site.fail(f"block_size is {block}, but input {i} is {t}", "one element for each block")
        return
    if not -x.rank <= site.attrs["axis"] < x.rank:
        along = f"axis={site.attrs['axis']} of {x}"
        site.fail(
            f"input {i} is {t} for {along}, which input 0 does not have",
            "one element, or an axis of input 0",
        )
    axis = normalise_axis(site, site.attrs["axis"], x.rank)
    if block == 0:
        site.shaped(i, (x.shape[axis],))
        return
    size = x.shape[axis]
    blocks = -(-size // block) if isinstance(size, int) else size
    site.shaped(i, (*x.shape[:axis], blocks, *x.shape[axis + 1 :]))


def spread(nodes: Nodes, i: int) -> str:
    """Return input i, a scale or zero point, in a shape that broadcasts to input 0."""
    site, t = nodes.site, nodes.site.type(i)
    if t.rank == 0 or t.shape == (1,):
        return nodes.x(i)
    rank = site.type(0).rank
    axis = normalise_axis(site, site.attrs["axis"], rank)
    if site.attrs.get("block_size", 0) == 0:
        return str(nodes.op("Reshape", nodes.x(i), nodes.const(lay_along(axis, rank), "i64")))
    size = site.type(0).shape[axis]
    if not isinstance(size, int):
        site.fail(f"the size of axis {axis}, {size!r}, is not known", "a fixed size, for blocks")
    check("CONSTANT_BYTES", 16 * size, site.where(), "the index of its blocks takes")
    # Element i of the axis has the scale of block i / block_size.
    blocks = np.arange(size) // site.attrs["block_size"]
    return str(nodes.op("Gather", nodes.x(i), nodes.const(blocks, "i64"), axis=axis))


def lay_along(axis: int, rank: int) -> list[int]:
    """Return the shape of a vector that lies along one axis."""
    return [1] * axis + [-1] + [1] * (rank - axis - 1)


def find_limits(dtype: str) -> tuple[int, int]:
    """Return the least and the largest value of an integer type."""
    info = np.iinfo(NUMPY[dtype])
    return int(info.min), int(info.max)


def saturate(nodes: Nodes, x: str, zero: str, T: str, dtype: str) -> str:
    """Round x, add the zero point ("" for none), and cast what fits."""
    x = nodes.op("Round", x)
    if zero:
        x = nodes.op("Add", x, nodes.op("Cast", zero, to=ONNX_CODE[T]))
    # Clipped as floats, before the cast: a float beyond an integer's range has no cast.
    low, high = (nodes.const(v, T) for v in find_limits(dtype))
    return str(nodes.op("Cast", nodes.op("Clip", x, low, high), to=ONNX_CODE[dtype]))


# --- QuantizeLinear, DequantizeLinear


def _find_quantised(site: Site) -> str:
    """Return the element type that QuantizeLinear outputs."""
    code = site.attrs.get("output_dtype", 0)
    dtype = site.type(2).dtype if site.has(2) else OF_ONNX.get(code) if code else "u8"
    if dtype not in QUANTISED:
        by = f" by the zero point (input 2), {site.type(2)}" if site.has(2) else ""
        site.fail(f"the result would be {dtype or name_onnx_type(code)}{by}", ", ".join(QUANTISED))
    return dtype


def _quantize_infer(site: Site) -> tuple[TensorType, ...]:
    if site.type(0).dtype not in (*FLOATS, "i32"):
        site.fail(f"input 0 is {site.type(0)}", "f32, f64, i32")
    site.real(1)
    for i in (1, 2)[: 1 + site.has(2)]:
        check_extent(site, i)
    return (site.type(0).but(dtype=_find_quantised(site)),)


def _quantize(nodes: Nodes) -> tuple[str, ...]:
    site, T = nodes.site, nodes.site.type(1).dtype
    x = nodes.x(0) if site.type(0).dtype == T else nodes.op("Cast", nodes.x(0), to=ONNX_CODE[T])
    zero = spread(nodes, 2) if site.has(2) else ""
    return (saturate(nodes, nodes.op("Div", x, spread(nodes, 1)), zero, T, _find_quantised(site)),)


def _dequantize_infer(site: Site) -> tuple[TensorType, ...]:
    x, scale = site.type(0), site.real(1)
    if x.dtype not in (*QUANTISED, "i32"):
        site.fail(f"input 0 is {x}", ", ".join((*QUANTISED, "i32")))
    for i in (1, 2)[: 1 + site.has(2)]:
        check_extent(site, i)
    code = site.attrs.get("output_dtype", 0)
    dtype = OF_ONNX.get(code) if code else scale.dtype
    if dtype not in FLOATS:
        site.fail(f"output_dtype is {dtype or name_onnx_type(code)}", ", ".join(FLOATS))
    return (x.but(dtype=dtype),)


def _dequantize(nodes: Nodes) -> tuple[str, ...]:
    site, T = nodes.site, nodes.site.type(1).dtype
    x = nodes.x(0)
    # f32 does not hold every i32: the difference is made in integers.
    if site.has(2) and site.type(0).dtype == "i32":
        x = nodes.op("Cast", nodes.op("Sub", x, spread(nodes, 2)), to=ONNX_CODE[T])
    else:
        x = nodes.op("Cast", x, to=ONNX_CODE[T])
        if site.has(2):
            x = nodes.op("Sub", x, nodes.op("Cast", spread(nodes, 2), to=ONNX_CODE[T]))
    y = nodes.op("Mul", x, spread(nodes, 1))
    (out,) = _dequantize_infer(site)
    return (y if out.dtype == T else nodes.op("Cast", y, to=ONNX_CODE[out.dtype]),)


def _dynamic(nodes: Nodes) -> tuple[str, ...]:
    """Scale and zero point from the least and the largest element, and 0."""
    zero, top = nodes.like(0.0, 0), nodes.like(255.0, 0)
    low = nodes.op("Min", nodes.op("ReduceMin", nodes.x(0), keepdims=0), zero)
    high = nodes.op("Max", nodes.op("ReduceMax", nodes.x(0), keepdims=0), zero)
    span = nodes.op("Sub", high, low)
    # All elements 0: any scale represents them, and 1 divides nothing by 0.
    one = nodes.like(1.0, 0)
    scale = nodes.op("Where", nodes.op("Equal", span, zero), one, nodes.op("Div", span, top))
    point = saturate(
        nodes, nodes.op("Div", nodes.op("Neg", low), scale), "", nodes.site.type(0).dtype, "u8"
    )
    return (nodes.op("QuantizeLinear", nodes.x(0), scale, point), scale, point)


def _dynamic_infer(site: Site) -> tuple[TensorType, ...]:
    T = site.real(0).dtype
    return (site.type(0).but(dtype="u8"), TensorType(T, ()), TensorType("u8", ()))


# --- products of integers


_PRODUCTS = {op.name: op for op in (*conv.OPS, *matmul.OPS) if not op.domain}


def _as_reals(site: Site, name: str, a: int, b: int) -> TensorType:
    """Return the output type of the op `name` if its inputs a and b were floats."""
    for i in (a, b):
        if site.type(i).dtype not in ("u8", "i8"):
            site.fail(f"input {i} is {site.type(i)}", "u8, i8")
    ins = tuple(site.type(i).but(dtype="f32") for i in (a, b))
    (out,) = _PRODUCTS[name].infer(replace(site, op=name, ins=ins, values=(None, None), n_outs=1))
    return out


def _infer_sums(name: str) -> Any:
    """Return the shape rule of MatMulInteger or ConvInteger, by the op `name` of floats."""

    def infer_sums(site: Site) -> tuple[TensorType, ...]:
        return (_as_reals(site, name, 0, 1).but(dtype="i32"),)

    return infer_sums


def _centred(nodes: Nodes, i: int, zero: int, T: str, shape: Sequence[int] | None) -> str:
    """Return input i minus its zero point, reshaped to `shape` if it has one a slice."""
    x = nodes.op("Cast", nodes.x(i), to=ONNX_CODE[T])
    if not nodes.site.has(zero):
        return str(x)
    point = nodes.op("Cast", _shaped(nodes, zero, shape), to=ONNX_CODE[T])
    return str(nodes.op("Sub", x, point))


def _shaped(nodes: Nodes, i: int, shape: Sequence[int] | None) -> str:
    """Return input i, reshaped to `shape` if it is a vector of more than one element."""
    t = nodes.site.type(i)
    if shape is None or t.rank != 1 or t.shape == (1,):
        return nodes.x(i)
    return str(nodes.op("Reshape", nodes.x(i), nodes.const(list(shape), "i64")))


def _product(
    nodes: Nodes, name: str, count: int, places: Sequence[int], shapes: Sequence[Any]
) -> str:
    """Return the i32 product of inputs a and b less their zero points; `count` products a sum."""
    a, a_zero, b, b_zero = places
    # Floats add integers exactly up to 2^24 (2^53 in f64); their products are the fast ones.
    T = "f32" if count <= EXACT else "f64"
    left, right = _centred(nodes, a, a_zero, T, shapes[0]), _centred(nodes, b, b_zero, T, shapes[1])
    # The window's attributes go to the float Conv that computes the exact product.
    known = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
    attrs = {k: v for k, v in nodes.site.attrs.items() if k in known}
    return str(nodes.op("Cast", nodes.op(name, left, right, **attrs), to=ONNX_CODE["i32"]))


def _matmul(nodes: Nodes, *places: int) -> str:
    count = int(nodes.site.type(places[0]).dims[-1])
    return _product(nodes, "MatMul", count, places, ([-1, 1], None))


def _conv(nodes: Nodes, *places: int) -> str:
    w = nodes.site.type(places[2])
    return _product(nodes, "Conv", math.prod(w.dims[1:]), places, (None, lay_along(0, w.rank)))


def _requantise(nodes: Nodes, total: str, scales: Sequence[str], zero: int) -> str:
    """y = saturate(total a_scale b_scale / y_scale + y_zero)"""
    a, b, y = (nodes.op("Cast", scale, to=ONNX_CODE["f32"]) for scale in scales)
    # The scales as one factor: one rounding, as in onnxruntime.
    factor = nodes.op("Div", nodes.op("Mul", a, b), y)
    real = nodes.op("Mul", nodes.op("Cast", total, to=ONNX_CODE["f32"]), factor)
    return saturate(nodes, real, nodes.x(zero), "f32", nodes.site.type(zero).dtype)


def _qlinear_matmul(nodes: Nodes) -> tuple[str, ...]:
    # A's scales and zero points are one a row, B's one a column.
    rows = [-1, 1]
    scales = [_shaped(nodes, 1, rows), nodes.x(4), _shaped(nodes, 6, rows)]
    return (_requantise(nodes, _matmul(nodes, 0, 2, 3, 5), scales, 7),)


def _qlinear_conv(nodes: Nodes) -> tuple[str, ...]:
    total, across = _conv(nodes, 0, 2, 3, 5), lay_along(1, nodes.site.type(0).rank)
    if nodes.site.has(8):
        # The bias is an integer in units of x_scale w_scale, so it is added before scaling.
        total = nodes.op("Add", total, nodes.op("Reshape", nodes.x(8), nodes.const(across, "i64")))
    return (_requantise(nodes, total, [nodes.x(1), _shaped(nodes, 4, across), nodes.x(6)], 7),)


def _declare_qlinear(name: str) -> Any:
    def types(site: Site) -> tuple[TensorType, ...]:
        if site.type(7).dtype not in ("u8", "i8"):
            site.fail(f"y_zero_point is {site.type(7)}", "u8, i8")
        out = _as_reals(site, name, 0, 3)
        if name == "Conv" and site.has(8) and site.shaped(8, out.shape[1:2]).dtype != "i32":
            site.fail(f"the bias is {site.type(8)}", "i32")
        return (out.but(dtype=site.type(7).dtype),)

    return types


UNTRAINED = frozenset(range(9))  # all inputs
_CONV = {"group": 1, "auto_pad": "NOTSET"}


def _linear(domain: str) -> tuple[Op, Op]:
    attrs = {"axis": 1, "block_size": 0}
    return (
        Op(
            name="QuantizeLinear",
            scaling=Scaling.QUANTISES,
            units=(Units(None, 1, 2, Each.OTHER),),
            is_of_integers=True,
            domain=domain,
            inputs=(2, 3),
            outputs=1,
            attrs=attrs,
            infer=_quantize_infer,
            expand=_quantize,
            becomes="Add Cast Clip Div Gather Reshape Round",
            no_gradient=UNTRAINED,
        ),
        Op(
            name="DequantizeLinear",
            scaling=Scaling.DEQUANTISES,
            units=(Units(0, 1, 2, Each.OTHER),),
            domain=domain,
            inputs=(2, 3),
            outputs=1,
            attrs=attrs,
            infer=_dequantize_infer,
            expand=_dequantize,
            becomes="Cast Gather Mul Reshape Sub",
        ),
    )


_CENTRED = "Cast Reshape Sub"  # what is computed with integers less their zero points
_REQUANTISED = "Add Clip Div Mul Round"  # and what brings it back to 8 bits
OPS = (
    *_linear(""),
    *_linear(MS),
    Op(
        name="DynamicQuantizeLinear",
        scaling=Scaling.MEASURES,
        is_of_integers=True,
        infer=_dynamic_infer,
        expand=_dynamic,
        no_gradient=UNTRAINED,
        becomes="Cast Clip Div Equal Max Min Neg QuantizeLinear ReduceMax ReduceMin Round Sub "
        "Where",
    ),
    Op(
        name="MatMulInteger",
        units=(Units(0, None, 2, Each.ROWS), Units(1, None, 3, Each.OUTPUTS)),
        is_of_integers=True,
        product=MATMUL.with_factors(Factors.DYNAMIC),
        roles={1: Role.WEIGHT},
        no_gradient=UNTRAINED,
        expand=lambda n: (_matmul(n, 0, 2, 1, 3),),
        infer=_infer_sums("MatMul"),
        becomes=f"MatMul {_CENTRED}",
    ),
    Op(
        name="ConvInteger",
        units=(Units(0, None, 2), Units(1, None, 3, Each.OUTPUTS)),
        is_of_integers=True,
        product=CONV.with_factors(Factors.DYNAMIC),
        roles={1: Role.WEIGHT},
        no_gradient=UNTRAINED,
        expand=lambda n: (_conv(n, 0, 2, 1, 3),),
        attrs=_CONV,
        infer=_infer_sums("Conv"),
        becomes=f"Conv {_CENTRED}",
    ),
    Op(
        name="QLinearMatMul",
        units=(
            Units(0, 1, 2, Each.ROWS),
            Units(3, 4, 5, Each.OUTPUTS),
            Units(None, 6, 7, Each.ROWS),
        ),
        is_of_integers=True,
        product=MATMUL.with_factors(Factors.STATIC),
        no_gradient=UNTRAINED,
        expand=_qlinear_matmul,
        infer=_declare_qlinear("MatMul"),
        becomes=f"MatMul {_CENTRED} {_REQUANTISED}",
    ),
    Op(
        name="QLinearConv",
        units=(Units(0, 1, 2), Units(3, 4, 5, Each.OUTPUTS), Units(None, 6, 7)),
        is_of_integers=True,
        product=CONV.with_factors(Factors.STATIC),
        no_gradient=UNTRAINED,
        expand=_qlinear_conv,
        infer=_declare_qlinear("Conv"),
        attrs=_CONV,
        becomes=f"Conv {_CENTRED} {_REQUANTISED}",
    ),
)
