"""Samples and batches: tuples of arrays, what they are made from, and how they are stacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import InputError, NameNotFoundError, ShapeError, suggest_nearest

Sample = tuple[Array, ...]
"""The arrays of one sample, in the order of a model's inputs."""
Batch = tuple[Array, ...] | dict[str, Array]
"""Arrays whose first axis counts samples: in the order of a model's inputs, or by their names."""
Augment = Callable[[Sample, np.random.Generator], Sample]
"""A random change of one sample, which draws from the given generator alone."""

Stage = Literal["decoded", "prepared", "batch"]
"""When a change is made: of what a file holds, of the prepared sample, of the whole batch."""
DECODED: Stage = "decoded"
PREPARED: Stage = "prepared"
BATCH: Stage = "batch"

TARGETS = ("labels", "label", "target", "targets", "y")
"""Usual names of the array that a model learns; an input of such a name takes any of them."""


def to_array(what: str, value: Any) -> Array:
    """Return an array of an array, a tensor of whatever package, a picture, a number or nested
    lists.

    Tensors are taken by `detach`, `cpu` and `numpy`, as in PyTorch; no package is imported.

    Raises:
        InputError: it has another type, or lists of unequal lengths.
    """
    if isinstance(value, np.ndarray) and value.dtype != object and not np.ma.isMA(value):
        return np.asarray(value)
    for method in ("detach", "cpu"):
        if callable(getattr(value, method, None)):
            value = getattr(value, method)()
    array = arguments.make_array(what, value)
    if array.dtype.kind == "T" or (array.dtype == object and _has_only_texts(array)):
        array = array.astype(str)
    if array.dtype == object:
        kinds = sorted({type(item).__name__ for item in array.ravel()[:100].tolist()})
        raise InputError(f"{what}: expected numbers or texts, got objects: {', '.join(kinds)}")
    return array


def _has_only_texts(array: Array) -> bool:
    return bool(array.size) and all(isinstance(item, str) for item in array.ravel().tolist())


def read_only(array: Any) -> Array:
    """Return a view that cannot be written, so that no change of a sample changes the data."""
    view: Array = np.asarray(array).view()
    view.flags.writeable = False
    return view


def name_field(names: Sequence[str] | None, index: int) -> str:
    """Return the name of a field of a sample in messages."""
    return repr(names[index]) if names else f"field {index}"


def stack(samples: Sequence[Sample], names: Sequence[str] | None = None) -> tuple[Array, ...]:
    """Return samples as the arrays of a batch.

    Raises:
        ShapeError: the arrays of a field have several shapes.
        InputError: the samples have several numbers of fields.
    """
    counts = {len(sample) for sample in samples}
    if len(counts) > 1:
        raise InputError(f"samples of one batch have different numbers of fields: {sorted(counts)}")
    columns = zip(*samples, strict=True)
    return tuple(_stack(column, name_field(names, i)) for i, column in enumerate(columns))


def _stack(column: Sequence[Array], what: str) -> Array:
    try:
        return np.stack(column)
    except ValueError:
        shapes = sorted({np.shape(array) for array in column})
        shown = ", ".join(str(list(shape)) for shape in shapes[:4])
        raise ShapeError(
            f"{what}: samples of one batch have the shapes {shown}; "
            "bucket_by= pads sequences of unequal lengths"
        ) from None


def as_sample(value: Any, what: str) -> tuple[list[str] | None, Sample]:
    """Return the names and the arrays of what a dataset yields: an array, several, or a mapping of
    them.

    Raises:
        InputError: it has another type.
    """
    if isinstance(value, Mapping):
        names = [str(name) for name in value]
        return names, tuple(to_array(f"{what}, {n!r}", v) for n, v in value.items())
    if not isinstance(value, tuple | list):
        value = (value,)
    return None, tuple(to_array(f"{what}, field {i}", v) for i, v in enumerate(value))


