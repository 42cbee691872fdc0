"""Case rows of kernels/ops/pool/lp_pool.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.dev.cases.pool import DILATED, WINDOWS, windows_of


def _norms(x: np.ndarray, p: int = 2, **attrs: Any) -> np.ndarray:
    """The norm of each window of |x|; windows hold nothing of the padding."""
    axes = windows_of(x, attrs)
    y = np.empty((*x.shape[:2], *map(len, axes)))
    for n, c, *o in np.ndindex(*y.shape):
        seen = np.meshgrid(*(axis[i] for axis, i in zip(axes, o, strict=True)), indexing="ij")
        y[n, c, *o] = np.sum(np.abs(x[n, c][tuple(seen)]) ** p) ** (1 / p)
    return y


def _global(x: np.ndarray, p: int = 2) -> Any:
    axes = tuple(range(2, x.ndim))
    return np.sum(np.abs(x) ** p, axes, keepdims=True) ** (1 / p)


class Dead(Tensor):
    """Random numbers with an image of zeros."""

    def make(self, rng: np.random.Generator) -> np.ndarray:
        x = super().make(rng)
        x[0] = 0
        return x


CASES = (
    *(
        Case("LpPool", (f32(*shape, avoid=0),), {**attrs, "p": 1 + i % 3}, grad=(0,), opset=18,
             reference=_norms, tol=4e-6)
        for i, (shape, attrs) in enumerate((*WINDOWS, *DILATED))
    ),
    Case("LpPool", (Dead((2, 2, 4, 4), avoid=0),), {"kernel_shape": [2, 2]}, grad=(0,), opset=18,
         reference=_norms),
    *(
        Case("GlobalLpPool", (f32(*shape, avoid=0),), {"p": p}, grad=(0,), reference=_global,
             tol=4e-6)
        for p, shape in ((1, (2, 3, 4, 5)), (2, (1, 20, 3, 3)), (3, (2, 3, 7)))
    ),
)  # fmt: skip
