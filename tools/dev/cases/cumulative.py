"""CumSum, CumProd."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32, i64

WAYS = [{"exclusive": e, "reverse": r} for e in (0, 1) for r in (0, 1)]


def _running(op: Any) -> Any:
    def run(x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
        x = np.moveaxis(x, int(axis), 0)
        x = x[::-1] if reverse else x
        y = op(x, 0)
        if exclusive:
            y = np.concatenate([np.full_like(y[:1], op is np.cumprod), y[:-1]])
        return [np.moveaxis(y[::-1] if reverse else y, 0, int(axis))]

    return run


SUM, PROD = _running(np.cumsum), _running(np.cumprod)

CASES = (
    *(Case(op, (f32(3, 5, 4), np.array(axis)), way, grad=(0,), reference=reference, opset=26,
           name=f"{op}-{axis}-{'-'.join(map(str, way.values()))}")
      for op, reference in (("CumSum", SUM), ("CumProd", PROD)) for axis in (1, -1)
      for way in WAYS),
    Case("CumSum", (f32(7), np.array([0])), grad=(0,), reference=lambda x, _: SUM(x, 0)),
    Case("CumSum", (f32(2, 3, 600), np.array(1)), grad=(0,), reference=SUM, bench=True),
    Case("CumProd", (f32(9, 300, low=0.5, high=1.5), np.array(0)), grad=(0,), reference=PROD,
         opset=26, bench=True),
    Case("CumSum", (i64(3, 4), np.array(1)), reference=SUM, name="cumsum-int64"),
    Case("CumSum", (f32(3, 0), np.array(0)), reference=SUM, name="cumsum-of-nothing"),
)  # fmt: skip
