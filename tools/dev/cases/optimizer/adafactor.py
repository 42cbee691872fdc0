"""Adafactor, arXiv 1804.04235, written as Algorithms 4 and 5 and torch have it, over whole arrays.

A parameter's second moments are kept by rows and columns of its last two dimensions; the product of
a vector of row means and one of column means stands for the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import Adafactor
from engine.tools.dev.cases.optimizer.case import DECAY, OptimizerCase, Options, State


def adafactor(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    beta2 = 1 - t ** o["beta2_decay"]
    # The machine epsilon is the parameters': the cases that are compared name a number.
    eps1, eps2 = o["eps"]
    square = g**2
    if g.ndim > 1:
        s["r"] = beta2 * s.get("r", 0) + (1 - beta2) * square.mean(-1)
        s["c"] = beta2 * s.get("c", 0) + (1 - beta2) * square.mean(-2)
        whole = np.einsum("...i,...j->...ij", s["r"], s["c"])
        v = whole / np.maximum(s["r"].mean(-1), eps1)[..., None, None]
    else:
        v = s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * square
    u = g / np.sqrt(np.maximum(v, eps1**2))
    u = u / max(1, np.sqrt((u**2).mean()) / o["d"])
    alpha = min(lr, 1 / np.sqrt(t)) if o["relative_step"] else lr
    if o["scale_parameter"]:
        alpha *= max(eps2, np.sqrt((p**2).mean()))
    if o["beta1"]:
        s["m"] = o["beta1"] * s.get("m", 0) + (1 - o["beta1"]) * alpha * u
        return p * (1 - lr * o["weight_decay"]) - s["m"]
    return p * (1 - lr * o["weight_decay"]) - alpha * u


EPS = (2.0**-20, 2.0**-10)
CASES = [
    OptimizerCase(Adafactor(beta2_decay=-0.75, eps=EPS), adafactor, 2),
    OptimizerCase(
        Adafactor(beta2_decay=-0.75, eps=EPS, d=1.5, weight_decay=DECAY, beta1=0.875), adafactor, 3
    ),
    OptimizerCase(
        Adafactor(beta2_decay=-0.5, eps=(0.5, 4.0), weight_decay=DECAY, relative_step=False),
        adafactor,
        2,
    ),
    OptimizerCase(
        Adafactor(beta2_decay=-0.75, eps=EPS, scale_parameter=False, beta1=0.75), adafactor, 3
    ),
]
