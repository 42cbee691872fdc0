"""Calls: arguments of the public interface, one or a few of them with values nobody expects."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine import Trainer, artifacts, loss_types
from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.base.signatures import check_arguments
from engine.graphs.offline import optim_types
from engine.trainer import metrics, schedules
from engine.trainer.request import request
from engine.training.settings import FitOptions
from tests.fuzz import octets
from tests.fuzz.artifacts import sets
from tests.fuzz.kind import Kind
from tests.support import tiny

Call = tuple[Callable[..., Any], dict[str, Any]]
ARRAYS = (
    np.zeros((2, 6), np.float32), np.zeros((2, 6)), np.zeros(6, np.float32), np.zeros((0, 6), "f4"),
    np.zeros((2, 6), complex), np.zeros((2, 6), object), np.array(["a"]), np.float32(1),
    np.array(3), np.full((2, 6), np.nan, np.float32), np.zeros((2, 12), "f4")[:, ::2],
    np.zeros((2, 6), ">f4"), np.zeros(2, "datetime64[s]"), np.array([0, 9]), np.array([0, -1]),
)  # fmt: skip
VALUES = (*octets.VALUES, *ARRAYS)


@functools.cache
def _module() -> tuple[CheckpointState, Module, Optimizer]:
    given = sets()[0]
    state = CheckpointState.load_checkpoint(given.checkpoint)
    module = Module(given.training, state, given.eval, threads=1)
    return state, module, Optimizer(given.optimizer, module)


@functools.cache
def _trainer() -> Trainer:
    return tiny.make_trainer()


def _set_parameter(name: Any, value: Any) -> None:
    _module()[0].parameters[name] = value


def _set_property(name: Any, value: Any) -> None:
    _module()[0].properties[name] = value


def _step(x: Any, labels: Any) -> None:
    _module()[1](x, labels)


def _train(x: Any, labels: Any) -> None:
    _trainer().step(x, labels)


def _build(kind: Any, **options: Any) -> None:
    """Make artifacts with an optimizer or a loss of these options."""
    made, loss = kind(**options), loss_types.CrossEntropyLoss()
    if isinstance(made, optim_types.Group):
        made = optim_types.AdamW(groups=[made])
    is_loss = isinstance(made, loss_types.Loss)
    artifacts.generate_artifacts(
        tiny.forward(), ["head.weight", "head.bias"], loss=made if is_loss else loss,
        optimizer=None if is_loss else made, artifact_directory="made",
    )  # fmt: skip


def _request(trainer: Any, train: Any, **given: Any) -> None:
    """Do what `Trainer.fit` does before it trains."""
    names = {field.name for field in dataclasses.fields(FitOptions)}
    options = FitOptions(**{name: given.pop(name) for name in names & given.keys()})
    check_arguments(request)(trainer, train, options, **{**_DEFAULTS, **given})


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Trainer.fit).parameters.items()
    if name in inspect.signature(request).parameters and parameter.default is not parameter.empty
}


def _schedule(kind: Any, **options: Any) -> None:
    _request(_trainer(), (tiny.X, tiny.LABELS), schedule=kind(**options), progress=False)


def _metric(kind: Any, **options: Any) -> None:
    _request(_trainer(), (tiny.X, tiny.LABELS), metrics=[kind(**options)], progress=False)


OPTIONS: dict[Callable[..., None], dict[Any, dict[str, Any]]] = {
    _build: {
        optim_types.AdamW: {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1,
                            "clip_grad": 1.0, "groups": []},
        optim_types.SGD: {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": True},
        optim_types.Adafactor: {"beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "beta1": 0.1},
        optim_types.Group: {"match": ["*.bias"], "lr_scale": 2.0, "weight_decay": 0.1},
        loss_types.CrossEntropyLoss: {"ignore_index": -1, "label_smoothing": 0.1, "weight": None},
        loss_types.FocalLoss: {"gamma": 2.0},
    },
    _schedule: {
        schedules.Linear: {"warmup": 3}, schedules.Cosine: {"warmup": 0.1},
        schedules.Step: {"every": 5}, schedules.Plateau: {"factor": 0.5},
    },
    _metric: {metrics.Accuracy: {}, metrics.TopK: {"k": 2}, metrics.F1: {}},
}  # fmt: skip


@functools.cache
def calls() -> tuple[Call, ...]:
    """Return the functions to call, with valid arguments."""
    given, (state, module, optimizer) = sets()[0], _module()
    options = [
        (call, {"kind": kind, **values})
        for call, kinds in OPTIONS.items()
        for kind, values in kinds.items()
    ]
    return (
        (artifacts.generate_artifacts, {
            "model": tiny.forward(), "requires_grad": ["head.weight"],
            "frozen_params": ["body.bias"], "loss": loss_types.LossType.CrossEntropyLoss,
            "optimizer": optim_types.OptimType.AdamW, "artifact_directory": "made", "prefix": "p_",
            "additional_output_names": ["r"], "nominal_checkpoint": True,
            "loss_input_names": ["scores", "labels"], "frozen_batch_norm": None, "update": None,
            "external_data": False, "proximal": False}),
        (Trainer.from_onnx, {
            "model": tiny.forward(), "loss": "cross_entropy", "optimizer": "adamw", "train": "*",
            "lora": None, "classes": 3, "folder": "set", "loss_inputs": ["scores", "labels"],
            "frozen_batch_norm": None, "threads": 1, "seed": 1, "memory_budget": "1 MB",
            "micro_batches": 1, "own_statistics": False, "update": None, "proximal": False,
            "group": None}),
        (_request, {
            "trainer": _trainer(), "train": (tiny.X, tiny.LABELS), "validation": 0.2, "epochs": 1,
            "batch_size": 8, "shuffle": True, "metrics": ["accuracy"], "schedule": None,
            "accumulate": 1, "callbacks": [], "folder": "run", "resume": False, "hours": 0.1,
            "seed": 0, "monitor": "val_loss", "mode": "min", "keep": 2, "checkpoint_every": 5,
            "unfreeze": None, "progress": False}),
        (_step, {"x": tiny.X, "labels": tiny.LABELS}),
        (_train, {"x": tiny.X, "labels": tiny.LABELS}),
        (_trainer().predict, {"data": tiny.X, "batch_size": 4}),
        (_trainer().evaluate, {"data": (tiny.X, tiny.LABELS), "batch_size": 4}),
        (_trainer().export, {"path": "out.onnx", "outputs": ["scores"]}),
        (_trainer().save, {"path": "saved"}),
        (Module, {
            "train_model_uri": given.training, "state": state, "eval_model_uri": given.eval,
            "device": "cpu", "session_options": None, "threads": 1, "check_finite": False,
            "seed": 3}),
        (Optimizer, {"optimizer_uri": given.optimizer, "module": module}),
        (module.export_model_for_inferencing, {
            "inference_model_uri": "out.onnx", "graph_output_names": ["scores"]}),
        (module.copy_buffer_to_parameters, {
            "buffer": np.zeros(83, np.float32), "trainable_only": True}),
        (module.get_contiguous_parameters, {"trainable_only": True}),
        (module.train, {"mode": True}),
        (optimizer.set_learning_rate, {"learning_rate": 0.1}),
        (LinearLRScheduler, {
            "optimizer": optimizer, "warmup_step_count": 2, "total_step_count": 5,
            "initial_lr": 0.1}),
        (_set_parameter, {"name": "body.bias", "value": np.ones(8, np.float32)}),
        (_set_property, {"name": "epoch", "value": 3}),
        (CheckpointState.load_checkpoint, {"checkpoint_uri": given.checkpoint}),
        (CheckpointState.save_checkpoint, {
            "state": state, "checkpoint_uri": "c", "include_optimizer_state": True}),
        *options,
    )  # fmt: skip


class Calls(Kind):
    """Calls with arguments that nobody expects."""

    name = "calls"
    suffix = ".txt"

    def prepare(self) -> None:
        calls()

    def begin(self, rng: random.Random) -> Call:
        call, arguments = rng.choice(calls())
        return call, dict(arguments)

    def change(self, subject: Call, rng: random.Random) -> Call:
        call, arguments = subject
        name = rng.choice([name for name in arguments if name not in ("kind", "trainer")])
        value = rng.choice(VALUES)
        if rng.random() < 0.2:
            value = octets.change_values(arguments[name], rng)
        return call, {**arguments, name: value}

    def run(self, subject: Call, rng: random.Random) -> str:
        call, arguments = subject
        with tempfile.TemporaryDirectory() as folder:
            deep = Path(folder, "a", "b", "c")  # some paths lead up
            deep.mkdir(parents=True)
            with contextlib.chdir(deep), contextlib.redirect_stdout(io.StringIO()):
                call(**arguments)
        return "done"

    def content(self, subject: Call) -> bytes:
        call, arguments = subject
        return f"{call.__qualname__}\n{arguments}".encode(errors="replace")
