"""Fit: what is known of a running training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from engine.trainer.callbacks import Callback
from engine.trainer.history import History

if TYPE_CHECKING:
    from engine.data.loader import Batches
    from engine.trainer.trainer import Trainer

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class EvaluationBatch:
    """A batch of an evaluation that is done.

    index, batches: its number from 0 on, and how many there are; None: unknown.
    inputs, outputs: arrays by the names that the models have for them.
    loss: the mean over the batch.
    """

    index: int
    batches: int | None
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    loss: float


@dataclass(eq=False, kw_only=True)
class Fit:
    """The state of a running training; callbacks get it, read it, and may stop the run.

    trainer: what is trained.
    epochs: how many the run is to have.
    batches: how many an epoch has; None: unknown until the first epoch is over.
    batch_size: of the data; None: unknown.
    classes: the names of the labels 0, 1, ...; None: unknown, or the targets are not classes.
    folder: the folder of the run; None: nothing is written.
    callbacks: in the order in which they are called.
    monitor: the column of the history whose best value decides which checkpoint is the best.
    validates: whether epochs end with a validation.
    validation: the batches of it; None: there is none, or they are unknown.
    best_epoch: the epoch with the best value of `monitor` so far; None: there is none yet.
    keeps_best: whether the parameters after that epoch are kept, as the best checkpoint in `folder`
        or by a callback that gives them back to the trainer.
    resumed_from: the checkpoint from which the run went on; None: it began anew.
    epoch: the one whose batches are being done, from 0 on.
    batch: how many batches of this epoch are done.
    step: how many steps the optimizer has made in all.
    samples, samples_total: how many are done in this epoch, and in all.
    skipped: how many updates of this epoch were skipped, as gradients were not finite; these do not
        count as steps.
    logs: of this epoch the running mean "loss", the learning rate "lr" of the next step, and after
        the validation its results as "val_loss", "val_accuracy" and so on; "skipped" where updates
        may be.
    history: a row an epoch.
    evaluation: the batch of the validation that is done; None outside of one.
    stop_reason: why the run ends before its last epoch; None: it does not.
    error: the exception that ends the run, for `on_fit_end`.
    constants: values of parameters that `fit.trainer.state` lacks while they are frozen by
        `unfreeze=`, as running statistics of normalisations may be.
    """

    trainer: Trainer
    epochs: int
    batches: int | None = None
    batch_size: int | None = None
    classes: Sequence[str] | None = None
    folder: Path | None = None
    callbacks: Sequence[Callback] = ()
    monitor: str = "loss"
    validates: bool = False
    validation: Batches | None = None
    best_epoch: int | None = None
    keeps_best: bool = False
    resumed_from: Path | None = None
    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    samples_total: int = 0
    skipped: int = 0
    lossless: int = 0
    logs: dict[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History)
    evaluation: EvaluationBatch | None = None
    stop_reason: str | None = None
    error: BaseException | None = None
    constants: Mapping[str, Array] = field(default_factory=dict)
    seconds_before: float = 0.0  # that the run took before it was resumed
    _began: float = field(default_factory=time.monotonic, repr=False)

    @property
    def seconds(self) -> float:
        """By the clock since the run began, what it took before it was resumed included."""
        return self.seconds_before + time.monotonic() - self._began

    @property
    def resumed(self) -> bool:
        """True if the run goes on from a checkpoint."""
        return self.resumed_from is not None

    def stop(self, reason: str) -> None:
        """End the run after the batch that is being done; the first reason is the one that stays.

        The epoch is then validated, and a checkpoint is written.
        """
        if self.stop_reason is None:
            self.stop_reason = reason
