"""Tensors whose elements follow from their place."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.dev.cases.shape import axes


def _count(*bounds: float, dtype: type = np.int64, **more: Any) -> Case:
    return Case("Range", tuple(np.array(b, dtype) for b in bounds), **more)


def _tri(x: Any, k: int = 0, upper: int = 1) -> Any:
    return [np.triu(x, k) if upper else np.tril(x, k)]


CASES = (
    Case("ConstantOfShape", (axes(2, 3),)),
    *(Case("ConstantOfShape", (axes(3, 2),), {"value": np.ones(1, kind)}, name=f"filled-{kind}",
           reference=lambda shape, value: [np.full(shape, value[0])])
      for kind in ("float16", "float64", "int64", "int32", "int8", "uint8", "uint64", "bool")),
    Case("ConstantOfShape", (axes(600, 500),), {"value": np.array([1.5], np.float16)},
         name="filled-large-float16", reference=lambda shape, value: [np.full(shape, value[0])]),
    _count(10, 3, -2),
    _count(0.5, 2.0, 0.25, dtype=np.float32, name="range-float"),
    _count(3, 3, 1, name="range-empty"),
    _count(5, 400005, 2, name="range-large", bench=True),
    _count(0, 20000, 0.1, dtype=np.float32, name="range-large-float",
           reference=lambda a, b, c: [np.arange(200000) * np.float64(np.float32(0.1))]),
    *(Case("EyeLike", (f32(4, 6),), {"k": k}, reference=lambda x, k: [np.eye(4, 6, k)])
      for k in (0, 2, -3, 6, -9)),
    Case("EyeLike", (f32(3, 2),), {"dtype": 9}, reference=lambda x, dtype: [np.eye(3, 2) > 0]),
    Case("EyeLike", (Tensor((3, 2), "int32", 0, 9),), reference=lambda x: [np.eye(3, 2)]),
    Case("Trilu", (f32(2, 4, 5),), grad=(0,), reference=_tri, bench=True),
    *(Case("Trilu", (f32(2, 4, 5), np.array(k)), {"upper": upper}, grad=(0,), reference=_tri,
           name=f"trilu-{upper}-{k}") for k in (-2, 1, 9, -9, 2**62) for upper in (0, 1)),
    Case("Trilu", (f32(3, 4), Tensor((), "int64", 1, 2)), reference=_tri, name="trilu-fed-k"),
    Case("Trilu", (Tensor((4, 3), "bool"),), reference=_tri, name="trilu-bool"),
)  # fmt: skip
