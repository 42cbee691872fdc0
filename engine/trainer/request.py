"""Request: what `Trainer.fit` is asked for, checked before anything is trained."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import arguments
from engine.data.dataset import Dataset
from engine.data.loader import Batches
from engine.data.sources import dataset_of
from engine.errors import DTypeError, InputError, NameNotFoundError, nearest
from engine.trainer.callbacks import Callback
from engine.trainer.history import Mode, direction
from engine.trainer.metrics import Given, Metric, metrics_of
from engine.trainer.schedules import Schedule, schedule_of
from engine.trainer.sizes import batches_for
from engine.trainer.unfreeze import Unfreezing

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `Trainer.fit`, checked.

    callbacks: those given, and the reports behind them.
    monitor, mode: the column that decides which checkpoint is the best, and what of it is better.
    """

    train: Batches
    validation: Batches | None
    epochs: int
    shuffle: bool
    metrics: Sequence[Metric]
    schedule: Schedule
    accumulate: int
    callbacks: Sequence[Callback]
    folder: Path | None
    resume: bool
    hours: float | None
    seed: int
    monitor: str
    mode: Mode
    keep: int | None
    checkpoint_every: int | None
    unfreezing: Unfreezing | None

    @property
    def batches(self) -> int | None:
        """How many batches an epoch of the training has; None: unknown."""
        try:
            return len(self.train)
        except TypeError:
            return None

    def describe(self) -> dict[str, Any]:
        """What run.json tells of it, and of what it runs on, as JSON can hold it."""
        return {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            "epochs": self.epochs,
            "metrics": [metric.name for metric in self.metrics],
            "schedule": type(self.schedule).__name__,
            "callbacks": [type(callback).__name__ for callback in self.callbacks],
            "hours": self.hours,
            "monitor": self.monitor,
            "keep": self.keep,
            "checkpoint_every": self.checkpoint_every,
        }


def request(
    trainer: Trainer,
    train: Any,
    *,
    validation: Any = None,
    epochs: int = 1,
    batch_size: int | None = None,
    shuffle: bool = True,
    metrics: Sequence[Given] | Given = (),
    schedule: Schedule | Callable[[int, int | None, float], float] | None = None,
    accumulate: int = 1,
    callbacks: Sequence[Callback] = (),
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    hours: float | None = None,
    seed: int = 0,
    monitor: str | None = None,
    mode: Mode | None = None,
    keep: int | None = 2,
    checkpoint_every: int | None = None,
    unfreeze: Mapping[str, int] | None = None,
    progress: bool = True,
) -> Request:
    """Check the arguments of `Trainer.fit`, and make what they ask for.

    Raises:
        EngineError: as `Trainer.fit`.
    """
    try:
        callbacks = list(callbacks)
    except TypeError:
        raise DTypeError(f"callbacks: expected a list, got {type(callbacks).__name__}") from None
    for callback in callbacks:
        if not isinstance(callback, Callback):
            found = callback.__name__ if isinstance(callback, type) else type(callback).__name__
            raise DTypeError(f"callbacks: expected objects of Callback classes, got {found}")
    resume = arguments.flag("resume", resume)
    if resume and folder is None:
        raise InputError("resume=True needs the folder of the run: folder=...")
    seed = arguments.count("seed", seed)
    measured = metrics_of(metrics, trainer.ignore_index)
    shuffle = arguments.flag("shuffle", shuffle)
    if isinstance(validation, float):
        train, validation = _split(train, validation, seed)
    model, names = trainer.module._train, trainer.inputs
    data = batches_for(
        model, train, batch_size, "training data", shuffle=shuffle, seed=seed, names=names
    )
    held_out = None
    if validation is not None:
        held_out = batches_for(model, validation, batch_size, "validation data", names=names)
        trainer._evaluation  # noqa: B018  # what the model lacks for it is told now
    elif measured:
        raise InputError("metrics are measured on validation data: give validation=")
    if monitor is None:
        monitor = "loss" if held_out is None else "val_loss"
    mode = _mode(monitor, mode, measured, held_out is not None)
    place = None if folder is None else Path(arguments.path("folder", folder))
    from engine.reports import default

    return Request(
        train=data,
        validation=held_out,
        epochs=_at_least_1("epochs", epochs),
        shuffle=shuffle,
        metrics=measured,
        schedule=schedule_of(schedule),
        accumulate=_at_least_1("accumulate", accumulate),
        callbacks=[*callbacks, *default(arguments.flag("progress", progress), place)],
        folder=place,
        resume=resume,
        hours=None if hours is None else _positive("hours", hours),
        seed=seed,
        monitor=monitor,
        mode=mode,
        keep=None if keep is None else _at_least_1("keep", keep),
        checkpoint_every=(
            None if checkpoint_every is None else _at_least_1("checkpoint_every", checkpoint_every)
        ),
        unfreezing=None if unfreeze is None else Unfreezing(trainer, unfreeze),
    )


def _split(train: Any, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Set a share of the samples apart for the validation."""
    dataset = dataset_of(train)
    if dataset is None:
        raise InputError(
            f"validation={share}: a share can be set apart of arrays and of a Dataset; give the "
            f"validation data beside {type(train).__name__}"
        )
    return dataset.split(share, seed=seed)


def _mode(monitor: str, mode: Mode | None, metrics: Sequence[Metric], validates: bool) -> Mode:
    """Whether less or more of the monitored column is better.

    Raises:
        NameNotFoundError: the history will have no such column.
    """
    known: dict[str, Mode | None] = {"loss": "min"}
    if validates:
        known |= {"val_loss": "min", **{f"val_{metric.name}": metric.mode for metric in metrics}}
    if arguments.text("monitor", monitor) not in known:
        raise NameNotFoundError(
            f"monitor: the history will have no column {monitor!r}, but {list(known)}"
            f"{nearest(monitor, known)}"
        )
    return direction(monitor, known[monitor] if mode is None else mode)


def _at_least_1(what: str, value: int) -> int:
    found = arguments.count(what, value)
    if found < 1:
        raise InputError(f"{what}={found}: expected 1 or more")
    return found


def _positive(what: str, value: float) -> float:
    found = arguments.real(what, value)
    if found <= 0:
        raise InputError(f"{what}={value}: expected more than 0")
    return found
