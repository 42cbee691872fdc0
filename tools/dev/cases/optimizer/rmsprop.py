"""RMSprop as in torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import RMSprop
from engine.tools.dev.cases.optimizer.case import DECAY, EPS, OptimizerCase, Options, State


def rmsprop(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    d, a = g + o["weight_decay"] * p, o["alpha"]
    s["v"] = a * s.get("v", 0) + (1 - a) * d * d
    root = s["v"]
    if o["centered"]:
        s["u"] = s.get("u", 0) + (1 - a) * (d - s.get("u", 0))
        root = s["v"] - s["u"] ** 2
    d = d / (np.sqrt(root) + o["eps"])
    if o["momentum"]:
        d = s["m"] = o["momentum"] * s.get("m", 0) + d
    return p - lr * d


CASES = [
    OptimizerCase(RMSprop(alpha=0.9375, eps=EPS), rmsprop, 1),
    OptimizerCase(RMSprop(alpha=0.9375, eps=EPS, weight_decay=DECAY, centered=True), rmsprop, 2),
    OptimizerCase(RMSprop(alpha=0.9375, eps=EPS, weight_decay=DECAY, momentum=0.75), rmsprop, 2),
    OptimizerCase(
        RMSprop(alpha=0.9375, eps=EPS, weight_decay=DECAY, momentum=0.75, centered=True), rmsprop, 3
    ),
]
