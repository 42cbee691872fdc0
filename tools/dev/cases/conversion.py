"""Case rows of conversions."""

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32

CASES = [
    Case("CastLike", (f32(3, 4), Tensor((2,), "float64")), grad=(0,), opset=19),
    Case("CastLike", (f32(3, 4, low=-9, high=9), Tensor((), "int32")), opset=19),
    Case(
        "BitCast", (Tensor((3, 4), "int32", -(2**30), 2**30),), {"to": 1}, opset=26, tol=0,
        reference=lambda x, to: x.view(np.float32),
    ),
]  # fmt: skip
