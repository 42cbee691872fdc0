"""Callbacks: what a running `fit` calls, and stopping early, which is one of them.

A callback is a plain object of a class that derives from `Callback` and overrides the hooks that
it needs.  `fit` calls no hook that a class does not override, so that a callback costs nothing
where it has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base.aliases import Array
from engine.base.errors import NameNotFoundError, suggest_nearest
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.checkpoint import storage
from engine.checkpoint.storage import NominalTensor
from engine.trainer.fit import Callback as Callback
from engine.trainer.fit import Fit
from engine.trainer.history import direction, is_better
from engine.training.mode import Mode


@check_arguments(patience=AT_LEAST_0, min_delta=AT_LEAST_0)
class EarlyStopping(Callback):
    """Stops the run when a column of the history has not improved for some epochs.

    Args:
        monitor: the column, such as "val_loss" or "val_accuracy".
        patience: how many epochs in a row may pass without improvement; 0 stops at the first one.
        min_delta: the least change that counts as an improvement.
        mode: "min" or "max"; by default the column decides, see `history.direction`.
        restore_best: restore the parameters of the best epoch when this callback ends the run.

    Epochs without a value of the column, such as those that are not validated, do not count.  NaN
    never counts as an improvement.

    Raises:
        InputError: an argument has a value that is not allowed.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        mode: Mode | None = None,
        restore_best: bool = False,
    ) -> None:
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.mode = direction(self.monitor, mode)
        self.restore_best = restore_best
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.waited = 0  # epochs in a row that were not better
        self._values: dict[str, Array] = {}  # of the parameters after the best epoch
        self._has_stopped = False

    def on_fit_begin(self, fit: Fit) -> None:
        """Start over, or continue where the resumed run stood."""
        self._has_stopped = False
        if fit.resumed_from is None:
            self.best, self.best_epoch, self.waited, self._values = None, None, 0, {}
        elif self.restore_best and self.best is not None:
            kept = storage.read(fit.resumed_from / self._name_file(fit)).frozen
            self._values = {n: a for n, a in kept.items() if not isinstance(a, NominalTensor)}
        self._stop_in_time(fit)  # a run that it has ended is over

    def on_epoch_end(self, fit: Fit) -> None:
        """Compare the epoch with the best one so far."""
        row = fit.history.rows[-1]
        if self.monitor not in row:
            known = fit.history.columns
            if self.monitor not in known and ("val_loss" in known or not fit.validates):
                raise NameNotFoundError(
                    f"EarlyStopping: the history has no column {self.monitor!r}; it has {known}"
                    f"{suggest_nearest(self.monitor, known)}"
                )
            return
        if is_better(row[self.monitor], self.best, self.mode, self.min_delta):
            self.best, self.best_epoch, self.waited = row[self.monitor], fit.epoch, 0
            if self.restore_best:
                mine = {n: p.data.copy() for n, p in fit.trainer.state.parameters}
                self._values = {**fit.constants, **mine}
            return
        self.waited += 1
        self._stop_in_time(fit)

    def _stop_in_time(self, fit: Fit) -> None:
        if self.waited >= max(self.patience, 1):
            self._has_stopped = True
            word = "epoch" if self.waited == 1 else "epochs"
            fit.stop(f"{self.monitor} has not become better for {self.waited} {word}")

    def on_checkpoint(self, fit: Fit, folder: Path) -> None:
        """Write the values of the best epoch into the checkpoint, beside the values of the last."""
        if self._values:
            content = storage.Checkpoint(trainable={}, frozen=self._values)
            storage.write(content, folder / self._name_file(fit))

    def on_stop(self, fit: Fit) -> None:
        """Give the parameters the values of the best epoch, if that was asked for."""
        if self._has_stopped:
            if self._values and self.best_epoch == fit.best_epoch:
                fit.keeps_best = True
            for name, parameter in fit.trainer.state.parameters:
                parameter.data = self._values.get(name, parameter.data)

    def state(self) -> dict[str, Any]:
        """Return the best value, its epoch, and for how long nothing was better."""
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.waited = state["waited"]

    def _name_file(self, fit: Fit) -> str:
        """Return the file of the best values in a checkpoint; every such callback has its own."""
        return f"best_values_{fit.callbacks.index(self)}"
