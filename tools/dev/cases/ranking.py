"""TopK, ArgMax, ArgMin."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32, i64
from engine.tools.dev.cases.shape import axes


def _top(x: Any, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    order = np.argsort(-x if largest else x, axis=axis, kind="stable")
    index = order.take(np.arange(int(k[0])), axis=axis)
    return [np.take_along_axis(x, index, axis), index]


def _first(op: Any) -> Any:  # reference: of equals the first
    return lambda x, axis=0, keepdims=1: [op(x, axis, keepdims=bool(keepdims))]


NOT_NUMBERS = np.array([1, np.nan, -np.inf, 3, np.nan, 3, np.inf, 0], np.float32)

CASES = (
    Case("TopK", (f32(5, 300), axes(7)), grad=(0,), outs=2, reference=_top, bench=True),
    Case("TopK", (f32(5, 301), axes(70)), outs=2, reference=_top, bench=True),
    Case("TopK", (f32(70, 3), axes(4)), {"axis": 0, "largest": 0}, grad=(0,), outs=2,
         reference=_top),
    *(Case("TopK", (i64(2, 200, high=5), axes(9)), {"largest": largest}, outs=2, reference=_top,
           name=f"top-few-ties-{largest}") for largest in (0, 1)),
    Case("TopK", (f32(5, 30), axes(30)), {"largest": 0}, grad=(0,), outs=2, reference=_top),
    Case("TopK", (f32(3, 9, 4), axes(2)), {"axis": 1, "sorted": 0}, grad=(0,), outs=2,
         reference=_top),
    Case("TopK", (f32(9, 4), axes(1)), {"axis": 0}, grad=(0,), reference=lambda x, k, axis: [
        x.max(0, keepdims=True)], name="top-values"),
    Case("TopK", (f32(9, 4), axes(3)), {"axis": 0}, outs=("", "y1"),
         reference=lambda x, k, axis: [_top(x, k, 0)[1]], name="top-indices"),
    Case("TopK", (f32(9, 4), axes(0)), outs=2, reference=_top),
    *(Case("TopK", (i64(4, 50, high=5), axes(20)), {"largest": largest}, outs=2, reference=_top,
           name=f"top-ties-{largest}") for largest in (0, 1)),
    *(Case("TopK", (np.tile(NOT_NUMBERS, 8), axes(2)), {"largest": largest}, outs=2,
           name=f"top-few-nan-{largest}", reference=lambda x, k, largest: [
               x[[1, 4] if largest else [2, 10]], np.array([1, 4] if largest else [2, 10])])
      for largest in (0, 1)),
    Case("TopK", (NOT_NUMBERS, axes(8)), outs=2, name="top-nan", reference=lambda x, k: [
        x[[1, 4, 6, 3, 5, 0, 7, 2]], np.array([1, 4, 6, 3, 5, 0, 7, 2])]),
    Case("TopK", (NOT_NUMBERS, axes(8)), {"largest": 0}, outs=2, name="top-nan-least",
         reference=lambda x, k, largest: [
             x[[2, 7, 0, 3, 5, 6, 1, 4]], np.array([2, 7, 0, 3, 5, 6, 1, 4])]),
    *(Case(op, (f32(4, 5, 6),), {"axis": axis, "keepdims": axis % 2},
           reference=_first(np.argmax if op == "ArgMax" else np.argmin))
      for op in ("ArgMax", "ArgMin") for axis in (0, 1, 2)),
    Case("ArgMax", (i64(5, 6, high=3),), {"axis": 1}, reference=_first(np.argmax)),
    Case("ArgMax", (i64(5, 6, high=3),), {"axis": 1, "select_last_index": 1}, name="arg-max-last"),
)  # fmt: skip
