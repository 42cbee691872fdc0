"""Case rows of kernels/ops/sampling/grid_sample.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32

_FAR = {"low": -1.7, "high": 1.7}  # points on both sides of the edges
_NOWHERE = np.array([[[[np.nan, 0], [np.inf, 0], [0, -1e30]]]], np.float32)


def _row(x: tuple[int, ...], points: tuple[int, ...], **attrs: Any) -> Case:
    grid = f32(x[0], *points, len(points), **_FAR)
    return Case("GridSample", (f32(*x), grid), attrs, grad=(0, 1), opset=20, tol=4e-6)


def _older(x: Any, grid: Any, mode: str = "linear", **attrs: Any) -> Any:
    from onnx.reference.ops.op_grid_sample import GridSample

    return GridSample.eval(x, grid, mode=mode.removeprefix("bi"), **attrs)


def _grid(theta: np.ndarray, size: np.ndarray, align_corners: int = 0) -> Any:
    """theta (b, 1) for all b of the product of the lines, the last axis first."""
    lines = [
        (2 * np.arange(n) - (n - 1)) / (max(n - 1, 1) if align_corners else n) for n in size[2:]
    ]
    axes = np.meshgrid(*lines, indexing="ij")[::-1]
    base = np.stack([*axes, np.ones_like(axes[0])], -1)
    return np.einsum("nij,...j->n...i", theta, base)


class Between(Tensor):
    """Points of an image of as many pixels, none on the lines where four of them meet."""

    def make(self, rng: np.random.Generator) -> np.ndarray:
        n = self.shape[1]
        places = rng.integers(-1, n, self.shape) + rng.uniform(0.1, 0.9, self.shape)
        return ((2 * places + 1) / n - 1).astype(self.dtype)


def _linear(x: np.ndarray, grid: np.ndarray) -> Any:
    """Between four pixels, 0 outside of the image."""
    n, _, h, w = x.shape
    places = ((grid + 1) * (w, h) - 1) / 2
    low = np.floor(places).astype(int)
    inside = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    images = np.arange(n)[:, None, None]
    y: Any = 0
    for b, a in np.ndindex(2, 2):
        weight = np.abs(1 - a - (places - low)[..., 0]) * np.abs(1 - b - (places - low)[..., 1])
        pixel = inside[images, :, low[..., 1] + 1 + b, low[..., 0] + 1 + a]
        y = y + weight[..., None] * pixel
    return y.transpose(0, 3, 1, 2)


CASES = (
    *(
        _row((1, 2, 4, 3), (3, 4), mode=mode, padding_mode=padding, align_corners=align)
        for mode in ("nearest", "linear", "cubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    _row((2, 20, 5, 4), (4, 5)),
    _row((2, 3, 1, 1), (2, 2), padding_mode="reflection"),  # one pixel
    Case("GridSample", (f32(1, 2, 3, 3), _NOWHERE), opset=20, tol=0,
         reference=lambda x, grid: np.zeros((1, 2, 1, 3))),
    *(
        _row((2, 3, 3, 4, 2), (2, 3, 2), mode=mode, padding_mode=padding)
        for mode, padding in (("linear", "zeros"), ("nearest", "reflection"), ("cubic", "border"))
    ),
    *(
        Case("GridSample", (f32(1, 2, 4, 3), f32(1, 2, 3, 2, **_FAR)), {"mode": mode}, grad=(0, 1),
             opset=16, reference=_older, tol=4e-6)
        for mode in ("bilinear", "bicubic")
    ),
    *(
        Case("AffineGrid", (f32(2, 2, 3), np.array([2, 5, 4, 3])), {"align_corners": align},
             grad=(0,), opset=20, reference=_grid)
        for align in (0, 1)
    ),
    Case("AffineGrid", (f32(2, 3, 4), np.array([2, 5, 4, 3, 2])), grad=(0,), opset=20,
         reference=_grid),
    Case("GridSample", (f32(2, 64, 24, 24), Between((2, 24, 24, 2))), grad=(0, 1), opset=20,
         reference=_linear, tol=4e-6, bench=True, name="transformer_sample"),
)  # fmt: skip
