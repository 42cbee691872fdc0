"""Scatters by index, GatherND and what undoes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32, i64
from engine.tools.dev.cases.shape import axes

OPERATE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _elements(x: Any, index: Any, u: Any, axis: int = 0, reduction: str = "none") -> Any:
    y = x.copy()
    for at in np.ndindex(index.shape):
        to = list(at)
        to[axis] = index[at]
        y[tuple(to)] = u[at] if reduction == "none" else OPERATE[reduction](y[tuple(to)], u[at])
    return [y]


def _nd(x: Any, index: Any, u: Any, reduction: str = "none") -> Any:
    y = x.copy()
    for at in np.ndindex(index.shape[:-1]):
        to = tuple(index[at])
        y[to] = u[at] if reduction == "none" else OPERATE[reduction](y[to], u[at])
    return [y]


def _gather_nd_grad(shape: Any, index: Any, dy: Any, batch_dims: int = 0) -> Any:
    dx = np.zeros(shape)
    for at in np.ndindex(index.shape[:-1]):
        dx[(*at[:batch_dims], *index[at])] += dy[at]
    return [dx]


def elements(
    shape: tuple[int, ...], index: Any, axis: int, reduction: str = "none", **more: Any
) -> Case:
    """A ScatterElements with duplicates: few places, many updates."""
    n = shape[axis]
    attrs = {"axis": axis} | ({"reduction": reduction} if reduction != "none" else {})
    more.setdefault("opset", 18)
    return Case("ScatterElements", (f32(*shape), i64(*index, low=-n, high=n), f32(*index)), attrs,
                grad=(0, 2), reference=_elements, **more)  # fmt: skip


def tuples(shape: tuple[int, ...], rows: Any, k: int, reduction: str = "none", **more: Any) -> Case:
    n = min(shape[:k])
    attrs = {"reduction": reduction} if reduction != "none" else {}
    ins = (f32(*shape), i64(*rows, k, low=-n, high=n), f32(*rows, *shape[k:]))
    return Case("ScatterND", ins, attrs, grad=(0, 2), reference=_nd, opset=18, **more)


CHAIN = ("none", "add", "mul", "max", "min")
BATCHED = (f32(2, 3, 4, 5), i64(2, 3, 7, 1, low=-4, high=4))
CACHE = f32(2, 3, 6, 4)


def _cache(past: Any, update: Any, start: Any, axis: int = -2, mode: str = "linear") -> Any:
    y = past.copy()
    for b in range(past.shape[0]):
        for i in range(update.shape[axis]):
            to = (int(start[b]) + i) % past.shape[axis]
            np.moveaxis(y[b], axis, 0)[to] = np.moveaxis(update[b], axis, 0)[i]
    return [y]


CASES = (
    *(elements((3, 4), (3, 9), 1, op) for op in CHAIN),
    *(elements((4, 5, 3), (9, 4, 3), 0, op) for op in CHAIN),
    elements((3, 4), (5, 4), 0, name="scatter-opset-13", opset=13),
    elements((2, 4, 100), (2, 7, 90), 1, "add"),
    elements((2000,), (900,), 0, bench=True),
    Case("ScatterElements", (f32(3, 4), np.array([[0, -1], [2, 1]]), f32(2, 2)), {"axis": 1},
         grad=(0, 2), name="scatter-distinct"),
    Case("Scatter", (f32(3, 4), np.array([[0, 1, 2, 0], [2, 0, 0, 1]]), f32(2, 4)), grad=(0, 2),
         opset=10, reference=_elements),
    Case("ScatterElements", (i64(3, 4), i64(3, 6, high=4), i64(3, 6)), {"axis": 1},
         reference=_elements, name="scatter-int64"),
    *(Case("ScatterElements", (Tensor((3, 4), kind, 0, 9), Tensor((3, 6), "int32", 0, 4),
                               Tensor((3, 6), kind, 0, 9)), {"axis": 1, "reduction": "add"},
           opset=18, reference=_elements, name=f"scatter-add-{kind}")
      for kind in ("int32", "uint8", "bool")),
    *(tuples((4, 5), (9,), 1, op) for op in CHAIN),
    *(tuples((3, 3, 2), (2, 5), 2, op) for op in CHAIN),
    tuples((3, 4), (9,), 2, "add"),
    tuples((6, 130), (9,), 1, "add", bench=True),
    Case("ScatterND", (f32(5, 3), axes(1, 4).reshape(2, 1), f32(2, 3)), grad=(0, 2),
         name="scatter-nd-distinct"),
    Case("ScatterND", (i64(5, 3), i64(9, 1, high=5), i64(9, 3)), name="scatter-nd-int64",
         reference=_nd),
    Case("GatherND", (f32(4, 5, 3), i64(6, 2, low=-4, high=4)), grad=(0,), bench=True),
    Case("GatherND", (f32(4, 5, 3), i64(2, 6, 3, low=-3, high=3)), grad=(0,)),
    Case("GatherND", (f32(4, 40), i64(9, 1, high=4)), grad=(0,)),
    Case("GatherND", BATCHED, {"batch_dims": 2}, grad=(0,), reference=lambda x, i, batch_dims: [
        np.take_along_axis(x, np.where(i < 0, i + 4, i), 2)]),
    Case("GatherND", (i64(4, 5), i64(6, 1, high=4)), name="gather-nd-int64"),
    Case("GatherND", (f32(4, 5), Tensor((6, 1), "int32", -4, 4)), name="gather-nd-int32"),
    Case("GatherNDGrad", (axes(4, 5), i64(9, 1, high=4), f32(9, 5)), domain=MS,
         reference=_gather_nd_grad),
    Case("GatherNDGrad", (axes(2, 4, 3), i64(2, 9, 1, high=4), f32(2, 9, 3)), {"batch_dims": 1},
         domain=MS, reference=_gather_nd_grad),
    *(Case("TensorScatter", (CACHE, f32(2, 3, 3, 4), axes(*start)), {"mode": mode}, grad=(0, 1),
           opset=24, reference=_cache, name=f"tensor-scatter-{mode}")
      for mode, start in (("linear", (0, 3)), ("circular", (2, 5)))),
    Case("TensorScatter", (CACHE, f32(2, 3, 6, 2)), {"axis": 3}, grad=(0, 1), opset=24,
         reference=lambda past, u, axis: _cache(past, u, [0, 0], axis - 4),
         name="tensor-scatter-0"),
)  # fmt: skip
