"""Gradient descent, plain and with momentum.

SGD       p = p - r d;  with momentum m = mu m + (1 - damp) d, the first time m = d, and
          p = p - r m, or p - r (d + mu m) by Nesterov                                    (torch)
          Parameters that are integers: integer_sgd.py
Error     a step: 3 roundings of float
Source    torch.optim

The letters are explained in node.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.base.element_types import TRAINED_INTEGERS
from engine.base.errors import InputError
from engine.base.signatures import AT_LEAST_0
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.integer_sgd import integer_sgd, nibble_sgd, update_integers
from engine.kernels.ops.optimizer.method import FIRST, SIGNALS, Group, Method, OptimizerRule
from engine.kernels.ops.optimizer.node import OptimizerNode, optimizer, rule
from engine.kernels.ops.optimizer.update import Formula, stretch, update_kernel
from engine.kernels.vocabulary.kernel import inline
from engine.kernels.vocabulary.op import MS, Lowering, Op, Update
from engine.plan.states import State

PLAIN = "SGDOptimizerV2"  # onnxruntime's
STATELESS = Update(lambda attrs: (), has_step=False)
BLOCK = 1024  # elements without a gradient that are passed over: few rows of an embedding table


# --- options


@dataclass(frozen=True)
class SGD(Method):
    """Gradient descent, optionally with momentum.

    momentum: the decay of a moving sum of gradients; with 0, there is none.
    dampening: the share of each gradient that the sum leaves out.
    nesterov: whether to use Nesterov momentum, which needs a momentum and no dampening.
    """

    op = "SGDOptimizer"
    ranges: ClassVar = {"momentum": AT_LEAST_0}

    clip_grad: float | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        if self.nesterov and not (self.momentum and not self.dampening):
            raise InputError("nesterov=True needs a momentum and no dampening")
        return {
            "momentum": float(self.momentum),
            "dampening": float(self.dampening),
            "nesterov": int(self.nesterov),
            "weight_decay": float(self.weight_decay),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State(FIRST),) if attrs.get("momentum") else ()

    def rule(self, *, is_divided: bool = False) -> OptimizerRule:
        """Return the rule: plain SGD is onnxruntime's op, whose moments nothing reads."""
        own = super().rule()
        if is_divided or self.momentum or self.weight_decay:
            return own
        return OptimizerRule(PLAIN, {}, (), MS, has_step=False, unread=(State(FIRST),))


# --- kernels


@update_kernel(numbers={"decay": "weight_decay"}, has_step=False, unit=BLOCK)
def sgd(target: Target, T: str) -> Formula:
    """p = p - lr (g + decay p); do nothing where the signal is false.

    Rows of the ranges without a gradient are passed over, which decay 0 and a factor that is a
    number make exact.
    """
    return Formula("p = p - rate * (g + decay * p)", row_of=stretch(T, keeps_nan=True))


@inline
def _values(call, rate):
    fresh = 1.0 if call.step[0] == 1 else 1.0 - call.damp
    return rate, fresh


@update_kernel(
    states=("m",), numbers={"mu": "momentum", "damp": "dampening", "decay": "weight_decay"}
)
def momentum(target: Target, T: str, nesterov: int) -> Formula:
    """Update p and m by one step of SGD with momentum; do nothing where the signal is false."""
    return Formula(
        f"""rate fresh -> d = g + decay * p; m = mu * m + fresh * d;
        p = p - rate * {"(d + mu * m)" if nesterov else "m"}""",
        _values,
    )


# --- lowering


def _lower(lowering: Lowering) -> None:
    node = OptimizerNode(lowering, SGD, has_step=lowering.site.op == SGD.op)
    if node.T in TRAINED_INTEGERS:
        update_integers(node)
    elif node.states:
        node.update(momentum)
    else:
        node.update(sgd, skipped=0 if node.real("weight_decay") else BLOCK)
    node.finish()


OPS = (
    Op(
        name=PLAIN,
        domain=MS,
        inputs=(3, 5),
        outputs=2,
        infer=rule(STATELESS, {}),
        lower=_lower,
        calls=(sgd.template, *MAP_KERNELS),
        optimizer=STATELESS,
        joined=SIGNALS,
    ),
    optimizer(SGD, sgd, momentum, integer_sgd, nibble_sgd, lower=_lower),
)
KERNELS = (sgd.template, momentum.template, integer_sgd, nibble_sgd)
