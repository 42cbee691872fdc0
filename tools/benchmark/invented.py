"""Invented inputs of a model, where only their shapes and types are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.base.aliases import Array, Shapes
from engine.base.element_types import NUMPY
from engine.base.errors import LabelError
from engine.tools.trimmed.plans import SAMPLES, count_samples, find_batch_shapes
from engine.training.model import Model

BELOW = (30_000, 1_000, 10, 2, 1)  # limits of numbers made up, until the model takes them


def invent_values(
    model: Model,
    batch: int | None,
    shapes: Shapes,
    run: Callable[[dict[str, Array]], object],
    samples: int = SAMPLES,
) -> dict[str, Array]:
    """Return invented inputs of a model: normal floats, integers in range, masks of ones.

    run: runs the model on inputs.
    samples: the samples of a batch, where neither the model nor `batch` says.

    Raises:
        InputError: the shape of an input is not known.
        LabelError: no numbers that are tried are in range.
    """
    declared = {name: model.interface.inputs[name].shape for name in model.inputs}
    size = batch or count_samples(declared, shapes, samples)
    bound = find_batch_shapes(model, size, shapes, several=False)
    rng = np.random.default_rng(0)
    inputs = {name: _invent_array(model, name, shape, rng, 1) for name, shape in bound.items()}
    numbers = [name for name in inputs if inputs[name].dtype.kind in "iu" and "mask" not in name]
    run(inputs)
    for name in numbers:
        for below in BELOW:
            tried = {**inputs, name: _invent_array(model, name, bound[name], rng, below)}
            try:
                run(tried)
            except LabelError:
                continue
            inputs = tried
            break
    return inputs


def _invent_array(
    model: Model, name: str, shape: tuple[int, ...], rng: np.random.Generator, below: int
) -> Array:
    """Return values for an input: numbers below a limit, or 1 for a mask."""
    kind = np.dtype(NUMPY[model.interface.inputs[name].dtype])
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    if kind.kind == "b" or "mask" in name:
        return np.ones(shape, kind)
    return rng.integers(0, min(below, np.iinfo(kind).max), shape).astype(kind)
