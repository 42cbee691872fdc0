"""Softmax, LogSoftmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, f32


def _log_softmax(x: Any) -> Any:  # reference: onnx.reference underflows
    m = x.max(-1, keepdims=True)
    return [x - m - np.log(np.exp(x - m).sum(-1, keepdims=True))]


def _softmax_grad(dy: Any, y: Any, axis: int = -1) -> Any:
    return [y * (dy - np.sum(y * dy, axis, keepdims=True))]


def _log_softmax_grad(dy: Any, y: Any, axis: int = -1) -> Any:
    return [dy - np.exp(y) * np.sum(dy, axis, keepdims=True)]


def _flat(rule: Any, dy: Any, y: Any) -> Any:  # reference: axes 1 and up as one
    (dx,) = rule(dy.reshape(len(y), -1), y.reshape(len(y), -1))
    return [dx.reshape(y.shape)]


SHAPES = (
    ((3, 5), -1), ((5, 3), 0), ((2, 7, 33), 1), ((2, 7, 3, 100), 1), ((4, 1000), 1), ((7,), 0),
)  # fmt: skip

CASES = (
    *(Case(op, (f32(*shape),), {"axis": axis}, grad=(0,))
      for op in ("Softmax", "LogSoftmax") for shape, axis in SHAPES),
    # One axis out of all from the axis on, before opset 13.
    *(Case(op, (f32(2, 3, 4),), {"axis": axis}, grad=(0,), opset=11, reference=reference)
      for op, reference in (
          ("Softmax", lambda x, axis: [_old(x, axis)]),
          ("LogSoftmax", lambda x, axis: [np.log(_old(x, axis))]),
      ) for axis in (1, 2)),
    Case("Softmax", (f32(4, 9, low=-80, high=80),), grad=(0,), name="softmax-large"),
    Case("LogSoftmax", (f32(4, 9, low=-800, high=800),), grad=(0,), name="log-softmax-large",
         reference=_log_softmax),
    Case("SoftmaxGrad_13", (f32(3, 5), f32(3, 5, low=0, high=1)), {"axis": 1}, domain=MS,
         reference=_softmax_grad),
    Case("SoftmaxGrad", (f32(3, 4, 5), f32(3, 4, 5, low=0, high=1)), {"axis": 1}, domain=MS,
         reference=lambda dy, y, axis: _flat(_softmax_grad, dy, y)),
    Case("LogSoftmaxGrad", (f32(3, 4, 5), f32(3, 4, 5, low=-3, high=0)), {"axis": 1}, domain=MS,
         reference=lambda dy, y, axis: _flat(_log_softmax_grad, dy, y)),
    Case("LogSoftmaxGrad_13", (f32(3, 5, 40), f32(3, 5, 40, low=-3, high=0)), {"axis": 1},
         domain=MS, reference=_log_softmax_grad),
)  # fmt: skip


def _old(x: Any, axis: Any) -> Any:
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    e = np.exp(flat - flat.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).reshape(x.shape)
