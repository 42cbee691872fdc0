"""Losses of several outputs: each output of a model has its own, and their weighted sum is trained.

loss = sum over outputs o of weight(o) loss(o)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.base.errors import DTypeError, InputError
from engine.base.signatures import ABOVE_0, check_arguments
from engine.loss_types.base import Loss, NamedLoss

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@check_arguments(weight=ABOVE_0)
@dataclass(frozen=True)
class OutputLoss:
    """The loss of one output.

    output: the name of the output.
    loss: it takes one output.
    weight: the weight of the loss in the sum.
    """

    output: str
    loss: NamedLoss
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The name of its value, under which it is reported."""
        return f"loss_{self.output}"

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the inputs with which the output is compared, such as `scores_labels`."""
        return tuple(f"{self.output}_{target}" for target in self.loss.targets)


@check_arguments
@dataclass(frozen=True)
class Losses(Loss):
    """The weighted sum of the losses of several outputs."""

    parts: tuple[OutputLoss, ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Losses:
        """Return the losses of outputs by their names: a loss, or a pair of a loss and its weight.

        Raises:
            InputError, DTypeError: there is none, or a value is neither of these.
        """
        if not given:
            raise InputError("loss={}: expected names of outputs, each with its loss")
        parts = []
        for output, value in given.items():
            is_pair = isinstance(value, tuple | list) and len(value) == 2
            loss, weight = value if is_pair else (value, 1)
            if not isinstance(loss, NamedLoss) or loss.takes != 1 or loss.reduction == "none":
                raise DTypeError(
                    f"loss[{output!r}]={value!r}: expected a loss of one output, such as "
                    "CrossEntropyLoss(), or a pair of it and its weight"
                )
            parts.append(OutputLoss(output, loss, weight))
        return cls(tuple(parts))

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.loss_nodes import LossNodes

        total = ""
        for part in self.parts:
            value = part.loss.build(graph, part.output, *part.targets)
            nodes = LossNodes(graph)
            nodes.append_named("Identity", value, output=part.name)
            term = nodes.scale(value, part.weight, nodes.find_type(part.output).dtype)
            total = nodes.add("Add", total, term) if total else term
        return total
