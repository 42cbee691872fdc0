"""Trainers made from the folders of runs, whose contents are checked, as they may be anyone's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from engine.base import arguments
from engine.base.errors import CheckpointError, DTypeError, FileError, InputError
from engine.data.description import DataDescription
from engine.trainer.runs import ARTIFACTS, RUN, RunFolder
from engine.training.artifact_set import FORWARD, TRAINING

if TYPE_CHECKING:
    from engine.distributed.group import RankGroup
    from engine.trainer.batch_trainer import BatchTrainer

T = TypeVar("T", bound="BatchTrainer")


def open_run(
    make: Callable[..., T],
    folder: str,
    checkpoint: Literal["best", "last"],
    group: RankGroup | None,
    options: Mapping[str, Any],
) -> T:
    """See `Trainer.from_run`."""
    run = RunFolder(folder)
    if checkpoint == "last" and run.last is None:
        raise FileError(f"{folder!r} has no last checkpoint, so it is not the folder of a run")
    place = run.last if checkpoint == "last" else run.chosen()
    artifacts = os.path.join(folder, ARTIFACTS)
    if not os.path.isfile(os.path.join(artifacts, TRAINING)):
        raise FileError(
            f"{artifacts!r} has no {TRAINING}: the run was made by an older version, or its folder "
            "was copied in part; make the trainer as the run did, and load() the folder"
        )
    asked = _check_entries(run)
    known: dict[str, Any] = {"seed": asked["model_seed"], **asked["parts"], **options}
    made = make(artifacts, outputs=asked["outputs"], group=group, **known)
    assert place is not None
    made.load(place)
    made.learner.data_description = DataDescription.read(Path(folder))
    made.classes, made.kept = asked["classes"], asked
    forward = os.path.join(artifacts, FORWARD)
    made.forward = forward if os.path.isfile(forward) else None
    if made.optimizer is not None and asked["learning_rate"] is not None:
        made.learning_rate = asked["learning_rate"]
    return made


def _check_entries(run: RunFolder) -> dict[str, Any]:
    """Return the entries of run.json that a trainer takes over, each of its type.

    Raises:
        FileError, CheckpointError: they cannot be read, or are damaged.
    """
    content = run.request()
    try:
        values = {
            key: None if content.get(key) is None else check(key, content[key])
            for key, check in _ENTRIES.items()
        }
    except (InputError, DTypeError) as error:
        path = os.fspath(run.path / RUN)
        raise CheckpointError(f"{path!r} is damaged: {error}") from error
    parts = values["parts"] or {}
    return {**values, "parts": parts}


def _check_table(what: str, value: Any) -> Mapping[str, Any]:
    """Return a table of JSON."""
    if not isinstance(value, Mapping):
        raise InputError(f"{what}={value!r}; expected a table")
    return value


def _check_parts(what: str, value: Any) -> dict[str, Any]:
    """Return the options of the parts of a batch."""
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{what}={value!r}; expected [micro_batches, own_statistics]")
    count = None if value[0] is None else arguments.count("micro_batches", value[0])
    return {
        "micro_batches": count,
        "own_statistics": arguments.check_flag("own_statistics", value[1]),
    }


_ENTRIES = {
    "model_seed": arguments.count,
    "parts": _check_parts,
    "learning_rate": arguments.check_real,
    "classes": arguments.check_names,
    "outputs": arguments.check_names,
    "ignore_index": arguments.count,
    "threshold": arguments.check_real,
    "recipe": _check_table,
}
