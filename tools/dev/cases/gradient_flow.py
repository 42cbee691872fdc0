"""Ops that say where gradients go."""

from __future__ import annotations

from engine.kernels.vocabulary.op import OURS
from engine.tools.dev.cases.case import Case, f32

CASES = (
    Case("StopGradient", (f32(2, 3),), domain=OURS, reference=lambda y: [y]),
    Case("Cotangent", (f32(2, 3),), domain=OURS, reference=lambda y: [y]),
    Case("Redirect", (f32(2, 3), f32(2, 3), f32(4), f32(4)), grad=(0,),
         domain=OURS, reference=lambda y, dy, x, dx: [y]),
    Case("MovedBuffer", (f32(2, 3), f32(2, 3)), domain=OURS, reference=lambda old, new: [old]),
    Case("ModeChoice", (f32(2, 3), f32(2, 3)), domain=OURS, reference=lambda y, other: [y]),
)  # fmt: skip