def as_batch(value: Any, what: str) -> Batch:
    """Return a batch of what an iterable yields: one array, a tuple or list of them, or a mapping.

    Raises:
        InputError: it has another type, or it holds no samples.
        ShapeError: its arrays have several numbers of samples.
    """
    if isinstance(value, Mapping):
        fields = {str(n): to_array(f"{what}, {n!r}", v) for n, v in value.items()}
        _check_lengths(fields, what)
        return fields
    if isinstance(value, str | bytes):
        raise InputError(f"{what}: expected arrays, got {type(value).__name__}")
    if not isinstance(value, tuple | list):
        value = (value,)
    arrays = tuple(to_array(f"{what}, field {i}", v) for i, v in enumerate(value))
    _check_lengths({f"field {i}": array for i, array in enumerate(arrays)}, what)
    return arrays


def _check_lengths(fields: Mapping[str, Array], what: str) -> None:
    if not fields:
        raise InputError(f"{what}: no arrays")
    for name, array in fields.items():
        if array.ndim == 0:
            raise ShapeError(f"{what}: {name} is one number; the first axis counts the samples")
    lengths = {name: len(array) for name, array in fields.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"{what}: arrays of different lengths: {_list_lengths(lengths)}")
    if not next(iter(lengths.values())):
        raise InputError(f"{what}: no samples")


def _list_lengths(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} has {length}" for name, length in lengths.items())


def count_samples(batch: Batch) -> int:
    """Return the number of samples of a batch."""
    first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(first)


def find_target(names: Sequence[str]) -> str | None:
    """Return the name in a list that usually means the target; None if there is none."""
    return next((name for name in TARGETS if name in names), None)


def find_columns(wanted: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return the columns that hold the inputs of a model, in the order of these.

    A column serves the input of its name.  Without one, an input called as in `TARGETS` takes a
    column called so; and if the columns have one array besides targets, an input of another name
    takes this array.

    Raises:
        NameNotFoundError: there is no column for an input.
    """
    selected = []
    for name in wanted:
        column = name if name in known else _find_substitute(name, wanted, known)
        if column is None:
            columns = ", ".join(map(repr, known))
            raise NameNotFoundError(
                f"{what}: no column {name!r} for the model's input of that name; "
                f"there are {columns}{suggest_nearest(name, known)}"
            )
        selected.append(column)
    return selected


def _find_substitute(name: str, wanted: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the one column of another name that an input can mean; None if it is not certain."""
    is_target = name in TARGETS
    alike = [other for other in wanted if (other in TARGETS) is is_target]
    columns = [column for column in known if (column in TARGETS) is is_target]
    return columns[0] if len(alike) == len(columns) == 1 else None


def order_batch(batch: Batch, names: Sequence[str] | None, what: str) -> Batch:
    """Return a batch by name as a tuple in the order of `names`, if there are any; a tuple as it
    is.
    """
    if names is None or not isinstance(batch, dict):
        return batch
    return tuple(batch[column] for column in find_columns(names, list(batch), what))


def refuse_nan(
    array: Array, name: str, place: Callable[[int], str], labels: Sequence[str] | None = None
) -> None:
    """Refuse an array that holds a NaN, and tell where the first one is.

    Args:
        array: its first axis counts samples.
        name: what the array is called.
        place: what the sample of an index is called.
        labels: names of the columns of an array of two axes.

    Raises:
        InputError: there is a NaN.
    """
    if array.dtype.kind not in "fc" or not array.size:
        return
    with np.errstate(all="ignore"):
        if not np.isnan(array.sum()):  # one pass without a temporary; infinities may make a NaN
            return
    for index, row in enumerate(array):
        flaws = np.argwhere(np.isnan(row))
        if len(flaws):
            where = [int(i) for i in flaws[0]]
            column = labels[where[0]] if labels and len(where) == 1 else None
            at = f"column {column!r}" if column else _name_position(where)
            at = f", {at}" if at else ""
            raise InputError(
                f"{name} has NaN in {place(index)}{at}; "
                "clean the data, or allow it with batches(..., allow_nan=True)"
            )


def _name_position(where: Sequence[int]) -> str:
    if len(where) < 2:
        return f"column {where[0]}" if where else ""
    return f"element {list(where)}"
