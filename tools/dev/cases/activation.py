"""Activations: every formula with its gradient, at usual and at huge arguments, in every opset."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32, fed, i64

OFF_ZERO = {"avoid": 0.0}
WIDE = {"low": -1e4, "high": 1e4}


def erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * np.asarray(x))


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_slope(x: Any) -> Any:
    return 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def fast_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def fast_gelu_slope(x: Any) -> Any:
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner


def swish_slope(x: Any, alpha: float) -> Any:
    s = sigmoid(alpha * x)
    return s + alpha * x * s * (1 - s)


def mish(x: Any) -> list[np.ndarray]:
    return [x * np.tanh(np.logaddexp(x, 0))]


def activated(x: Any, name: str, *params: float) -> Any:
    """An activation as in products, with its parameters in their order."""
    a, b = (*params, 0.0, 0.0)[:2]
    match name:
        case "":
            return x
        case "Relu":
            return np.maximum(x, 0)
        case "Clip":
            return np.clip(x, a, b)
        case "LeakyRelu":
            return np.where(x < 0, a * x, x)
        case "Elu":
            return np.where(x < 0, a * np.expm1(x), x)
        case "HardSigmoid":
            return np.clip(a * x + b, 0, 1)
        case "HardSwish":
            return x * np.clip(x / 6 + 0.5, 0, 1)
        case "Selu":
            return b * np.where(x < 0, a * np.expm1(x), x)
        case "Softplus":
            return np.logaddexp(x, 0)
        case "Softsign":
            return x / (1 + np.abs(x))
        case "ThresholdedRelu":
            return np.where(x > a, x, 0)
        case "Sigmoid":
            return sigmoid(x)
        case "Tanh":
            return np.tanh(x)
        case _:
            raise ValueError(name)


# op, domain, opset, attributes, how its input is drawn, reference where onnx has none
SMOOTH: tuple[tuple[str, str, int, dict[str, Any], dict[str, float], Any], ...] = (
    ("Elu", "", 13, {}, OFF_ZERO, None),
    ("Elu", "", 22, {"alpha": 0.3}, OFF_ZERO, None),
    ("Elu", "", 13, {"alpha": -0.3}, OFF_ZERO, None),
    ("Celu", "", 12, {"alpha": 2.0}, OFF_ZERO, None),
    ("Celu", "", 12, {"alpha": 0.5}, OFF_ZERO, None),
    ("Selu", "", 13, {}, OFF_ZERO, None),
    ("Selu", "", 22, {"alpha": 2.0, "gamma": 3.0}, OFF_ZERO, None),
    ("Selu", "", 22, {"alpha": -2.0}, OFF_ZERO, None),
    ("Softplus", "", 13, {}, {}, lambda x: [np.logaddexp(x, 0)]),
    ("Softsign", "", 13, {}, {}, lambda x: [x / (1 + np.abs(x))]),
    ("Mish", "", 18, {}, {}, mish),
    ("HardSigmoid", "", 13, {}, {"low": -4.0, "high": 4.0}, None),
    ("HardSigmoid", "", 22, {"alpha": 0.7, "beta": 0.4}, {}, None),
    ("HardSwish", "", 14, {}, {"low": -5.0, "high": 5.0}, None),
    ("ThresholdedRelu", "", 13, {}, {"avoid": 1.0}, None),
    ("ThresholdedRelu", "", 22, {"alpha": -0.5}, {"avoid": -0.5}, None),
    ("Shrink", "", 13, {}, {}, None),
    ("Shrink", "", 13, {"lambd": 1.0, "bias": 0.75}, {}, None),
    ("Swish", "", 24, {}, {}, lambda x: [x * sigmoid(x)]),
    ("Swish", "", 24, {"alpha": 1.5}, {}, lambda x, alpha: [x * sigmoid(alpha * x)]),
    ("Gelu", "", 20, {}, {}, None),
    ("Gelu", "", 20, {"approximate": "tanh"}, {}, None),
    ("Gelu", MS, 17, {}, {}, lambda x: [gelu(x)]),
    ("QuickGelu", MS, 17, {}, {}, lambda x: [x * sigmoid(1.702 * x)]),
    ("FastGelu", MS, 17, {}, {}, lambda x: [fast_gelu(x)]),
)

PLAIN = (
    *(Case(op, (f32(5, 7, **kind),), attrs, (0,), domain, opset, reference=ref)
      for op, domain, opset, attrs, kind, ref in SMOOTH),
    *(Case(op, (f32(70, **WIDE),), attrs, (0,), domain, opset, reference=ref,
           name=f"{domain}{op}-wide-{attrs}")
      for op, domain, opset, attrs, _, ref in SMOOTH),
    Case("Mish", (f32(3, 500),), grad=(0,), opset=18, reference=mish, bench=True),
    Case("Gelu", (f32(3, 501),), grad=(0,), opset=20, bench=True),
    Case("Gelu", (f32(3, 501),), {"approximate": "tanh"}, (0,), opset=20, bench=True),
    *(Case("Shrink", (Tensor((40,), "int32", -9, 9),), attrs, name=f"shrink-int32-{attrs}")
      for attrs in ({}, {"lambd": 1.5, "bias": 1.5})),
    *(Case(op, (f32(),), attrs, (), domain, opset, reference=ref, name=f"{op}-scalar-{attrs}")
      for op, domain, opset, attrs, _, ref in SMOOTH[::3]),
)  # fmt: skip

PRELU = (
    Case("PRelu", (f32(2, 3, 4, **OFF_ZERO), f32(3, 1)), grad=(0, 1)),
    Case("PRelu", (f32(2, 3, 4, **OFF_ZERO), f32(1)), grad=(0, 1), opset=9),
    Case("PRelu", (f32(3, 4, **OFF_ZERO), f32(3, 4)), grad=(0, 1)),
    Case("PRelu", (f32(3, 4, **OFF_ZERO), np.array(0.25, "f4")), grad=(0,)),
    Case("PRelu", (i64(3, 4, low=-9, high=9), i64(4)), name="prelu-int64"),
)  # fmt: skip


def _quick_gelu_grad(dy: Any, x: Any, alpha: float = 1.702) -> list[np.ndarray]:
    return [dy * swish_slope(x, alpha)]


CONTRIB = (
    Case("FastGelu", (f32(3, 4), f32(4)), grad=(0, 1), domain=MS,
         reference=lambda x, b: [fast_gelu(x + b)]),
    Case("BiasGelu", (f32(2, 3, 4), f32(4)), grad=(0, 1), domain=MS,
         reference=lambda x, b: [gelu(x + b)]),
    Case("QuickGelu", (f32(3, 4),), {"alpha": 1.0}, (0,), MS,
         reference=lambda x, alpha: [x * sigmoid(alpha * x)]),
    *(Case("GeluGrad", (f32(60), f32(60, **kind)), domain=MS, name=f"gelu-grad-{kind}",
           reference=lambda dy, x: [dy * gelu_slope(x)]) for kind in ({}, WIDE)),
    *(Case("FastGeluGrad", (f32(60), f32(60, **kind)), domain=MS, name=f"fast-gelu-grad-{kind}",
           reference=lambda dy, x: [dy * fast_gelu_slope(x)]) for kind in ({}, WIDE)),
    *(Case("QuickGeluGrad", (f32(60), f32(60, **kind)), attrs, domain=MS,
           name=f"quick-gelu-grad-{kind}", reference=_quick_gelu_grad)
      for kind, attrs in (({}, {"alpha": 1.0}), (WIDE, {}))),
    Case("BiasGeluGrad_dX", (f32(3, 4), f32(3, 4), f32(4)), domain=MS,
         reference=lambda dy, x, b: [dy * gelu_slope(x + b)]),
    Case("BiasFastGeluGrad_dX", (f32(3, 4), f32(3, 4), f32(4)), domain=MS,
         reference=lambda dy, x, b: [dy * fast_gelu_slope(x + b)]),
)  # fmt: skip


def _hardmax_12(x: Any, axis: int = 1) -> list[np.ndarray]:
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    return [(np.arange(flat.shape[1]) == np.argmax(flat, 1)[:, None]).reshape(x.shape) * 1.0]


HARDMAX = (
    Case("Hardmax", (f32(3, 40),), bench=True),
    Case("Hardmax", (f32(2, 3, 4),), {"axis": 1}),
    Case("Hardmax", (fed([[1, 3, 3, 2], [0, 0, 0, 0]]),), name="hardmax-ties"),
    *(Case("Hardmax", (f32(2, 3, 4),), attrs, opset=11, reference=_hardmax_12)
      for attrs in ({}, {"axis": 2})),
)  # fmt: skip

CASES = (*PLAIN, *PRELU, *CONTRIB, *HARDMAX)
