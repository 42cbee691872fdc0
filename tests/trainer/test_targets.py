"""Targets with an axis more or less than the model has, where only one meaning is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.errors import EngineError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 5)).astype(np.float32)
VALUES = (X @ np.arange(5)).astype(np.float32)
LABELS = (VALUES > 0).astype(np.int64)


def fit(data: Any, **options: Any) -> Any:
    trainer = Trainer.from_model("mlp", data=data, seed=0, threads=1)
    return trainer.fit(data, validation=0.25, epochs=2, progress=False, **options)


def test_a_value_for_each_sample() -> None:
    """`from_model` made a model for such targets, and `fit` refused them."""
    flat, column = (fit((X, y), metrics=["r2"]) for y in (VALUES, VALUES[:, np.newaxis]))
    assert flat["val_loss"] == column["val_loss"]
    assert flat["val_r2"] == column["val_r2"]
    assert fit((X, VALUES.tolist()))["loss"] == flat["loss"]


def test_a_column_of_labels() -> None:
    trainer = Trainer.from_model("mlp", input_shape=(5,), classes=2, seed=0, threads=1)
    expected = trainer.evaluate((X, LABELS), metrics=["accuracy"])
    assert trainer.evaluate((X, LABELS[:, np.newaxis]), metrics=["accuracy"]) == expected


def test_targets_of_other_shapes_are_refused() -> None:
    trainer = Trainer.from_model("mlp", data=(X, VALUES), seed=0, threads=1)
    with pytest.raises(EngineError, match="target"):
        trainer.evaluate((X, np.stack([VALUES, VALUES], 1)))


def test_an_error_in_a_metric_of_ones_own_says_what_it_got() -> None:
    def wrong(targets: Any, scores: Any) -> float:
        raise ValueError("no such thing")

    trainer = Trainer.from_model("mlp", input_shape=(5,), classes=2, seed=0, threads=1)
    with pytest.raises(ValueError, match="no such thing") as caught:
        trainer.evaluate((X, LABELS), metrics=[wrong])
    assert caught.value.__notes__ == [
        "in the metric 'wrong', which gets the model's output [32, 2] and then the targets [32]"
    ]
