"""Adagrad: gradients over the root of the sum of their squares.

Adagrad   v = v + d^2, v the initial value before the first step;
          p = p - r / (1 + (t - 1) decay) d / (sqrt(v) + eps)                             (torch)
Error     a step: 4 roundings of float
Source    torch.optim

The letters are explained in node.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.base.signatures import AT_LEAST_0
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.method import Group, Method
from engine.kernels.ops.optimizer.node import optimizer
from engine.kernels.ops.optimizer.update import Formula, update_kernel
from engine.kernels.vocabulary.kernel import inline
from engine.plan.states import State

# --- options


@dataclass(frozen=True)
class Adagrad(Method):
    """Gradients divided by the root of the sum of their squares.

    lr_decay: at step t, the learning rate is divided by 1 + (t - 1) lr_decay.
    initial_accumulator_value: the initial sum of squares.
    """

    op = "AdagradOptimizer"
    ranges: ClassVar = {
        "lr_decay": AT_LEAST_0,
        "initial_accumulator_value": AT_LEAST_0,
        "eps": AT_LEAST_0,
    }

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {
            "lr_decay": float(self.lr_decay),
            "weight_decay": float(self.weight_decay),
            "initial_accumulator_value": float(self.initial_accumulator_value),
            "epsilon": float(self.eps),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State("square_sums", initial=attrs["initial_accumulator_value"]),)


# --- kernels


@inline
def _values(call, rate):
    return (rate / (1.0 + (call.step[0] - 1) * call.lr_decay),)


@update_kernel(
    states=("v",), numbers={"eps": "epsilon", "decay": "weight_decay", "lr_decay": "lr_decay"}
)
def adagrad(target: Target, T: str) -> Formula:
    """Update p and v by one step of Adagrad; do nothing where the signal is false.

    v: the initial value before the first step.
    """
    text = "d = g + decay * p; v = v + d * d; p = p - rate * d / (sqrt(v) + eps)"
    return Formula(f"rate -> {text}", _values)


OPS = (optimizer(Adagrad, adagrad),)
KERNELS = (adagrad.template,)
