"""Runs of `edgegrad train`: reading the contents of their folders.

The folder of a run has

    run.toml          the configuration, with what it left open filled in
    forward.onnx      the model that is trained, where its last layers had to be changed
    artifacts/        its artifacts, with the values from before the training
    inference.onnx    the trained model, with the best parameters
    classes.txt       the names of the classes, one a line
    preparation.json  of a table, how its columns become features

and what `fit` writes: best, last, checkpoints/, run.json, history.csv, log.jsonl, report.html.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from engine.base.errors import FileError, StateError
from engine.checkpoint import storage
from engine.data.dataset import Dataset
from engine.data.folders import TEST, VALIDATION, split_of
from engine.system import files
from engine.tools.actions import run_config, run_data
from engine.tools.actions.run_config import RunConfig
from engine.tools.trimmed.staging import staged
from engine.trainer.runs import ARTIFACTS, CONFIG
from engine.trainer.trainer import Trainer
from engine.training.artifact_set import CHECKPOINT

# --- what configurations leave open


def choose_metrics(config: RunConfig) -> Sequence[str]:
    """Return the metrics of a run; by default one that fits the data and the loss, and none without
    targets.
    """
    if config.fit.metrics is not None:
        return config.fit.metrics
    if config.has_several_losses:  # a metric would have to name an output and its target
        return ()
    if config.model.loss == "none" or config.data.options.get("target") in ("", [], ()):
        return ()
    if config.data.classes:
        return ("iou",) if config.data.kind == "masks" else ("accuracy",)
    if config.data.kind == "text":
        return ("perplexity",)
    return ("accuracy",) if config.model.loss == "cross_entropy" else ("mae",)


# --- runs that are there


def read_config(folder: Path) -> RunConfig:
    """Return the configuration of a run.

    Raises:
        FileError: the folder has no run.
        InputError, DTypeError: the configuration has been changed, and does not fit.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise FileError(f"{folder}: no run of `edgegrad train`: it has no {CONFIG}")
    return run_config.make_config(run_config.read(path), str(path))


def open_data(config: RunConfig, folder: Path, path: Path) -> Dataset:
    """Return other data, prepared like the data of a run; of a divided root the test data.

    Raises:
        EngineError: they cannot be read, or do not fit.
    """
    place = Path(split_of(path, TEST, VALIDATION))
    return run_data.open_data(config.data, place, run_data.read_learned(config.data, folder))


def write_trained(folder: Path, trainer: Trainer, out: Path) -> list[Path]:
    """Write the artifacts of a run into a new folder, with the trainer's parameters.

    The optimizer starts over: with the learning rate of the run, and moments of zero.

    Raises:
        StateError: there are artifacts in the folder.
        FileError: it cannot be written.
    """
    if (out / CHECKPOINT).exists():
        raise StateError(f"{out} has artifacts already: give another folder")
    with staged(out) as made:
        for pattern in ("*_model.onnx*", "constants.*.data"):
            for source in sorted((folder / ARTIFACTS).glob(pattern)):
                copy = files.read(str(source), "artifact")
                files.write(str(made / source.name), [copy])
        first = storage.read(folder / ARTIFACTS / CHECKPOINT)
        values = {name: value.data for name, value in trainer.state.parameters}
        trained = dataclasses.replace(
            first,
            trainable={name: values[name] for name in first.trainable},
            frozen={name: values[name] for name in first.frozen},
        )
        storage.write(trained, made / CHECKPOINT, artifact=True)
        names = sorted(path.name for path in made.iterdir())
    return [out / name for name in names]
