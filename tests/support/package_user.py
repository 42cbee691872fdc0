"""Code as a user writes it, for mypy: every type is found under the name `edgegrad`."""

from __future__ import annotations

from typing import assert_type

import edgegrad as eg
import edgegrad.trainer
import engine
import engine.artifacts
import engine.data
import engine.errors
import engine.federated.message
import engine.trainer
from edgegrad import AdamW, EarlyStopping, Images, Trainer
from edgegrad.artifacts import CrossEntropyLoss
from edgegrad.federated.message import Message


def list_kinds() -> tuple[type[engine.Trainer], type[engine.AdamW]]:
    """Return classes of `edgegrad` as classes of `engine`."""
    return eg.Trainer, eg.AdamW


def train(trainer: eg.Trainer, folder: str) -> eg.History:
    """Train with classes from the top of the package."""
    assert_type(trainer, engine.trainer.Trainer)
    assert_type(Images(folder), engine.data.Images)
    assert_type(AdamW(), engine.artifacts.AdamW)
    assert_type(CrossEntropyLoss(), engine.artifacts.CrossEntropyLoss)
    assert_type(eg.lora.Lora(""), eg.Lora)
    assert_type(eg.errors.InputError(), engine.errors.InputError)
    assert_type(eg.__version__, str)
    return trainer.fit(eg.Images(folder), callbacks=[EarlyStopping(), edgegrad.trainer.Callback()])


def refuse(trainer: Trainer, message: Message) -> engine.federated.message.Message:
    """Name what is not there, which mypy refuses; a waiver that is not needed is an error."""
    eg.Trainr  # type: ignore[attr-defined]  # noqa: B018  # a slip
    edgegrad.trainer.Cosin  # type: ignore[attr-defined]  # noqa: B018  # a slip
    return message
