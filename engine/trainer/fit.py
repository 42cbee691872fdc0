"""Fit and Callback: the state of a running training, and the objects that follow it.

A callback is a plain object whose class derives from `Callback` and overrides the hooks that it
needs.  `fit` calls only hooks that a class overrides, so the others cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.aliases import Array
from engine.base.representation import represent
from engine.base.signatures import check_arguments
from engine.trainer.evaluation import EvaluationBatch
from engine.trainer.history import History

if TYPE_CHECKING:
    from engine.data.loader import Batches
    from engine.trainer.batch_trainer import BatchTrainer


@dataclass(eq=False, kw_only=True, repr=False)
class Fit:
    """The state of a training run; callbacks get it, read it, and may stop the run.

    trainer: the trainer of the run.
    epochs: the number of epochs of the run.
    batches: the number of batches in an epoch; None as long as it is unknown.
    batch_size: the batch size of the data; None if unknown.
    classes: the names of the labels 0, 1, ...; None if unknown, or the targets are not classes.
    folder: the folder of the run; None if nothing is written.
    callbacks: the callbacks, in the order in which they are called.
    monitor: the column of the history whose best value decides which checkpoint is the best.
    validates: whether epochs end with a validation.
    validation: the batches of the validation; None if there is none, or they are unknown.
    best_epoch: the epoch with the best value of `monitor` so far; None if there is none yet.
    keeps_best: whether the parameters after that epoch are kept, as the best checkpoint in `folder`
        or by a callback that returns them to the trainer.
    resumed_from: the checkpoint from which the run continued; None if it is a new run.
    resumed_note: how the run now differs from its beginning; "" if it does not.
    epoch: the current epoch, counted from 0.
    batch: number of batches done in this epoch.
    step: number of steps that the optimizer has done in total.
    samples, samples_total: number of samples done in this epoch, and in total.
    skipped: number of updates skipped in this epoch because gradients were not finite; these do not
        count as steps.
    lossless: number of samples in this epoch that the mean loss leaves out, because their update
        was skipped and their loss is not finite.
    logs: for this epoch, the running mean "loss" and the learning rate "lr" of the next step; after
        the validation also its results, such as "val_loss" and "val_accuracy"; "skipped" if updates
        may be skipped.
    history: a row for each epoch.
    evaluation: the current batch of the validation; None outside a validation.
    stop_reason: the reason why the run ends before its last epoch, or None.
    error: the exception that ends the run, for `on_fit_end`.
    constants: values of parameters that `fit.trainer.state` lacks while `unfreeze=` keeps them
        frozen, as may happen to running statistics of normalisations.
    seconds_before: the seconds that the run took before it was resumed.
    """

    trainer: BatchTrainer
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
    resumed_note: str = ""
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
    seconds_before: float = 0.0
    _began: float = field(default_factory=time.monotonic, repr=False)

    @property
    def seconds(self) -> float:
        """The wall-clock time since the run began, including the time before it was resumed."""
        return self.seconds_before + time.monotonic() - self._began

    @property
    def resumed(self) -> bool:
        """True if the run continues from a checkpoint."""
        return self.resumed_from is not None

    def __repr__(self) -> str:
        batch = f"batch {self.batch}" + (f" of {self.batches}" if self.batches else "")
        logs = "".join(f", {name} {value:.6g}" for name, value in self.logs.items())
        return f"Fit(epoch {self.epoch + 1} of {self.epochs}, {batch}, step {self.step}{logs})"

    def stop(self, reason: str) -> None:
        """End the run after the current batch, validate the epoch and write a checkpoint.

        If this is called several times, the first reason is kept.
        """
        if self.stop_reason is None:
            self.stop_reason = reason


@check_arguments
class Callback:
    """Base class of callbacks; each hook receives the running `Fit` and does nothing here.

    The order: `on_fit_begin`; for each epoch `on_epoch_begin`, for each batch `on_batch_end` and,
    if the optimizer has made a step, `on_step_end`, or before both `on_skip`; the validation
    (`on_evaluate_begin`, an `on_evaluate_batch_end` for each of its batches, `on_evaluate_end`);
    `on_epoch_end`, when the row of the epoch is in `fit.history`; `on_checkpoint`.  Finally
    `on_stop`, if the run was stopped, and `on_fit_end`.  Callbacks are called in the order in which
    they were given.
    """

    __repr__ = represent

    def on_fit_begin(self, fit: Fit) -> None:
        """Called after all checks and after a resumed run is restored, before any training."""

    def on_epoch_begin(self, fit: Fit) -> None:
        """Called when `fit.epoch` begins; a resumed epoch begins with `fit.batch` above 0."""

    def on_batch_end(self, fit: Fit) -> None:
        """Called after a batch; `fit.batch`, `fit.samples` and `fit.logs["loss"]` count it."""

    def on_step_end(self, fit: Fit) -> None:
        """Called after step number `fit.step`, and after `on_batch_end` of its batch."""

    def on_skip(self, fit: Fit) -> None:
        """Called after an update is skipped because gradients are not finite."""

    def on_evaluate_begin(self, fit: Fit) -> None:
        """Called before the validation."""

    def on_evaluate_batch_end(self, fit: Fit) -> None:
        """Called after a batch of the validation; `fit.evaluation` has inputs, outputs and loss."""

    def on_evaluate_end(self, fit: Fit) -> None:
        """Called after the validation; `fit.logs` has its results, such as `val_loss`."""

    def on_epoch_end(self, fit: Fit) -> None:
        """Called after an epoch; the last row of `fit.history` is its row."""

    def on_checkpoint(self, fit: Fit, folder: Path) -> None:
        """Called when a checkpoint is complete in `folder`, which is then moved to its place.

        A callback may add its own files to `folder`.  If it raises an exception, the run ends
        without this checkpoint.
        """

    def on_stop(self, fit: Fit) -> None:
        """Called when the run ends before its last epoch; `fit.stop_reason` is the reason."""

    def on_fit_end(self, fit: Fit) -> None:
        """Called at the end of every run; `fit.error` is set if an exception ends it."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as JSON types; every checkpoint keeps it."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the result of `state` of this class; called before `on_fit_begin`."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
