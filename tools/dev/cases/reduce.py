"""Reductions along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32, i64

POSITIVE = {"low": 0.5, "high": 2.0}

# op, the range its inputs are drawn from
FLOAT_OPS = {
    "ReduceSum": {}, "ReduceMean": {}, "ReduceMax": {}, "ReduceMin": {}, "ReduceProd": POSITIVE,
    "ReduceL1": {"avoid": 0.0}, "ReduceL2": {}, "ReduceLogSum": POSITIVE, "ReduceLogSumExp": {},
    "ReduceSumSquare": {},
}  # fmt: skip


def axes_input(op: str, shape: tuple[int, ...], axes: list[int], **attrs: int) -> Case:
    """The form of opset 18 (ReduceSum: 13)."""
    opset = 13 if op == "ReduceSum" else 18
    ins = (f32(*shape, **FLOAT_OPS[op]), np.array(axes, np.int64))
    name = f"{op}-{shape}-{axes}{attrs or ''}".replace(" ", "")
    return Case(op, ins, attrs, grad=(0,), opset=opset, tol=4e-6, name=name)


def axes_attribute(op: str, shape: tuple[int, ...], axes: list[int], **attrs: Any) -> Case:
    """The form before."""
    opset = 11 if op == "ReduceSum" else 17
    attrs = attrs | {"axes": axes}
    return Case(op, (f32(*shape, **FLOAT_OPS[op]),), attrs, grad=(0,), opset=opset, tol=4e-6)


def _clip_factor(*xs: Any, max_norm: float) -> list[Any]:
    return [np.array([min(max_norm / (_norm_of(xs) + 1e-6), 1.0)])]


def _norm_of(xs: Any) -> Any:
    return np.sqrt(sum(np.sum(x.astype(np.float64) ** 2) for x in xs))


def _sum_training(x: Any, axes: Any, keepdims: int = 1, **_: Any) -> Any:
    return [np.sum(x, axis=tuple(axes), keepdims=bool(keepdims))]


def _extreme_grad(dy: Any, x: Any, y: Any, axes: list[int], largest: int) -> list[Any]:
    hits = x == y
    return [np.where(hits, dy / hits.sum(axis=tuple(axes), keepdims=True), 0)]


# By what walks they become: rows, columns, both in a chain, an axis of size 1, several threads.
WALKS = (
    ((3, 4, 5), [2]), ((3, 4, 5), [0]), ((2, 3, 4, 5), [0, 2]), ((2, 3, 4, 5), [1, 3]),
    ((3, 1, 4), [1]), ((2, 40, 33), [-2]), ((1, 1), [0, 1]), ((7,), [0]),
)  # fmt: skip
LARGE = (((40000,), [0]), ((600, 10), [0]), ((3, 20000), [1]), ((3000, 70), [0]))

CASES = (
    *(axes_input(op, shape, axes) for op in FLOAT_OPS for shape, axes in WALKS),
    *(axes_attribute(op, (3, 4, 5), [0, -1], keepdims=0) for op in FLOAT_OPS),
    *(axes_input(op, (3, 4, 5), [1], keepdims=0) for op in FLOAT_OPS),
    *(Case(op, (f32(3, 4, **kind),), {"keepdims": 0}, grad=(0,), tol=4e-6)
      for op, kind in FLOAT_OPS.items()),
    *(Case(op, (f32(3, 4, **kind),), {"noop_with_empty_axes": 1}, grad=(0,), opset=18,
           name=f"{op}-noop")
      for op, kind in FLOAT_OPS.items() if op in ("ReduceSum", "ReduceMax")),
    *(axes_input(op, shape, axes) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2")
      for shape, axes in LARGE),
    axes_input("ReduceLogSumExp", (3000, 70), [0]),
    axes_input("ReduceLogSumExp", (3, 9000), [1]),
    *(Case(op, (i64(4, 60, low=-9, high=9), np.array([1])), opset=18)
      for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")),
    Case("ReduceMax", (Tensor((4, 6), "int32", -9, 9), np.array([0])), opset=18),
    *(Case(op, (Tensor((3, 5), kind, 1, 9), np.array([1])), opset=18, name=f"{op}-{kind}",
           reference=lambda x, axes, of=of: [np.trunc(of(x.astype(np.float64))).astype(x.dtype)])
      for op, kind, of in (
          ("ReduceMean", "int32", lambda x: x.mean(1, keepdims=True)),
          ("ReduceL2", "int64", lambda x: np.sqrt((x * x).sum(1, keepdims=True))),
          ("ReduceLogSum", "uint32", lambda x: np.log(x.sum(1, keepdims=True))),
          ("ReduceLogSumExp", "int32", lambda x: np.log(np.exp(x).sum(1, keepdims=True))))),
    *(Case(op, (Tensor((4, 6), "bool"), np.array([axis])), {"keepdims": axis}, opset=20,
           name=f"{op}-bool-{axis}", reference=lambda x, axes, keepdims, of=of: [
               of(x, int(axes[0]), keepdims=bool(keepdims))])
      for op, of in (("ReduceMax", np.any), ("ReduceMin", np.all)) for axis in (0, 1)),
    *(Case(op, (Tensor((0, 2), "bool"), np.array([0])), opset=20, name=f"{op}-bool-of-nothing",
           reference=lambda x, axes, op=op: [np.full((1, 2), op == "ReduceMin")])
      for op in ("ReduceMax", "ReduceMin")),
    # Ties share the gradient, products are exact with none, one and two zeros in a row.
    Case("ReduceProd", (i64(3, 3, low=-3, high=3),), {"axes": [1]}, opset=13, name="prod-integer"),
    # The neutral element of an empty range.
    Case("ReduceSum", (f32(0, 3), np.array([0])), name="sum-of-nothing"),
    Case("ReduceAllL2", (f32(40, 300), f32(7), f32()), domain=MS,
         reference=lambda *xs: [np.sqrt(sum(np.sum(x * x) for x in xs))]),
    *(Case("ClipFactor", (f32(90, 100), f32(7), f32()), {"max_norm": most}, domain="engine",
           name=f"clip-factor-{most}", reference=_clip_factor) for most in (0.5, 1e6)),
    Case("ClipFactor", (f32(90, 100), np.linspace(-2, 2, 5000)), {"max_norm": 0.5},
         domain="engine", name="clip-factor-of-two-types", reference=_clip_factor),
    Case("ClipFactor", (f32(90, 100), f32(7)), {"max_norm": 0.5}, domain="engine", outs=2,
         name="clip-factor-and-norm",
         reference=lambda *xs, max_norm: [
             *_clip_factor(*xs, max_norm=max_norm), np.array([_norm_of(xs)])]),
    *(Case("ExtremeGrad", (f32(*np.where(np.isin(range(3), axes), 1, (3, 4, 5))),
                           np.arange(60, dtype=np.float32).reshape(3, 4, 5) // 2 * sign,
                           (np.arange(60, dtype=np.float32).reshape(3, 4, 5) // 2 * sign).max(
                               axis=tuple(axes), keepdims=True)),
           {"axes": axes, "largest": 1}, domain="engine", reference=_extreme_grad,
           name=f"extreme-grad-{axes}-{sign}".replace(" ", ""))
      for axes in ([2], [0, 1], [0, 2], [0, 1, 2]) for sign in (1, -1)),
    *(Case("ReduceSumTraining", (f32(*shape), np.array([axis])), {"keepdims": 0}, domain=MS,
           reference=_sum_training)
      for shape, axis in (((4, 5), 0), ((4, 5), 1), ((4, 1), 1))),
)  # fmt: skip
