"""Trainers of the folders of runs, without the process, the model and the artifacts of the run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import BCEWithLogitsLoss, CrossEntropyLoss
from engine.data import Arrays
from engine.errors import CheckpointError, EngineError, FileError, StateError
from engine.trainer.schedules import Cosine
from tests.support.places import ROOT
from tests.support.tiny import BATCH, DROPPING, LABELS, X, make_trainer, read_values

DATA = Arrays((X, LABELS), classes=["a", "b", "c"])
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False, "validation": 0.3}


def options(**more: Any) -> dict[str, Any]:
    return {"schedule": Cosine(), "epochs": 4, **QUIET, **more}


def ended(folder: Path, **kept: Any) -> Trainer:
    """Return the trainer of a run of two of four epochs, whose folder has then another name."""
    trainer = make_trainer(DROPPING, **kept)
    trainer.fit(DATA, folder=folder / "first", **options(epochs=2))
    shutil.move(folder / "first", folder / "run")
    return trainer


def test_a_run_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    whole = make_trainer(DROPPING, micro_batches=2)
    told = whole.fit(DATA, folder=tmp_path / "whole", **options(epochs=2))
    told = whole.fit(DATA, folder=tmp_path / "whole", resume=True, **options())
    artifacts = Path(ended(tmp_path, micro_batches=2).folder)
    shutil.rmtree(artifacts, ignore_errors=True)
    again = Trainer.from_run(tmp_path / "run", threads=1)
    rest = again.fit(DATA, folder=tmp_path / "run", resume=True, **options())
    assert rest["loss"] == told["loss"]
    assert read_values(again) == read_values(whole)


def test_another_process_has_the_parameters_and_the_classes(tmp_path: Path) -> None:
    trainer = ended(tmp_path)
    code = """
import sys, numpy as np
from engine import Trainer
made = Trainer.from_run(sys.argv[1], "last", threads=1)
np.save(sys.argv[2], made.predict(np.load(sys.argv[3])))
print(made.classes, made.learning_rate)
"""
    np.save(tmp_path / "x.npy", X)
    paths = (tmp_path / "run", tmp_path / "y.npy", tmp_path / "x.npy")
    told = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], cwd=ROOT, capture_output=True, text=True
    )
    assert told.stdout == f"['a', 'b', 'c'] {trainer.learning_rate}\n", told.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), trainer.predict(X))


def test_the_best_checkpoint_is_the_default(tmp_path: Path) -> None:
    trainer = make_trainer()
    history = trainer.fit(DATA, folder=tmp_path, **options(monitor="loss", mode="max"))
    assert history.best("loss")["epoch"] == 3
    best, last = Trainer.from_run(tmp_path, threads=1), Trainer.from_run(tmp_path, "last")
    assert read_values(last) == read_values(trainer) != read_values(best)


def test_metrics_leave_out_and_decide_as_the_loss_of_the_run(tmp_path: Path) -> None:
    several = np.eye(3, dtype=np.float32)[LABELS]
    labels = np.where(np.arange(20) < 5, 9, LABELS)
    for name, loss, targets in (
        ("labels", BCEWithLogitsLoss(), several),
        ("ignored", CrossEntropyLoss(ignore_index=9), labels),
    ):
        trainer = make_trainer(loss=loss)
        trainer.fit((X, targets), folder=tmp_path / name, progress=False)
        again = Trainer.from_run(tmp_path / name, threads=1)
        asked: dict[str, Any] = {"metrics": ["accuracy", "f1"]}
        assert again.evaluate((X, targets), **asked) == trainer.evaluate((X, targets), **asked)


def test_a_loss_by_its_name_decides_as_well() -> None:
    assert make_trainer(loss="bce_with_logits").threshold == BCEWithLogitsLoss().threshold


def test_the_loss_of_the_artifacts_stays(tmp_path: Path) -> None:
    ended(tmp_path)
    with pytest.raises(StateError, match="class_weight= makes artifacts anew"):
        Trainer.from_run(tmp_path / "run").fit(DATA, class_weight=[1, 2, 3], **QUIET)


def _damage(**entries: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return change


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            lambda run: shutil.rmtree(run / "artifacts"),
            FileError,
            "has no training_model.onnx: the",
        ),
        (lambda run: (run / "best").write_text("../../x"), CheckpointError, "names no checkpoint"),
        (lambda run: (run / "run.json").unlink(), FileError, "run.json"),
        (lambda run: (run / "run.json").write_text("[]"), CheckpointError, "not a request of a"),
        (_damage(model_seed="1"), CheckpointError, "model_seed: expected a whole number"),
        (_damage(learning_rate=[1]), CheckpointError, "learning_rate: expected a number"),
        (_damage(classes="abc"), CheckpointError, "classes: expected a list of names"),
        (_damage(parts=[1]), CheckpointError, r"parts=\[1\]; expected \[micro_batches"),
        (_damage(parts=[0, False]), EngineError, "micro_batches"),
        (_damage(outputs=["../x"]), EngineError, "'../x'"),
    ],
)
def test_damaged_folders(
    change: Callable[[Path], Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    make_trainer().fit(DATA, folder=tmp_path / "run", **QUIET)
    change(tmp_path / "run")
    with pytest.raises(error, match=text):
        Trainer.from_run(tmp_path / "run", threads=1)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    for which in ("best", "last"):
        with pytest.raises(FileError, match="not the folder of a run"):
            Trainer.from_run(tmp_path, which)
