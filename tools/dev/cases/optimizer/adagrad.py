"""Adagrad as in torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import Adagrad
from engine.tools.dev.cases.optimizer.case import DECAY, EPS, OptimizerCase, Options, State


def adagrad(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    d = g + o["weight_decay"] * p
    s["v"] = s.get("v", o["initial_accumulator_value"]) + d * d
    return p - lr / (1 + (t - 1) * o["lr_decay"]) * d / (np.sqrt(s["v"]) + o["eps"])


CASES = [
    OptimizerCase(Adagrad(eps=EPS), adagrad, 1),
    OptimizerCase(
        Adagrad(lr_decay=0.125, weight_decay=DECAY, initial_accumulator_value=0.5, eps=EPS),
        adagrad,
        1,
    ),
]
