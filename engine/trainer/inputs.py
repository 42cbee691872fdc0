"""The inputs that the models of a trainer take from a batch, in order and of their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import DTypeError, InputError, LabelError, ShapeError, suggest_nearest
from engine.system.files import SHARES

if TYPE_CHECKING:
    from engine.training.model import Model


def make_arrays(model: Model, batch: Sequence[Any], whole: Sequence[str]) -> list[Array]:
    """Return the inputs of a model from a batch, in order and of the model's element types.

    batch: arrays, or one mapping of them by name.  It may hold more than the model takes: labels
        are left out where they are not needed.
    whole: the names of what a batch for training holds.

    Raises:
        InputError: the batch lacks an input, has another number of them, or has a mapping beside
            arrays.
        DTypeError: the elements of an array are of another kind.
    """
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        given = batch[0]
        missing = [name for name in model.inputs if name not in given]
        if missing:
            names = [repr(str(name)) for name in given]
            raise InputError(
                f"the batch lacks the input {missing[0]!r} of the {model.what}; it has "
                f"{', '.join(names) or 'nothing'}{suggest_nearest(missing[0], map(str, given))}"
            )
        pairs = [(name, given[name]) for name in model.inputs]
    elif any(isinstance(item, Mapping) for item in batch):
        raise InputError(
            f"the batch has {len(batch)} parts, one of them a mapping; expected arrays in the "
            f"order of the inputs, {model.inputs}, or one mapping with all of them, labels included"
        )
    elif len(batch) == len(model.inputs):
        pairs = list(zip(model.inputs, batch, strict=True))
    elif len(batch) == len(whole):
        known = dict(zip(whole, batch, strict=True))
        pairs = [(name, known[name]) for name in model.inputs]
    else:
        raise InputError(
            f"the {model.what} takes {len(model.inputs)} inputs, {model.inputs}, but the batch has "
            f"{len(batch)}"
        )
    return [_cast(model, name, value) for name, value in pairs]


def stack_lists(model: Model, names: Sequence[str], data: Any) -> Any:
    """Return lists of the samples of a single input as its array; other data as they are.

    A list may also hold the arrays of all inputs, or batches.  The axes of the input tell which it
    is.

    Raises:
        ShapeError: the samples have several shapes, or the list is one sample.
    """
    if not isinstance(data, list) or not data or len(names) != 1:
        return data
    if any(isinstance(item, tuple | Mapping | str) for item in data):
        return data
    (name,), axes = names, len(model.interface.inputs[names[0]].shape)
    depth = _count_axes(data)
    if depth == axes - 1:
        raise ShapeError(
            f"input {name!r}: a list of {depth} axes; expected one of samples, with {axes} axes: a "
            "single sample is given as [sample]"
        )
    if depth != axes:
        return data
    samples = [arguments.make_array(f"sample {i}", item) for i, item in enumerate(data)]
    for i, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            raise ShapeError(
                f"input {name!r}: sample 0 is {list(samples[0].shape)}, and sample {i} is "
                f"{list(sample.shape)}: pad short ones as in training, or predict samples "
                "of one length together"
            )
    return np.stack(samples)


def _count_axes(value: Any) -> int:
    """Count the axes of nested lists and of what they hold, by the first of each."""
    if isinstance(value, list | tuple):
        return 1 + (_count_axes(value[0]) if value else 0)
    return int(np.ndim(value))


def count_samples(arrays: Mapping[Any, Any]) -> int:
    """Return the number of samples of a batch: the first dimension of its first array with one."""
    return next((len(a) for a in arrays.values() if np.ndim(a)), 1)


def split_batch(batch: Any) -> tuple[Any, ...]:
    """Return a batch of a source of data as the words of `Trainer.step`."""
    return batch if isinstance(batch, tuple) else (batch,)


def _cast(model: Model, name: str, value: Any) -> Array:
    """Return an input with the element type that the model declares for it."""
    kind = np.dtype(NUMPY[model.interface.inputs[name].dtype])
    shape = model.interface.inputs[name].shape
    if isinstance(value, np.ndarray) and value.dtype == kind and value.ndim == len(shape):
        return value
    if name in model.interface.texts:
        return model.make_array(name, value)
    value = _align(arguments.make_array(f"input {name!r}", value), shape)
    if kind == np.int64 and len(shape) == 1 and np.ndim(value) == 2 and np.shape(value)[1] > 1:
        from engine.data.labels import from_one_hot

        return from_one_hot(arguments.make_array(f"input {name!r}", value), f"input {name!r}")
    if model.interface.notes.get(SHARES) == name and np.ndim(value) == len(shape) - 1:
        return _make_shares(name, arguments.make_array(f"input {name!r}", value), shape, kind)
    return arguments.cast(f"input {name!r}", value, kind)


def _align(value: Any, shape: Sequence[int | str]) -> Any:
    """Return one value for each sample with as many axes as an input: [n] as [n, 1], or back."""
    given: tuple[int, ...] = np.shape(value)
    if len(given) == 1 and len(shape) == 2 and shape[1] == 1:
        return np.reshape(value, (-1, 1))
    if len(given) == 2 and given[1] == 1 and len(shape) == 1:
        return np.reshape(value, -1)
    return value


def _make_shares(
    name: str, labels: Array, shape: tuple[int | str, ...], kind: np.dtype[Any]
) -> Array:
    """Return numbers of classes as shares of classes, on axis 1.

    Raises:
        LabelError: a label is not one of the classes.
        DTypeError: the labels are not whole numbers.
    """
    classes = shape[1]
    if labels.dtype.kind not in "iub" or not isinstance(classes, int):
        raise DTypeError(
            f"input {name!r}: labels of type {labels.dtype} and shape {list(labels.shape)}; "
            f"expected numbers of classes, or shares {list(shape)}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise LabelError(
            f"input {name!r}: labels from {labels.min()} to {labels.max()}; the model has "
            f"{classes} classes"
        )
    return np.ascontiguousarray(np.moveaxis(np.eye(classes, dtype=kind)[labels], -1, 1))
