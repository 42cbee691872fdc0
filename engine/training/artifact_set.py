"""Artifact sets: which of the files that `generate_artifacts` writes belong together.

A process that is killed while it writes, a copy that ends half-way and a folder that two programs
write to leave files of two sets under the names of one.  They may fit one another, and would train
something that nobody asked for.  Every file therefore names its set:

    training_model, eval_model    metadata `edgegrad.set`: the id of these two models
    optimizer_model               the same, and after a space the id of this model
    checkpoint                    a property `edgegrad.set` of both; every later save keeps it

An id is a digest of content, so that the same inputs give the same files.  Values of parameters are
not in it: models of one id with any checkpoint of it are what some call has written.

Files are compared where they have the names of one set in one folder.  A program may take files
from elsewhere, or under another name; these only have to fit: a checkpoint may continue with new
artifacts.  Files without an id, such as the artifacts of onnxruntime-training, are not compared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from engine.base.errors import ModelError

PROPERTY = "edgegrad.set"  # of checkpoints, and the key in the metadata of models
# The names of the files, which onnxruntime-training gave them.
TRAINING, EVALUATION, OPTIMIZER = "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"
NAMES = (TRAINING, EVALUATION, OPTIMIZER)
CHECKPOINT, NOMINAL = "checkpoint", "nominal_checkpoint"
CHECKPOINTS = (CHECKPOINT, NOMINAL)
FORWARD = "forward.onnx"  # what the others are made of, if it is kept
Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | None

_DIGITS = 32  # of an id: 128 bits


@dataclass(frozen=True, slots=True)
class SetId:
    """The ids of a set; one that is not known is empty.

    models: the id of the training and the eval model.  optimizer: the id of the optimizer model.
    """

    models: str = ""
    optimizer: str = ""

    @classmethod
    def of(cls, models: str, optimizer: str = "") -> SetId:
        """Return the ids by digests of what is in the files, as hexadecimal digits."""
        return cls(models[:_DIGITS], optimizer[:_DIGITS])

    @classmethod
    def parse(cls, text: object) -> SetId:
        """Return the ids that a file says; none of something else."""
        ids = text.split(" ") if isinstance(text, str) else []
        return cls(*ids) if 1 <= len(ids) <= 2 else cls()

    def __str__(self) -> str:
        return f"{self.models} {self.optimizer}" if self.optimizer else self.models


def check(path: Source, mine: SetId, other: Source, known: SetId) -> None:
    """Refuse two files of one folder, under names of one set, that are not of one set.

    path, other: the files; something else than a path is not compared.
    mine, known: their ids.

    Raises:
        ModelError: they are of different sets.
    """
    if not (_is_path(path) and _is_path(other) and mine.models and known.models):
        return
    (here, name), (there, second) = _split_path(path), _split_path(other)
    if not name or not second or here != there:
        return
    with_optimizer = name == NAMES[2] and second in CHECKPOINTS
    if mine.models == known.models and (not with_optimizer or mine.optimizer == known.optimizer):
        return
    raise ModelError(
        f"{os.fspath(path)!r} and {os.fspath(other)!r} belong to different artifact sets "
        f"({mine} and {known}): generate_artifacts did not finish, or files of another call were "
        "copied over some of these. Make or copy all files of the folder again; to continue from a "
        "checkpoint of other artifacts of the same model, give it another name"
    )


def _is_path(source: Source) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(source, str | os.PathLike)


def _split_path(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Split the path of a file of a set into folder with prefix, and name; "" if it has no name.

    The paths of all files of the set begin with the first part.
    """
    whole = os.path.abspath(path)
    names = [name for name in (*NAMES, *CHECKPOINTS) if os.path.basename(whole).endswith(name)]
    name = max(names, key=len, default="")
    return whole.removesuffix(name), name
