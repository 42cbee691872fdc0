"""Case rows of kernels/ops/norm/layernorm.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, f32, i32


def layer(
    x: Any, scale: Any, b: Any = None, axis: int = -1, epsilon: float = 1e-5, rms: int = 0, **_: Any
) -> Any:
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True) * (1 - rms)
    inv = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    y = (x - mean) * inv * scale
    return [y if b is None else y + b, mean, inv]


def simplified(x: Any, scale: Any, **attrs: Any) -> Any:
    return layer(x, scale, rms=1, **attrs)[::2]


def gradient(dy: Any, x: Any, scale: Any, mean: Any, inv: Any, axis: int = -1, rms: int = 0) -> Any:
    axes, rows = tuple(range(axis % x.ndim, x.ndim)), tuple(range(axis % x.ndim))
    h, g = (x - mean) * inv, dy * scale
    level = g.mean(axes, keepdims=True) * (1 - rms)
    dx = inv * (g - level - h * (g * h).mean(axes, keepdims=True))
    return [dx, (dy * h).sum(rows), dy.sum(rows)]


def simplified_gradient(dy: Any, x: Any, scale: Any, inv: Any, axis: int = -1) -> Any:
    return gradient(dy, x, scale, 0, inv, axis, 1)[:2]


def invertible_gradient(dy: Any, y: Any, scale: Any, b: Any, inv: Any, axis: int = -1) -> Any:
    return gradient(dy, (y - b) / scale / inv, scale, 0, inv, axis)


def skip(
    x: Any, other: Any, scale: Any, b: Any = None, bias: Any = 0, epsilon: float = 1e-12
) -> Any:
    total = x + other + (0 if bias is None else bias)
    return [*layer(total, scale, b, epsilon=epsilon), total]


def skip_simplified(x: Any, other: Any, scale: Any, bias: Any = 0, epsilon: float = 1e-12) -> Any:
    total = x + other + bias
    return [layer(total, scale, epsilon=epsilon, rms=1)[0], total]


def standard(x: Any, axis: int = -1, epsilon: float = 1e-5, rms: int = 0) -> Any:
    return layer(x, 1, axis=axis, epsilon=epsilon, rms=rms)


def standard_gradient(dy: Any, x: Any, mean: Any, inv: Any, axis: int = -1, rms: int = 0) -> Any:
    return gradient(dy, x, 1, mean, inv, axis, rms)[:1]


def embed(
    ids: Any,
    segments: Any,
    words: Any,
    places: Any,
    kinds: Any,
    scale: Any,
    b: Any,
    mask: Any,
    epsilon: float = 1e-12,
) -> Any:
    total = words[ids] + places[: ids.shape[1]] + kinds[segments]
    return [layer(total, scale, b, epsilon=epsilon)[0], mask.sum(1), total]


POSITIVE = {"low": 0.5, "high": 2.0}
SHAPES = (((6, 20), -1), ((3, 4, 33), -1), ((2, 3, 4, 5), 2), ((5, 4, 7), 1), ((2, 5000), 1))


def _kept(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(1 if i >= axis % len(shape) else d for i, d in enumerate(shape))


def _rows(shape: tuple[int, ...], axis: int) -> tuple[Case, ...]:
    at = {"axis": axis}
    n, kept = shape[axis % len(shape) :], _kept(shape, axis)
    x, v, m, inv = f32(*shape), f32(*n), f32(*kept), f32(*kept, **POSITIVE)
    ln, grad = "LayerNormalization", "LayerNormalizationGrad"
    return (
        Case(ln, (x, v, v), at, outs=3, reference=layer, name=f"{ln}-stash-{shape}"),
        Case(ln, (x, v, v), at, grad=(0, 1, 2)),
        Case(ln, (x, v), at, grad=(0, 1)),
        Case("Simplified" + ln, (x, v), at, outs=2, reference=simplified),
        Case("Simplified" + ln, (x, v), at, grad=(0, 1),
             reference=lambda *a, **k: simplified(*a, **k)[:1]),
        Case("RMSNormalization", (x, v), at, grad=(0, 1), opset=23),
        Case("Standardize", (x,), at, outs=3, domain="engine", reference=standard),
        Case("Standardize", (x,), at, grad=(0,), domain="engine",
             reference=lambda *a, **k: standard(*a, **k)[:1]),
        Case(grad, (x, x, v, m, inv), at, outs=3, domain=MS, reference=gradient),
        Case("Simplified" + grad, (x, x, v, inv), at, outs=2, domain=MS,
             reference=simplified_gradient),
        Case("StandardizeGrad", (x, x, m, inv), at, domain="engine", reference=standard_gradient),
        Case("Invertible" + grad, (x, x, f32(*n, **POSITIVE), v, inv), at, outs=3, domain=MS,
             reference=invertible_gradient, tol=1e-5),
    )  # fmt: skip


_S = ((2, 3, 16), (16,))
_X, _V = f32(*_S[0]), f32(*_S[1])
CASES = (
    *(case for shape, axis in SHAPES for case in _rows(shape, axis)),
    Case("LayerNormalization", (f32(4, 3, 5), f32(1), f32(3, 1)), {"axis": 1}, grad=(0, 1, 2),
         name="layernorm-broadcast"),
    Case("RMSNormalization", (f32(4, 3, 5), f32(3, 1)), {"axis": 1}, grad=(0, 1), opset=23,
         name="rmsnorm-broadcast"),
    Case("LayerNormalization", (f32(3, 40, low=999.5, high=1000.5), f32(40)), tol=1e-4,
         name="layernorm-far-mean"),
    Case("SkipLayerNormalization", (_X, _X, _V, _V, _V), outs=4, domain=MS, reference=skip),
    Case("SkipLayerNormalization", (_X, f32(3, 16), _V, None, _V), outs=("y", "", "", "s"),
         domain=MS, reference=lambda *a, **k: skip(*a, **k)[::3], name="skip-layernorm-broadcast"),
    Case("SkipLayerNormalization", (_X, _X, _V, _V), grad=(0, 1, 2, 3), domain=MS,
         reference=lambda *a, **k: skip(*a, **k)[:1], name="skip-layernorm"),
    Case("SkipSimplifiedLayerNormalization", (_X, _X, _V, _V), {"epsilon": 1e-5}, grad=(0, 1, 2, 3),
         outs=("y", "", "", "s"), domain=MS, reference=skip_simplified),
    Case("EmbedLayerNormalization",
         (i32(2, 5), i32(2, 5, high=2), f32(10, 16), f32(8, 16), f32(2, 16), _V, _V,
          np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], np.int32)),
         grad=(2, 3, 4, 5, 6), outs=("y", "", "s"), domain=MS,
         reference=lambda *a, **k: embed(*a, **k)[::2], name="embed-layernorm"),
    Case("LayerNormalization", (f32(1024, 384), f32(384), f32(384)), grad=(0, 1, 2), bench=True,
         name="minilm-layernorm"),
    Case("LayerNormalizationGrad",
         (f32(1024, 384), f32(1024, 384), f32(384), f32(1024, 1), f32(1024, 1, **POSITIVE)),
         outs=3, domain=MS, reference=gradient, bench=True, tol=1e-5, name="minilm-layernorm-grad"),
)  # fmt: skip
