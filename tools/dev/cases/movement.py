"""Transpose, Expand, Tile."""

from __future__ import annotations

from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.dev.cases.shape import axes

CASES = (
    *(Case("Transpose", (f32(*shape),), grad=(0,)) for shape in ((3, 4), (4,), (), (0, 3))),
    Case("Transpose", (f32(70, 45),), {"perm": [1, 0]}, grad=(0,), bench=True),
    Case("Transpose", (f32(2, 33, 40),), {"perm": [0, 2, 1]}, grad=(0,)),
    Case("Transpose", (f32(2, 33, 40),), {"perm": [2, 1, 0]}, grad=(0,)),
    Case("Transpose", (f32(2, 3, 4, 32),), {"perm": [0, 2, 1, 3]}, grad=(0,)),
    Case("Transpose", (f32(2, 3, 1, 5),), {"perm": [3, 2, 0, 1]}, grad=(0,)),
    Case("Transpose", (f32(2, 3, 2, 5, 3),), {"perm": [4, 1, 3, 0, 2]}, grad=(0,)),
    Case("Transpose", (f32(2, 3, 70, 90),), {"perm": [0, 2, 3, 1]}, grad=(0,), bench=True),
    Case("Transpose", (Tensor((70, 45), "int16", 0, 100),), bench=True),
    Case("Transpose", (Tensor((2, 2, 5000), "int16", 0, 100),), {"perm": [0, 2, 1]},
         name="transpose-pairs"),
    Case("Transpose", (f32(20000),), {"perm": [0]}, name="transpose-long-line"),
    *(Case("Transpose", (Tensor((19, 34), dtype, 0, 100),), name=f"transpose-{dtype}")
      for dtype in ("int64", "int32", "int16", "uint8", "bool")),
    *(Case(op, (f32(*shape),), domain="engine", reference=lambda x: [x], name=f"{op}-{shape}")
      for op in ("ToChannelsLast", "ToPlain")
      for shape in ((2, 3, 5, 7), (2, 40, 19), (1, 3, 1, 1))),
    Case("Expand", (f32(3, 1), axes(2, 1, 4)), grad=(0,)),
    Case("Expand", (f32(3, 4), axes(1, 4)), grad=(0,)),
    Case("Expand", (f32(), axes(2, 3)), grad=(0,)),
    Case("Expand", (f32(3, 4), axes(2, 1, 1)), grad=(0,), name="expand-both-ways"),
    *(Case(op, (Tensor((3, 1), kind, 0, 9), axes(*by)), name=f"{op}-{kind}")
      for op, by in (("Expand", (2, 3, 4)), ("Tile", (2, 3)))
      for kind in ("float16", "bool", "int8", "uint64")),
    Case("Tile", (f32(2, 3), axes(0, 2)), grad=(0,), name="tile-nothing"),
    Case("Expand", (Tensor((2, 1), "int64", 0, 9), axes(2, 5)), name="expand-int64"),
    Case("Tile", (f32(2, 3), axes(2, 3)), grad=(0,)),
    Case("Tile", (f32(2, 3, 4), axes(1, 1, 1)), grad=(0,)),
    Case("Tile", (f32(2, 1, 40), axes(3, 2, 1)), grad=(0,)),
)  # fmt: skip
