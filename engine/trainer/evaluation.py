"""Evaluation and prediction of a trainer over all samples of some data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.data import batches
from engine.errors import InputError, ShapeError
from engine.trainer.fit import EvaluationBatch
from engine.trainer.inputs import samples_of, words
from engine.trainer.metrics import metrics_of
from engine.trainer.sizes import BATCH_SIZE, batches_for, fixed_batch, padded

if TYPE_CHECKING:
    from engine.data import Batches
    from engine.trainer.metrics import Given
    from engine.trainer.trainer import Trainer

Array = npt.NDArray[Any]


def evaluate(
    trainer: Trainer,
    data: Any,
    batch_size: int | None,
    metrics: Sequence[Given] | Given,
    each: Callable[[EvaluationBatch], None] | None,
) -> dict[str, float]:
    """See `Trainer.evaluate`."""
    found = metrics_of(metrics, trainer.ignore_index)
    for metric in found:
        metric.reset()
    names, model, state = trainer.inputs, trainer.module._train, trainer.state
    source = batches_for(trainer._evaluation, data, batch_size, "evaluation", names=names)
    total = _length(source)
    losses, samples, draws = 0.0, 0, state.draws
    for index, batch in enumerate(source.epoch()):
        inputs = dict(zip(names, trainer._arrays(model, words(batch)), strict=True))
        loss, outputs = trainer.evaluate_batch(inputs)
        weight = samples_of(inputs)
        losses, samples = losses + loss * weight, samples + weight
        for metric in found:
            metric.update(outputs, inputs, loss, weight)
        state.draws = draws  # an evaluation is no part of what a training draws
        if each is not None:
            each(EvaluationBatch(index, total, inputs, outputs, loss))
    if not samples:
        raise InputError("the data to evaluate on yield no batches")
    return {"loss": losses / samples, **{metric.name: metric.result() for metric in found}}


def predict(trainer: Trainer, data: Any, batch_size: int | None) -> Array | tuple[Array, ...]:
    """See `Trainer.predict`."""
    model = trainer._prediction
    fixed = fixed_batch(model)
    size = fixed or batch_size or BATCH_SIZE
    parts: dict[str, list[Array]] = {name: [] for name in trainer.outputs}
    for batch in batches(data, batch_size=size, names=trainer.features).epoch():
        arrays = trainer._arrays(model, words(batch))
        samples = samples_of(dict(enumerate(arrays)))
        for name, whole in trainer.predict_batch(*padded(model, arrays, samples)).items():
            array = whole[:samples] if whole.shape[:1] == (fixed,) else whole
            parts[name].append(array)
            if len(parts[name]) > 1 and array.shape[:1] != (samples,):
                raise ShapeError(
                    f"output {name!r} of shape {list(array.shape)} has no axis of "
                    f"{samples} samples: predict_batch gives it batch by batch"
                )
    found = tuple(np.concatenate(p) if len(p) > 1 else p[0] for p in parts.values() if p)
    if not found:
        raise InputError("the data to predict for yield no batches")
    return found[0] if len(found) == 1 else found


def _length(source: Batches) -> int | None:
    """How many batches an epoch has; None if that is unknown."""
    try:
        return len(source)
    except TypeError:
        return None
