"""Selection by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32, i64
from engine.tools.dev.cases.shape import axes


def _gather_grad(shape: Any, index: Any, dy: Any, axis: int = 0) -> Any:
    dx = np.zeros(shape)
    flat = dy.reshape((*shape[:axis], index.size, *shape[axis + 1 :]))
    np.add.at(np.moveaxis(dx, axis, 0), index.reshape(-1), np.moveaxis(flat, axis, 0))
    return [dx]


def _elements_grad(dy: Any, shape: Any, index: Any, axis: int = 0) -> Any:
    dx = np.zeros(shape)
    where = list(np.indices(index.shape))
    where[axis] = index
    np.add.at(dx, tuple(where), dy)
    return [dx]


CASES = (
    Case("Gather", (f32(9, 5), i64(4, low=-9, high=9)), grad=(0,)),
    Case("Gather", (f32(9, 5), i64(2, 3, high=9)), grad=(0,)),
    Case("Gather", (f32(3, 9, 5), i64(2, 3, low=-9, high=9)), {"axis": 1}, grad=(0,)),
    Case("Gather", (f32(3, 9), i64(12, high=9)), {"axis": -1}, grad=(0,)),
    Case("Gather", (f32(3, 9), np.array(2)), {"axis": 1}, grad=(0,), name="gather-scalar"),
    Case("Gather", (f32(30, 200), Tensor((40,), "int32", 0, 30)), grad=(0,), name="gather-int32"),
    Case("Gather", (i64(5, 3), i64(4, high=5)), name="gather-of-int64"),
    Case("GatherGrad", (axes(6, 200), i64(9, high=6), f32(9, 200)), domain=MS, grad=(2,),
         reference=_gather_grad),
    Case("GatherGrad", (axes(2, 6, 3), i64(9, high=6), f32(2, 9, 3)), {"axis": 1}, domain=MS,
         reference=_gather_grad),
    Case("GatherElements", (f32(4, 5), i64(4, 7, low=-5, high=5)), {"axis": 1}, grad=(0,)),
    Case("GatherElements", (f32(4, 5, 3), i64(6, 5, 3, high=4)), {"axis": 0}, grad=(0,)),
    Case("GatherElements", (f32(6), i64(9, high=6)), grad=(0,)),
    Case("GatherElements", (f32(4, 5), Tensor((4, 7), "int32", -5, 5)), {"axis": 1}, grad=(0,),
         name="gather-elements-int32"),
    Case("GatherElementsGrad", (f32(4, 7), axes(4, 5), i64(4, 7, high=5)), {"axis": 1}, domain=MS,
         reference=_elements_grad),
    Case("OneHot", (i64(3, 4, low=0, high=5), np.array(5), f32(2)), grad=(2,)),
    Case("OneHot", (i64(3, 4, low=-6, high=7), np.array(5), f32(2)), {"axis": 0}, grad=(2,),
         reference=lambda i, depth, v, axis: [np.where(
             np.where(i < 0, i + depth, i) == np.arange(5).reshape(5, 1, 1), v[1], v[0])]),
    Case("OneHot", (np.array([[1.0, 0], [-2, 7]], np.float32), np.array(5.0, np.float32),
                    np.array([0, 3])), name="one-hot-of-floats", reference=lambda i, depth, v: [
        3 * (np.where(i < 0, i + 5, i)[..., None] == np.arange(5))]),
    Case("OneHot", (i64(3, 4, low=-5, high=7), np.array(5), np.array([0, 1])), {"axis": 1},
         reference=lambda i, depth, values, axis: [
             np.moveaxis(np.where(i < 0, i + depth, i)[..., None] == np.arange(depth), -1, axis) * 1
         ], name="one-hot-outside"),
)  # fmt: skip
