"""A quick check of the project, with a short text and one epoch: `pytest` runs it in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgegrad import Trainer
from edgegrad.data import Texts
from edgegrad.trainer import History

import data
import model
from train import measure, train


def test_it_learns_and_what_it_exports_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data.write("texts/messages.txt", 600, seed=1)
    data.write("test.txt", 100, seed=2)
    model.main()
    trainer = train(epochs=3)
    losses = History.read("run/history.csv")["loss"]
    assert losses[-1] < losses[0]
    assert measure(trainer) < 1  # better than token frequencies

    tokens, _ = Texts("test.txt", "tokenizer.json", model.LENGTH).take(np.arange(4))
    session = pytest.importorskip("onnxruntime").InferenceSession("inference.onnx")
    (scores,) = session.run(["scores"], {"tokens": tokens})
    np.testing.assert_allclose(scores, trainer.predict(tokens), rtol=1e-3, atol=1e-3)


def test_the_decoder_continues_a_text_as_the_trained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data.write("texts/messages.txt", 100, seed=1)
    model.main()
    trainer = Trainer.from_onnx("forward.onnx", "cross_entropy", "adamw", seed=0)
    session = trainer.session("decoder.onnx")
    tokens, targets = Texts("texts", "tokenizer.json", model.LENGTH).take(np.arange(4))
    for _ in range(2):
        decoder = session.decoder(batch=4, capacity=model.LENGTH)
        scores = [decoder.append(tokens[:, :5])]
        scores += [decoder.append(column[:, None]) for column in tokens.T[5:]]
        expected = trainer.predict(tokens)[:, :, 4:]
        np.testing.assert_allclose(np.stack(scores, 2), expected, rtol=1e-4, atol=1e-5)
        trainer.step(tokens, targets)


def test_a_message_has_no_braces_left() -> None:
    rng = np.random.default_rng(3)
    messages = [data.message(rng) for _ in range(200)]
    assert not any(set(message) & set("{}") for message in messages)
    assert len(set(messages)) > 150
