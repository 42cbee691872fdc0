"""Request: what `Trainer.fit` is asked for, checked before anything is trained."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import DTypeError, InputError, NameNotFoundError, suggest_nearest
from engine.data.dataset import Dataset
from engine.data.labels import class_weights
from engine.data.loader import Batches, DatasetBatches
from engine.data.sources import dataset_of
from engine.loss_types import CrossEntropyLoss
from engine.system.files import SHARES
from engine.trainer.architectures import check_classes
from engine.trainer.class_losses import adapt, check_single
from engine.trainer.fit import Callback
from engine.trainer.history import direction
from engine.trainer.metric import Given, Metric
from engine.trainer.places import open_training, remember
from engine.trainer.schedules import Schedule, schedule_of
from engine.trainer.sizes import make_batches
from engine.trainer.unfreeze import Unfreezing
from engine.training.mode import Mode
from engine.training.settings import FitOptions

if TYPE_CHECKING:
    from engine.trainer.batch_trainer import BatchTrainer


@dataclass(frozen=True, kw_only=True)
class Request(FitOptions):
    """The arguments of `Trainer.fit`, checked, with defaults decided.

    callbacks: those given, then the reports.
    weights: factors of the classes in the loss; None if the loss has its own, or none.
    """

    train: Batches
    validation: Batches | None
    shuffle: bool
    metrics: Sequence[Metric]
    schedule: Schedule
    callbacks: Sequence[Callback]
    folder: Path | None
    resume: bool
    monitor: str
    mode: Mode
    unfreezing: Unfreezing | None
    weights: Sequence[float] | None

    @property
    def batches(self) -> int | None:
        """The number of batches in an epoch of the training; None if unknown."""
        try:
            return len(self.train)
        except TypeError:
            return None

    def describe(self) -> dict[str, Any]:
        """Return the entries of run.json about the request and the machine."""
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
            "keep_best": self.keep_best,
            "restore": self.restore,
            "ema": self.ema,
            "swa": self.swa,
            "averaged": self.averaged,
            "checkpoint_every": self.checkpoint_every,
        }


def request(
    trainer: BatchTrainer,
    train: Any,
    options: FitOptions,
    *,
    validation: Any,
    batch_size: int | None,
    shuffle: bool,
    balanced: bool,
    augment: Any,
    metrics: Sequence[Given] | Given,
    schedule: Any,
    callbacks: Sequence[Callback],
    folder: str | os.PathLike[str] | None,
    resume: bool,
    progress: bool,
) -> Request:
    """Return the arguments of `Trainer.fit`, checked against one another, the model and the data.

    Raises:
        EngineError: as `Trainer.fit`.
    """
    for callback in callbacks:
        if not isinstance(callback, Callback):
            given = callback.__name__ if isinstance(callback, type) else type(callback).__name__
            raise DTypeError(f"callbacks: expected objects of Callback classes, got {given}")
    if resume and folder is None:
        raise InputError("resume=True needs the folder of the run: folder=...")
    measured = trainer.make_metrics(metrics)
    train, validation = open_training(trainer.learner, train, validation, trainer.classes or ())
    if isinstance(validation, float):
        train, validation = _split(train, validation, options.seed)
    model, names = trainer.learner.session.training, trainer.inputs
    more: dict[str, Any] = {"balanced": True} if balanced else {}
    more |= {} if augment is None else {"augment": augment}
    data = make_batches(
        model, train, batch_size, "training data", shuffle=shuffle, seed=options.seed, names=names,
        **more,
    )  # fmt: skip
    check_classes(trainer, data.classes)
    weights, loss = _weigh_classes(trainer, data, options.class_weight)
    remember(trainer.learner, data)
    held_out = None
    if validation is not None:
        held_out = make_batches(
            model, validation, batch_size, "validation data", names=names,
            classes=list(data.classes or ()) or None,
        )  # fmt: skip
        trainer.learner.evaluation  # noqa: B018  # reports now what the model lacks for it
    elif measured and not options.train_metrics:
        raise InputError(
            "metrics are measured on validation data: give validation=, or train_metrics=True"
        )
    if options.train_metrics and not measured:
        raise InputError("train_metrics=True without metrics: give metrics=, such as 'accuracy'")
    monitor = options.monitor or ("loss" if held_out is None else "val_loss")
    mode = _choose_mode(monitor, options, measured, data, held_out, trainer.learner.part_names)
    place = None if folder is None else Path(folder)
    from engine.trainer.reports import default

    decided: dict[str, Any] = {**vars(options), "monitor": monitor, "mode": mode}
    return Request(
        train=data,
        validation=held_out,
        shuffle=shuffle,
        metrics=measured,
        schedule=_schedule(schedule),
        callbacks=[*callbacks, *default(progress, place)],
        folder=place,
        resume=resume,
        unfreezing=_make_unfreezing(trainer, options, loss, weights is not None),
        weights=None if weights is None else weights.tolist(),
        **decided,
    )


def _schedule(given: Any) -> Schedule:
    """Return a schedule, which may be given by its name, or as a table of its name and options.

    Raises:
        InputError, DTypeError: there is nothing of that name, or an option does not fit.
    """
    if not isinstance(given, str | Mapping):
        return schedule_of(given)
    from engine.trainer.names import make_schedule

    table = {"name": given} if isinstance(given, str) else dict(given)
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f'schedule={given!r}: expected a key "name", as {{"name": "cosine"}}')
    return make_schedule(name, table, "schedule")


def _weigh_classes(
    trainer: BatchTrainer, data: Batches, given: Any
) -> tuple[npt.NDArray[np.float32] | None, Any]:
    """Return the factors of classes, and a loss for these and for changes that mix labels.

    The loss is None if the trainer's own is right.

    Raises:
        InputError: the loss or the labels cannot have that.
    """
    dataset = data.dataset if isinstance(data, DatasetBatches) else None
    mixes = [] if not isinstance(data, DatasetBatches) else [
        type(change).__name__ for change in data.augment.batch
    ]  # fmt: skip
    outputs = [name.removeprefix("loss_") for name in trainer.learner.part_names]
    check_single(outputs, has_weight=given is not None, mixes=mixes)
    weights = None
    if given is not None:
        labels = None if dataset is None else dataset.labels()
        if data.classes:
            count = len(data.classes)
        elif labels is not None and isinstance(given, str | Mapping):
            count = int(labels.max(initial=-1)) + 1
        else:
            count = len(given)
        weights = class_weights(given, labels, count, data.classes, trainer.ignore_index)
    takes_shares = SHARES in trainer.learner.session.training.interface.notes
    if weights is None and (not mixes or takes_shares):
        return None, None
    if trainer.recipe is None:
        return weights, CrossEntropyLoss()  # Unfreezing refuses a trainer of artifacts
    return weights, adapt(trainer.recipe.loss, weights, mixes)


def _make_unfreezing(
    trainer: BatchTrainer, options: FitOptions, loss: Any, is_weighted: bool
) -> Unfreezing | None:
    """Return what makes artifacts again while the run goes on; None if nothing does."""
    given, statistics = options.unfreeze, options.freeze_statistics
    if given is None and loss is None and statistics is None:
        return None
    if given is not None:
        what = "unfreeze="
    elif statistics is not None:
        what = "freeze_statistics="
    else:
        what = "class_weight=" if is_weighted else "a change that mixes labels"
    return Unfreezing(trainer, {"*": 0} if given is None else given, loss, statistics, what)


def _split(train: Any, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Set a share of the samples apart for the validation."""
    if not 0 < share < 1:
        raise InputError(f"validation={share}: expected data, or a share between 0 and 1")
    dataset = dataset_of(train)
    if dataset is None:
        raise InputError(
            f"validation={share}: a share can be set apart from arrays and from a Dataset; give "
            f"validation data of its own beside {type(train).__name__}"
        )
    return dataset.split(share, seed=seed)


def _choose_mode(
    monitor: str,
    options: FitOptions,
    metrics: Sequence[Metric],
    train: Batches,
    validation: Batches | None,
    parts: Sequence[str],
) -> Mode:
    """Return whether less or more of the monitored column is better.

    parts: the losses of several outputs, by name.

    Raises:
        NameNotFoundError: the history will have no such column.
    """
    losses = ("loss", *parts)
    known: dict[str, Mode | None] = dict.fromkeys(losses, "min")
    classes = None if validation is None else validation.classes
    if options.train_metrics:
        known |= {name: m.mode for m in metrics for name in m.columns(classes or train.classes)}
    if validation is not None:
        known |= dict.fromkeys((f"val_{name}" for name in losses), "min")
        known |= {f"val_{name}": m.mode for m in metrics for name in m.columns(classes)}
    if monitor not in known:
        raise NameNotFoundError(
            f"monitor={monitor!r}: the history will have no such column; it will have {list(known)}"
            f"{suggest_nearest(monitor, known)}"
        )
    return direction(monitor, known[monitor] if options.mode is None else options.mode)
