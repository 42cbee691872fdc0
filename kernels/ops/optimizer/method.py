"""Declarations of optimizers: options, the attributes of their ops, and tables of states.

A family of this room holds one optimizer: a frozen dataclass that derives from `Method`, whose
fields are the options that users give (names, order and defaults stand there and nowhere else), its
op, made by `step.optimizer` from that class, and its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.base.signatures import AT_LEAST_0, Range, check_arguments
from engine.kernels.vocabulary.op import OURS
from engine.plan.states import State

SIGNALS = f"{OURS}::UpdateSignal {OURS}::GradientSignal"  # by which updates may be left out
FIRST, SECOND = "first_order_moments", "second_order_moments"  # onnxruntime-training's names


@check_arguments(lr_scale=AT_LEAST_0)
@dataclass(frozen=True)
class Group:
    """Parameters that are updated differently from the rest.

    match: names of parameters, or patterns of them such as `*.bias`; the first group that matches a
        parameter has it.
    lr_scale: factor of the learning rate.
    weight_decay: replaces the optimizer's own; None keeps it.
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

    Options that all have:
    clip_grad: norm over all gradients to which they are scaled down.
    groups: parameters with a learning rate and a weight decay of their own.
    """

    op: ClassVar[str]
    ranges: ClassVar[Mapping[str, Range]] = {}  # of options that are numbers
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
