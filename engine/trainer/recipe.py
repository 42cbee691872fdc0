"""Recipe: the arguments that the artifacts of a forward model are made with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.artifacts import generate_artifacts
from engine.base import arguments, option_tables
from engine.base.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    ModelWarning,
    NoInfluenceError,
    join_names,
    warn_user,
)
from engine.base.fields import select_options
from engine.base.signatures import check_arguments
from engine.graphs.offline.optim_types import OPTIMIZERS, OptimizerSpec, OptimType
from engine.loss_types import LOSSES, Loss, LossType
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
    def named_loss(self) -> Loss | Block | Mapping[str, Any] | None:
        """The loss, or the losses of outputs, made where they were given by their names."""
        made: Loss | Block | Mapping[str, Any] | None = _make_loss(self.loss)
        if isinstance(self.loss, Mapping):
            made = {output: _make_part(given) for output, given in self.loss.items()}
        return made

    @property
    def named_optimizer(self) -> OptimizerSpec | Block | None:
        """The optimizer, made if it was given by its name."""
        given = self.optimizer
        if isinstance(given, str):
            return names.choose_named(names.list_optimizers(), given, "optimizer")()
        return OPTIMIZERS[given]() if isinstance(given, OptimType) else given

    def to_table(self) -> dict[str, Any] | None:
        """Return the recipe as JSON types, from which `of_table` makes it again.

        None: the loss or the optimizer is of a class that is not of this package.
        """
        loss, optimizer = self.named_loss, self.named_optimizer
        parts = {k: _split_part(v) for k, v in loss.items()} if isinstance(loss, Mapping) else {}
        known = {*names.list_losses().values(), *names.list_optimizers().values(), type(None)}
        made = [*(part for part, _ in parts.values()), None if parts else loss, optimizer]
        if not {*map(type, made)} <= known:
            return None
        several = {output: [_name(part), weight] for output, (part, weight) in parts.items()}
        return {
            "loss": None if parts else _name(loss),
            "losses": several or None,
            "optimizer": _name(optimizer),
            "options": option_tables.to_plain(self.options),
            "outputs": list(self.outputs),
        }

    @classmethod
    def of_table(cls, table: Mapping[str, Any], place: str) -> Recipe:
        """Return the recipe of a table that `to_table` has made, which may be a stranger's.

        place: the beginning of messages.

        Raises:
            CheckpointError: the table does not fit.
        """
        try:
            entries = option_tables.make(_JsonRecipe, table, place)
            loss: Any = None
            if entries.losses is not None:
                loss = names.make_losses(entries.losses, f"{place} losses")
            elif entries.loss is not None:
                loss = names.make_loss(*_split_name(entries.loss, f"{place} loss"))
            optimizer = None
            if entries.optimizer is not None:
                named = _split_name(entries.optimizer, f"{place} optimizer")
                optimizer = names.make_optimizer(*named)
        except (InputError, DTypeError) as error:
            raise CheckpointError(f"{error}: it is damaged") from error
        return cls(loss, optimizer, entries.options, entries.outputs)

    def write(
        self, forward: Forward, train: Sequence[str], folder: str | os.PathLike[str]
    ) -> tuple[list[str], list[str]]:
        """Write the artifacts of a model; return the names of parameters to train, and the others.

        Parameters on which the loss does not depend are among the others, with a `ModelWarning`:
        they have no gradient, and PyTorch's optimizers leave such as they are, too.

        train: patterns of parameters, see `matching`.

        Raises:
            NoInfluenceError: the loss depends on none of the parameters to train.
            EngineError: as `generate_artifacts`.
        """
        update = self.options.update
        integers = update is not None and update.integers
        trained, frozen = forward.choose_parameters(train, integers=integers)
        model = forward.save(folder)
        try:
            self.make(model, trained, frozen, folder)
        except NoInfluenceError as error:
            reached = [name for name in trained if name not in error.names]
            if not reached or len(reached) + len(error.names) > len(trained):
                raise  # nothing is left; or they are parts of parameters
            frozen = [*frozen, *error.names]
            self.make(model, reached, frozen, folder)
            warn_user(
                f"the loss does not depend on {join_names(error.names)}, so they stay unchanged; "
                "if this is intended, leave them out of train=",
                ModelWarning,
            )
            trained = reached
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
        generate_artifacts(
            model,
            requires_grad=train,
            frozen_params=frozen,
            loss=self.named_loss,
            optimizer=self.named_optimizer,
            artifact_directory=folder,
            additional_output_names=list(self.outputs) or None,
            loss_input_names=list(self.options.loss_inputs or ()) or None,
            **vars(select_options(self.options, ArtifactOptions)),
        )


@check_arguments
@dataclass(frozen=True, kw_only=True)
class _JsonRecipe:
    """The recipe as JSON types."""

    loss: Mapping[str, Any] | None
    losses: Mapping[str, Any] | None
    optimizer: Mapping[str, Any] | None
    options: RecipeOptions
    outputs: Sequence[str]


def _make_loss(given: Any) -> Any:
    """Return a loss, made if it was given by its name."""
    if isinstance(given, str):
        return names.choose_named(names.list_losses(), given, "loss")()
    return LOSSES[given]() if isinstance(given, LossType) else given


def _make_part(given: Any) -> Any:
    """Return the loss of an output, or a pair of it and its weight, as `_make_loss`."""
    part, *weight = given if _is_pair(given) else [given]
    return (_make_loss(part), *weight) if weight else _make_loss(part)


def _split_part(given: Any) -> tuple[Any, Any]:
    """Return the loss of an output and its weight."""
    return tuple(given) if _is_pair(given) else (given, 1.0)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _name(made: Any) -> dict[str, Any] | None:
    """Return the table of a loss or an optimizer: its name, and its options."""
    if made is None:
        return None
    kinds = names.list_losses() | names.list_optimizers()
    (name,) = (name for name, kind in kinds.items() if kind is type(made))
    return {"name": name, **option_tables.to_plain(made)}


def _split_name(table: Mapping[str, Any], place: str) -> tuple[str, Mapping[str, Any], str]:
    """Return the arguments of `make_loss`."""
    options = dict(table)
    return arguments.check_text(f"{place} name", options.pop("name", None)), options, place
