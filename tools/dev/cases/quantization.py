"""Quantisation: every way to give a scale, every integer type, integer products.

tests/ops/test_quantization.py has the gradient that passes straight through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.kernels.vocabulary.integers import fill_panels, pack_panels
from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.attention_contrib import attend_joined
from engine.tools.dev.cases.case import Case, Tensor, f32, fed, one
from engine.tools.dev.cases.recurrent import recurrence, round_to_bytes

LIMITS = {
    kind: (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in ("uint8", "int8", "uint16", "int16")
}
CODES = {"uint16": 4, "int8": 3}
ANY = {"low": 0.01, "high": 0.05}


def raw(*shape: int, dtype: str = "uint8") -> Tensor:
    """An integer input over the whole range of its type."""
    low, high = LIMITS[dtype]
    return Tensor(shape, dtype, low, high + 1)


def scales(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(0.01, 0.05, shape).astype(np.float32)


def zeros(*shape: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(4).integers(*LIMITS[dtype], shape).astype(dtype)


BLOCK = [0, 0, 1, 1, 2]  # of the elements of an axis of 5, in blocks of 2
QUANTIZE = (
    *(Case("QuantizeLinear", (f32(3, 40, low=-4.0, high=4.0), one(0.02), one(z, kind)), opset=21,
           name=f"quantize-{kind}")
      for kind, z in (("uint8", 100), ("int8", -3), ("uint16", 30000), ("int16", 7))),
    Case("QuantizeLinear", (f32(3, 40), one(0.02)), opset=10, name="quantize-alone"),
    Case("QuantizeLinear", (f32(3, 40), one(0.5)), opset=13, name="quantize-coarse"),
    Case("QuantizeLinear", (fed([0.5, 1.5, 2.5, -0.5, 3e9, -3e9]), one(1.0), one(10, "uint8")),
         name="quantize-ties", reference=lambda x, s, z: [_quantize(x, s, z)]),
    Case("QuantizeLinear", (f32(2, 3, 4, low=-2.0, high=2.0), scales(3), zeros(3)), opset=13),
    Case("QuantizeLinear", (f32(2, 3, 4), scales(4), zeros(4, dtype="int8")), {"axis": -1}),
    Case("QuantizeLinear", (f32(5, 3), scales(2, 3), zeros(2, 3)), {"axis": 0, "block_size": 3},
         opset=21, bench=True,
         reference=lambda x, s, z, **_: [_quantize(x, s[[0, 0, 0, 1, 1]], z[[0, 0, 0, 1, 1]])]),
    Case("QuantizeLinear", (f32(40), one(0.02)), {"output_dtype": CODES["int8"]}, opset=21),
    Case("QuantizeLinear", (Tensor((40,), "int32", -500, 500), one(3.0), one(1, "int8")), opset=19),
    Case("QuantizeLinear", (f32(3, 4), one(0.02), one(5, "uint8")), domain=MS,
         reference=lambda x, s, z: [_quantize(x, s, z)]),
    Case("QuantizeLinear", (f32(3, 4), scales(4), zeros(4)), domain=MS,
         reference=lambda x, s, z: [_quantize(x, s, z)]),
    Case("QuantizeLinear", (f32(2, 5), scales(2, 3), zeros(2, 3)), {"block_size": 2}, domain=MS,
         reference=lambda x, s, z, **_: [_quantize(x, s[:, BLOCK], z[:, BLOCK])]),
)  # fmt: skip


def _quantize(x: Any, s: Any, z: Any) -> Any:
    return np.clip(np.rint(x / s) + z, 0, 255).astype(np.uint8)


DEQUANTIZE = (
    *(Case("DequantizeLinear", (raw(3, 40, dtype=kind), f32(**ANY), one(z, kind)), grad=(1,),
           opset=21, name=f"dequantize-{kind}")
      for kind, z in (("uint8", 100), ("int8", -3), ("uint16", 30000), ("int16", 7))),
    Case("DequantizeLinear", (raw(3, 40), f32(**ANY)), grad=(1,), opset=10,
         reference=lambda x, s: [x * s]),
    Case("DequantizeLinear", (fed([2**30 + 64, -5], "int32"), one(0.5), fed(2**30, "int32")),
         reference=lambda x, s, z: [np.array([32.0, (-5 - 2**30) / 2])], name="dequantize-int32"),
    Case("DequantizeLinear", (raw(2, 3, 4), f32(3, **ANY), raw(3)), grad=(1,), opset=13,
         reference=lambda x, s, z: [(x.astype(float) - z[:, None]) * s[:, None]]),
    Case("DequantizeLinear", (raw(2, 3, 4), f32(4, **ANY)), {"axis": -1}, (1,), opset=23),
    Case("DequantizeLinear", (raw(2, 5), f32(2, 3, **ANY), raw(2, 3)),
         {"axis": 1, "block_size": 2}, (1,), opset=21,
         reference=lambda x, s, z, **_: [(x - z[:, BLOCK] * 1.0) * s[:, BLOCK]]),
    Case("DequantizeLinear", (raw(3, 4), f32(**ANY), raw()), grad=(1,), domain=MS,
         reference=lambda x, s, z: [(x.astype(float) - z) * s]),
    Case("DequantizeLinear", (raw(3, 4), f32(4, **ANY), raw(4)), grad=(1,), domain=MS,
         reference=lambda x, s, z: [(x.astype(float) - z) * s]),
    Case("DequantizeLinear", (raw(2, 5), f32(2, 3, **ANY), raw(2, 3)), {"block_size": 2}, (1,), MS,
         reference=lambda x, s, z, **_: [(x - z[:, BLOCK] * 1.0) * s[:, BLOCK]]),
    Case("DynamicQuantizeLinear", (f32(3, 40),), outs=3, opset=13),
    Case("DynamicQuantizeLinear", (f32(3, 40, low=0.5),), outs=3, opset=13, name="dynamic-above"),
    Case("DynamicQuantizeLinear", (fed(np.zeros(5)),), outs=3, opset=13, name="dynamic-zero",
         reference=lambda x: [np.zeros(5), np.array(1.0), np.array(0)]),
)  # fmt: skip


def _integer(a: Any, b: Any, za: Any = 0, zb: Any = 0) -> list[np.ndarray]:
    return [np.matmul(a.astype(np.int64) - za, b.astype(np.int64) - zb)]


def _rows(a: Any, b: Any, za: Any, zb: Any) -> list[np.ndarray]:
    return _integer(a, b, za.astype(int)[:, None], zb.astype(int))


def _qlinear_matmul(a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sy: Any, zy: Any) -> Any:
    (total,) = _integer(a, b, za.astype(int), zb.astype(int))
    return [np.clip(np.rint(total * (sa * sb / sy)) + zy, *LIMITS[str(zy.dtype)])]


def _qlinear_conv(x: Any, sx: Any, zx: Any, w: Any, sw: Any, zw: Any, sy: Any, zy: Any,
                  b: Any = None) -> Any:  # fmt: skip
    """A 1x1 convolution."""
    total = np.einsum("nchw,mc->nmhw", x.astype(int) - zx, w[:, :, 0, 0].astype(int) - zw)
    if b is not None:
        total = total + b[:, None, None]
    factor = np.reshape(sw, (-1, 1, 1)) * sx / sy
    return [np.clip(np.rint(total * factor) + zy, *LIMITS[str(zy.dtype)])]


def fixed(*shape: int) -> np.ndarray:
    """Constant weights, with which layers compute in integers."""
    return np.random.default_rng(6).integers(-128, 128, shape).astype(np.int8)


I8 = {"dtype": "int8"}
PRODUCTS = (
    Case("MatMulInteger", (raw(50, 90), fixed(90, 40), one(9, "uint8")), reference=_integer,
         name="integers-matmul", bench=True),
    Case("ConvInteger", (raw(2, 10, 9, 8, **I8), fixed(20, 10, 3, 3), one(9, "int8")),
         {"pads": [1] * 4}, opset=10, name="integers-conv", bench=True),
    Case("ConvInteger", (raw(2, 10, 9, 8), fixed(20, 10, 1, 1), one(9, "uint8")), opset=10,
         name="integers-pointwise"),
    Case("ConvInteger", (raw(2, 24, 9, 8), fixed(24, 1, 3, 3), one(9, "uint8")),
         {"group": 24, "strides": [2, 2]}, opset=10, name="integers-depthwise", bench=True),
    Case("QLinearMatMul", (raw(9, 33), one(0.02), one(120, "uint8"), fixed(33, 20), scales(20),
                           np.zeros(20, np.int8), one(0.5), one(100, "uint8")),
         reference=_qlinear_matmul, name="integers-requantised"),
    Case("MatMulInteger", (raw(3, 5), raw(5, 4, **I8)), reference=_integer),
    Case("MatMulInteger", (raw(3, 5), raw(5, 4), raw(3), raw(4)), reference=_rows),
    Case("MatMulInteger", (raw(2, 3, 300), raw(300, 4), one(128, "uint8"), one(3, "uint8")),
         reference=lambda a, b, za, zb: _integer(a, b, int(za), int(zb))),
    Case("ConvInteger", (raw(1, 1, 4, 4), raw(2, 1, 3, 3), one(9, "uint8")), {"pads": [1] * 4},
         opset=10),
    Case("ConvInteger", (raw(2, 40, 5, 5), raw(3, 40, 3, 3, **I8), one(9, "uint8"),
                         zeros(3, **I8)), {"strides": [2, 2]},
         reference=lambda x, w, zx, zw, strides: [_conv(x.astype(int) - zx,
                                                        w - zw[:, None, None, None].astype(int))]),
    Case("QLinearMatMul", (raw(3, 5), one(0.02), one(120, "uint8"), raw(5, 4, **I8), one(0.03),
                           one(2, "int8"), one(0.5), one(100, "uint8")), reference=_qlinear_matmul),
    Case("QLinearMatMul", (raw(3, 5), scales(3), zeros(3), raw(5, 4), scales(4), zeros(4),
                           one(0.5), one(-3, "int8")),
         reference=lambda a, sa, za, b, sb, zb, sy, zy: _qlinear_matmul(
             a, sa[:, None], za[:, None], b, sb, zb, sy, zy)),
    Case("QLinearConv", (raw(2, 3, 4, 5), one(0.02), one(120, "uint8"), raw(6, 3, 1, 1), one(0.03),
                         one(2, "uint8"), one(0.9), one(100, "uint8")), reference=_qlinear_conv),
    Case("QLinearConv", (raw(2, 3, 4, 5), one(0.02), one(120, "uint8"), raw(6, 3, 1, 1, **I8),
                         scales(6), one(0, "int8"), one(0.9), one(100, "uint8"),
                         np.arange(-900, 900, 300, dtype=np.int32)), reference=_qlinear_conv),
)  # fmt: skip


def _conv(x: np.ndarray, w: np.ndarray) -> Any:
    """A 3x3 convolution of stride 2 without a rim."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,mcij->nmhw", windows, w)


