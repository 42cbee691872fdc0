"""Case rows of kernels/ops/sampling/roi.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32
from engine.tools.dev.cases.pool import Apart

# One inside, one over two edges, one smaller than a pixel, one that is nowhere.
_REGIONS = np.array(
    [[0.3, 1.1, 4.7, 5.2], [-1.5, 2, 3, 9.5], [2, 3, 2.4, 3.3], [20, 20, 25, 26]], np.float32
)
_IMAGES = np.array([1, 0, 1, 0])


def _align(channels: int, images: np.ndarray = _IMAGES, **attrs: Any) -> Case:
    more = {"output_height": 3, "output_width": 2, **attrs}
    ins = (f32(2, channels, 7, 6), _REGIONS, images)
    return Case("RoiAlign", ins, more, grad=(0,), opset=16, tol=4e-6)


def _largest(x: np.ndarray, rois: np.ndarray, **attrs: Any) -> np.ndarray:
    """The definition of Fast R-CNN."""
    rows, columns = attrs["pooled_shape"]
    y = np.zeros((len(rois), x.shape[1], rows, columns))
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (int(np.floor(v * attrs.get("spatial_scale", 1) + 0.5)) for v in corners)
        h, w = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i, j in np.ndindex(rows, columns):
            top, left = y1 + i * h // rows, x1 + j * w // columns
            bottom, right = y1 - (-(i + 1) * h // rows), x1 - (-(j + 1) * w // columns)
            part = x[int(n), :, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
            if part.size:
                y[r, :, i, j] = part.max((1, 2))
    return y


_POOLED = np.array([[0, 1, 0, 4, 5], [1, -2, 3, 2, 9], [0, 2, 2, 2, 2], [1, 9, 9, 12, 12]])
CASES = (
    _align(3),
    _align(2, _IMAGES.astype(np.int32)),
    _align(3, coordinate_transformation_mode="output_half_pixel"),
    _align(20, sampling_ratio=2, spatial_scale=0.5),
    _align(3, mode="max", sampling_ratio=2),
    _align(2, mode="max", coordinate_transformation_mode="output_half_pixel"),
    Case("MaxRoiPool", (Apart((2, 3, 7, 6)), _POOLED.astype(np.float32)), {"pooled_shape": [3, 2]},
         grad=(0,), reference=_largest, tol=0),
    Case("MaxRoiPool", (Apart((2, 20, 4, 3)), _POOLED.astype(np.float32)),
         {"pooled_shape": [1, 2], "spatial_scale": 0.5}, grad=(0,), reference=_largest, tol=0),
)  # fmt: skip
