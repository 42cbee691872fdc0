"""Concat, Split, Slice and their training forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.dev.cases.shape import axes

END = 2**63 - 1


def _slice_grad(
    dy: Any, shape: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Any:
    dx = np.zeros(shape)
    index = [slice(None)] * len(shape)
    for i, axis in enumerate(axes if axes is not None else range(len(starts))):
        index[axis] = slice(starts[i], ends[i], steps[i] if steps is not None else 1)
    dx[tuple(index)] = dy
    return [dx]


def window(shape: tuple[int, ...], *bounds: list[int]) -> Case:
    """A Slice by starts, ends, axes, steps."""
    return Case("Slice", (f32(*shape), *(axes(*b) for b in bounds)), grad=(0,),
                name=f"slice-{shape}-{bounds}".replace(" ", ""))  # fmt: skip


CASES = (
    Case("Concat", (f32(2, 3), f32(2, 1), f32(2, 4)), {"axis": 1}, grad=(0, 1, 2)),
    Case("Concat", (f32(2, 3), f32(4, 3)), {"axis": -2}, grad=(0, 1)),
    Case("Concat", (f32(2, 3), f32(4, 3)), {"axis": 0}, grad=(0,), opset=11),
    Case("Concat", (f32(2, 0), f32(2, 3), f32(2, 0)), {"axis": 1}, grad=(0, 1, 2)),
    Case("Concat", (f32(2, 0), f32(2, 3)), {"axis": 1}, grad=(0, 1), opset=11),
    Case("Concat", (f32(2, 3),), {"axis": 1}, grad=(0,)),
    Case("Concat", (Tensor((2, 3), "int64", 0, 9), Tensor((2, 1), "int64", 0, 9)), {"axis": 1},
         name="concat-int64"),
    Case("ConcatTraining", (f32(2, 3), f32(2, 1)), {"axis": -1}, domain=MS, grad=(0, 1), outs=2,
         reference=lambda a, b, axis: [np.concatenate([a, b], axis), axes(3, 1)]),
    Case("Split", (f32(2, 9), axes(2, 3, 4)), {"axis": 1}, grad=(0,), outs=3),
    Case("Split", (f32(2, 9), axes(2, 3, 4)), {"axis": 1}, grad=(0,), outs=("y0", "", "y2"),
         name="split-unused"),
    *(Case("Split", (f32(6, 5), axes(2, 0, 4)), grad=(0,), outs=outs, name=f"split-{outs}")
      for outs in (3, ("y0", "", ""), ("", "", "y2"))),
    Case("Split", (f32(2, 7),), {"axis": -1, "num_outputs": 4}, grad=(0,), outs=4, opset=18),
    Case("Split", (f32(6, 5),), grad=(0,), outs=3),
    Case("Split", (f32(6, 5),), {"split": [1, 5]}, grad=(0,), outs=2, opset=11),
    Case("Split", (f32(7, 5),), {"num_outputs": 3}, grad=(0,), outs=3, opset=18),
    Case("SplitTraining", (f32(2, 5), axes(2, 3)), {"axis": 1}, domain=MS, outs=2,
         reference=lambda x, split, axis: np.split(x, [2], axis)),
    window((5, 6), [1], [4]),
    window((5, 6), [1, 0], [4, END], [1, 0], [1, 2]),
    window((5, 6), [-1], [-END], [1], [-2]),
    window((5, 6, 7), [4, 6], [0, 1], [0, -1], [-1, -3]),
    window((5, 6), [-3], [100], [0]),
    window((5, 6), [0, 0], [END, END]),
    Case("Slice", (f32(5, 6), axes(4), axes(2)), name="slice-empty"),
    Case("Slice", (f32(5, 6),), {"starts": [1], "ends": [3], "axes": [1]}, grad=(0,), opset=9),
    Case("SliceGrad", (f32(2, 6), axes(5, 6), axes(1), axes(4), axes(0), axes(2)), domain=MS,
         reference=_slice_grad),
)  # fmt: skip
