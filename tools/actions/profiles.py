"""Profiles of artifacts and models: invented inputs that fit a model's declarations."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from engine.base.aliases import Array, Shapes
from engine.base.errors import InputError
from engine.graphs.io import onnx_io
from engine.profiling import Profile
from engine.tools.actions.checks import TrainingChoices, make_trainable
from engine.tools.benchmark.invented import invent_values
from engine.tools.trimmed.plans import list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.training.inference import follow, open_model
from engine.training.module import Module
from engine.training.optimizer import Optimizer
from engine.training.state import CheckpointState


def profile(
    path: Path,
    batch: int | None = None,
    shapes: Shapes | None = None,
    threads: int | None = None,
    repeats: int = 20,
    progress: StagePrinter = SILENT,
) -> Profile:
    """Profile a training step: forward, backward, and the update if there is one.

    path: a folder of artifacts; or a forward model, which gets the loss that fits its first output,
        and AdamW.
    batch: samples of a step; by default those that the model fixes, or 8.
    shapes: the shapes of inputs that the batch size does not determine.

    Raises:
        EngineError: a model cannot be read, planned or run; the message names it.
    """
    if path.is_dir():
        progress.say(f"reading {path}")
        return _profile_artifacts(path, batch, shapes or {}, threads, repeats, progress)
    with tempfile.TemporaryDirectory() as made:
        progress.say(f"making {path} trainable")
        make_trainable(path, onnx_io.load(path), TrainingChoices(), Path(made))
        return _profile_artifacts(Path(made), batch, shapes or {}, threads, repeats, progress)


def _profile_artifacts(
    folder: Path,
    batch: int | None,
    shapes: Shapes,
    threads: int | None,
    repeats: int,
    progress: StagePrinter,
) -> Profile:
    paths = list_artifacts(folder)
    state = CheckpointState.load_checkpoint(paths["checkpoint"])
    if not state.loaded:
        raise InputError(f"{folder}: the checkpoint is nominal; a step needs parameters' values")
    module = Module(paths["train"], state, threads=threads)
    optimizer = Optimizer(paths["optimizer"], module) if "optimizer" in paths else None
    inputs = invent_inputs(module, batch, shapes)
    progress.say(f"running {repeats} steps")
    return module.profile(*inputs, optimizer=optimizer, repeats=repeats)


def profile_answers(
    path: Path,
    batch: int | None = None,
    shapes: Shapes | None = None,
    threads: int | None = None,
    repeats: int = 20,
    progress: StagePrinter = SILENT,
) -> Profile:
    """Profile an answer of a model.

    batch: samples of an answer; by default those that the model fixes, or 1.
    shapes: as of `profile`.

    Raises:
        EngineError: the model cannot be read, planned or run; the message names it.
    """
    progress.say(f"reading {path}")
    model = open_model(path, threads)
    session = follow(lambda: (model, None))
    inputs = invent_values(
        model, batch, shapes or {}, lambda feed: session.run([], feed), samples=1
    )
    progress.say(f"answering {repeats} times")
    return session.profile(inputs, repeats=repeats)


def invent_inputs(module: Module, batch: int | None, shapes: Shapes) -> list[Array]:
    """Return the invented inputs of a step, in order.

    Raises:
        InputError, LabelError: as `invent_values`.
    """
    model = module.session.training
    with module.session.state.unchanged():
        inputs = invent_values(model, batch, shapes, lambda feed: _try(module, feed))
    return [inputs[name] for name in model.inputs]


def _try(module: Module, inputs: Mapping[str, Array]) -> None:
    """Run a step on inputs, whose gradients the next one overwrites.

    Raises:
        LabelError: a number is out of range.
    """
    draws, check = module.session.state.draws, module.check_finite
    module.check_finite = False
    try:
        module.lazy_reset_grad()
        module(*(inputs[name] for name in module.input_names()))
    finally:
        module.session.state.draws, module.check_finite = draws, check
