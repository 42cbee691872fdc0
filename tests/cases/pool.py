"""Case rows of kernels/pool.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.case import Case, Tensor, f32


class Apart(Tensor):
    """A random order of numbers 0.01 apart: no two are so close that a small step swaps them."""

    def make(self, rng: np.random.Generator) -> np.ndarray:
        count = int(np.prod(self.shape))
        return (rng.permutation(count).reshape(self.shape) * 0.01 - 1).astype(self.dtype)


# (shape, attributes) of windows that every pool takes.
_WINDOWS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 5, 7, 9), {"kernel_shape": [2, 2], "strides": [2, 2]}),  # a row left over
    ((2, 20, 7, 9), {"kernel_shape": [3, 3]}),
    ((1, 70, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [0, 1, 2, 0]}),
    ((2, 3, 10, 11), {"kernel_shape": [2, 2], "strides": [3, 3]}),  # pixels in no window
    ((2, 17, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, *[1] * 5]}),
    ((1, 16, 1, 1), {"kernel_shape": [1, 1]}),
    ((2, 3, 5, 5), {"kernel_shape": [5, 5]}),
    ((1, 3, 9, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 3, 6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1] * 4}),
    ((1, 3, 7, 7), {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 3, 4, 5), {"kernel_shape": [1, 2], "strides": [2, 3], "ceil_mode": 1}),
    ((2, 3, 7, 8), {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    ((2, 3, 7, 8), {"kernel_shape": [4, 2], "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((2, 3, 7, 8), {"kernel_shape": [3, 2], "auto_pad": "VALID", "strides": [3, 2]}),
)  # fmt: skip
_DILATED = (
    ((2, 3, 9, 9), {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 9), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 2]}),
)
_GLOBAL: tuple[tuple[int, ...], ...] = (
    (2, 3, 7, 7), (1, 40, 5, 6), (3, 70, 4), (2, 3, 3, 4, 5), (2, 16, 1, 1)
)  # fmt: skip


def _max(shape: tuple[int, ...], attrs: dict[str, Any], outs: int = 1) -> Case:
    return Case("MaxPool", (Apart(shape),), attrs, grad=(0,), outs=outs, tol=0)


CASES = (
    *(_max(shape, attrs) for shape, attrs in (*_WINDOWS, *_DILATED)),
    *(_max(shape, attrs, 2) for shape, attrs in (*_WINDOWS[:9], *_DILATED)),
    *(_max(shape, {**attrs, "storage_order": 1}, 2) for shape, attrs in _WINDOWS[:8]),
    *(Case("AveragePool", (f32(*shape),), attrs, grad=(0,)) for shape, attrs in _WINDOWS),
    *(
        Case("AveragePool", (f32(*shape),), {**attrs, "count_include_pad": 1}, grad=(0,), opset=19)
        for shape, attrs in _WINDOWS
    ),
    *(Case("AveragePool", (f32(*shape),), attrs, grad=(0,), opset=19) for shape, attrs in _DILATED),
    *(Case("GlobalAveragePool", (f32(*shape),), grad=(0,)) for shape in _GLOBAL),
    *(Case("GlobalMaxPool", (Apart(shape),), grad=(0,), tol=0) for shape in _GLOBAL),
    Case("MaxPool", (f32(64, 64, 24, 24),), {"kernel_shape": [2, 2], "strides": [2, 2]}, outs=2,
         tol=0, bench=True, name="cnn_pool"),
)  # fmt: skip
