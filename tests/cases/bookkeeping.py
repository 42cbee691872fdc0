"""Ops of onnxruntime-training that move gradients about."""

from __future__ import annotations

import numpy as np

from tests.cases.case import Case, Tensor, f32

MS = "com.microsoft"

CASES = (
    Case("InPlaceAccumulator", (f32(2, 3), f32(2, 3)), domain=MS, reference=lambda s, v: [s + v]),
    *(Case("InPlaceAccumulator", (f32(3), f32(3), np.array([on])), domain=MS,
           name=f"accumulate-{on}", reference=lambda s, v, on: [s + v if on else s])
      for on in (True, False)),
    Case("InPlaceAccumulator", (f32(), f32(), Tensor((1,), "bool")), domain=MS,
         reference=lambda s, v, on: [s + v if on[0] else s], name="accumulate-scalar"),
    Case("ZeroGradient", (f32(2, 3), f32(1)), domain=MS, reference=lambda x, _: [np.zeros((2, 3))]),
    Case("PassThrough", (f32(2, 3), f32(4)), domain=MS, outs=2, reference=lambda a, b: [a, b]),
    Case("Group", (f32(2, 3), f32(4)), domain=MS, reference=lambda a, b: [np.array([True])]),
)  # fmt: skip
