"""Datasets of arrays in memory or mapped from files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, ShapeError
from engine.base.signatures import check_arguments
from engine.data import array_files
from engine.data.dataset import Dataset, Indices
from engine.data.labels import encode_texts, is_text
from engine.data.samples import Sample, find_target, name_field, read_only, refuse_nan, to_array

CHECKED = 1 << 22  # elements that are looked at together for NaN: little beside any dataset

Ragged = list[Array]
"""Sequences of unequal lengths, which buckets pad."""


@check_arguments
class Arrays(Dataset):
    """Arrays whose first axis counts the samples; they are not copied.

    A memory-map is read batch by batch, in the thread that makes batches ahead.

    Labels may be texts: the last of several arrays, or the one with a name of `samples.TARGETS`.
    They become numbers, and `classes` has their names.

    Args:
        source: an array, a tuple or list of arrays in the order of the model's inputs, or a
            mapping of arrays by name.  Tensors are arrays.  A list of lists may hold sequences
            of unequal lengths, which `bucket_by=` pads.  A path of a `*.npy` stands for its array,
            which is mapped; one of a `*.npz` for a mapping of its arrays.
        arrays: names of the arrays of a `*.npz`, in the order of the model's inputs.
        classes: names of the labels, if the last array holds labels; by default the texts, in
            the order of the alphabet.
        allow_nan: whether floating-point arrays may hold NaN.

    Raises:
        InputError: there are no arrays or no samples; or an array holds a NaN, which is looked for
            at once in memory and batch by batch in memory-maps; the message names its place.
        ShapeError: the arrays have different lengths.
    """

    def __init__(
        self,
        source: Any,
        *,
        arrays: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        allow_nan: bool = False,
    ) -> None:
        if array_files.is_array_file(source):
            self.origin = os.fspath(source)
        source = _read(source, arrays)
        if isinstance(source, Mapping):
            self.names = [str(name) for name in source]
            values = list(source.values())
        else:
            values = list(source) if isinstance(source, tuple | list) else [source]
        values = [array_files.read(v) if array_files.is_array_file(v) else v for v in values]
        self.classes = classes
        self.columns = [_make_column(name_field(self.names, i), v) for i, v in enumerate(values)]
        if not self.columns:
            raise InputError("no arrays: expected one or more")
        lengths = [len(column) for column in self.columns]
        if len(set(lengths)) > 1:
            lengths_text = ", ".join(
                f"{name_field(self.names, i)} has {length}" for i, length in enumerate(lengths)
            )
            is_whole_file = self.origin and self.names and arrays is None
            hint = "; data.options.arrays (in Python arrays=) names those to read"
            raise ShapeError(
                f"arrays of different lengths: {lengths_text}{hint if is_whole_file else ''}"
            )
        if not lengths[0]:
            raise InputError("no samples: the arrays have length 0")
        self._encode_labels()
        mapped = [isinstance(value, np.memmap) for value in values]
        self.cheap = not any(mapped)
        self._unchecked = [i for i, late in enumerate(mapped) if late and not allow_nan]
        if not allow_nan:
            for i, column in enumerate(self.columns):
                if not mapped[i]:
                    _check_column(column, name_field(self.names, i))

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> Sample:
        sample = tuple(read_only(column[index]) for column in self.columns)
        self._check([array[np.newaxis] for array in sample], [index])
        return sample

    def take(self, indices: Indices) -> tuple[Array, ...]:
        if any(isinstance(column, list) for column in self.columns):
            return super().take(indices)
        batch = tuple(np.take(column, indices, axis=0) for column in self.columns)
        self._check(batch, indices)
        return batch

    def _check(self, arrays: Sequence[Array], indices: Sequence[int] | Indices) -> None:
        """Look for NaN in what was read of memory-maps."""
        for i in self._unchecked:
            refuse_nan(arrays[i], name_field(self.names, i), lambda row: f"sample {indices[row]}")

    def _find_target(self) -> int | None:
        """Return the place of the target: by its name, or the last of several arrays without."""
        if self.names is None:
            return len(self.columns) - 1 or None
        target = find_target(self.names)
        return None if target is None else self.names.index(target)

    def _encode_labels(self) -> None:
        """Turn labels that are texts into numbers of classes."""
        place = self._find_target()
        if place is None:
            return
        column = self.columns[place]
        if not isinstance(column, list) and is_text(column):
            what = name_field(self.names, place)
            self.columns[place], self.classes = encode_texts(column, self.classes, what)

    def labels(self) -> Array:
        place = self._find_target()
        last = self.columns[-1 if place is None else place]
        return super().labels() if isinstance(last, list) else last

    def lengths(self, field: int) -> Indices:
        column = self.columns[field]
        if isinstance(column, list):
            return np.array([len(sequence) for sequence in column], np.intp)
        if column.ndim < 2:
            raise ShapeError(
                f"{name_field(self.names, field)} holds single values; expected sequences"
            )
        return np.full(len(column), column.shape[1], np.intp)


def _read(source: Any, arrays: Sequence[str] | None) -> Any:
    """Return the arrays of a file if the source is the path of one, otherwise the source.

    Arrays that numpy.savez got without names are in its order.
    """
    if not array_files.is_array_file(source):
        if arrays is not None:
            raise InputError("arrays= selects arrays of a .npz file; expected its path")
        return source
    read = array_files.read(source, arrays)
    if not isinstance(read, dict):
        return read
    plain = arrays is not None or list(read) == [f"arr_{i}" for i in range(len(read))]
    return tuple(read.values()) if plain else read


def _make_column(what: str, value: Any) -> Array | Ragged:
    """Return an array, or a list of arrays if they have unequal lengths."""
    if isinstance(value, list | tuple) and len({_measure_length(item) for item in value}) > 1:
        return [to_array(f"{what}, sample {i}", item) for i, item in enumerate(value)]
    array = to_array(what, value)
    if not array.ndim:
        raise ShapeError(f"{what} is one value; expected an array whose first axis counts samples")
    return array


def _measure_length(item: Any) -> int:
    """Return the length of a sequence; -1 of a single value."""
    if isinstance(item, str | bytes):
        return -1
    try:
        return len(item)
    except TypeError:
        return -1


def _place(begin: int, row: int) -> str:
    return f"sample {begin + row}"


def _place_in_sequence(sample: int, position: int) -> str:
    return f"sample {sample}, position {position}"


def _check_column(column: Array | Ragged, name: str) -> None:
    """Look for NaN in pieces, so that no temporary is as large as the data."""
    if isinstance(column, list):
        for i, sequence in enumerate(column):
            refuse_nan(sequence, name, partial(_place_in_sequence, i))
        return
    rows = max(1, CHECKED * len(column) // max(column.size, 1))
    for begin in range(0, len(column), rows):
        piece = column[begin : begin + rows]
        refuse_nan(piece, name, partial(_place, begin))
