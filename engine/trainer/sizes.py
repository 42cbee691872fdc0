"""Batch sizes: how many samples a model takes at a time, where its file fixes the number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, ModelWarning, warn_user
from engine.data.loader import Batches
from engine.data.sources import batches

if TYPE_CHECKING:
    from engine.training.model import Model

BATCH_SIZE = 32  # of models that take any


def find_fixed_batch(model: Model) -> int | None:
    """Return the number of samples that the first dimension of a model's inputs fixes, or None."""
    shapes = [model.interface.inputs[name].shape for name in model.inputs]
    first = {shape[0] for shape in shapes if shape}
    (size,) = first if len(first) == 1 else (None,)
    return size if isinstance(size, int) else None


def make_batches(
    model: Model, source: Any, batch_size: int | None, what: str, **options: Any
) -> Batches:
    """Make batches of a size that a model takes; options: of `engine.data.batches`.

    batch_size: None is 32, or what the model fixes.  what: the data, in messages.

    Raises:
        InputError: they have another size than the model fixes.
        EngineError: as `batches`.

    If the samples do not make whole batches of a fixed size, a `ModelWarning` says how many are
    left out.
    """
    fixed = find_fixed_batch(model)
    size = batch_size
    if size is None:
        size = BATCH_SIZE if fixed is None else fixed
    made = batches(source, batch_size=size, **options)
    if fixed is None or made.batch_size is None:
        return made
    if made.batch_size != fixed:
        raise InputError(
            f"{what}: batches of {made.batch_size} samples, but the file of the model fixes its "
            f"first dimension at {fixed}: give batch_size={fixed}, or export the model with a "
            "dynamic first axis"
        )
    left = (made.samples or 0) % fixed
    if not left:
        return made
    told = (
        f"{what}: {made.samples} samples are not a whole number of batches of {fixed}, which the "
        "file of the model fixes"
    )
    if isinstance(source, Batches):
        raise InputError(f"{told}: make them with drop_last=True")
    warn_user(f"{told}; {left} samples of an epoch are left out", ModelWarning)
    return batches(source, batch_size=size, **{**options, "drop_last": True})


def pad_samples(model: Model, arrays: Sequence[Array], samples: int) -> list[Array]:
    """Repeat the last sample of a batch, up to the number of samples that a model fixes."""
    missing = (find_fixed_batch(model) or 0) - samples
    if missing <= 0:
        return list(arrays)
    return [
        np.concatenate([a, np.repeat(a[-1:], missing, axis=0)]) if len(a) == samples else a
        for a in arrays
    ]
