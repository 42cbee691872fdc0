"""A quick check of the project, with few photos and few epochs: `pytest` runs it in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgegrad.data import Images
from edgegrad.trainer import History

import data
import pretrain
from model import SIZE
from train import measure, train


def test_it_learns_and_what_it_exports_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data.write("photos", data.MINE, 5, seed=1)
    data.write("test", data.MINE, 2, seed=2)
    pretrain.main(count=5, epochs=1)
    trainer = train(epochs=4)
    losses = History.read("run/history.csv")["loss"]
    assert losses[-1] < losses[0]
    assert 0 <= measure(trainer) <= 1

    pictures, _ = Images("test", SIZE).take(np.arange(4))
    session = pytest.importorskip("onnxruntime").InferenceSession("inference.onnx")
    (scores,) = session.run(["scores"], {"image": pictures})
    np.testing.assert_allclose(scores, trainer.predict(pictures), rtol=1e-3, atol=1e-3)
