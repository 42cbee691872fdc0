"""Cases: products of rows with the matrix of their group."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from engine.base.aliases import Array
from engine.kernels.vocabulary.op import OURS
from engine.tools.dev.cases.case import Case, f32, fed, i64


def _group(index: Array, groups: int) -> list[Array]:
    order = np.argsort(index % groups, kind="stable")
    counts = np.bincount(index % groups, minlength=groups)
    return [order, np.argsort(order), np.concatenate([[0], np.cumsum(counts)])]


def _multiply(x: Array, w: Array, starts: Array, transB: int = 0) -> list[Array]:
    matrices = w.transpose(0, 2, 1) if transB else w
    group = np.searchsorted(starts, np.arange(len(x)), side="right") - 1
    return [np.einsum("ik,ikn->in", x, matrices[group])]


def _sum_groups(a: Array, b: Array, starts: Array) -> list[Array]:
    return [np.stack([a[i:j].T @ b[i:j] for i, j in pairwise(starts)])]


def _starts(*starts: int) -> object:
    return fed(starts, "int64")


CASES = (
    Case("GroupRows", (i64(50, low=-4, high=4),), {"groups": 4}, domain=OURS, outs=3,
         reference=_group),
    Case("GroupRows", (i64(9, low=5, high=7),), {"groups": 7}, domain=OURS, outs=("", "y1", "y2"),
         reference=lambda index, groups: _group(index, groups)[1:], name="group-some-outputs"),
    Case("GroupRows", (i64(4096, high=64),), {"groups": 64}, domain=OURS, outs=3,
         reference=_group, bench=True),
    *(Case("SegmentMatMul", (f32(30, 7), f32(4, *shape), _starts(0, 9, 9, 11, 30)),
           {"transB": trans}, domain=OURS, grad=(0, 1), reference=_multiply)
      for trans, shape in ((0, (7, 70)), (1, (70, 7)))),
    Case("SegmentMatMul", (f32(40, 600), f32(2, 33, 600), _starts(0, 39, 40)), {"transB": 1},
         domain=OURS, reference=_multiply, name="segments-of-long-sums"),
    Case("SegmentMatMul", (f32(0, 5), f32(2, 5, 3), _starts(0, 0, 0)), domain=OURS,
         reference=_multiply, name="segments-of-no-rows"),
    Case("SegmentMatMul", (f32(6, 0), f32(2, 0, 3), _starts(0, 2, 6)), domain=OURS,
         reference=_multiply, name="segments-of-empty-sums"),
    Case("SegmentMatMul", (f32(512, 256), f32(8, 512, 256), _starts(*range(0, 513, 64))),
         {"transB": 1}, domain=OURS, grad=(0, 1), reference=_multiply, bench=True,
         name="segments-of-experts"),
    Case("SegmentMatMulGrad", (f32(30, 7), f32(30, 40), _starts(0, 9, 9, 30)), domain=OURS,
         reference=_sum_groups),
    Case("SegmentMatMulGrad", (f32(0, 7), f32(0, 40), _starts(0, 0, 0)), domain=OURS,
         reference=_sum_groups),
    Case("SegmentMatMulGrad", (f32(1024, 65), f32(1024, 40), _starts(0, 1000, 1024)), domain=OURS,
         reference=_sum_groups, bench=True),
)  # fmt: skip
