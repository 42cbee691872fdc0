"""Case rows of kernels/ops/sampling/resize.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32


def _row(
    shape: tuple[int, ...], scales: Sequence[float] = (), sizes: Sequence[int] = (), **attrs: Any
) -> Case:
    roi = np.array(attrs.pop("roi"), np.float32) if "roi" in attrs else None
    ins: tuple[Any, ...] = (f32(*shape), roi, np.array(scales, np.float32) if scales else None)
    ins = (*ins, np.array(sizes, np.int64)) if sizes else ins
    newer = {"antialias", "axes", "keep_aspect_ratio_policy"} & set(attrs)
    opset = 19 if newer or "symmetric" in str(attrs) else 17
    return Case("Resize", ins, attrs, grad=(0,), opset=opset)


_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_SMALL = (1, 2, 5, 4)


def _upsample(x: np.ndarray, scales: Any = None, mode: str = "nearest", **attrs: Any) -> np.ndarray:
    """Along the last two axes: the pixel before, or the two around."""
    for axis, scale in zip((2, 3), (scales if scales is not None else attrs["scales"])[2:],
                           strict=True):  # fmt: skip
        at = np.arange(int(x.shape[axis] * scale)) / scale
        low = at.astype(int)
        part = (at - low).reshape(-1, *[1] * (3 - axis)) * (mode != "nearest")
        high = np.minimum(low + 1, x.shape[axis] - 1)
        x = x.take(low, axis) * (1 - part) + x.take(high, axis) * part
    return x


_TWICE = np.array([1, 1, 2, 2], np.float32)
CASES = (
    *(
        _row(_SMALL, (1, 1, 1.75, 0.6), nearest_mode=rounding, coordinate_transformation_mode=mode)
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for mode in ("half_pixel", "asymmetric")
    ),
    *(
        _row(shape, scales, mode=mode, coordinate_transformation_mode=coordinate)
        for shape, scales in ((_SMALL, (1, 1, 2, 2)), ((1, 3, 7, 6), (1, 1, 0.6, 1.75)))
        for mode in ("linear", "cubic")
        for coordinate in _MODES
    ),
    _row(_SMALL, (1, 1, 2.4, 0.6), mode="linear",
         coordinate_transformation_mode="half_pixel_symmetric"),
    _row((2, 20, 5, 4), (1, 1, 2, 2), mode="linear"),  # whole vectors of channels
    _row((2, 20, 5, 4), (1, 1, 3, 2)),
    _row(_SMALL, (), _SMALL, mode="linear"),  # to what it is
    _row((2, 20, 9, 10), (), (2, 20, 4, 3), mode="cubic", antialias=1),
    _row((1, 3, 9, 10), (), (1, 3, 4, 13), mode="linear", antialias=1),
    _row((1, 3, 9, 10), (1, 1, 0.4, 0.3), mode="cubic", antialias=1, exclude_outside=1),
    _row(_SMALL, (1, 1, 1.5, 0.5), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    _row((1, 17, 3, 4, 3), (1, 1, 2, 0.5, 1.4), mode="linear"),
    _row((1, 2, 3, 4, 3), (1, 1, 2, 1, 1.4), mode="linear"),  # two axes that are not neighbours
    _row((2, 3, 9), (1, 1, 2), mode="cubic"),
    _row((4, 5), (2, 0.5), mode="linear"),
    _row((6,), (1.5,), mode="linear"),
    _row((3, 4, 2, 3), (2, 1.5, 1, 1), mode="linear"),  # images and channels
    _row((3, 4, 2, 3), (1, 1, 1, 1), mode="linear"),
    _row((1, 2, 1, 1), (), (1, 2, 3, 4), mode="linear",
         coordinate_transformation_mode="align_corners"),
    _row((1, 2, 4, 6), (), (1, 2, 1, 1), mode="linear",
         coordinate_transformation_mode="pytorch_half_pixel"),
    *(
        _row((1, 18, 4, 5), (), (1, 18, 3, 6), mode=mode, extrapolation_value=10.0,
             coordinate_transformation_mode="tf_crop_and_resize",
             roi=[0, 0, 0.4, -0.3, 1, 1, 1.2, 0.8])
        for mode in ("nearest", "linear", "cubic")
    ),
    _row((1, 1, 4, 5), (2, 0.6), mode="linear", axes=[3, 2]),
    *(
        _row((1, 1, 4, 6), (), (7, 8), axes=[2, 3], keep_aspect_ratio_policy=policy)
        for policy in ("not_larger", "not_smaller")
    ),
    Case("Resize", (Tensor((1, 2, 3, 4), "int64", 0, 9), None, _TWICE)),
    # Integers are interpolated as floats, and fractions are cut off.
    *(
        Case("Resize", (Tensor((1, 2, 4, 3), dtype, low, 100), None, _TWICE),
             {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
             reference=lambda x, *_, **attrs: np.trunc(
                 _upsample(x.astype(np.float64), _TWICE, "linear")).astype(x.dtype))
        for dtype, low in (("uint8", 0), ("int8", -100), ("int32", -1000))
    ),
    Case("Resize", (Tensor((2, 3, 4), "bool"), None, None, np.array([2, 2, 7])),
         reference=lambda x, *_: x[:, [0, 2]][:, :, [0, 0, 1, 1, 2, 3, 3]]),
    Case("ResizeGrad", (f32(1, 2, 6, 8), f32(1, 2, 3, 4)), domain="com.microsoft",  # by the shapes
         reference=lambda dy, x: dy.reshape(1, 2, 3, 2, 4, 2).sum((3, 5))),
    Case("Upsample", (f32(1, 2, 4, 3), _TWICE), grad=(0,), opset=9, reference=_upsample),
    Case("Upsample", (f32(1, 2, 4, 3),), {"mode": "linear", "scales": [1.0, 1.0, 2.0, 1.5]},
         grad=(0,), opset=7, reference=_upsample),
    Case("Resize", (f32(4, 64, 56, 56), None, _TWICE), {"mode": "linear"}, grad=(0,), bench=True,
         name="unet_linear"),
    Case("Resize", (f32(4, 64, 56, 56), None, _TWICE), grad=(0,), bench=True,
         name="unet_nearest"),
)  # fmt: skip
