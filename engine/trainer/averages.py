"""Averages of parameters over a training run: of steps (EMA) or of epochs (SWA).

EMA keeps after step n = 1, 2, ... of the trained parameters

    average = d average + (1 - d) parameter        d = min(ema, (1 + n) / (10 + n))

and begins with their values, so that a short training does not end close to where it began.  SWA
keeps the mean of the values at the end of every epoch from a given one on, running statistics
included.  Running statistics under EMA are the current ones.

Source: Polyak and Juditsky, SIAM J. Control Optim. 30 (1992); Izmailov et al., arXiv 1803.05407.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import CheckpointError, InputError
from engine.checkpoint import storage
from engine.checkpoint.storage import NominalTensor
from engine.trainer.learner import TrainingModels
from engine.trainer.runs import RunFolder
from engine.training.artifact_set import CHECKPOINT
from engine.training.settings import FitOptions

FILE = "average"  # of a checkpoint: the averaged parameters


class Averages:
    """The averaged parameters of a run.

    Raises:
        InputError: both kinds are asked for.
    """

    def __init__(self, learner: TrainingModels, options: FitOptions) -> None:
        if options.ema is not None and options.swa is not None:
            raise InputError(f"ema={options.ema} and swa={options.swa}: give only one of the two")
        self._learner, self._decay, self.is_used = learner, options.ema, options.averaged
        first = options.swa or 0
        self._first = int(first) if first >= 1 else round(first * options.epochs)
        self._values: dict[str, Array] = {}
        self._count = 0  # of steps or epochs in the average
        self._epoch = -1  # the last one that was counted

    def add_step(self) -> None:
        """Take the parameters after a step into the average."""
        if self._decay is None:
            return
        self._count += 1
        decay = min(self._decay, (1 + self._count) / (10 + self._count))
        self._move(1 - decay, trained_only=True)

    def add_epoch(self, epoch: int) -> None:
        """Take the parameters at the end of an epoch into the average; a second time is no more."""
        if self._decay is None and self._first <= epoch and self._epoch < epoch:
            self._count, self._epoch = self._count + 1, epoch
            self._move(1 / self._count, trained_only=False)

    def _move(self, share: float, *, trained_only: bool) -> None:
        """Move the averages towards the parameters; share: of the way."""
        for name, parameter in self._learner.state.parameters:
            is_trained = parameter.requires_grad
            if (trained_only and not is_trained) or parameter.data.dtype.kind != "f":
                continue
            mine, value = self._values.get(name), parameter.data
            if mine is None:
                self._values[name] = value.copy()
            else:
                mine += value.dtype.type(share) * (value - mine)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Give the trainer the averaged parameters for the block, if they are used."""
        kept = {n: p.data.copy() for n, p in self._learner.state.parameters if n in self._values}
        self.apply()
        try:
            yield
        finally:
            if self.is_used:
                set_values(self._learner, kept)

    def apply(self) -> None:
        """Give the trainer the averaged parameters, if they are used."""
        if self.is_used:
            set_values(self._learner, self._values)

    def write(self, folder: Path) -> None:
        """Write the averages into the folder of a checkpoint.

        Raises:
            FileError: they cannot be written.
        """
        if self._values:
            storage.write(storage.Checkpoint(trainable={}, frozen=self._values), folder / FILE)

    def make_state(self) -> dict[str, Any]:
        """Return the position of the averages, as JSON types."""
        return {"count": self._count, "epoch": self._epoch, "is_used": self.is_used}

    def restore(self, state: Mapping[str, Any], folder: Path) -> None:
        """Continue with the values that `make_state` and `write` have kept.

        Raises:
            FileError, CheckpointError: the averages are missing or damaged.
        """
        self._count, self._epoch = state["count"], state["epoch"]
        self._values = read_values(folder / FILE) if self._count else {}


def load(learner: TrainingModels, path: str | os.PathLike[str]) -> None:
    """See `Trainer.load`; other ranks are left out.

    Raises:
        EngineError: as there.
    """
    if not os.path.isdir(path):
        learner.read_checkpoint(path)
        return
    place = RunFolder(path).chosen()
    learner.read_checkpoint(place / CHECKPOINT)
    set_values(learner, read_parameters(place))


def read_parameters(folder: Path) -> dict[str, Array]:
    """Return the parameters in the folder of a checkpoint: the averaged ones where they are used.

    Raises:
        FileError, CheckpointError: they cannot be read.
    """
    values = read_values(folder / CHECKPOINT)
    if not (folder / FILE).is_file():
        return values
    state = RunFolder(folder).position(folder).get("averages")
    if state is not None and state["is_used"] and state["count"]:
        values |= read_values(folder / FILE)
    return values


def read_values(path: Path) -> dict[str, Array]:
    """Return the values of all parameters in a checkpoint.

    Raises:
        FileError, CheckpointError: it cannot be read, or has no values.
    """
    content = storage.read(path)
    values: dict[str, Array] = {}
    for name, value in (*content.trainable.items(), *content.frozen.items()):
        if isinstance(value, NominalTensor):
            raise CheckpointError(f"{str(path)!r} is a nominal checkpoint, without values")
        values[name] = np.array(value)
    return values


def set_values(learner: TrainingModels, values: Mapping[str, Array]) -> None:
    """Give the parameters of these names new values; others stay."""
    for name, parameter in learner.state.parameters:
        if name in values:
            parameter.data[...] = values[name]
