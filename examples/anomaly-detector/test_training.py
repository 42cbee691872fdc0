"""A quick check of the project, with few readings and few epochs: `pytest` runs it in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgegrad.data import Csv
from edgegrad.trainer import History

import data
import model
from train import measure, train


def test_it_learns_and_what_it_exports_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    data.write("sensors.csv", data.readings(1500, rng))
    broken = data.readings(1500, rng)
    data.write("test.csv", broken, data.break_down(broken, rng))
    model.main()
    trainer, threshold = train(epochs=6)
    losses = History.read("run/history.csv")["loss"]
    assert losses[-1] < losses[0]
    _, recall = measure(trainer, threshold)
    assert recall > 0.5

    readings, _ = Csv("test.csv", "fault", features=data.CHANNELS, normalize=False).take(
        np.arange(4)
    )
    session = pytest.importorskip("onnxruntime").InferenceSession("inference.onnx")
    (errors,) = session.run(["error"], {"readings": readings})
    np.testing.assert_allclose(errors, trainer.predict(readings), rtol=1e-3, atol=1e-5)
