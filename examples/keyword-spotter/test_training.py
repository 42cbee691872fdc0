"""A quick check of the project, with few sounds and few epochs: `pytest` runs it in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgegrad.data import Sounds
from edgegrad.trainer import History

import data
from model import network
from train import measure, train


def test_it_learns_and_what_it_exports_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data.write("sounds", 8, seed=1)
    data.write("test", 2, seed=2)
    onnx.save(network(len(data.WORDS) + 1), "forward.onnx")
    trainer = train(epochs=5)
    losses = History.read("run/history.csv")["loss"]
    assert losses[-1] < losses[0]
    assert 0 <= measure(trainer) <= 1

    sounds, _ = Sounds("test").take(np.arange(4))
    session = pytest.importorskip("onnxruntime").InferenceSession("inference.onnx")
    (scores,) = session.run(["scores"], {"sound": sounds})
    np.testing.assert_allclose(scores, trainer.predict(sounds), rtol=1e-3, atol=1e-3)


def test_a_voice_is_a_second_of_sound() -> None:
    for word in (*data.WORDS.values(), *data.OTHERS):
        sound = data.speak(word, np.random.default_rng(3))
        assert sound.shape == (data.RATE,)
        assert np.abs(sound).max() <= 1
