"""Case rows of kernels/ops/conv/deform_conv.py."""

from __future__ import annotations

from typing import Any

from engine.tools.dev.cases.case import Case, f32


def _row(
    x: tuple[int, ...], w: tuple[int, ...], out: tuple[int, int], more: int = 0, **attrs: Any
) -> Case:
    """`more`: 1 with a bias, 2 with a mask too."""
    taps = attrs.get("offset_group", 1) * w[2] * w[3]
    offset, mask = f32(x[0], 2 * taps, *out, low=-1.5, high=1.5), f32(x[0], taps, *out)
    ins = (f32(*x), f32(*w), offset, f32(w[0]), mask)[: 3 + more]
    return Case("DeformConv", ins, attrs, grad=tuple(range(len(ins))), opset=19, tol=2e-5)


CASES = (
    _row((2, 2, 5, 4), (3, 2, 2, 3), (4, 2)),
    _row((1, 4, 6, 5), (2, 2, 3, 2), (3, 3), 2, group=2, offset_group=2, strides=[2, 2],
         pads=[1, 0, 1, 1]),
    _row((1, 4, 6, 5), (4, 4, 2, 2), (4, 5), 1, offset_group=4, dilations=[2, 1],
         pads=[0, 0, 0, 1]),
)  # fmt: skip
