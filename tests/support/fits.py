"""Trainings as callbacks see them, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.trainer.evaluation import EvaluationBatch
from engine.trainer.fit import HOOKS, Callback, Fit
from engine.trainer.history import History

SAMPLES = 32  # of a batch
VALUES = {"loss": 0.4213, "val_loss": 0.4, "val_accuracy": 0.881}
ROW = {**VALUES, "lr": 1e-3, "seconds": 4.2, "samples_per_second": 1240.4, "memory": 118.2e6}


def make_fit(**more: Any) -> Fit:
    """A training as callbacks see it, of three epochs of four batches."""
    known = {"trainer": None, "epochs": 3, "batches": 4, "batch_size": SAMPLES}
    return Fit(**{**known, **more})


def tell(callbacks: Sequence[Callback], hook: str, fit: Fit, *more: Any) -> None:
    assert hook in HOOKS
    for callback in callbacks:
        getattr(callback, hook)(fit, *more)


def train_epoch(
    fit: Fit, callbacks: Sequence[Callback], losses: Sequence[float] = (4.0, 3.0, 2.0, 1.0)
) -> None:
    """Report an epoch with a validation of two batches, like `Trainer.fit`."""
    tell(callbacks, "on_epoch_begin", fit)
    for n in range(len(losses)):
        fit.batch, fit.samples = n + 1, (n + 1) * SAMPLES
        fit.samples_total += SAMPLES
        fit.step += 1
        fit.logs = {"loss": float(np.mean(losses[: n + 1])), "lr": 1e-3}
        tell(callbacks, "on_batch_end", fit)
        tell(callbacks, "on_step_end", fit)
    tell(callbacks, "on_evaluate_begin", fit)
    for n in range(2):
        fit.evaluation = EvaluationBatch(n, 2, {}, {}, 0.4)
        tell(callbacks, "on_evaluate_batch_end", fit)
    fit.evaluation = None
    tell(callbacks, "on_evaluate_end", fit)
    fit.history.rows.append({"epoch": fit.epoch, **ROW, "loss": fit.logs["loss"]})
    tell(callbacks, "on_epoch_end", fit)
    fit.epoch, fit.batch, fit.samples = fit.epoch + 1, 0, 0


def train(fit: Fit, callbacks: Sequence[Callback], epochs: int = 3) -> None:
    """Report a whole training."""
    tell(callbacks, "on_fit_begin", fit)
    for _ in range(epochs):
        train_epoch(fit, callbacks)
    tell(callbacks, "on_fit_end", fit)


def resume_fit(before: Fit, epochs: int) -> Fit:
    """A training run that goes on after `epochs` of an earlier one."""
    history = History(before.history.rows[:epochs])
    return make_fit(history=history, epoch=epochs, step=4 * epochs, resumed_from=Path("checkpoint"))
