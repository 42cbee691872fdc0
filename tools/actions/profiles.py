"""Profiles of artifacts: a step on invented inputs that fit the model's declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.base.element_types import NUMPY
from engine.base.errors import InputError, LabelError
from engine.profiling import Profile
from engine.tools.trimmed.plans import find_batch_shapes, list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.training.model import Model
from engine.training.module import Module
from engine.training.optimizer import Optimizer
from engine.training.state import CheckpointState

Shapes = Mapping[str, tuple[int, ...]]

SAMPLES = 8  # of a step, where neither the model nor anybody says
BELOW = (30_000, 1_000, 10, 2, 1)  # limits of numbers made up, until the model takes them


def profile(
    folder: Path,
    batch: int | None = None,
    shapes: Shapes | None = None,
    threads: int | None = None,
    repeats: int = 20,
    progress: StagePrinter = SILENT,
) -> Profile:
    """Profile a training step of artifacts: forward, backward, and the update if there is one.

    batch: samples of a step; by default those that the model fixes, or 8.
    shapes: of inputs that the batch size does not determine.

    Raises:
        EngineError: a model cannot be read, planned or run; the message names it.
    """
    paths = list_artifacts(folder)
    progress.say(f"reading {folder}")
    state = CheckpointState.load_checkpoint(paths["checkpoint"])
    if not state.loaded:
        raise InputError(f"{folder}: the checkpoint is nominal; a step needs parameters' values")
    module = Module(paths["train"], state, threads=threads)
    optimizer = Optimizer(paths["optimizer"], module) if "optimizer" in paths else None
    inputs = invent_inputs(module, batch, shapes or {})
    progress.say(f"running {repeats} steps")
    return module.profile(*inputs, optimizer=optimizer, repeats=repeats)


def invent_inputs(
    module: Module, batch: int | None, shapes: Shapes
) -> list[npt.NDArray[np.generic]]:
    """Return invented inputs of a step: normal floats, integers in range, masks of ones.

    Raises:
        InputError: the shape of an input is not known, or no numbers that are tried are in range.
    """
    model = module.session.training
    bound = find_batch_shapes(model, batch or _count_samples(model, shapes), shapes, several=False)
    rng = np.random.default_rng(0)
    inputs = {name: _invent_array(model, name, shape, rng, 1) for name, shape in bound.items()}
    numbers = [name for name in inputs if inputs[name].dtype.kind in "iu" and "mask" not in name]
    with module.session.state.unchanged():
        _try(module, inputs)
        for name in numbers:
            for below in BELOW:
                tried = {**inputs, name: _invent_array(model, name, bound[name], rng, below)}
                try:
                    _try(module, tried)
                except LabelError:
                    continue
                inputs = tried
                break
    return [inputs[name] for name in model.inputs]


def _count_samples(model: Model, shapes: Shapes) -> int:
    """Return the samples of a step: as in a given shape, as the model fixes it, or
    `SAMPLES`.
    """
    declared = [model.interface.inputs[name].shape for name in model.inputs]
    given: Sequence[int | str] = [s[0] for s in (*shapes.values(), *declared) if s]
    return next((d for d in given if isinstance(d, int)), SAMPLES)


def _invent_array(
    model: Model, name: str, shape: tuple[int, ...], rng: np.random.Generator, below: int
) -> npt.NDArray[np.generic]:
    """Return values for an input: numbers below a limit, or 1 for a mask."""
    kind = np.dtype(NUMPY[model.interface.inputs[name].dtype])
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    if kind.kind == "b" or "mask" in name:
        return np.ones(shape, kind)
    return rng.integers(0, min(below, np.iinfo(kind).max), shape).astype(kind)


def _try(module: Module, inputs: Mapping[str, npt.NDArray[np.generic]]) -> None:
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
