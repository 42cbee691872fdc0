"""Recipe: the arguments that the artifacts of a forward model are made with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.artifacts import generate_artifacts
from engine.base.fields import select_options
from engine.graphs.offline.optim_types import OptimizerSpec, OptimType
from engine.loss_types import Loss, LossType
from engine.onnxblock import Block
from engine.trainer import names
from engine.trainer.forward import Forward
from engine.training.settings import ArtifactOptions, RecipeOptions

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Recipe:
    """Arguments of `generate_artifacts` that stay the same for any choice of parameters.

    loss, optimizer: as there, or their names; an optimizer of None makes none.
    outputs: further outputs of the training and the eval model.
    """

    loss: LossType | Loss | Block | Mapping[str, Any] | str | None
    optimizer: OptimType | OptimizerSpec | Block | str | None
    options: RecipeOptions
    outputs: Sequence[str] = ()

    @property
    def named_loss(self) -> LossType | Loss | Block | Mapping[str, Any] | None:
        """The loss, made if it was given by its name."""
        return _name_output(self.loss) if isinstance(self.loss, str) else self.loss

    def write(
        self, forward: Forward, train: Sequence[str], folder: str | os.PathLike[str]
    ) -> tuple[list[str], list[str]]:
        """Write the artifacts of a model; return the names of parameters to train, and the others.

        train: patterns of parameters, see `matching`.

        Raises:
            EngineError: as `generate_artifacts`.
        """
        trained, frozen = forward.choose_parameters(train)
        self.make(forward.save(folder), trained, frozen, folder)
        return trained, frozen

    def make(
        self,
        model: onnx.ModelProto | str | os.PathLike[str] | bytes,
        train: Sequence[str],
        frozen: Sequence[str],
        folder: str | os.PathLike[str],
    ) -> None:
        """Write the artifacts of a model; train, frozen: names of its parameters.

        Raises:
            EngineError: as `generate_artifacts`.
        """
        loss, optimizer = self.named_loss, self.optimizer
        if isinstance(loss, Mapping):
            loss = {output: _name_output(each) for output, each in loss.items()}
        if isinstance(optimizer, str):
            optimizer = names.choose_named(names.list_optimizers(), optimizer, "optimizer")()
        generate_artifacts(
            model,
            requires_grad=train,
            frozen_params=frozen,
            loss=loss,
            optimizer=optimizer,
            artifact_directory=folder,
            additional_output_names=list(self.outputs) or None,
            loss_input_names=list(self.options.loss_inputs or ()) or None,
            **vars(select_options(self.options, ArtifactOptions)),
        )


def _name_output(given: Any) -> Any:
    """Return the loss of an output, which may be a name, or a pair of a name and a weight."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return _name_output(given[0]), given[1]
    return (
        names.choose_named(names.list_losses(), given, "loss")()
        if isinstance(given, str)
        else given
    )