def _linear(f: Any, count: int = 1) -> Any:
    """The reference of an operator on integers: f of the reals that they stand for, rounded."""

    def compute(*a: Any, **attrs: Any) -> list[np.ndarray]:
        reals = [(a[3 * i].astype(float) - a[3 * i + 2]) * a[3 * i + 1] for i in range(count)]
        scale, zero = a[3 * count :]
        return [np.clip(np.rint(f(*reals, **attrs) / scale) + zero, *LIMITS[str(zero.dtype)])]

    return compute


def _softmax(x: np.ndarray, axis: int, opset: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _average(x: np.ndarray, **_: Any) -> Any:
    """Windows of 2x2, stride 2."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))


def _concat(sy: Any, zy: Any, *a: Any, axis: int) -> Any:
    return _linear(lambda *reals: np.concatenate(reals, axis), len(a) // 3)(*a, sy, zy)


def _where(condition: Any, *a: Any) -> Any:
    return _linear(lambda x, y: np.where(condition, x, y), 2)(*a)


def _gemm(*a: Any, **_: Any) -> list[np.ndarray]:
    """By transposed weights, with a bias and a result of integers."""
    x, sx, zx, w, sw, zw, b, sy, zy = a
    total = _integer(x, w.T, zx.astype(int), zw.astype(int))[0] + b
    return [np.clip(np.rint(total * (sx * sw / sy)) + zy, *LIMITS[str(zy.dtype)])]


def _to_float(a: Any, b: Any, sa: Any, sb: Any, za: Any = None, zb: Any = None,
              bias: Any = None) -> list[np.ndarray]:  # fmt: skip
    (total,) = _integer(a, b, *(0 if z is None else z.astype(int) for z in (za, zb)))
    return [total * (sa * sb) + (0 if bias is None else bias)]


def _dynamic_matmul(x: Any, b: Any, sb: Any, zb: Any = None, bias: Any = None) -> list[np.ndarray]:
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    return _to_float(np.rint(x / scale) + zero, b, scale, sb, zero, zb, bias)


def _qattention(x: Any, w: Any, b: Any, sx: Any, sw: Any, mask: Any = None, zx: Any = None,
                zw: Any = None, past: Any = None, **attrs: Any) -> list[Any]:  # fmt: skip
    (product,) = _to_float(x, w, sx, sw, zx, zw, b)
    return attend_joined(product, mask, past, **attrs)


_X = (one(0.0213), one(120, "uint8"))  # scales and zero points of activations
_Z = (one(0.0517), one(100, "uint8"))
OPERATORS = (
    Case("QLinearAdd", (raw(2, 3, 4), *_X, raw(3, 4), one(0.0371), one(2, "uint8"), *_Z),
         domain=MS, reference=_linear(np.add, 2)),
    Case("QLinearMul", (raw(2, 3, 4, **I8), one(0.0213), one(-3, "int8"), raw(4, **I8),
                        one(0.0371), one(2, "int8"), one(0.0517), one(5, "int8")),
         domain=MS, reference=_linear(np.multiply, 2)),
    Case("QLinearSigmoid", (raw(3, 40), *_X, one(0.00391), one(0, "uint8")), domain=MS,
         reference=_linear(lambda x: 1 / (1 + np.exp(-x)))),
    Case("QLinearLeakyRelu", (raw(3, 40), *_X, *_Z), {"alpha": 0.21}, domain=MS,
         reference=_linear(lambda x, alpha: np.where(x < 0, alpha * x, x))),
    Case("QLinearSoftmax", (raw(3, 10), *_X, one(0.00391), one(0, "uint8")),
         {"axis": -1, "opset": 13}, domain=MS, reference=_linear(_softmax)),
    Case("QLinearGlobalAveragePool", (raw(2, 3, 4, 5), *_X, *_Z), domain=MS,
         reference=_linear(lambda x: x.mean((2, 3), keepdims=True))),
    Case("QLinearAveragePool", (raw(2, 3, 4, 6), *_X, *_Z),
         {"kernel_shape": [2, 2], "strides": [2, 2]}, domain=MS, reference=_linear(_average)),
    Case("QLinearConcat", (*_Z, raw(2, 3), *_X, raw(2, 5), one(0.0371), one(2, "uint8")),
         {"axis": 1}, domain=MS, reference=_concat),
    Case("QGemm", (raw(5, 21), *_X, fixed(12, 21), scales(12), np.zeros(12, np.int8),
                   np.arange(-600, 600, 100, dtype=np.int32), one(0.9), one(100, "uint8")),
         {"transB": 1}, domain=MS, reference=_gemm),
    Case("QLinearWhere", (fed(np.eye(3, 4) > 0, "bool"), raw(3, 4), *_X, raw(4), one(0.0371),
                          one(2, "uint8"), *_Z), domain=MS, reference=_where),
    Case("MatMulIntegerToFloat", (raw(2, 5, 21), fixed(21, 12), one(0.02), scales(12),
                                  one(120, "uint8"), np.zeros(12, np.int8), f32(12)), domain=MS,
         reference=_to_float),
    Case("MatMulIntegerToFloat", (raw(5, 21), raw(21, 12), f32(1, **ANY), f32(**ANY), None,
                                  one(128, "uint8")), domain=MS, reference=_to_float),
    Case("ScaledSums", (Tensor((5, 12), "int32", -9000, 9000), f32(**ANY), scales(12), f32(12)),
         domain="engine", reference=lambda total, a, b, bias: [total * (a * b) + bias]),
    Case("ScaledSums", (Tensor((5, 12, 3), "int32", -9000, 9000), f32(**ANY), scales(12), f32(12)),
         {"axis": 1}, domain="engine", reference=lambda total, a, b, bias, axis: [
             total * (a * b)[:, None] + bias[:, None]]),
    Case("DynamicQuantizeMatMul", (f32(2, 5, 21), fixed(21, 12), scales(12), None, f32(12)),
         domain=MS, tol=2e-5, reference=_dynamic_matmul),
    Case("DynamicQuantizeMatMul", (f32(5, 21), zeros(21, 12), one(0.02), one(128, "uint8")),
         domain=MS, tol=2e-5, reference=_dynamic_matmul),
)  # fmt: skip


def _attention() -> Iterator[Case]:
    """Static and dynamic scales, one scale and one for each column, masks, keys from before."""
    b, heads = f32(24), {"num_heads": 2}
    x, w, past = raw(2, 5, 8), fixed(8, 24), f32(2, 2, 2, 3, 4)
    still, moving = (one(0.02), scales(24)), (f32(**ANY), one(0.02))
    none, points = np.zeros(24, np.int8), (one(120, "uint8"), one(3, "int8"))
    rows: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((x, w, b, *still, None, one(120, "uint8"), none), {}),
        ((x, w, b, *moving, np.array([3, 5], np.int32), raw(), none[0]), {}),
        ((x, w, b, *moving), {"unidirectional": 1, "scale": 0.3}),
        ((x, w, b, *still, None, *points), {"unidirectional": 1}),
        ((x, w, b, *still, np.ones((2, 8), np.int32), *points, past), {"unidirectional": 1}),
    )
    for ins, attrs in rows:
        yield Case("QAttention", ins, {**heads, **attrs}, domain=MS, tol=1e-5,
                   outs=1 + any(t is past for t in ins), reference=_qattention)  # fmt: skip


def _lstm(x: Any, w: Any, r: Any, *ins: Any, **attrs: Any) -> list[Any]:
    """By weights that are transposed and have scales for a direction or for each channel."""
    scale, zero, r_scale, r_zero = (
        a.astype(float).reshape(len(w), 1, -1).swapaxes(1, 2) for a in ins[5:]
    )
    w, r = (w.swapaxes(1, 2) - zero) * scale, (r.swapaxes(1, 2) - r_zero) * r_scale
    return list(recurrence("LSTM", x, w, r, *ins[:5], **attrs)[:3])


def _lstms() -> Iterator[Case]:
    """Signed and unsigned weights, a scale for each direction or channel, all optional inputs."""
    n, i, t, b = 6, 5, 4, 3
    both: dict[str, Any] = {"direction": "bidirectional"}
    rows: tuple[tuple[int, tuple[int, ...], tuple[int, str], dict[str, Any]], ...] = (
        (1, (), (0, "int8"), {}),
        (2, (4 * n,), (0, "int8"), both),
        (1, (), (128, "uint8"), {"direction": "reverse", "clip": 0.7, "input_forget": 1}),
        (2, (), (128, "uint8"), {**both, "activations": ["Sigmoid", "Tanh", "Relu"] * 2}),
    )
    for d, per, (low, kind), more in rows:
        side = [scales(d, *per) / 4, np.full((d, *per), low, kind)]
        full = d == 2 and bool(per)
        rest = [
            f32(d, 8 * n),
            np.array([4, 2, 3], np.int32) if full else None,
            *([f32(d, b, n)] * 2 if full else [None] * 2),
            f32(d, 3 * n) if full else None,
        ]
        weights = [
            np.random.default_rng(5).integers(*LIMITS[kind], (d, k, 4 * n)).astype(kind)
            for k in (i, n)
        ]
        grad = (0, 3, 5, 6) if full else (0, 3)
        ins = (f32(t, b, i), *weights, *rest, *side, *side)
        attrs = {"hidden_size": n, **more}
        yield Case("DynamicQuantizeLSTM", ins, attrs, grad, MS, outs=3, tol=4e-6, reference=_lstm)


def _lstms_of_integers() -> Iterator[Case]:
    """One direction and two, all optional inputs; states have 8 bits in the products."""
    t, b, n = 4, 3, 10
    for d, more in ((1, {}), (2, {"direction": "bidirectional"})):
        r = np.random.default_rng(5).integers(-128, 128, (d, n, 4 * n)).astype(np.int8)
        scale, full = scales(d, 4 * n) / 10, d == 2
        panels = (
            np.stack([pack_panels(q).reshape(-1) for q in r]),
            np.stack([fill_panels(q.sum(0, dtype=np.int32)) for q in r]),
            np.stack([fill_panels(s) for s in scale]),
        )
        side = (np.array([4, 2, 3], np.int32), *[f32(d, b, n)] * 2, f32(d, 3 * n))

        def compute(
            g: Any, *ins: Any, r: Any = r, scale: Any = scale, d: int = d, **attrs: Any
        ) -> list[Any]:
            each = np.eye(d * 4 * n).reshape(d, 4 * n, -1)  # g has the products by W of each
            real = r.swapaxes(1, 2) * scale.astype(float)[:, :, None]
            made = recurrence("LSTM", g, each, real, None, *ins[3:], read=round_to_bytes, **attrs)
            return list(made[:3])

        yield Case(
            "LSTMOfIntegers", (f32(t, b, d * 4 * n), *panels, *(side if full else ())),
            {"hidden_size": n, **more}, domain="engine", outs=3, tol=1e-4, reference=compute,
        )  # fmt: skip


def _fake(x: Any, scale: Any, zero: Any, quant_min: int = 0, quant_max: int = 255) -> list[Any]:
    level = np.rint(x / scale) + zero
    value = (np.clip(level, quant_min, quant_max) - zero) * scale
    return [value, (level >= quant_min) & (level <= quant_max)]


FAKE = (
    Case("FakeQuant", (f32(3, 40), f32(low=0.01, high=0.02), one(100.0)), domain=MS, outs=2,
         reference=_fake),
    Case("FakeQuant", (f32(3, 40), one(0.02), one(-3.0)), {"quant_min": -128, "quant_max": 127},
         domain=MS, outs=2, reference=_fake),
    Case("FakeQuant", (f32(3, 4), scales(4), one(3.0)), domain=MS,
         reference=lambda x, s, z: _fake(x, s, z)[:1]),
    Case("FakeQuant", (f32(30, low=9.0, high=10.0), f32(low=0.02, high=0.03), one(3.0)),
         grad=(0, 1), domain=MS,
         reference=lambda x, s, z: _fake(x, s, z)[:1], name="fake-quant-outside"),
    Case("FakeQuantGrad", (f32(3, 4), fed(np.eye(3, 4) > 0, "bool")), domain=MS,
         reference=lambda dy, mask: [dy * mask]),
    *(Case(op, (f32(3, 40), one(0.02), one(3.0)), {"quant_min": 0.0, "quant_max": 80.0},
           domain="engine", reference=lambda x, s, z, k=k, **bounds: [_fake(x, s, z, **bounds)[k]])
      for k, op in enumerate(("FakeQuantValue", "FakeQuantMask"))),
    *(Case("QuantizeDequantize",
           (f32(2, 3, 4, low=low, high=low + 4), f32(3, low=0.01, high=0.05), zeros(3)),
           {"quant_min": 0, "quant_max": 255}, grad, "engine", name=f"quantize-dequantize-{low}",
           reference=lambda x, s, z, **_: _fake(x, s[:, None], z[:, None].astype(float))[:1])
      for low, grad in ((-2.0, ()), (30.0, (0, 1)))),
    Case("QuantizeDequantize", (f32(2, 5), scales(2, 3), zeros(2, 3)),
         {"quant_min": 0, "quant_max": 255, "block_size": 2}, (), "engine",
         reference=lambda x, s, z, **_: _fake(x, s[:, BLOCK], z[:, BLOCK].astype(float))[:1]),
)  # fmt: skip


def _scale(w: np.ndarray, axis: int = -1, bits: int = 8) -> list[np.ndarray]:
    """The scales of weights: of their channels, or of all."""
    over = tuple(k for k in range(w.ndim) if k != axis)
    scale = np.abs(w).max(over) / (2 ** (bits - 1) - 1)
    return [np.where(scale == 0, 1, scale).astype(w.dtype)]


def _round(w: np.ndarray, scale: np.ndarray, axis: int = -1, bits: int = 8) -> list[np.ndarray]:
    """Weights rounded to scales."""
    along = scale.reshape([-1 if k == axis else 1 for k in range(w.ndim)]) if axis >= 0 else scale
    top = 2 ** (bits - 1) - 1
    return [(np.clip(np.rint(w / along), -top, top) * along).astype(w.dtype)]


def _learn(
    x: np.ndarray, t: np.ndarray, initial: Any, axis: int = -1, **_: Any
) -> list[np.ndarray]:
    """The scales that a parameter has moved."""
    scale = np.asarray(initial, x.dtype) * np.exp(t)
    return [scale if axis >= 0 else scale.reshape(())]


STEP = 0.125  # of a learned scale whose parameter has the gradient that differences give: 1 / 64
# is its square and 1 / 64 = 1 / sqrt(4096), of 64 elements and 64 integers, or 32 and 128
ROUNDED = (
    *(Case("PeakScale", (f32(4, 3, 3, 3),), {"axis": 0, "bits": bits}, domain="engine",
           reference=_scale, name=f"peak-scale-{bits}") for bits in (8, 4, 2)),
    Case("PeakScale", (f32(5, 6),), {"axis": 1}, domain="engine", reference=_scale),
    Case("PeakScale", (f32(5, 6),), domain="engine", reference=_scale),
    Case("PeakScale", (np.array([[0.0, 0.0], [0.3, -1.2]], np.float32),), {"axis": 0},
         domain="engine", reference=_scale, name="peak-scale-nothing"),
    *(Case("RoundWeights", (f32(4, 3, 3, 3), scales(4)), {"axis": 0, "bits": bits},
           domain="engine", reference=_round, name=f"round-weights-{bits}") for bits in (8, 4, 2)),
    Case("RoundWeights", (f32(5, 6), scales(6)), {"axis": 1}, domain="engine", reference=_round),
    Case("RoundWeights", (f32(5, 6), one(0.02)), domain="engine", reference=_round),
    Case("RoundBias", (f32(4), scales(4), one(0.02)), domain="engine",
         reference=lambda b, s, u: [np.rint(b / (s * u)) * (s * u)]),
    Case("RoundBias", (f32(6), one(0.03), one(0.1)), domain="engine",
         reference=lambda b, s, u: [np.rint(b / (s * u)) * (s * u)]),
    *(Case("LearnedScale", (f32(3, 4, 5), f32(1)), {"initial": [0.02], "samples": samples},
           domain="engine", reference=_learn) for samples in (0, 1)),
    Case("LearnedScale", (f32(3, 4), f32(4)), {"initial": [0.5, 1.0, 2.0, 0.1], "axis": 1},
         domain="engine", reference=_learn),
    # Differences confirm gradients of roundings only where rounding changes nothing, or all is
    # outside; tests/ops/test_quantization.py has the others.
    Case("RoundWeights", (f32(6, 4, low=9.0, high=10.0), f32(6, low=0.01, high=0.05)),
         {"axis": 0}, (0, 1), "engine", reference=_round, name="round-weights-outside"),
    Case("RoundWeights", (f32(6, 4, low=-10.0, high=-9.0), f32(low=0.01, high=0.05)),
         {"bits": 4}, (0, 1), "engine", reference=_round, name="round-weights-below"),
    Case("RoundBias", (f32(4), f32(4, low=0.01, high=0.05), one(1e-12)), {}, (0,), "engine",
         reference=lambda b, s, u: [np.rint(b / (s * u)) * (s * u)], name="round-bias-finely"),
    Case("LearnedScale", (f32(7, 4, 16), f32(1, low=-1e-6, high=1e-6)),
         {"initial": [STEP], "samples": 1, "top": 64}, (1,), "engine", reference=_learn,
         name="learned-scale-slope"),
    Case("LearnedScale", (f32(4, 2, 8, 4), f32(2, low=-1e-6, high=1e-6)),
         {"initial": [STEP, STEP], "axis": 1, "top": 32}, (1,), "engine", reference=_learn,
         name="learned-scale-slope-of-channels"),
)  # fmt: skip


def _track(
    x: np.ndarray, bounds: np.ndarray, signed: int = 0, symmetric: int = 0,
    momentum: float = 0.99, training_mode: int = 0,
) -> list[Any]:  # fmt: skip
    """Scale and zero point of a range that has moved, and the range of the batch."""
    batch = np.array([x.min(), x.max()])
    low, high = momentum * bounds + (1 - momentum) * batch if training_mode else bounds
    low, high = min(low, 0), max(high, 0)
    least, kind = (-128, "int8") if signed else (0, "uint8")
    scale = max(-low, high) / 127 if symmetric else (high - low) / 255
    scale = scale or 1.0
    zero = least + 128 if symmetric else np.clip(np.rint(least - low / scale), least, least + 255)
    made = [np.asarray(scale, x.dtype), np.asarray(zero, kind), batch.astype(x.dtype)]
    return made if training_mode else made[:2]


TRACKED = (
    *(Case("TrackedScale", (f32(2, 3, 5, low=-2.0, high=4.0), np.array([-1.3, 2.7], np.float32)),
           {"signed": signed, "symmetric": symmetric, "momentum": 0.75, "training_mode": mode},
           domain="engine", outs=2 + mode, reference=_track,
           name=f"tracked-scale-{signed}{symmetric}{mode}")
      for signed in (0, 1) for symmetric in (0, 1) for mode in (0, 1)),
    Case("TrackedScale", (f32(7), np.array([0.5, 2.7], np.float32)), domain="engine", outs=2,
         reference=_track, name="tracked-scale-positive"),
    Case("TrackedScale", (f32(7), np.zeros(2, np.float32)), domain="engine", outs=2,
         reference=_track, name="tracked-scale-nothing"),
)  # fmt: skip

CASES = (
    *QUANTIZE, *DEQUANTIZE, *PRODUCTS, *OPERATORS, *_attention(), *_lstms(), *_lstms_of_integers(),
    *FAKE, *ROUNDED, *TRACKED,
)  # fmt: skip
