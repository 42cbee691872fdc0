"""Declarations of optimizers: options, the attributes of their ops, and tables of states.

A family of this folder declares one optimizer: a frozen dataclass that derives from `Method`, whose
fields are the options of users (names, order, defaults and meanings), its op, made from that class
by `node.optimizer`, and its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.base.signatures import AT_LEAST_0, BELOW_1, Range, check_arguments
from engine.kernels.vocabulary.op import OURS
from engine.plan.states import State

SIGNALS = f"{OURS}::UpdateSignal {OURS}::GradientSignal"  # by which updates may be left out
FIRST, SECOND = "first_order_moments", "second_order_moments"  # onnxruntime-training's names


@check_arguments(lr_scale=AT_LEAST_0)
@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate or a weight decay of their own.

    match: names of parameters, or patterns such as `*.bias`.  If several groups match a parameter,
        the first one applies.
    lr_scale: the factor of the learning rate.
    weight_decay: the weight decay of the group; None: the optimizer's.
    """

    match: Sequence[str]
    lr_scale: float = 1.0
    weight_decay: float | None = None


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """The op that an optimizer model is made of, with the attributes of its nodes.

    states: the states the op reads.
    unread: states that the model declares after them for the format alone.
    """

    op: str
    attrs: Mapping[str, Any]
    states: tuple[State, ...]
    domain: str = OURS
    has_step: bool = True
    unread: tuple[State, ...] = ()


class Method:
    """An optimizer of one op; a subclass is a frozen dataclass of its options.

    op: the name of its op.
    ranges: the allowed values of options that are numbers.

    The meanings of options in all subclasses that do not describe them differently:

    betas: the decays of the moving averages of the gradients and of their squares.
    eps: the number added to the root of the mean square, so that no step divides by 0.
    weight_decay: the factor of the parameters that is added to their gradients.
    clip_grad: the largest norm of all gradients together; a larger norm is scaled down to it.  None
        for no limit.
    groups: parameters with a learning rate or a weight decay of their own, see `Group`.
    """

    op: ClassVar[str]
    ranges: ClassVar[Mapping[str, Range]] = {}
    clip_grad: float | None
    groups: Sequence[Group]

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the op's nodes.

        Raises:
            InputError: options contradict each other.
        """
        raise NotImplementedError

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        """Return the table of states of a node with these attributes."""
        raise NotImplementedError

    def rule(self, *, is_divided: bool = False) -> OptimizerRule:
        """Return the op of a model; is_divided: each node updates some of the parameters."""
        attrs = self.attributes()
        return OptimizerRule(self.op, attrs, self.states(attrs))


# --- attributes of several optimizers


def name_betas(given: tuple[float, float]) -> dict[str, float]:
    """Return the attributes alpha and beta."""
    alpha, beta = given
    return {"alpha": float(alpha), "beta": float(beta)}


class Moments(Method):
    """Base of optimizers that keep a mean of gradients and a mean of their squares."""

    ranges: ClassVar = {"betas": BELOW_1, "eps": AT_LEAST_0}
    betas: tuple[float, float]
    eps: float
    weight_decay: float

    def attributes(self) -> dict[str, Any]:
        return {
            **name_betas(self.betas),
            "epsilon": float(self.eps),
            "weight_decay": float(self.weight_decay),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return State(FIRST), State(SECOND)
