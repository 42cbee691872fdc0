"""Training with everything that a resumed run must restore; run as a program, it kills itself.

    python -m tests.support.resumable FOLDER HOOK COUNT

trains in FOLDER until HOOK was called COUNT times, and is then ended by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from engine import Trainer
from engine.data import batches
from engine.data.samples import Sample
from engine.trainer.callbacks import EarlyStopping
from engine.trainer.fit import Callback, Fit
from engine.trainer.history import History
from engine.trainer.schedules import Plateau
from tests.support.tiny import DROPPING, LABELS, X, make_trainer

EPOCHS, BATCH = 4, 4  # five batches an epoch, three steps


def add_noise(sample: Sample, rng: np.random.Generator) -> Sample:
    """An augmentation."""
    x, *labels = sample
    return (x + rng.standard_normal(x.shape, np.float32) / 4, *labels)


class Kill(Callback):
    """Ends the process when a hook is called for the n-th time, as a loss of power would."""

    def __init__(self, hook: str, count: int) -> None:
        self.left = count
        vars(self)[hook] = self._count

    def _count(self, *given: Any) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, *more: Callback, **options: Any) -> tuple[Trainer, History, EarlyStopping]:
    """Train, or continue the run in the folder."""
    trainer = make_trainer(DROPPING)
    data = batches((X, LABELS), batch_size=BATCH, shuffle=True, seed=5, augment=add_noise)
    stopping = EarlyStopping("val_loss", patience=3, min_delta=0.4, restore_best=True)
    options = {
        "validation": (X[:8], LABELS[:8]),
        "epochs": EPOCHS,
        "metrics": "accuracy",
        "schedule": Plateau(factor=0.5, patience=1, min_delta=0.3, warmup=2),
        "accumulate": 2,
        "checkpoint_every": 1,
        "resume": True,
        "progress": False,
        **options,
    }
    history = trainer.fit(data, callbacks=[stopping, *more], folder=folder, **options)
    return trainer, history, stopping


class Count(Callback):
    """Counts batches."""

    batches = 0

    def on_batch_end(self, fit: Fit) -> None:
        self.batches += 1


if __name__ == "__main__":
    train(Path(sys.argv[1]), Kill(sys.argv[2], int(sys.argv[3])))
