"""Case rows of kernels/ops/norm/groupnorm.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, f32


def group(x: Any, scale: Any, b: Any, num_groups: Any, epsilon: float = 1e-5, **_: Any) -> Any:
    h = x.reshape(x.shape[0], num_groups, -1)
    h = (h - h.mean(2, keepdims=True)) / np.sqrt(h.var(2, keepdims=True) + epsilon)
    if len(scale) == x.shape[1]:
        column = (-1, *[1] * (x.ndim - 2))
        return [h.reshape(x.shape) * scale.reshape(column) + b.reshape(column)]
    return [(h * scale[:, None] + b[:, None]).reshape(x.shape)]


def group_ms(
    x: Any,
    scale: Any,
    b: Any,
    groups: Any,
    activation: int = 0,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Any:
    if channels_last:
        x = np.moveaxis(x, 3, 1)
    (y,) = group(x, scale, b, groups, epsilon)
    y = y / (1 + np.exp(-y)) if activation else y
    return [np.moveaxis(y, 1, 3) if channels_last else y]


def lp(x: Any, axis: int = -1, p: int = 2) -> Any:  # reference: 0 stays 0
    size = np.linalg.norm(x, p, axis, keepdims=True)
    return [x / np.where(size == 0, 1, size)]


def mean_variance(x: Any, axes: Any = (0, 2, 3)) -> Any:
    axes = tuple(axes)
    return [(x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)]


def response(x: Any, size: Any, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(x.shape[1], c + size // 2 + 1)
        near = (x[:, first:last] ** 2).sum(1)
        y[:, c] = x[:, c] / (bias + alpha / size * near) ** beta
    return [y]


IMAGES = ((2, 6, 4, 5), (3, 12, 17), (1, 6, 2, 3, 4))
CASES = (
    *(
        Case("InstanceNormalization", (f32(*s), f32(s[1]), f32(s[1])), {"epsilon": 1e-3},
             grad=(0, 1, 2))
        for s in IMAGES
    ),
    *(
        Case("GroupNormalization", (f32(*s), f32(n), f32(n)), {"num_groups": 3}, grad=(0, 1, 2),
             opset=opset, reference=group)
        for s in IMAGES for opset, n in ((18, 3), (21, s[1]))
    ),
    *(
        Case("GroupNorm", (f32(2, 4, 5, 6), f32(c), f32(c)),
             {"groups": 2, "activation": a, "channels_last": last}, grad=(0, 1, 2), domain=MS,
             reference=group_ms)
        for a, last, c in ((0, 1, 6), (1, 1, 6), (1, 0, 4))
    ),
    *(
        Case("LpNormalization", (f32(3, 4, 5, avoid=0.0),), {"axis": axis, "p": p}, grad=(0,),
             opset=opset, reference=lp)
        for axis, p, opset in ((-1, 2, 17), (1, 1, 17), (0, 2, 22))
    ),
    Case("LpNormalization", (np.zeros((2, 3), np.float32),), reference=lp, name="lp-zero"),
    Case("MeanVarianceNormalization", (f32(3, 4, 5, 6),), grad=(0,), reference=mean_variance),
    Case("MeanVarianceNormalization", (f32(3, 4, 5),), {"axes": [-1, 1]}, grad=(0,), opset=18,
         reference=mean_variance),
    *(
        Case("LRN", (f32(2, 7, 4, 3),), {"size": size, "alpha": 0.7, "beta": 0.6, "bias": 1.5},
             grad=(0,), reference=response)
        for size in (1, 3, 4, 9)
    ),
    Case("LRN", (f32(1, 5, 6),), {"size": 3}, grad=(0,), reference=response),
    Case("GroupNormalization", (f32(8, 64, 28, 28), f32(64), f32(64)), {"num_groups": 8},
         grad=(0, 1, 2), opset=21, reference=group, bench=True, name="unet-groupnorm"),
)  # fmt: skip
