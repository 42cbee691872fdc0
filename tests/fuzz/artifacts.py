"""Kinds of artifacts: the training, eval and optimizer models and the checkpoint of a set."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto

from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import CrossEntropyLoss, generate_artifacts
from engine.base.element_types import NUMPY
from engine.errors import EngineError
from engine.graphs.offline import optim_types
from engine.training.module import Module as TrainingModule
from tests.fuzz import octets
from tests.fuzz.kind import Kind
from tests.fuzz.protobuf import Changes
from tests.support import tiny
from tests.support.places import DATA

STEP_SHARE = 1 / 25  # of the sets that can be opened and planned are trained for a step
BATCH = 2
OPTIMIZERS = {
    "adamw": optim_types.AdamW(clip_grad=1.0),
    "sgd": optim_types.SGD(momentum=0.9, groups=[optim_types.Group(["head.bias"], 2.0)]),
    "adafactor": optim_types.Adafactor(beta1=0.5),
    "lamb": optim_types.LAMB(),
    "lion": optim_types.Lion(),
    "rmsprop": optim_types.RMSprop(momentum=0.5),
    "adagrad": optim_types.Adagrad(),
}
PARTS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


class Set(NamedTuple):
    """The files of artifacts."""

    training: bytes
    eval: bytes
    optimizer: bytes
    checkpoint: bytes


@functools.cache
def sets() -> tuple[Set, ...]:
    """Sets of every optimizer, and sets that onnxruntime-training made."""
    actual = []
    with tempfile.TemporaryDirectory() as folder:
        for name, method in OPTIMIZERS.items():
            place = Path(folder) / name
            text = tiny.NORMED if name == "sgd" else tiny.PLAIN
            generate_artifacts(
                tiny.forward(text), tiny.NAMES, loss=CrossEntropyLoss(), optimizer=method,
                frozen_params=[f"norm.{n}" for n in ("scale", "bias", "mean", "var")]
                if name == "sgd" else None,
                frozen_batch_norm=True, artifact_directory=place,
            )  # fmt: skip
            actual.append(Set(*((place / part).read_bytes() for part in PARTS)))
    for case in ("mlp", "cnn", "lstm", "regression_sgd"):
        place = DATA / "goldens" / case
        actual.append(Set(*((place / part).read_bytes() for part in PARTS)))
    return tuple(actual)


def use(given: Set, rng: random.Random) -> str:
    """Open a set, plan a step, an evaluation and an update, and for a share do them."""
    state = CheckpointState.load_checkpoint(given.checkpoint)
    module = Module(given.training, state, given.eval, threads=1)
    optimizer = Optimizer(given.optimizer, module)
    train = _batch(module, rng)
    does_step = rng.random() < STEP_SHARE
    if does_step:
        module(*train)
        optimizer.step()
        module.lazy_reset_grad()
    else:
        module.session.training.plan(
            dict(zip(module.session.training.inputs, (a.shape for a in train), strict=True))
        )
        optimizer.plan()
    module.eval()
    batch = _batch(module, rng)
    if does_step:
        module(*batch)
        CheckpointState.from_bytes(state.to_bytes(include_optimizer_state=True))
        return "ran"
    model = module.session.evaluation
    assert model is not None
    model.plan(dict(zip(model.inputs, (a.shape for a in batch), strict=True)))
    return "planned"


def _batch(module: TrainingModule, rng: random.Random) -> list[np.ndarray]:
    """Random inputs of the current mode, labels below 2."""
    model, made = module._get_model(), np.random.default_rng(rng.randrange(1 << 32))
    arrays = []
    for name in model.inputs:
        t = model.interface.inputs[name]
        shape = [d if isinstance(d, int) else BATCH for d in t.shape]
        if int(np.prod([float(d) for d in shape])) > 1 << 20:
            shape = [min(d, 2) for d in shape]
        kind = NUMPY.get(t.dtype, np.float32)
        values = made.standard_normal(shape) if kind in (np.float32, np.float64) else None
        arrays.append(np.asarray(made.integers(0, 2, shape) if values is None else values, kind))
    return arrays


class Artifact(Kind):
    """One model of a set: any of its fields, and how its nodes hang together.

    part: the model's place in a `Set`.
    """

    suffix = ".onnx"

    def __init__(self, part: int) -> None:
        self.part = part
        self.title = ("training", "eval", "optimizer")[part]

    def prepare(self) -> None:
        changes()

    def begin(self, rng: random.Random) -> tuple[Set, ModelProto]:
        given = rng.choice(sets())
        other = rng.random() < 0.05  # a model that belongs to another set, or in another place
        data = rng.choice(sets())[rng.randrange(3)] if other else given[self.part]
        return given, onnx.load_from_string(data)

    def change(self, subject: Any, rng: random.Random) -> Any:
        changes().change(subject[1], rng)
        return subject

    def run(self, subject: Any, rng: random.Random) -> str:
        given, model = subject
        return use(given._replace(**{self.title: model.SerializeToString()}), rng)

    def content(self, subject: Any) -> bytes:
        return bytes(subject[1].SerializeToString())


class Training(Artifact):
    """Training models."""

    name = "training"

    def __init__(self) -> None:
        super().__init__(0)


class Eval(Artifact):
    """Eval models, some of them from other artifacts."""

    name = "evals"

    def __init__(self) -> None:
        super().__init__(1)


class Updates(Artifact):
    """Optimizer models: opening one reports what is wrong with it, not its first step."""

    name = "optimizers"

    def __init__(self) -> None:
        super().__init__(2)

    def run(self, subject: Any, rng: random.Random) -> str:
        given, model = subject
        state = CheckpointState.load_checkpoint(given.checkpoint)
        module = Module(given.training, state, given.eval, threads=1)
        optimizer = Optimizer(model.SerializeToString(), module)
        try:
            optimizer.plan()
            if rng.random() < STEP_SHARE:
                module(*_batch(module, rng))
                optimizer.step()
                return "ran"
        except EngineError as error:
            raise AssertionError("an optimizer model was refused after it was opened") from error
        return "planned"


class Checkpoints(Kind):
    """Checkpoints: their bytes."""

    name = "checkpoints"

    def prepare(self) -> None:
        sets()
        _files()

    def begin(self, rng: random.Random) -> tuple[Set, bytearray]:
        given = rng.choice(sets())
        other = rng.random() < 0.5
        return given, bytearray(rng.choice(_files()) if other else given.checkpoint)

    def change(self, subject: Any, rng: random.Random) -> Any:
        octets.change(subject[1], rng)
        return subject

    def run(self, subject: Any, rng: random.Random) -> str:
        given, data = subject
        state = CheckpointState.load_checkpoint(bytes(data))
        CheckpointState.from_bytes(state.to_bytes(include_optimizer_state=True))
        return use(given._replace(checkpoint=bytes(data)), rng)

    def content(self, subject: Any) -> bytes:
        return bytes(subject[1])


@functools.cache
def _files() -> tuple[bytes, ...]:
    """Checkpoints of the reference."""
    names = ("adamw_runtime", "dtypes", "dtypes_runtime", "nominal", "properties", "sgd_runtime")
    return tuple((DATA / "checkpoints" / name).read_bytes() for name in names)


@functools.cache
def changes() -> Changes:
    """Return changes that insert parts of the models of all sets."""
    return Changes([onnx.load_from_string(data) for given in sets() for data in given[:3]])
