"""Going on from a checkpoint that a trainer of the same artifacts has saved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engine.base.errors import CheckpointError, ShapeError
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer


def restore(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """See `Trainer.load`."""
    take(trainer, CheckpointState.load_checkpoint(path), repr(os.fspath(path)))


def take(trainer: Trainer, saved: CheckpointState, file: str) -> None:
    """Go on from the state that a trainer of the same artifacts had.

    file: where it comes from, in messages.

    Raises:
        CheckpointError, ShapeError, DTypeError: as `Trainer.load`.  Nothing has changed.
    """
    state = trainer.state
    names = {name for name, _ in saved.parameters}
    mine = {name for name, _ in state.parameters}
    if names != mine:
        other = sorted(names ^ mine)[0]
        side = "is missing in" if other in mine else "is only in"
        raise CheckpointError(
            f"{file} is a checkpoint of another model: parameter {other!r} {side} "
            f"it ({len(names)} parameters, expected {len(mine)})"
        )
    if not saved.loaded:
        raise CheckpointError(f"{file} is a nominal checkpoint, without values")
    pairs = [(mine, saved.parameters[name]) for name, mine in state.parameters]
    for own, new in pairs:
        if own.requires_grad != new.requires_grad:
            word = "trained" if new.requires_grad else "frozen"
            raise CheckpointError(
                f"{file} is a checkpoint of other artifacts: parameter {own.name!r} is {word} there"
            )
        if (own.data.shape, own.data.dtype) != (new.data.shape, new.data.dtype):
            raise ShapeError(
                f"{file}: parameter {own.name!r} is {new.data.dtype}"
                f"{list(new.data.shape)}, expected {own.data.dtype}{list(own.data.shape)}"
            )
    if trainer.optimizer is not None:
        trainer.optimizer.restore(saved)
    for own, new in pairs:
        own.data[...] = new.data
    state.draws = saved.draws
    trainer.drop_gradients()
