"""Operators on integers that onnxruntime's quantiser writes (QOperator), expanded to plain ops.

Forward   y = quantise(f(dequantise(x), ...)), with f in float32; the bias of QGemm is in units of
          the scales of both factors and alpha, which scales it, too, and passes make one integer
          step of it (graphs/passes/integers.py)
          MatMulIntegerToFloat y = MatMulInteger(a, b) a_scale b_scale + bias, which
          DynamicQuantizeMatMul begins by quantising a, and QAttention continues with attention in
          float32.  Scales and zero points of activations may be computed, as
          DynamicQuantizeLinear does
          DynamicQuantizeLSTM y = LSTM of (w - w_zero) w_scale and (r - r_zero) r_scale.  X and the
          states stay float32, so gradients flow through them.  Where none does, a pass computes it
          in integers, X and states rounded to 8 bits as there (recurrent/integer_lstm.py)
Source    onnxruntime's contrib operators QGemm-1, QLinearAdd-1, QAttention-1 and the like
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.base.element_types import ONNX_CODE
from engine.kernels.ops import activation, elementwise, matmul, softmax, split
from engine.kernels.ops.attention.contrib import JOINED, infer_joined_parts
from engine.kernels.ops.pool import pool
from engine.kernels.ops.quantization import lay_along
from engine.kernels.ops.recurrent import recurrent
from engine.kernels.vocabulary.facts import (
    ATTENTION,
    GEMM,
    LSTM,
    MATMUL,
    Each,
    Factors,
    Role,
    Samples,
    Units,
)
from engine.kernels.vocabulary.op import MANY, MS, OURS, Kind, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis
from engine.kernels.vocabulary.units import check_scale

_FAMILIES = (activation, elementwise, matmul, pool, softmax, split)
# The operators that these stand for: their shape rules are the shape rules here.
_PLAIN = {op.name: op for family in _FAMILIES for op in family.OPS if not op.domain}
_LSTM = next(op for op in recurrent.OPS if (op.domain, op.name) == ("", "LSTM"))
_ROUNDING = "DequantizeLinear QuantizeLinear"


def _get_name(nodes: Nodes, i: int) -> str:
    """Return the name of an input, "" if it is absent."""
    return nodes.x(i) if i < len(nodes.site.ins) else ""


def _dequantise(nodes: Nodes, i: int, **attrs: Any) -> str:
    """Return input i with the scale and the zero point after it as floats."""
    ins = (nodes.x(i), nodes.x(i + 1), _get_name(nodes, i + 2))
    return str(nodes.op("DequantizeLinear", *ins, **attrs))


def _quantise(nodes: Nodes, x: str, i: int) -> tuple[str, ...]:
    """Return integers of a value, with input i as scale and the next one as zero point."""
    return (nodes.op("QuantizeLinear", x, nodes.x(i), _get_name(nodes, i + 1)),)


def _find_type(site: Site, zero: int) -> str:
    """Return the element type of a result, which its zero point has."""
    dtype = site.type(zero).dtype if site.has(zero) else "u8"
    if dtype not in ("u8", "i8"):
        site.fail(f"the zero point of the result is {dtype}", "u8, i8")
    return dtype


def _list_attributes(site: Site) -> dict[str, Any]:
    """Return the attributes that the float operator has, too."""
    # onnxruntime's layout pass alone writes channels_last, in models that it saves optimised.
    if site.attrs.get("channels_last", 0):
        site.fail("channels_last=1", "channels_last=0")
    # QLinearSoftmax repeats the model's opset, which the float operator gets from the model.
    return {k: v for k, v in site.attrs.items() if k not in ("channels_last", "opset")}


def _infer_as(name: str, places: Callable[[Site], list[int]], zero: int) -> Any:
    """Return the shape rule of an operator: the rule of `name` for its inputs as floats.

    places: of the inputs that are dequantised.  zero: the place of the result's zero point.
    """

    def types(site: Site) -> tuple[TensorType, ...]:
        ins = tuple(site.type(i).but(dtype="f32") for i in places(site))
        # The rules need no values: windows and axes are attributes of all of them.
        nothing = (None,) * len(ins)
        floats = replace(
            site, op=name, domain="", opset=13, ins=ins, values=nothing, n_outs=1,
            attrs={**_PLAIN[name].attrs, **_list_attributes(site)}, expr=_PLAIN[name].expr,
        )  # fmt: skip
        (out,) = _PLAIN[name].infer(floats)
        return (out.but(dtype=_find_type(site, zero)),)

    return types


def _declare(title: str, name: str, count: int, **more: Any) -> Op:
    """Return an operator that is the float operator `name` of its first `count` values."""
    places = [3 * i for i in range(count)]

    def expand(nodes: Nodes) -> tuple[str, ...]:
        # Chains of elementwise operators become one map again, so that nothing is stored between.
        values = [_dequantise(nodes, i) for i in places]
        return _quantise(nodes, nodes.op(name, *values, **_list_attributes(nodes.site)), 3 * count)

    return Op(
        name=title,
        is_of_integers=True,
        domain=MS,
        units=(
            *(Units(i, i + 1, i + 2) for i in places),
            Units(None, 3 * count, 3 * count + 1),
        ),
        inputs=(3 * count + 1, 3 * count + 2),
        outputs=1,
        may_be_absent=frozenset(3 * i + 2 for i in range(count)),
        infer=_infer_as(name, lambda site: places, 3 * count + 1),
        expand=expand,
        expands_first=True,
        becomes=f"{name} {_ROUNDING}",
        no_gradient=frozenset(range(3 * count + 2)),
        **more,
    )


def _expand_concat(nodes: Nodes) -> tuple[str, ...]:
    values = [_dequantise(nodes, i) for i in range(2, len(nodes.site.ins), 3)]
    return _quantise(nodes, nodes.op("Concat", *values, axis=nodes.site.attrs["axis"]), 0)


def _infer_gemm(site: Site) -> tuple[TensorType, ...]:
    sides = tuple(site.type(i).but(dtype="f32") for i in (0, 3))
    attrs = {**_PLAIN["Gemm"].attrs, **{k: site.attrs[k] for k in ("transA", "transB")}}
    floats = replace(
        site, op="Gemm", domain="", opset=13, ins=sides, values=(None,) * 2, n_outs=1, attrs=attrs
    )
    (out,) = _PLAIN["Gemm"].infer(floats)
    return (out.but(dtype=_find_type(site, 8) if site.has(7) else "f32"),)


def _expand_gemm(nodes: Nodes) -> tuple[str, ...]:
    attrs: dict[str, Any] = {name: int(nodes.site.attrs[name]) for name in ("transA", "transB")}
    alpha = float(nodes.site.attrs["alpha"])
    # A scale for each column of the product lies along the rows of weights that are transposed.
    axis = 0 if attrs["transB"] else 1
    values = [_dequantise(nodes, 0), _dequantise(nodes, 3, axis=axis)]
    # In units of the sums, so that the bias is added to them before anything is rounded.
    if _get_name(nodes, 6):
        unit = nodes.op("Mul", nodes.x(1), nodes.x(4))
        if alpha != 1.0:
            unit = nodes.op("Mul", unit, nodes.const(alpha, "f32"))
        values.append(nodes.op("DequantizeLinear", nodes.x(6), unit, axis=0))
    y = nodes.op("Gemm", *values, **attrs, alpha=alpha)
    return _quantise(nodes, y, 7) if _get_name(nodes, 7) else (y,)


def _infer_where(site: Site) -> tuple[TensorType, ...]:
    ins = (site.type(0), *(site.type(i).but(dtype="f32") for i in (1, 4)))
    plain = _PLAIN["Where"]
    (out,) = plain.infer(
        replace(
            site, op="Where", domain="", opset=13, ins=ins, values=(None,) * 3, n_outs=1,
            attrs=plain.attrs, expr=plain.expr,
        )
    )  # fmt: skip
    return (out.but(dtype=_find_type(site, 8)),)


def _expand_where(nodes: Nodes) -> tuple[str, ...]:
    # Both values have scales of their own, so a choice between integers would mix them up.
    values = [_dequantise(nodes, i) for i in (1, 4)]
    return _quantise(nodes, nodes.op("Where", nodes.x(0), *values), 7)


# --- sums of products, scaled


def _scale_sums(
    nodes: Nodes, a: str, b: str, scales: tuple[str, str], zeros: tuple[str, str], bias: str
) -> str:
    """Return a_scale b_scale MatMulInteger(a, b) + bias; zeros, bias: "" for none."""
    total = nodes.op("MatMulInteger", a, b, *zeros)
    return str(nodes.op("ScaledSums", total, *scales, bias, domain=OURS))


def _infer_scaled(site: Site) -> tuple[TensorType, ...]:
    total = site.type(0)
    if total.dtype != "i32" or total.rank < 1:
        site.fail(f"sums are {total}", "i32 of rank 1 at least")
    axis = normalise_axis(site, site.attrs["axis"], total.rank)
    for i in (1, 2, 3)[: 2 + site.has(3)]:
        if site.type(i).dtype != "f32":
            site.fail(f"input {i} is {site.type(i)}", "f32")
    # A factor of zero or NaN would hide all that was summed, without an error.
    for i in (1, 2):
        check_scale(site, i, is_divisor=False)
    # Rows of an activation share their scale; outputs of the weights may have their own.
    if site.type(1).size != 1:
        site.fail(f"the scale of the first factor is {site.type(1)}", "one scale")
    for i in (2, 3)[: 1 + site.has(3)]:
        if i == 3 or site.type(i).size != 1:
            site.shaped(i, total.shape[axis : axis + 1])
    return (total.but(dtype="f32"),)


def _expand_scaled(nodes: Nodes) -> tuple[str, ...]:
    site = nodes.site
    rank = site.type(0).rank
    axis = normalise_axis(site, site.attrs["axis"], rank)

    def lay(i: int) -> str:
        """Return an input whose elements, if there are several, lie along the axis."""
        if axis == rank - 1 or site.type(i).size == 1:
            return nodes.x(i)
        return str(nodes.op("Reshape", nodes.x(i), nodes.const(lay_along(axis, rank), "i64")))

    # One factor for both scales: one rounding, as in onnxruntime.
    factor = nodes.op("Mul", nodes.x(1), lay(2))
    y = nodes.op("Mul", nodes.op("Cast", nodes.x(0), to=ONNX_CODE["f32"]), factor)
    return (nodes.op("Add", y, lay(3)) if site.has(3) else y,)


def _infer_product(site: Site, a: int, b: int) -> tuple[TensorType, ...]:
    """Return the type of the product of inputs a and b as floats."""
    ins = tuple(site.type(i).but(dtype="f32") for i in (a, b))
    return tuple(
        _PLAIN["MatMul"].infer(
            replace(site, op="MatMul", domain="", opset=13, ins=ins, values=(None,) * 2, n_outs=1)
        )
    )


def _expand_to_float(nodes: Nodes) -> tuple[str, ...]:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (_get_name(nodes, i) for i in range(7))
    return (_scale_sums(nodes, a, b, (a_scale, b_scale), (a_zero, b_zero), bias),)


def _expand_dynamic(nodes: Nodes) -> tuple[str, ...]:
    x, b, b_scale, b_zero, bias = (_get_name(nodes, i) for i in range(5))
    # The scale is one of the whole batch, as there: rows do not get ranges of their own.
    a, a_scale, a_zero = nodes.op("DynamicQuantizeLinear", x, outputs=3)
    return (_scale_sums(nodes, a, b, (a_scale, b_scale), (a_zero, b_zero), bias),)


def _infer_attention(site: Site) -> tuple[TensorType, ...]:
    x, w = site.type(0), site.type(1)
    if x.rank != 3 or w.rank != 2:
        site.wrong(
            f"the input is {x}, the weights {w}; expected [batch, length, n] and [n, columns]"
        )
    (product,) = _infer_product(site, 0, 1)
    return infer_joined_parts(site, product, mask=5, past=8)


def _expand_attention(nodes: Nodes) -> tuple[str, ...]:
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (
        _get_name(nodes, i) for i in range(9)
    )
    # Attention is float from here on: its two products have no constant factor.
    product = _scale_sums(nodes, x, w, (x_scale, w_scale), (x_zero, w_zero), bias)
    outputs = 1 + nodes.wants(1)
    made: Any = nodes.op(
        "JoinedAttention", product, mask, past, domain=OURS, outputs=outputs, **nodes.site.attrs
    )
    return tuple(made) if outputs > 1 else (made,)


# --- a recurrence whose weights are integers

_LSTM_ATTRS = {name: value for name, value in _LSTM.attrs.items() if name != "layout"}


def _check_weight(site: Site, i: int, scale: int, what: str) -> TensorType:
    """Return the float weight for LSTM that input i [directions, n, 4 hidden] stands for.

    scale: the input with its scales, before the one with its zero points.
    """
    weight = site.type(i)
    if weight.rank != 3 or weight.dtype not in ("u8", "i8"):
        site.fail(f"{what} (input {i}) is {weight}", "u8, i8 of [directions, n, 4 hidden_size]")
    directions, n, columns = weight.shape
    for k, name in ((scale, "scale"), (scale + 1, "zero_point")):
        kind = site.type(k)
        if kind.shape not in ((directions,), (directions, columns)):
            site.fail(
                f"{what}_{name} (input {k}) is {kind}",
                f"[{directions}], or [{directions},{columns}] for one a channel",
            )
    real = site.real(0).dtype
    if site.type(scale).dtype != real:
        site.fail(f"{what}_scale (input {scale}) is {site.type(scale)}", real)
    return TensorType(real, (directions, columns, n))


def _infer_lstm(site: Site) -> tuple[TensorType, ...]:
    weights = (_check_weight(site, 1, 8, "W"), _check_weight(site, 2, 10, "R"))
    attrs = {**_LSTM.attrs, **site.attrs}
    ins = (site.type(0), *weights, *site.ins[3:8])
    return tuple(
        _LSTM.infer(
            replace(site, op="LSTM", domain="", opset=14, ins=ins, values=(None,) * 8, attrs=attrs)
        )
    )


def _expand_lstm(nodes: Nodes) -> tuple[str, ...]:
    def read_weight(i: int, scale: int) -> str:
        """Return input i for LSTM, as floats [directions, 4 hidden, n]."""
        parts = []
        for k in (scale, scale + 1):
            # A direction or a channel of one has a scale: the axis of n has none.
            directions, *columns = nodes.site.type(k).dims
            shape = nodes.const([directions, 1, *(columns or [1])], "i64")
            parts.append(nodes.op("Reshape", nodes.x(k), shape))
        real = ONNX_CODE[nodes.site.type(0).dtype]
        x, zero = (nodes.op("Cast", x, to=real) for x in (nodes.x(i), parts[1]))
        x = nodes.op("Mul", nodes.op("Sub", x, zero), parts[0])
        return str(nodes.op("Transpose", x, perm=[0, 2, 1]))

    rest = [_get_name(nodes, i) for i in range(3, 8)]
    attrs = {k: v for k, v in nodes.site.attrs.items() if v not in (None, ())}
    weights = read_weight(1, 8), read_weight(2, 10)
    return tuple(nodes.op("LSTM", nodes.x(0), *weights, *rest, outputs=3, **attrs))


_WINDOW: dict[str, Kind] = {"kernel_shape": "ints", "strides": "ints", "pads": "ints"}
_POOL = {"auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0, "channels_last": 0}
_SUMS: dict[str, Any] = {
    "expands_first": True,  # the pass that computes in integers looks for MatMulInteger
    "roles": {1: Role.WEIGHT},
    "no_gradient": frozenset(range(9)),
}
OPS = (
    _declare("QLinearAdd", "Add", 2),
    _declare("QLinearMul", "Mul", 2),
    _declare("QLinearSigmoid", "Sigmoid", 1),
    _declare("QLinearLeakyRelu", "LeakyRelu", 1, attrs={"alpha": 0.01}),
    _declare("QLinearSoftmax", "Softmax", 1, attrs={"axis": -1}, takes={"opset": "int"}),
    _declare("QLinearGlobalAveragePool", "GlobalAveragePool", 1, attrs={"channels_last": 0}),
    _declare("QLinearAveragePool", "AveragePool", 1, attrs=_POOL, takes=_WINDOW),
    Op(
        name="QLinearConcat",
        units=(Units(None, 0, 1), Units(2, 3, 4, every=3)),
        is_of_integers=True,
        domain=MS,
        inputs=(5, MANY),
        outputs=1,
        needs={"axis": "int"},
        infer=_infer_as("Concat", lambda site: list(range(2, len(site.ins), 3)), 1),
        expand=_expand_concat,
        expands_first=True,
        becomes=f"Concat {_ROUNDING}",
        no_gradient=frozenset(range(64)),
    ),
    Op(
        name="QGemm",
        units=(Units(0, 1, 2), Units(3, 4, 5, Each.OUTPUTS), Units(None, 7, 8)),
        is_of_integers=True,
        product=GEMM.with_factors(Factors.STATIC),
        domain=MS,
        inputs=(6, 9),
        outputs=1,
        may_be_absent=frozenset((2, 5)),
        attrs={"transA": 0, "transB": 0, "alpha": 1.0},
        infer=_infer_gemm,
        expand=_expand_gemm,
        expands_first=True,
        becomes=f"Gemm Mul {_ROUNDING}",
        no_gradient=frozenset(range(9)),
    ),
    Op(
        name="QLinearWhere",
        units=(Units(1, 2, 3), Units(4, 5, 6), Units(None, 7, 8)),
        is_of_integers=True,
        domain=MS,
        inputs=(9, 9),
        outputs=1,
        infer=_infer_where,
        expand=_expand_where,
        expands_first=True,
        becomes=f"Where {_ROUNDING}",
        no_gradient=frozenset(range(9)),
    ),
    Op(
        name="MatMulIntegerToFloat",
        units=(Units(0, 2, 4), Units(1, 3, 5, Each.OUTPUTS)),
        is_of_integers=True,
        product=MATMUL.with_factors(Factors.DYNAMIC),
        domain=MS,
        inputs=(4, 7),
        outputs=1,
        infer=lambda site: _infer_product(site, 0, 1),
        expand=_expand_to_float,
        becomes=f"MatMulInteger {OURS}::ScaledSums",
        **_SUMS,
    ),
    Op(
        name="DynamicQuantizeMatMul",
        units=(Units(1, 2, 3, Each.OUTPUTS),),
        is_of_integers=True,
        product=MATMUL.with_factors(Factors.DYNAMIC),
        domain=MS,
        inputs=(3, 5),
        outputs=1,
        infer=lambda site: _infer_product(site, 0, 1),
        expand=_expand_dynamic,
        becomes=f"DynamicQuantizeLinear MatMulInteger {OURS}::ScaledSums",
        **_SUMS,
    ),
    Op(
        name="QAttention",
        units=(Units(0, 3, 6), Units(1, 4, 7, Each.OUTPUTS)),
        is_of_integers=True,
        product=ATTENTION.with_factors(Factors.DYNAMIC),
        domain=MS,
        inputs=(5, 9),
        outputs=2,
        takes={"scale": "float"},
        infer=_infer_attention,
        expand=_expand_attention,
        becomes=f"MatMulInteger {OURS}::JoinedAttention {OURS}::ScaledSums",
        **_SUMS,
        **JOINED,
    ),
    Op(
        name="DynamicQuantizeLSTM",
        units=(Units(1, 8, 9, Each.OTHER), Units(2, 10, 11, Each.OTHER)),
        product=LSTM.with_factors(Factors.DYNAMIC),
        domain=MS,
        inputs=(12, 12),
        outputs=3,
        may_be_absent=frozenset(range(3, 8)),
        attrs=_LSTM_ATTRS,
        takes=_LSTM.takes,
        roles={1: Role.WEIGHT, 2: Role.RECURRENT_WEIGHT, 3: Role.BIAS},
        infer=_infer_lstm,
        expand=_expand_lstm,
        becomes="Cast LSTM Mul Reshape Sub Transpose",
        no_gradient=frozenset((1, 2, 4, 9, 11)),
        samples=Samples.RECURRENT,
    ),
    Op(
        name="ScaledSums",
        domain=OURS,
        inputs=(3, 4),
        outputs=1,
        attrs={"axis": -1},
        infer=_infer_scaled,
        expand=_expand_scaled,
        becomes="Add Cast Mul Reshape",
        no_gradient=frozenset(range(4)),
        internal=True,
    ),
)
