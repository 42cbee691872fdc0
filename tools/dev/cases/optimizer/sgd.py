"""SGD as in torch."""

from __future__ import annotations

from typing import Any

from engine.graphs.offline.optim_types import SGD
from engine.tools.dev.cases.optimizer.case import DECAY, OptimizerCase, Options, State


def sgd(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    d = g + o["weight_decay"] * p
    if o["momentum"]:
        s["m"] = d if t == 1 else o["momentum"] * s["m"] + (1 - o["dampening"]) * d
        d = d + o["momentum"] * s["m"] if o["nesterov"] else s["m"]
    return p - lr * d


CASES = [
    OptimizerCase(SGD(), sgd, 1),
    OptimizerCase(SGD(weight_decay=DECAY), sgd, 0),
    OptimizerCase(SGD(momentum=0.875), sgd, 1),
    OptimizerCase(SGD(momentum=0.875, dampening=0.5, weight_decay=DECAY), sgd, 1),
    OptimizerCase(SGD(momentum=0.75, nesterov=True, weight_decay=DECAY), sgd, 1),
]
