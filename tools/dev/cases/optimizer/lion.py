"""Lion, arXiv 2302.06675, Algorithm 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import Lion
from engine.tools.dev.cases.optimizer.case import BETAS, DECAY, OptimizerCase, Options, State


def lion(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    (a, b), m = o["betas"], s.get("m", 0)
    s["m"] = b * m + (1 - b) * g
    return p * (1 - lr * o["weight_decay"]) - lr * np.sign(a * m + (1 - a) * g)


CASES = [
    OptimizerCase(Lion(betas=BETAS), lion, 1),
    OptimizerCase(Lion(betas=BETAS, weight_decay=DECAY), lion, 1),
]
