"""Ops of onnxruntime-training that move gradients about."""

from __future__ import annotations

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32

CASES = (
    Case("InPlaceAccumulator", (f32(2, 3), f32(2, 3)), domain=MS, reference=lambda s, v: [s + v]),
    *(Case("InPlaceAccumulator", (f32(3), f32(3), np.array([on])), domain=MS,
           name=f"accumulate-{on}", reference=lambda s, v, on: [s + v if on else s])
      for on in (True, False)),
    Case("InPlaceAccumulator", (f32(), f32(), Tensor((1,), "bool")), domain=MS,
         reference=lambda s, v, on: [s + v if on[0] else s], name="accumulate-scalar"),
    Case("ZeroGradient", (f32(2, 3), f32(1)), domain=MS, reference=lambda x, _: [np.zeros((2, 3))]),
    Case("PassThrough", (f32(2, 3), f32(4)), domain=MS, outs=2, reference=lambda a, b: [a, b]),
    *(Case("UpdateSignal", (np.array([1, bad, 2], np.float32), np.array([on])), domain="engine",
           name=f"update-signal-{bad}-{on}",
           reference=lambda x, on: [np.isfinite(x).all(keepdims=True) | ~on])
      for bad, on in ((3, True), (np.nan, True), (-np.inf, True), (np.inf, False))),
    *(Case("GradientSignal", (np.array([on]), f32(5000), np.array([[1, bad], [2, 3]], np.float32),
           f32(0)), domain="engine", name=f"gradient-signal-{bad}-{on}",
           reference=lambda on, *gs: [on & all(np.isfinite(g).all() for g in gs)])
      for bad, on in ((3, True), (3, False), (np.nan, True), (-np.inf, True), (np.inf, False))),
    *(Case("GradientSignal", (None, f32(3), np.array([1.0, bad])), domain="engine",
           name=f"gradient-signal-of-two-types-{bad}",
           reference=lambda _, g, h: [np.array([np.isfinite(h).all()])]) for bad in (2, np.inf)),
    Case("GradientSignal", (None, f32(3)), domain="engine", name="gradient-signal-alone",
         reference=lambda _, g: [np.array([True])]),
    Case("Group", (f32(2, 3), f32(4)), domain=MS, reference=lambda a, b: [np.array([True])]),
)  # fmt: skip
