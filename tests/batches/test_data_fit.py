"""Augmented pictures in a run: one that stops in the middle of an epoch goes on to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import Trainer
from engine.data import Batches, ColorJitter, Images, RandomFlip, batches
from engine.trainer.fit import Callback, Fit
from tests.support import page_setup


class Stop(Callback):
    """Stops a run after the third batch of its second epoch."""

    def on_batch_end(self, fit: Fit) -> None:
        if (fit.epoch, fit.batch) == (1, 3):
            fit.stop("the test")


def train(folder: str, *callbacks: Callback, resume: bool = False) -> Trainer:
    trainer = Trainer.from_onnx(
        "classifier.onnx", loss="cross_entropy", optimizer="adamw", threads=1, seed=1
    )
    trainer.fit(
        photos(),
        epochs=3,
        callbacks=callbacks,
        folder=folder,
        resume=resume,
        progress=False,
    )
    return trainer


def photos() -> Batches:
    return batches(
        Images("photos", 16),
        batch_size=8,
        shuffle=True,
        seed=3,
        augment=[RandomFlip(), ColorJitter()],
    )


def test_a_run_over_augmented_pictures_resumes_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page_setup.pictures("classifier.onnx", 3, 16, 3)
    page_setup.photos("photos", side=16)
    whole = train("whole")
    stopped = train("parts", Stop())
    resumed = train("parts", resume=True)
    for name, parameter in whole.state.parameters:
        assert np.array_equal(parameter.data, resumed.state.parameters[name].data), name
    assert any(
        not np.array_equal(parameter.data, stopped.state.parameters[name].data)
        for name, parameter in whole.state.parameters
    )
