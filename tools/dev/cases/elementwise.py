"""Elementwise ops: every formula, every way to broadcast, every element type it is for."""

from __future__ import annotations

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32, fed, i64, one

POSITIVE = {"low": 0.2, "high": 3.0}
OFF_ZERO = {"avoid": 0.0}
FLOAT, DOUBLE, UINT8, INT8, INT32, INT64, BOOL = 1, 11, 2, 3, 6, 7, 9  # of TensorProto.DataType


def boolean(*shape: int) -> Tensor:
    """A bool input."""
    return Tensor(shape, "bool")


# op, how its input is drawn, attributes
SMOOTH: tuple[tuple[str, dict[str, float], dict[str, float]], ...] = (
    ("Abs", OFF_ZERO, {}), ("Neg", {}, {}), ("Exp", {}, {}), ("Log", POSITIVE, {}),
    ("Sqrt", POSITIVE, {}), ("Reciprocal", POSITIVE, {}), ("Relu", OFF_ZERO, {}),
    ("LeakyRelu", OFF_ZERO, {"alpha": 0.25}), ("LeakyRelu", OFF_ZERO, {"alpha": -0.5}),
    ("Sigmoid", {}, {}), ("Tanh", {}, {}), ("Erf", {}, {}),
)  # fmt: skip
STEPS = ("Sign", "Floor", "Ceil", "Round")
PAIRS = (((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((2, 1, 4), (3, 1)), ((), (5,)), ((2, 3, 4), (3, 1)))
VARIADIC = ("Sum", "Mean", "Max", "Min")
COMPARE = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


UNARY = (
    *(Case(op, (f32(5, 7, **kind),), attrs, grad=(0,)) for op, kind, attrs in SMOOTH),
    *(Case(op, (f32(),), attrs, name=f"{op}-scalar-{attrs}") for op, _, attrs in SMOOTH
      if op not in ("Log", "Sqrt")),
    *(Case(op, (f32(1000, **kind),), attrs, name=f"{op}-long-{attrs}")
      for op, kind, attrs in SMOOTH),
    *(Case(op, (f32(5, 7, low=-3.0, high=3.0),)) for op in STEPS),
    *(Case(op, (i64(5, 7, low=-9, high=9),), name=f"{op}-int64") for op in ("Abs", "Neg", "Sign")),
    Case("Neg", (Tensor((9,), "int32", -9, 9),), name="neg-int32"),
    Case("Exp", (f32(50, low=-100.0, high=80.0),), name="exp-wide"),
    Case("Sigmoid", (f32(50, low=-100.0, high=100.0),), name="sigmoid-wide"),
    Case("Tanh", (f32(50, low=-100.0, high=100.0),), name="tanh-wide"),
    Case("Not", (boolean(3, 40),)),
    Case("IsNaN", (fed([1.0, np.nan, np.inf]),), name="is-nan"),
    Case("Relu", (fed([-1.0, np.nan, np.inf, 0.0]),), name="relu-special"),
)  # fmt: skip

BINARY = (
    *(Case(op, (f32(*a), f32(*b)), grad=(0, 1)) for op in ("Add", "Sub", "Mul") for a, b in PAIRS),
    *(Case("Div", (f32(*a), f32(*b, **POSITIVE)), grad=(0, 1)) for a, b in PAIRS),
    *(Case(op, (i64(4, 5, low=-9, high=9), i64(5, low=1, high=4)), name=f"{op}-int64")
      for op in ("Add", "Sub", "Mul", "Div")),
    *(Case(op, (Tensor((4, 5), "int32", 1, 9), Tensor((4, 1), "int32", 1, 4)), name=f"{op}-int32")
      for op in ("Add", "Mul", "Div")),
    Case("Mul", (f32(3, 4), one(2.5)), grad=(0,), name="mul-by-constant"),
    Case("Add", (f32(2, 70, 5), f32(2, 1, 5)), grad=(0, 1), bench=True),
    *(Case(op, (f32(3, 4), f32(4))) for op in COMPARE),
    *(Case(op, (i64(3, 40, high=3), i64(40, high=3)), name=f"{op}-int64") for op in COMPARE),
    Case("Equal", (boolean(3, 40), boolean(40)), name="equal-bool"),
    *(Case(op, (boolean(3, 40), boolean(40))) for op in ("And", "Or", "Xor")),
    *(Case(op, (f32(3, 4), f32(4), f32(3, 1)), grad=(0, 1, 2)) for op in VARIADIC),
    *(Case(op, (f32(3, 4),), grad=(0,), name=f"{op}-of-one") for op in VARIADIC),
    *(Case(op, (i64(3, 4, low=-5, high=5), i64(4, low=-5, high=5)), name=f"{op}-int64")
      for op in ("Max", "Min")),
    *(Case(op, (Tensor((3, 40), kind, 0, 100), Tensor((40,), kind, 0, 100)), name=f"{op}-{kind}")
      for op in ("Max", "Min") for kind in ("uint8", "int16", "uint64", "float64")),
    Case("Max", (fed([1.0, np.nan]), f32(2)), name="max-nan"),
    # so many inputs that they are taken in pieces
    *(Case(op, (f32(2, 3, 4), *(f32(3, 1) for _ in range(19))), grad=(0, 8, 19), name=f"{op}-wide")
      for op in VARIADIC),
)  # fmt: skip

POW = (
    Case("Pow", (f32(3, 4, **POSITIVE), f32(3, 4)), grad=(0, 1)),
    Case("Pow", (f32(2, 3, 4, **POSITIVE), f32(4)), grad=(0, 1)),
    Case("Pow", (f32(4, **POSITIVE), f32(3, 1)), grad=(0, 1), name="pow-broadcast-base"),
    *(Case("Pow", (f32(3, 4, **OFF_ZERO), one(e)), grad=(0,), name=f"pow-{e}")
      for e in (1.0, 2.0, 3.0, -1.0, 4.0)),
    Case("Pow", (f32(3, 4, **POSITIVE), one(0.5)), grad=(0,), name="pow-half"),
    Case("Pow", (f32(3, 4), one(2, "int64")), grad=(0,), name="pow-integer-exponent"),
    Case("Pow", (i64(3, 4, low=-4, high=4), one(3, "int64")), name="pow-int64"),
    Case("Pow", (i64(40, low=-4, high=4), i64(40, high=9)), name="pow-int64-int64"),
    Case("Pow", (fed([3, 7, -3, 0, 1, -1, 2], "int64"),
                 fed([39, 22, 39, 0, 1000, 1001, 62], "int64")), name="pow-int64-large"),
    Case("Pow", (fed([2, 1, -1, -1], "int64"), fed([-1, -5, -3, -4], "int64")),
         name="pow-int64-negative", reference=lambda a, b: [np.array([0, 1, -1, 1])]),
    *(Case("Pow", (Tensor((3, 8), a, 1, 5), Tensor((8,), b, 0, 4)), name=f"pow-{a}-{b}")
      for a, b in (("int32", "float32"), ("int64", "float32"), ("int32", "int64"),
                   ("float32", "int32"), ("float32", "uint8"), ("uint8", "uint8"))),
    Case("Pow", (f32(3, 4), one(0.0)), grad=(0,), name="pow-zero"),
)  # fmt: skip

CLIP = (
    Case("Clip", (f32(5, 7, avoid=-1.0), one(-1.0)), grad=(0,), name="clip-low"),
    Case("Clip", (f32(5, 7, avoid=1.0), None, one(1.0)), grad=(0,), name="clip-high"),
    Case("Clip", (f32(5, 7, avoid=0.5), one(0.5), one(6.0)), grad=(0,), name="clip-both"),
    Case("Clip", (f32(5, 7),), grad=(0,), name="clip-none"),
    Case("Clip", (f32(5, 7), f32(low=-0.5, high=-0.4), f32(low=0.4, high=0.5)), name="clip-fed"),
    Case("Clip", (f32(5, 7), one(1.0), one(-1.0)), name="clip-crossed"),
    Case("Clip", (f32(5, 7, avoid=-1.0),), {"min": -1.0}, grad=(0,), opset=9, name="clip-6-low",
         reference=lambda x, min: [np.maximum(x, min)]),
    Case("Clip", (f32(5, 7, avoid=1.0),), {"min": -9.0, "max": 1.0}, grad=(0,), opset=9,
         name="clip-6", reference=lambda x, min, max: [np.clip(x, min, max)]),
    Case("Clip", (i64(5, 7, low=-9, high=9), one(-3, "int64"), one(4, "int64")),
         name="clip-int64"),
)  # fmt: skip

WHERE = (
    Case("Where", (boolean(3, 4), f32(3, 4), f32(3, 4)), grad=(1, 2)),
    Case("Where", (boolean(2, 1, 4), f32(3, 1), f32()), grad=(1, 2)),
    Case("Where", (boolean(), f32(3, 4), f32(4)), grad=(1, 2)),
    Case("Where", (boolean(3, 40), i64(3, 40), i64(40)), name="where-int64"),
    Case("Where", (boolean(3, 40), boolean(40), boolean(3, 1)), name="where-bool"),
)  # fmt: skip

CAST = (
    *(Case("Cast", (f32(5, 40, low=-9.0, high=9.0),), {"to": to}, name=f"cast-float-{to}")
      for to in (INT32, INT64, INT8, BOOL)),
    Case("Cast", (f32(5, 40, low=0.0, high=200.0),), {"to": UINT8}, name="cast-float-uint8"),
    *(Case("Cast", (Tensor((5, 40), dtype, 0, 100),), {"to": to}, name=f"cast-{dtype}-{to}")
      for dtype in ("int64", "int32", "uint8", "bool")
      for to in (FLOAT, DOUBLE, INT64, UINT8, BOOL)),
    Case("Cast", (f32(5, 7),), {"to": FLOAT}, name="cast-to-itself"),
    Case("Cast", (Tensor((5, 7), "float64"),), {"to": FLOAT}, name="cast-double-float"),
    Case("Cast", (f32(5, 7),), {"to": DOUBLE}, grad=(0,), name="cast-float-double"),
)  # fmt: skip

INFINITE = fed([1.0, np.nan, np.inf, -np.inf])
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
BITS = (
    *(Case("IsInf", (INFINITE,), {"detect_positive": p, "detect_negative": n})
      for p in (0, 1) for n in (0, 1)),
    *(Case(op, (Tensor((3, 40), kind, 0, 100), Tensor((40,), kind, 0, 100)), opset=18,
           name=f"{op}-{kind}")
      for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor") for kind in ("uint8", "int32")),
    *(Case("BitwiseNot", (Tensor((40,), kind, 0, 100),), opset=18, name=f"bitwise-not-{kind}")
      for kind in ("uint16", "int64")),
    *(Case("BitShift", (Tensor((3, 40), kind, 0, 200), Tensor((40,), kind, 0, 9)),
           {"direction": way}, name=f"bit-shift-{kind}-{way}")
      for kind in ("uint8", "uint32", "uint64") for way in ("LEFT", "RIGHT")),
)  # fmt: skip

SIGNED = {"direction": "RIGHT"}, {"direction": "LEFT"}
SHIFTS = tuple(  # by nothing, within the width, by the width, beyond it, and backwards
    Case("BitShift", (fed([-128, -5, 5, 127, -5, 5, -1, 3], kind),
                      fed([1, 0, 2, 1, 64, 64, -1, -7], kind)), way, opset=28,
         name=f"bit-shift-{kind}-{way['direction']}")
    for kind in ("int8", "int64") for way in SIGNED
)  # fmt: skip

MOD = (
    *(Case("Mod", (Tensor((3, 40), kind, 0 if kind[0] == "u" else -50, 50),
                   Tensor((40,), kind, 1, 9)), {"fmod": fmod}, name=f"mod-{kind}-{fmod}")
      for kind in INTEGERS for fmod in (0, 1)),
    *(Case("Mod", (i64(40, low=-50, high=50), i64(40, low=-9, high=-1)), {"fmod": fmod},
           name=f"mod-by-negative-{fmod}") for fmod in (0, 1)),
    Case("Mod", (f32(5, 8, low=-9.0, high=9.0), f32(8, low=0.5, high=2.0)), {"fmod": 1}, (0, 1)),
    Case("Mod", (f32(40, low=-9.0, high=9.0), f32(40, low=-2.0, high=-0.5)), {"fmod": 1},
         name="mod-float-by-negative"),
    Case("Mod", (f32(5, 8, low=-9.0, high=9.0), f32(8, low=-2.0, high=-0.5)), {"fmod": 0}, (0, 1),
         opset=28),
    Case("Mod", (fed([3.0, -3.0, 0.0, -0.0, 3.0, -3.0]), fed([np.inf] * 4 + [-np.inf] * 2)),
         {"fmod": 0}, opset=28, name="mod-infinite", reference=lambda a, b, fmod: [np.mod(a, b)]),
    Case("Mod", (fed([5, -5, 1e9, np.inf, np.nan, 3, 0.3]),
                 fed([np.inf, 3, 7, 2, 2, 0, 0.1])), {"fmod": 1}, tol=1e-5,
         name="mod-special",
         reference=lambda a, b, fmod: [np.fmod(a.astype("f4"), b.astype("f4"))]),
)  # fmt: skip


def half(*shape: int, **kwargs: float) -> Tensor:
    """A float16 input."""
    return Tensor(shape, "float16", **kwargs)


HALF = (
    *(Case(op, (half(3, 40), half(40, **POSITIVE)), name=f"{op}-float16", tol=1e-7)
      for op in ("Add", "Mul", "Div", "Max", "Less")),
    *(Case(op, (half(3, 41, **POSITIVE),), name=f"{op}-float16", tol=5e-4)
      for op in ("Exp", "Sqrt", "Neg", "IsNaN")),
    Case("Where", (boolean(3, 40), half(3, 40), half(40)), name="where-float16"),
    Case("Pow", (half(40, **POSITIVE), one(3, "int64")), tol=5e-4, name="pow-float16"),
    Case("Clip", (half(40), one(-1.0, "float16"), one(1.0, "float16")), name="clip-float16"),
)  # fmt: skip

TRAINING = (
    Case("ReluGrad", (f32(3, 40), f32(3, 40, **OFF_ZERO)), domain=MS,
         reference=lambda dy, y: [dy * (y > 0)]),
    Case("SigmoidGrad", (f32(3, 40), f32(3, 40, low=0.0, high=1.0)), domain=MS,
         reference=lambda dy, y: [dy * y * (1 - y)]),
    Case("TanhGrad", (f32(3, 40), f32(3, 40, low=-1.0, high=1.0)), domain=MS,
         reference=lambda dy, y: [dy * (1 - y * y)]),
    Case("DivGrad", (f32(3, 40), f32(3, 40), f32(40, low=1)), domain=MS, outs=2,
         reference=lambda dy, a, b: [dy / b, (-dy * a / b**2).sum(0)]),
    Case("LeakyReluGrad", (f32(3, 40), f32(3, 40, **OFF_ZERO)), {"alpha": 0.25}, domain=MS,
         reference=lambda dy, y, alpha: [np.where(y > 0, dy, alpha * dy)]),
    Case("Scale", (f32(3, 40), one(4.0)), domain=MS, reference=lambda x, s: [x * s]),
    Case("Scale", (f32(3, 40), one(4, "int64")), {"scale_down": 1}, domain=MS,
         reference=lambda x, s, scale_down: [x / s], name="scale-down"),
)  # fmt: skip

CASES = (*UNARY, *BINARY, *POW, *CLIP, *WHERE, *CAST, *BITS, *SHIFTS, *MOD, *HALF, *TRAINING)
