"""Rearrangements that are other ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.dev.cases.shape import axes


def _reverse(x: Any, lengths: Any, time_axis: int = 0, batch_axis: int = 1) -> Any:
    y = np.swapaxes(x, 0, time_axis).copy()  # [time, batch]
    for b, n in enumerate(lengths):
        y[:n, b] = y[:n, b][::-1].copy()
    return [np.swapaxes(y, 0, time_axis)]


def _image(
    n: int, channels: int, image: tuple[int, ...], block: tuple[int, ...], **more: Any
) -> Case:
    columns = more.pop("columns")
    rows = channels * int(np.prod(block))
    return Case("Col2Im", (f32(n, rows, columns), axes(*image), axes(*block)), more, grad=(0,),
                opset=18)  # fmt: skip


MASK = np.array([True, False, True, True, False])

CASES = (
    *(Case("DepthToSpace", (f32(2, 8, 3, 2),), {"blocksize": 2, "mode": mode}, grad=(0,))
      for mode in ("DCR", "CRD")),
    Case("SpaceToDepth", (f32(2, 3, 4, 6),), {"blocksize": 2}, grad=(0,)),
    Case("SpaceToDepth", (f32(1, 2, 2, 4),), {"blocksize": 2, "mode": "CRD"}, grad=(0,), opset=28,
         reference=lambda x, **_: [
             x.reshape(1, 2, 1, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 8, 1, 2)]),
    Case("ReverseSequence", (f32(4, 3, 2), axes(4, 1, 3)), grad=(0,), reference=_reverse),
    Case("ReverseSequence", (f32(3, 4), Tensor((3,), "int64", 0, 5)),
         {"time_axis": 1, "batch_axis": 0}, grad=(0,), reference=_reverse, name="reverse-batch"),
    Case("CenterCropPad", (f32(5, 4, 3), axes(2, 7, 3)), grad=(0,), opset=18),
    Case("CenterCropPad", (f32(5, 4, 3), axes(4, 8)), {"axes": [-1, 0]}, grad=(0,), opset=18),
    Case("Compress", (f32(5, 3), MASK), {"axis": 0}, grad=(0,), name="compress-rows"),
    Case("Compress", (f32(2, 5), MASK[:2]), {"axis": -1}, grad=(0,), name="compress-short"),
    Case("Compress", (f32(2, 3), MASK), grad=(0,), name="compress-flat"),
    _image(2, 3, (5, 5), (2, 3), columns=12),
    _image(1, 2, (5, 5), (2, 2), columns=9, strides=[2, 2], pads=[0, 1, 1, 0]),
    _image(1, 1, (6, 6), (2, 2), columns=16, dilations=[2, 2]),
    _image(1, 2, (4, 4, 4), (1, 2, 3), columns=24),
)  # fmt: skip
