"""Trainers of the folders of runs, without the process, the model and the artifacts of the run."""

from __future__ import annotations

import contextlib
import dataclasses
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
from engine.artifacts import AdamW, BCEWithLogitsLoss, CrossEntropyLoss, Loss
from engine.base.sparse_update import SparseUpdate
from engine.data import Arrays
from engine.errors import CheckpointError, EngineError, FileError, StateError
from engine.graphs.offline.optim_types import OPTIMIZERS, Group
from engine.loss_types import LOSSES
from engine.trainer.recipe import Recipe
from engine.trainer.schedules import Cosine
from engine.training.settings import RecipeOptions
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


@pytest.mark.parametrize(
    "asked",
    [
        {"class_weight": [1, 2, 3]},
        {"class_weight": "balanced", "unfreeze": {"head.*": 0, "*": 3}},
        {"unfreeze": {"head.*": 0, "body.bias": 1, "*": 3}},
        {"augment": ["mixup"]},
    ],
)
def test_a_run_whose_artifacts_are_made_anew_goes_on(asked: dict[str, Any], tmp_path: Path) -> None:
    """The folder of the run has all that is needed: the trainer that began has no files left."""
    made: dict[str, Any] = {"loss": "cross_entropy", "optimizer": AdamW(0.05, clip_grad=1.0)}
    whole = make_trainer(DROPPING, **made)
    whole.fit(DATA, folder=tmp_path / "whole", **options(epochs=2, **asked))
    told = whole.fit(DATA, folder=tmp_path / "whole", resume=True, **options(**asked))
    first = make_trainer(DROPPING, **made)
    first.fit(DATA, folder=tmp_path / "first", **options(epochs=2, **asked))
    shutil.rmtree(first.folder)
    shutil.move(tmp_path / "first", tmp_path / "run")
    again = Trainer.from_run(tmp_path / "run", threads=1)
    rest = again.fit(DATA, folder=tmp_path / "run", resume=True, **options(**asked))
    assert rest["loss"] == told["loss"]
    assert read_values(again) == read_values(whole)


def test_a_run_of_a_trainer_of_a_run_keeps_the_model(tmp_path: Path) -> None:
    ended(tmp_path)
    second = Trainer.from_run(tmp_path / "run", threads=1)
    second.fit(DATA, folder=tmp_path / "second", **options(class_weight=[1, 2, 3]))
    shutil.rmtree(tmp_path / "run")
    third = Trainer.from_run(tmp_path / "second", threads=1)
    assert third.evaluate(DATA) == second.evaluate(DATA)
    third.fit(DATA, **options(unfreeze={"head.*": 0}))


def test_adapters_can_be_weighted_after_a_run(tmp_path: Path) -> None:
    trainer = make_trainer(lora="head.*")
    trainer.fit(DATA, folder=tmp_path / "run", **QUIET)
    again = Trainer.from_run(tmp_path / "run", threads=1)
    for each in (trainer, again):
        each.load(tmp_path / "run")
        each.fit(DATA, **options(class_weight=[1, 2, 3]))
    assert read_values(again) == read_values(trainer)


class _Own(Loss):
    """The cross entropy, as a class that no folder of a run can hold."""

    def build(self, graph: Any, *inputs: str) -> str:
        return CrossEntropyLoss().build(graph, *inputs)


def test_a_loss_of_ones_own_stays_in_the_artifacts(tmp_path: Path) -> None:
    make_trainer(loss=_Own()).fit(DATA, folder=tmp_path / "run", **QUIET)
    again = Trainer.from_run(tmp_path / "run", threads=1)
    assert again.recipe is None
    again.fit(DATA, **QUIET)
    with pytest.raises(StateError, match="class_weight= makes artifacts again"):
        again.fit(DATA, class_weight=[1, 2, 3], **QUIET)


def _list_variants(kind: type) -> list[Any]:
    """Return instances of a class of options: with its defaults, and with another value of each."""
    made = [kind()]
    for field in dataclasses.fields(kind):
        for value in (
            0.25,
            2,
            True,
            "sum",
            np.array([0.1, 2, 3], np.float32),
            [Group(("*.bias",), 2.0)],
        ):
            with contextlib.suppress(EngineError):
                made.append(kind(**{field.name: value}))
    return made


@pytest.mark.parametrize("kind", [*LOSSES.values(), *OPTIMIZERS.values()])
def test_recipes_of_all_losses_and_optimizers_are_kept(kind: type) -> None:
    every = _list_variants(kind)
    assert len(every) > 1
    for made in every:
        loss = made if issubclass(kind, Loss) else {"y": ("mse", 0.5), "z": "l1"}
        optimizer = None if issubclass(kind, Loss) else made
        options = RecipeOptions(update=SparseUpdate(last=2), tie=[["a", "b"]])
        recipe = Recipe(loss, optimizer, options)
        actual_table = Recipe.of_table(json.loads(json.dumps(recipe.to_table())), "recipe")
        assert actual_table.to_table() == recipe.to_table()
        mine, other = (
            r.named_loss if r.optimizer is None else r.optimizer for r in (recipe, actual_table)
        )
        for field in dataclasses.fields(kind):
            np.testing.assert_array_equal(getattr(mine, field.name), getattr(other, field.name))


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
        (_damage(recipe=[1]), CheckpointError, r"recipe=\[1\]; expected a table"),
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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"loss": {"name": "nothing"}}, "no loss 'nothing'"),
        ({"loss": {"name": ["a"]}}, "loss name"),
        ({"losses": {"scores": 1}}, "losses.scores"),
        ({"optimizer": {"name": "adamw", "lr": "high"}}, "optimizer adamw: lr"),
        ({"options": {"update": {"last": -1}}}, "last"),
        ({"outputs": [1]}, "outputs"),
        ({"code": "x"}, "unknown key 'code'"),
    ],
)
def test_damaged_recipes(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    make_trainer().fit(DATA, folder=tmp_path, **QUIET)
    table = json.loads((tmp_path / "run.json").read_text())["recipe"]
    _damage(recipe=table | change)(tmp_path)
    again = Trainer.from_run(tmp_path, threads=1)
    with pytest.raises(CheckpointError, match=text):
        again.fit(DATA, class_weight=[1, 2, 3], **QUIET)
