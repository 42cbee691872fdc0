"""Losses: classes of options that append nodes to a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from engine.base import arguments
from engine.base.errors import InputError
from engine.base.other_names import LOSS_INPUTS
from engine.base.representation import represent
from engine.base.signatures import check_arguments

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.loss_nodes import LossNodes

Array = np.ndarray[Any, np.dtype[Any]]
Activation = Literal["sigmoid", "softmax"]  # makes probabilities of scores
_COUNTS = ("no", "one", "two", "three")


@check_arguments
class Loss(ABC):
    """A loss, which appends its nodes to a graph.  Subclass it for a loss of your own.

    takes: how many outputs of the model it compares.
    """

    takes: ClassVar[int] = 1

    __repr__ = represent

    @property
    def threshold(self) -> float | None:
        """The output above which a sample has a label; None unless it may have several."""
        return None

    @abstractmethod
    def build(self, graph: Graph, *inputs: str) -> str:
        """Append the loss over the values `inputs` to `graph`; return the name of the result."""


@check_arguments
class NamedLoss(Loss):
    """A loss of this package: options, and the nodes that `_append` makes of them.

    inputs: what its block calls the outputs of the model that it is taken of.
    targets: the names that the inputs with which they are compared have unless others are given.
    reductions: what `reduction` may be.
    outputs, compared: the shapes of these outputs and of the targets, in words, for docs/losses.md.
    """

    inputs: ClassVar[tuple[str, ...]] = ("loss_input_name",)
    targets: ClassVar[tuple[str, ...]] = ("target",)
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    outputs: ClassVar[str] = "any shape"
    compared: ClassVar[str] = "`target`, of that shape"

    reduction: str

    def __post_init__(self) -> None:
        if self.reduction not in self.reductions:
            known = ", ".join(self.reductions)
            raise InputError(f"reduction={self.reduction!r}; expected one of {known}")

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs.offline.loss_nodes import LossNodes

        return self._append(LossNodes(graph), *self._split_inputs(inputs))

    @abstractmethod
    def _append(self, nodes: LossNodes, *values: Any) -> str:
        """Append the loss of these values, targets last; return the name of the result."""

    def _split_inputs(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """Return the values that the loss is taken of, and the names of its targets.

        A target that has no name given has the usual one, as a `DefaultName`.

        Raises:
            InputError: there are too few or too many names.
        """
        given = len(inputs) - self.takes
        if not 0 <= given <= len(self.targets):
            several = "s" if len(self.targets) > 1 else ""
            may = f", and may be given the name{several} of its {', '.join(self.targets)}"
            raise InputError(
                f"{type(self).__name__} takes {_COUNTS[self.takes]} model "
                f"output{'s' if self.takes > 1 else ''}{may if self.targets else ''}; found "
                f"{list(inputs)}: choose by {LOSS_INPUTS}"
            )
        return (*inputs, *map(arguments.DefaultName, self.targets[given:]))
