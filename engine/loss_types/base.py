"""Losses: classes of options that append nodes to a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from engine.base import arguments
from engine.base.errors import InputError
from engine.base.other_names import LOSS_INPUTS
from engine.base.representation import represent
from engine.base.signatures import check_arguments

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.loss_nodes import LossNodes

Activation = Literal["sigmoid", "softmax"]  # makes probabilities of scores
_COUNTS = ("no", "one", "two", "three")


@check_arguments
class Loss(ABC):
    """The base class of losses.  A loss appends its nodes to a graph; derive your own from it.

    takes: the number of model outputs that the loss takes.
    """

    takes: ClassVar[int] = 1

    __repr__ = represent

    @property
    def threshold(self) -> float | None:
        """The output above which a sample has a label; None if it has exactly one label."""
        return None

    @abstractmethod
    def build(self, graph: Graph, *inputs: str) -> str:
        """Append the nodes of the loss to `graph`; return the name of their result.

        inputs: the names of the model outputs that the loss takes.
        """


@check_arguments
class NamedLoss(Loss):
    """A loss of this package: its options, and `_append`, which adds its nodes.

    inputs: the names of the model outputs in the signature of its block.
    targets: the default names of the target inputs.
    reductions: the values that `reduction` may have.
    outputs, compared: the shapes of these outputs and of the targets, in words, for docs/losses.md.
    other_names: its names in other packages, for messages about an unknown loss.

    The option of all:

    reduction: "mean" or "sum" over all elements that count, or "none", which keeps the loss of each
        and cannot be trained.
    """

    inputs: ClassVar[tuple[str, ...]] = ("loss_input_name",)
    targets: ClassVar[tuple[str, ...]] = ("target",)
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    outputs: ClassVar[str] = "any shape"
    compared: ClassVar[str] = "`target`, same shape"
    other_names: ClassVar[str] = ""

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
        """Append the nodes for these values, targets last; return the name of their result."""

    def _split_inputs(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the model outputs and of the targets.

        A target without a given name gets its default name, as a `DefaultName`.

        Raises:
            InputError: there are too few or too many names.
        """
        given = len(inputs) - self.takes
        if not 0 <= given <= len(self.targets):
            may = f", optionally followed by other names for {', '.join(self.targets)}"
            raise InputError(
                f"{type(self).__name__} takes {_COUNTS[self.takes]} model "
                f"output{'s' if self.takes > 1 else ''}{may if self.targets else ''}; got "
                f"{list(inputs)}; choose the outputs with {LOSS_INPUTS}"
            )
        return (*inputs, *map(arguments.DefaultName, self.targets[given:]))


@check_arguments
@dataclass(frozen=True, eq=False)
class LossOfScores(NamedLoss):
    """A loss that makes probabilities of scores itself.

    The option of all:

    from_logits: whether the model's output is scores.  False: it is their probabilities, and the
        loss is computed from the scores, which the model has before its last Softmax or Sigmoid;
        predictions and exports stay probabilities.  None: scores, but `Trainer.from_onnx` looks.
    """

    from_logits: bool | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def applies(self) -> Activation:
        """The function that makes the probabilities."""

    @property
    def threshold(self) -> float | None:
        if self.applies == "softmax":
            return None
        return 0.5 if self.from_logits is False else 0.0

    def build(self, graph: Graph, *inputs: str) -> str:
        """Append the nodes of the loss; see `Loss.build`.

        Raises:
            ModelError: `from_logits` is False, and something else makes the output.
        """
        from engine.graphs.offline.head import require_scores

        if self.from_logits is False and inputs:
            inputs = (require_scores(graph, inputs[0], self.applies), *inputs[1:])
        return super().build(graph, *inputs)
