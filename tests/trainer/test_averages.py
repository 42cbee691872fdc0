"""Averaged parameters, the best ones, and runs that are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD, AdamW
from engine.errors import FileError, InputError, StateError
from engine.trainer.fit import Callback, Fit
from engine.trainer.runs import RunFolder
from engine.trainer.schedules import Cosine
from tests.support.harness import copy_parameters
from tests.support.tiny import BATCH, LABELS, NORMED, X, make_trainer, read_values

DATA = (X, LABELS)
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}


class Stop(Callback):
    """Stops after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, fit: Fit) -> None:
        if fit.step == self.step:
            fit.stop("for the test")


class Values(Callback):
    """Keeps copies of the trained parameters after each step, and those that end an epoch."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []

    def on_step_end(self, fit: Fit) -> None:
        self.steps.append(copy_parameters(fit.trainer))

    def on_evaluate_begin(self, fit: Fit) -> None:
        self.epochs.append(self.steps[-1])


def test_ema_is_the_average_of_the_steps() -> None:
    trainer, seen = make_trainer(), Values()
    trainer.fit(DATA, epochs=3, ema=0.5, callbacks=[seen], **QUIET)
    mean = dict(seen.steps[0])
    for count, step in enumerate(seen.steps[1:], 2):
        decay = min(0.5, (1 + count) / (10 + count))
        for name in mean:
            mean[name] = mean[name] + np.float32(1 - decay) * (step[name] - mean[name])
    for name, value in copy_parameters(trainer).items():
        np.testing.assert_array_equal(value, mean[name])
        assert not np.array_equal(value, seen.steps[-1][name])


def test_swa_is_the_mean_of_the_epochs_from_one_on() -> None:
    trainer, seen = make_trainer(NORMED), Values()
    trainer.fit(DATA, validation=DATA, epochs=4, swa=0.5, callbacks=[seen], **QUIET)
    for name, value in copy_parameters(trainer).items():
        if "_mean" not in name and "_var" not in name:
            expected = np.mean([each[name] for each in seen.epochs[2:]], axis=0)
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)


def test_validation_measures_the_averaged_parameters() -> None:
    trainer = make_trainer()
    history = trainer.fit(DATA, validation=DATA, epochs=2, ema=0.9, **QUIET)
    assert trainer.evaluate(DATA, batch_size=BATCH)["loss"] == history["val_loss"][-1]


def test_averages_may_be_kept_in_checkpoints_alone(tmp_path: Path) -> None:
    plain, other = make_trainer(), make_trainer()
    plain.fit(DATA, epochs=2, **QUIET)
    other.fit(DATA, epochs=2, ema=0.9, averaged=False, folder=tmp_path / "run", **QUIET)
    assert read_values(other) == read_values(plain)
    assert list((tmp_path / "run").glob("checkpoints/*/average"))
    again = make_trainer()
    again.load(RunFolder(tmp_path / "run").last or "")
    assert read_values(again) == read_values(plain)


@pytest.mark.parametrize("options", [{"ema": 0.9}, {"swa": 1}], ids=str)
@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_resumed_run_has_the_same_averages(
    tmp_path: Path, options: dict[str, Any], step: int
) -> None:
    common: dict[str, Any] = {
        "validation": DATA, "epochs": 4, "checkpoint_every": 2, **options, **QUIET,
    }  # fmt: skip
    whole = make_trainer(NORMED, optimizer=AdamW(0.05))
    told = whole.fit(DATA, folder=tmp_path / "whole", **common)
    first = make_trainer(NORMED, optimizer=AdamW(0.05))
    first.fit(DATA, folder=tmp_path / "run", callbacks=[Stop(step)], **common)
    second = make_trainer(NORMED, optimizer=AdamW(0.05))
    rest = second.fit(DATA, folder=tmp_path / "run", resume=True, **common)
    assert read_values(second) == read_values(whole)
    assert rest["val_loss"] == told["val_loss"]
    third = make_trainer(NORMED, optimizer=AdamW(0.05))
    third.load(tmp_path / "run")
    fourth = make_trainer(NORMED, optimizer=AdamW(0.05))
    fourth.load(tmp_path / "whole")
    assert read_values(third) == read_values(fourth)


def test_a_resumed_run_must_have_the_same_average(tmp_path: Path) -> None:
    make_trainer().fit(DATA, epochs=1, ema=0.9, folder=tmp_path / "run", **QUIET)
    with pytest.raises(StateError, match=r"ema is None here and 0\.9 in the run"):
        make_trainer().fit(DATA, epochs=2, folder=tmp_path / "run", resume=True, **QUIET)


def test_two_kinds_of_averages_are_refused() -> None:
    with pytest.raises(InputError, match=r"ema=0\.9 and swa=1\.0: give only one of the two"):
        make_trainer().fit(DATA, ema=0.9, swa=1.0, **QUIET)


class Spoil(Callback):
    """Makes the model worse from an epoch on."""

    def on_epoch_begin(self, fit: Fit) -> None:
        if fit.epoch >= 2:
            fit.trainer.state.parameters["head.weight"].data[...] = 9


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_training_ends_with_the_best_parameters(tmp_path: Path, has_folder: bool) -> None:
    options: dict[str, Any] = {"validation": DATA, "callbacks": [Spoil()], **QUIET}
    expected, trainer = make_trainer(optimizer=SGD(0.1)), make_trainer(optimizer=SGD(0.1))
    expected.fit(DATA, epochs=2, **options)
    if has_folder:
        options["folder"] = tmp_path / "run"
    history = trainer.fit(DATA, epochs=4, restore="best", **options)
    assert history.best("val_loss")["epoch"] == 1
    assert read_values(trainer) == read_values(expected)


def test_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": DATA, "callbacks": [Spoil()], **QUIET}
    make_trainer(optimizer=SGD(0.1)).fit(
        DATA, epochs=6, folder=tmp_path, keep=1, keep_best=3, checkpoint_every=100, **options
    )
    run = RunFolder(tmp_path)
    ranking = run.ranking("min")
    assert ranking[0] == run.best
    values = [run.position(path)["value"] for path in ranking]
    rows = [row for row in run.position(run.last or tmp_path)["history"]]
    assert values[:3] == sorted(row["val_loss"] for row in rows)[:3]
    assert len(ranking) in (3, 4)


def test_a_run_is_loaded_by_its_folder(tmp_path: Path) -> None:
    trainer = make_trainer(optimizer=SGD(0.1))
    trainer.fit(DATA, validation=DATA, epochs=3, folder=tmp_path / "run", **QUIET)
    again = make_trainer(optimizer=SGD(0.1))
    again.load(tmp_path / "run")
    best = RunFolder(tmp_path / "run").best
    assert best is not None
    named = make_trainer(optimizer=SGD(0.1))
    named.load(best)
    assert read_values(again) == read_values(named)
    with pytest.raises(FileError, match="has no checkpoint, so it is not the folder of a run"):
        again.load(tmp_path)


@pytest.mark.parametrize("given", ["cosine", {"name": "cosine", "end": 0.0}, "Cosine"], ids=str)
def test_a_schedule_is_given_by_name(given: Any) -> None:
    first, second = make_trainer(), make_trainer()
    one = first.fit(DATA, epochs=3, schedule=given, **QUIET)
    two = second.fit(DATA, epochs=3, schedule=Cosine(), **QUIET)
    assert one["lr"] == two["lr"]
    assert read_values(first) == read_values(second)


def test_names_of_schedules_that_are_not_known() -> None:
    with pytest.raises(InputError, match="schedule: no schedule 'cosin'; nearest: 'cosine'"):
        make_trainer().fit(DATA, schedule="cosin", **QUIET)
    with pytest.raises(InputError, match="schedule cosine: unknown key 'warm'"):
        make_trainer().fit(DATA, schedule={"name": "cosine", "warm": 3}, **QUIET)
    with pytest.raises(InputError, match='expected a key "name"'):
        make_trainer().fit(DATA, schedule={"warmup": 3}, **QUIET)
