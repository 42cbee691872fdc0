"""Identity of a run: what must be the same in a process that continues it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.errors import CheckpointError, StateError
from engine.base.package import VERSION
from engine.plan import noise

if TYPE_CHECKING:
    from engine.trainer.learner import TrainingModels

WORDS = {  # what messages call them
    "learning_rate": "the learning rate",
    "samples": "the number of samples of an epoch",
    "batches": "the number of batches of an epoch",
    "batch_size": "batch_size",
    "balanced": "balanced",
    "shuffle": "shuffle",
    "accumulate": "accumulate",
    "seed": "seed",
    "model_seed": "the seed of the model's random numbers",
    "class_weight": "the factors of the classes",
    "augment": "augment",
    "bucket_by": "bucket_by",
    "train_metrics": "the list of metrics of the training data",
    "unfreeze": "unfreeze",
    "freeze_statistics": "freeze_statistics",
    "ema": "ema",
    "swa": "swa",
    "parts": "[micro_batches, own_statistics]",
}
NEEDED = ("inputs", "parameters", "edgegrad", "model", "optimizer")


def identify(learner: TrainingModels, **options: object) -> dict[str, Any]:
    """Return everything that a run is tied to, as JSON types.

    options: the ones of `fit` that decide what happens in a step.
    """
    seed = learner.session.seed
    model, optimizer = learner.digests
    return {
        "edgegrad": VERSION,
        "inputs": list(learner.inputs),
        "parameters": {
            name: [str(p.data.dtype), *map(int, p.data.shape)]
            for name, p in learner.state.parameters
        },
        "model": model,
        "optimizer": optimizer,
        "learning_rate": shorten(learner.learning_rate),
        "model_seed": noise.get_seed() if seed is None else seed,
        **options,
    }


def shorten(rate: float) -> float:
    """Return the shortest number that is this learning rate in float32, as steps use it."""
    return float(str(np.float32(rate)))


def check(mine: Mapping[str, Any], saved: object, folder: Path) -> None:
    """Refuse to continue a run that is tied to something else.

    Raises:
        CheckpointError: the checkpoint holds no identity.
        StateError: something differs; the message says what, here and there.
    """
    place = os.fspath(folder)
    if not isinstance(saved, dict) or not saved.keys() >= {*NEEDED}:
        raise CheckpointError(f"{place!r}: the checkpoint does not say what its run is tied to")

    def refuse(what: str) -> StateError:
        return StateError(
            f"resume: {what}; use the values of the run {place!r}, or another folder for a new one"
        )

    if mine["inputs"] != saved["inputs"]:
        raise refuse(
            f"another model: its inputs are {mine['inputs']}, the run had {saved['inputs']}"
        )
    here, there = mine["parameters"], saved["parameters"]
    for name in (*here, *there):
        if here.get(name) != there.get(name):
            raise refuse(
                f"another model: parameter {name!r} is {_name_type(here.get(name))} here and "
                f"{_name_type(there.get(name))} in the run"
            )
    versions = ""
    if mine["edgegrad"] != saved["edgegrad"]:
        versions = f" (edgegrad {mine['edgegrad']} here, {saved['edgegrad']} in the run)"
    if mine["model"] != saved["model"]:
        raise refuse(
            "another model: its parameters are the same, but its layers, its loss or what is "
            f"trained of it differ{versions}"
        )
    if mine["optimizer"] != saved["optimizer"]:
        raise refuse(f"another optimizer, or other options of it{versions}")
    rate = saved.get("learning_rate")
    saved = {**saved, "learning_rate": shorten(rate)} if isinstance(rate, float) else saved
    for key, words in WORDS.items():
        if mine.get(key) != saved.get(key):
            raise refuse(f"{words} is {mine.get(key)!r} here and {saved.get(key)!r} in the run")


def _name_type(kind: list[Any] | None) -> str:
    return "missing" if kind is None else f"{kind[0]}{kind[1:]}"
