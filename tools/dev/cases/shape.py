"""Views, and ops that compute with shapes."""

from __future__ import annotations

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32


def axes(*values: int) -> np.ndarray:
    """A constant 1-D int64 input."""
    return np.array(values, np.int64)


CASES = (
    Case("Reshape", (f32(2, 3, 4), axes(4, 6)), grad=(0,)),
    Case("Reshape", (f32(2, 3, 4), axes(0, -1)), grad=(0,)),
    Case("Reshape", (f32(2, 0, 4), axes(0, 7)), {"allowzero": 1}, name="reshape-allowzero"),
    Case("Flatten", (f32(2, 3, 4),), grad=(0,)),
    Case("Flatten", (f32(2, 3, 4),), {"axis": 0}, grad=(0,)),
    Case("Flatten", (f32(2, 3, 4),), {"axis": -1}, grad=(0,)),
    Case("Squeeze", (f32(1, 3, 1, 4), axes(0, -2)), grad=(0,)),
    Case("Squeeze", (f32(1, 3, 1, 4),), grad=(0,)),
    Case("Squeeze", (f32(1, 3, 1, 4),), {"axes": [0]}, grad=(0,), opset=11),
    Case("Unsqueeze", (f32(3, 4), axes(0, -1)), grad=(0,)),
    Case("Unsqueeze", (f32(3, 4),), {"axes": [1]}, grad=(0,), opset=11),
    Case("Reshape", (f32(0, 3), axes(3, 0)), {"allowzero": 1}, grad=(0,), name="reshape-empty"),
    Case("Squeeze", (f32(3, 1), axes()), reference=lambda x, _: [x], name="squeeze-no-axis"),
    Case("Unsqueeze", (f32(3, 4), axes(-1, 0, 2)), grad=(0,)),
    Case("Identity", (f32(3, 4),), grad=(0,)),
    *(Case("Identity", (Tensor((3, 4), kind, 0, 9),), name=f"identity-{kind}")
      for kind in ("float16", "bool", "int8", "uint64")),
    Case("Shape", (f32(2, 3, 4),)),
    Case("Shape", (f32(2, 3, 4),), {"start": 1, "end": -1}),
    Case("Size", (f32(2, 3, 4),)),
    Case("Constant", (), {"value_floats": [1.0, 2.0]}),
    Case("Constant", (), {"value_int": 3}),
    Case("BroadcastGradientArgs", (axes(2, 3, 1), axes(4, 1, 1, 5)), domain=MS, outs=2,
         reference=lambda a, b: [axes(3, 0), axes(2, 1)]),
    Case("BroadcastGradientArgs", (axes(2, 3), axes(2, 3)), domain=MS, outs=2,
         reference=lambda a, b: [axes(), axes()]),
)  # fmt: skip
