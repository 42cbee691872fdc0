"""LAMB, arXiv 1904.00962, Algorithm 2, bias corrected."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import LAMB
from engine.tools.dev.cases.optimizer.case import BETAS, DECAY, EPS, OptimizerCase, Options, State


def lamb(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    a, b = o["betas"]
    s["m"] = a * s.get("m", 0) + (1 - a) * g
    s["v"] = b * s.get("v", 0) + (1 - b) * g * g
    u = s["m"] / (1 - a**t) / (np.sqrt(s["v"] / (1 - b**t)) + o["eps"]) + o["weight_decay"] * p
    return p - lr * np.linalg.norm(p) / np.linalg.norm(u) * u


CASES = [
    OptimizerCase(LAMB(betas=BETAS, eps=EPS), lamb, 2),
    OptimizerCase(LAMB(betas=BETAS, eps=EPS, weight_decay=DECAY), lamb, 2),
]
