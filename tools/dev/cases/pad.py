"""Pad."""

from __future__ import annotations

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.dev.cases.shape import axes

FULL = axes(1, 2, 3, 0, 2, 1)

CASES = (
    *(Case("Pad", (f32(3, 4, 5), FULL), {"mode": mode}, grad=(0,), name=f"pad-{mode}")
      for mode in ("constant", "edge", "reflect")),
    *(Case("Pad", (f32(3, 4, 5), axes(2, 0, 1, 2), None, axes(2, 0)), {"mode": mode}, grad=(0,),
           opset=19, name=f"pad-axes-{mode}",
           reference=lambda x, pads, _, axes, mode: [np.pad(x, [(0, 2), (0, 0), (2, 1)], mode)])
      for mode in ("constant", "edge", "reflect", "wrap")),
    Case("Pad", (f32(3, 4), axes(0, 1, 2, 0), np.array(1.5, np.float32)), grad=(0,),
         name="pad-value"),
    Case("Pad", (f32(5, 4), axes(-1, 1, 2, -2)), grad=(0,), name="pad-crop",
         reference=lambda x, pads: [np.pad(x[1:, :-2], [(0, 2), (1, 0)])]),
    Case("Pad", (f32(3, 4), axes(0, 0, 0, 0)), {"mode": "reflect"}, grad=(0,), name="pad-nothing"),
    Case("Pad", (f32(3, 4),), {"pads": [0, 1, 2, 0], "value": 0.5}, grad=(0,), opset=9,
         reference=lambda x, pads, value: [
             np.pad(x, [(0, 2), (1, 0)], constant_values=value)], name="pad-attributes"),
    Case("Pad", (Tensor((3, 4), "int64", 0, 9), axes(0, 1, 2, 0)), name="pad-int64"),
    *(Case("Pad", (f32(3, 4), axes(5, 7, 4, 9)), {"mode": mode}, grad=(0,), opset=19,
           name=f"pad-far-{mode}") for mode in ("edge", "reflect", "wrap")),
    *(Case("Pad", (f32(5, 6), axes(-1, 2, 1, -2)), {"mode": mode}, grad=(0,), opset=19,
           name=f"pad-crop-{mode}",
           reference=lambda x, pads, mode: [np.pad(x[1:, :-2], [(0, 1), (2, 0)], mode)])
      for mode in ("edge", "reflect", "wrap")),
    Case("Pad", (f32(1, 6), axes(2, 0, 1, 0)), {"mode": "reflect"}, grad=(0,), name="pad-of-one"),
    Case("Pad", (Tensor((3, 4), "float16"), axes(0, 1, 1, 0)), name="pad-float16"),
    Case("Pad", (Tensor((3, 4), "bool"), axes(0, 1, 1, 0), np.array(True)), name="pad-bool"),
)  # fmt: skip
