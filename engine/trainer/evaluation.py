"""Evaluation and prediction of a trainer over all samples of some data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, ShapeError
from engine.data import batches
from engine.data.shares import list_turns
from engine.distributed.group import gather_values
from engine.trainer.inputs import count_samples, split_batch, stack_lists
from engine.trainer.metrics.named import list_results
from engine.trainer.sizes import BATCH_SIZE, find_fixed_batch, make_batches, pad_samples

if TYPE_CHECKING:
    from engine.data import Batches
    from engine.trainer.learner import TrainingModels
    from engine.trainer.metric import Metric
    from engine.trainer.ranks import Ranks


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationBatch:
    """A batch of an evaluation, after the model has answered it.

    index, batches: its number, counted from 0, and how many there are; None if unknown.
    inputs, outputs: arrays by the names that the models have for them.
    loss: the mean over the batch.
    """

    index: int
    batches: int | None
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    loss: float

    def __repr__(self) -> str:
        arrays = {**self.inputs, **self.outputs}.items()
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays)
        total = "" if self.batches is None else f" of {self.batches}"
        return f"EvaluationBatch({self.index + 1}{total}, loss {self.loss:.6g}: {shapes})"


class EvaluationInterrupted(Exception):
    """Ends an evaluation; `each` of `evaluate` raises it."""


def evaluate(
    learner: TrainingModels,
    ranks: Ranks | None,
    data: Any,
    batch_size: int | None,
    metrics: Sequence[Metric],
    each: Callable[[EvaluationBatch], None] | None,
    classes: Sequence[str] | None = None,
) -> dict[str, float]:
    """See `Trainer.evaluate`."""
    for metric in metrics:
        metric.reset()
    names, model, state = learner.inputs, learner.session.training, learner.state
    source = make_batches(
        learner.evaluation, data, batch_size, "evaluation", names=names, classes=classes
    )
    total = _count_batches(source)
    columns = ["loss", *learner.part_names]
    losses, samples, draws = [0.0] * len(columns), 0, state.draws

    def count(index: int, batch: Any) -> None:
        nonlocal samples
        arrays = learner.make_arrays(model, split_batch(batch))
        values, outputs = learner.evaluate_batch(arrays)
        loss, inputs = values[0], learner.make_measured(arrays)
        weight = count_samples(inputs)
        losses[:] = [total + value * weight for total, value in zip(losses, values, strict=True)]
        samples += weight
        for metric in metrics:
            metric.update(outputs, inputs, loss, weight)
        state.draws = draws  # an evaluation must not change what a training run draws
        if each is not None:
            each(EvaluationBatch(index, total, inputs, outputs, loss))

    if ranks is None:
        for index, batch in enumerate(source.epoch()):
            count(index, batch)
    else:
        is_divided = all(metric.partial() is not None for metric in metrics)
        _with_others(ranks, source, count, is_divided)
        if is_divided:
            told = gather_values(ranks.group, [losses, samples, [m.partial() for m in metrics]])
            losses[:] = map(sum, zip(*(each[0] for each in told), strict=True))
            samples = sum(each[1] for each in told)
            for place, metric in enumerate(metrics):
                metric.merge([each[2][place] for each in told])
    if not samples:
        raise InputError("the evaluation data have no batches")
    means = {name: total / samples for name, total in zip(columns, losses, strict=True)}
    return {**means, **list_results(metrics, source.classes)}


def _with_others(
    ranks: Ranks, source: Batches, count: Callable[[int, Any], None], is_divided: bool
) -> None:
    """Count the batches of this rank, or all of them.

    Raises:
        EvaluationInterrupted: a rank was interrupted.
        Exception: the one of this rank; GroupError where it was on another.
    """
    error, was_interrupted = None, False
    place = (ranks.group.rank, ranks.group.size) if is_divided else (0, 1)
    try:
        for index, batch in list_turns(source, *place):
            count(index, batch)
    except EvaluationInterrupted:
        was_interrupted = True
    except Exception as problem:
        error = problem
    ranks.agree(error)
    if any(gather_values(ranks.group, was_interrupted)):
        raise EvaluationInterrupted


def predict(
    learner: TrainingModels, data: Any, batch_size: int | None
) -> Array | tuple[Array, ...]:
    """See `Trainer.predict`."""
    model = learner.prediction
    fixed = find_fixed_batch(model)
    size = fixed or (BATCH_SIZE if batch_size is None else batch_size)
    parts: dict[str, list[Array]] = {name: [] for name in learner.outputs}
    data = stack_lists(model, learner.features, data)
    for batch in batches(data, batch_size=size, names=learner.features).epoch():
        arrays = learner.make_arrays(model, split_batch(batch))
        samples = count_samples(dict(enumerate(arrays)))
        for name, whole in learner.predict_batch(pad_samples(model, arrays, samples)).items():
            array = whole[:samples] if whole.shape[:1] == (fixed,) else whole
            parts[name].append(array)
            if len(parts[name]) > 1 and array.shape[:1] != (samples,):
                raise ShapeError(
                    f"output {name!r} of shape {list(array.shape)} has no axis of "
                    f"{samples} samples: predict_batch gives it batch by batch"
                )
    outputs = tuple(np.concatenate(p) if len(p) > 1 else p[0] for p in parts.values() if p)
    if not outputs:
        raise InputError("the data to predict have no batches")
    return outputs[0] if len(outputs) == 1 else outputs


def _count_batches(source: Batches) -> int | None:
    """Return the number of batches of an epoch; None if it is unknown."""
    try:
        return len(source)
    except TypeError:
        return None
