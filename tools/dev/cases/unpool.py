"""Case rows of kernels/ops/pool/unpool.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32

_PLACES = np.array([[[[0, 3, 5], [14, 17, 11]]]])  # in 3 x 6, of windows of 2 x 2 and 1 x 2
_LATER = np.concatenate([_PLACES, _PLACES + 18], 1)


def _unpool(x: np.ndarray, places: np.ndarray, shape: Any = None, **attrs: Any) -> np.ndarray:
    inner = [(n - 1) * s + k for n, s, k in
             zip(x.shape[2:], attrs["strides"], attrs["kernel_shape"], strict=True)]  # fmt: skip
    y = np.zeros((*x.shape[:2], *inner))
    y.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    ends = [n - d for n, d in zip(y.shape if shape is None else shape, y.shape, strict=True)]
    return np.pad(y, [(0, end) for end in ends])


_WINDOW = {"kernel_shape": [2, 2], "strides": [1, 2]}
CASES = (
    Case("MaxUnpool", (f32(1, 2, 2, 3), _LATER), _WINDOW, grad=(0,), reference=_unpool, tol=0),
    Case("MaxUnpool", (f32(1, 1, 2, 3), _PLACES, np.array([1, 1, 5, 7])), _WINDOW, grad=(0,),
         reference=_unpool, tol=0),
)  # fmt: skip
