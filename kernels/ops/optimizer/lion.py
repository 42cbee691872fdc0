"""Lion: the sign of a moving average of gradients.

Lion      p = p (1 - r wd) - r sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
Error     a step: 3 roundings of float
Source    Chen et al., arXiv 2302.06675, Algorithm 2

The letters are explained in node.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.base.signatures import BELOW_1
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.method import FIRST, Group, Method, name_betas
from engine.kernels.ops.optimizer.node import optimizer
from engine.kernels.ops.optimizer.update import Formula, update_kernel
from engine.kernels.vocabulary.kernel import inline
from engine.plan.states import State

# --- options


@dataclass(frozen=True)
class Lion(Method):
    """The sign of a moving average of gradients (Chen et al., arXiv 2302.06675).

    betas: the decays of the average whose sign is the step, and of the average that is kept.
    weight_decay: the factor of the parameters that each step subtracts, times the learning rate.
    """

    op = "LionOptimizer"
    ranges: ClassVar = {"betas": BELOW_1}

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {**name_betas(self.betas), "weight_decay": float(self.weight_decay)}

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State(FIRST),)


# --- kernels


@inline
def _values(call, rate):
    return rate, 1.0 - rate * call.decay, 1.0 - call.a, 1.0 - call.b


@update_kernel(states=("m",), numbers={"a": "alpha", "b": "beta", "decay": "weight_decay"})
def lion(target: Target, T: str) -> Formula:
    """Update p and m by one step of Lion; do nothing where the signal is false."""
    text = """rate keep a1 b1 ->
    p = p * keep - rate * sign(a * m + a1 * g); m = b * m + b1 * g"""
    return Formula(text, _values)


OPS = (optimizer(Lion, lion),)
KERNELS = (lion.template,)
