"""RMSprop: gradients over the root of their mean square, or of their variance.

RMSprop   v = a v + (1 - a) d^2,  s = sqrt(v), or centered u = u + (1 - a) (d - u) and
          s = sqrt(v - u^2);  p = p - r d / (s + eps);
          with momentum  m = mu m + d / (s + eps),  p = p - r m                           (torch)
Error     a step: 4 roundings of float.  v - u^2 is taken as 0 where rounding makes it negative
Source    torch.optim

The letters are explained in node.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.base.signatures import AT_LEAST_0, BELOW_1
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.method import SECOND, Group, Method
from engine.kernels.ops.optimizer.node import optimizer
from engine.kernels.ops.optimizer.update import Formula, update_kernel
from engine.kernels.vocabulary.kernel import inline
from engine.plan.states import State

# --- options


@dataclass(frozen=True)
class RMSprop(Method):
    """Gradients divided by the root of their mean square.

    alpha: the decay of the moving average of squares.
    momentum: the decay of a moving sum of steps; with 0, there is none.
    centered: whether to use the variance of the gradients instead of their mean square.
    """

    op = "RMSpropOptimizer"
    ranges: ClassVar = {"alpha": BELOW_1, "eps": AT_LEAST_0, "momentum": AT_LEAST_0}

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {
            "alpha": float(self.alpha),
            "epsilon": float(self.eps),
            "weight_decay": float(self.weight_decay),
            "momentum": float(self.momentum),
            "centered": int(self.centered),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        names = [SECOND]
        if attrs["centered"]:
            names.append("gradient_averages")
        if attrs["momentum"]:
            names.append("momentums")
        return tuple(map(State, names))


# --- kernels


@inline
def _values(call, rate):
    return rate, 1.0 - call.a


@update_kernel(
    states=("v", "u if centered", "m if momentum"),
    numbers={"a": "alpha", "eps": "epsilon", "decay": "weight_decay", "mu": "momentum"},
)
def rmsprop(target: Target, T: str, centered: int, momentum: int) -> Formula:
    """Update p and the states by one step of RMSprop; do nothing where the signal is false."""
    spread = "v"
    if centered:
        spread = "max(v - u * u, 0.0)"
    return Formula(
        f"""rate a1 -> d = g + decay * p; v = a * v + a1 * (d * d);
        {"u = u + a1 * (d - u);" if centered else ""} q = d / (sqrt({spread}) + eps);
        {"m = mu * m + q; p = p - rate * m" if momentum else "p = p - rate * q"}""",
        _values,
    )


OPS = (optimizer(RMSprop, rmsprop, outputs=5),)
KERNELS = (rmsprop.template,)
