"""Adam and AdamW in both forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import Adam, AdamW
from engine.tools.dev.cases.optimizer.case import BETAS, DECAY, EPS, OptimizerCase, Options, State


def adam(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    a, b = o["betas"]
    d = g + o["weight_decay"] * p
    s["m"] = a * s.get("m", 0) + (1 - a) * d
    s["v"] = b * s.get("v", 0) + (1 - b) * d * d
    return p - lr / (1 - a**t) * s["m"] / (np.sqrt(s["v"] / (1 - b**t)) + o["eps"])


def adamw(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    if o["adam_mode"] == 0:
        return adam(t, p * (1 - lr * o["weight_decay"]), g, s, lr, {**o, "weight_decay": 0})
    a, b = o["betas"]
    s["m"] = a * s.get("m", 0) + (1 - a) * g
    s["v"] = b * s.get("v", 0) + (1 - b) * g * g
    p = p - lr * np.sqrt(1 - b**t) / (1 - a**t) * s["m"] / (np.sqrt(s["v"]) + o["eps"])
    return p - lr * o["weight_decay"] * p


CASES = [
    OptimizerCase(Adam(betas=BETAS, eps=EPS), adam, 2),
    OptimizerCase(Adam(betas=BETAS, eps=EPS, weight_decay=DECAY), adam, 2),
    OptimizerCase(AdamW(betas=BETAS, eps=EPS, weight_decay=DECAY, adam_mode=0), adamw, 2),
    OptimizerCase(AdamW(betas=BETAS, eps=EPS, weight_decay=DECAY), adamw, 2),
]
