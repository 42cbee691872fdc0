"""The search for a learning rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import SGD, AdamW, CrossEntropyLoss
from engine.errors import InputError, StateError
from engine.trainer.rate_search import RateSearch
from tests.support.run_models import write_classifier, write_pictures
from tests.support.tiny import BATCH, DROPPING, LABELS, NORMED, X, make_trainer, read_values

DATA = (X, LABELS)


@pytest.mark.parametrize(
    "options",
    [{"text": NORMED}, {"text": DROPPING}, {"micro_batches": 2}, {"skip_nonfinite": True}],
    ids=str,
)
def test_the_trainer_is_as_it_was(options: dict[str, Any]) -> None:
    """Also in what it does next: it has the moments, draws, statistics and rate of a twin."""
    trainer, twin = make_trainer(**options), make_trainer(**options)
    for each in (trainer, twin):
        each.step(X[:BATCH], LABELS[:BATCH])
    before = trainer.state.to_bytes(include_optimizer_state=True)
    learning_rate = trainer.find_learning_rate(DATA, batch_size=BATCH, steps=30)
    assert trainer.state.to_bytes(include_optimizer_state=True) == before
    assert (trainer.steps, trainer.learning_rate) == (twin.steps, twin.learning_rate)
    assert len(learning_rate.losses) > 20
    for _ in range(2):
        assert trainer.step(X[BATCH:], LABELS[BATCH:]) == twin.step(X[BATCH:], LABELS[BATCH:])
    assert read_values(trainer) == read_values(twin)


def test_a_trainer_that_has_not_begun_is_as_it_was() -> None:
    trainer, twin = make_trainer(optimizer=AdamW(0.05)), make_trainer(optimizer=AdamW(0.05))
    trainer.find_learning_rate(DATA, batch_size=BATCH, steps=20)
    assert trainer.step(X, LABELS) == twin.step(X, LABELS)
    assert read_values(trainer) == read_values(twin)


def test_rates_rise_by_a_factor_and_a_high_one_ends_the_search() -> None:
    learning_rate = make_trainer(optimizer=SGD(0.1)).find_learning_rate(
        DATA, batch_size=BATCH, lowest=1e-3, highest=1e4, steps=60
    )
    assert len(learning_rate.rates) < 60
    ratios = np.diff(np.log(learning_rate.rates))
    np.testing.assert_allclose(ratios, math.log(1e7) / 59)
    assert learning_rate.suggestion is not None
    assert 1e-3 < learning_rate.suggestion < 100
    assert learning_rate.smoothed[0] == pytest.approx(learning_rate.losses[0])


def test_one_high_loss_does_not_flatten_the_picture() -> None:
    rate_search = RateSearch([0.1, 1, 10], [2.0, 0.5, 400], [2.0, 1.2, 20], 0.1)
    assert "loss, logarithmic" in rate_search.plot().svg


def test_the_picture_has_a_logarithmic_axis_and_the_suggestion(tmp_path: Path) -> None:
    learning_rate = make_trainer(optimizer=SGD(0.1)).find_learning_rate(
        DATA, batch_size=BATCH, steps=40
    )
    learning_rate.plot().save(tmp_path / "rates.svg")
    text = (tmp_path / "rates.svg").read_text("utf-8")
    assert "learning rate" in text
    assert f"best learning rate {learning_rate.suggestion:g}" in text
    assert repr(learning_rate).startswith(
        f"learning rate {learning_rate.suggestion:.3g} (40 steps from 1e-07 to 1"
    )


def test_what_cannot_be_searched() -> None:
    trainer = make_trainer()
    with pytest.raises(InputError, match=r"lowest=1\.0, highest=0\.1: expected lowest < highest"):
        trainer.find_learning_rate(DATA, lowest=1.0, highest=0.1)
    with pytest.raises(InputError, match="steps=2: expected 20 or more"):
        trainer.find_learning_rate(DATA, steps=2)
    trainer.accumulate(X, LABELS)
    with pytest.raises(StateError, match="1 accumulated batches wait for update"):
        trainer.find_learning_rate(DATA)


def test_a_folder_is_searched_as_fit_reads_it(tmp_path: Path) -> None:
    """The data are forgotten afterwards, as the steps are."""
    photos = write_pictures(tmp_path / "photos", count=4)
    model = write_classifier(tmp_path / "model.onnx", classes=3)
    trainer = Trainer.from_onnx(model, CrossEntropyLoss(), SGD(0.1), threads=1)
    learning_rate = trainer.find_learning_rate(photos, batch_size=6, steps=20)
    assert len(learning_rate.losses) > 10
    assert trainer.steps == 0
    assert trainer.learner.data_description is None
    assert trainer.learner.opened is None
