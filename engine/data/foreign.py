"""Datasets and loaders of PyTorch and Hugging Face, known by what they can do.

No package of theirs is imported: what one of these objects is, its attributes tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.data.dataset import Dataset, Indices
from engine.data.samples import Sample, as_sample, find_columns, find_target, stack, to_array
from engine.data.streams import Stream, group_samples, set_epoch

READ = 1024  # rows of a table that are read together where only their lengths are wanted


def is_loader(source: object) -> bool:
    """Return whether it is a DataLoader of PyTorch: batches made by a `collate_fn`."""
    return all(hasattr(source, name) for name in ("dataset", "collate_fn", "__iter__"))


def is_table(source: object) -> bool:
    """Return whether it is a `datasets.Dataset`: rows of named columns, by index."""
    needed = ("column_names", "with_format", "__len__", "__getitem__")
    return all(hasattr(source, name) for name in needed)


def is_map(source: object) -> bool:
    """Return whether it has samples by index, like PyTorch's Dataset, and is not iterable."""
    cls = type(source)
    return hasattr(cls, "__getitem__") and hasattr(cls, "__len__") and not hasattr(cls, "__iter__")


def yields_samples(source: object) -> bool:
    """Return whether it is an `IterableDataset` of PyTorch or Hugging Face."""
    return any(
        cls.__name__ == "IterableDataset"
        and cls.__module__.partition(".")[0] in {"torch", "datasets"}
        for cls in type(source).__mro__
    )


def refuse_splits(source: object) -> None:
    """Refuse a mapping of datasets, as `load_dataset` returns it.

    Raises:
        InputError: it is one; the message names its parts.
    """
    if isinstance(source, Mapping) and any(hasattr(v, "column_names") for v in source.values()):
        names = [repr(name) for name in source]
        raise InputError(
            f"a mapping of several datasets: {', '.join(names)}; give one: data[{names[0]}]"
        )


class Loader(Stream):
    """The batches of a DataLoader of PyTorch, in its order and of its size."""

    def __init__(self, source: Any, **options: Any) -> None:
        super().__init__(source, what=type(source).__name__, **options)
        size = getattr(source, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None
        self.classes = getattr(source.dataset, "classes", None)
        sampler = getattr(source, "sampler", None)
        if isinstance(sampler, Sized) and not getattr(source, "drop_last", False):
            self.samples = len(sampler)


class SampleStream(Stream):
    """Batches of an iterable that yields samples."""

    def __init__(self, source: Iterable[Any], batch_size: int, drop_last: bool, **options: Any):
        what = type(source).__name__

        def begin(epoch: int) -> Iterable[Any]:
            set_epoch(source, epoch)
            return group_samples(source, batch_size, drop_last, what)

        super().__init__(begin, what=what, **options)
        self.batch_size = batch_size


class MapStyle(Dataset):
    """A dataset with samples by index, as in PyTorch: arrays, tuples or mappings of these.

    Raises:
        InputError: it has no samples, or a sample has another type.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        if not len(source):
            raise InputError(f"{type(source).__name__}: no samples")
        self.classes = getattr(source, "classes", None)
        self.names, _ = self._read(0)

    def __len__(self) -> int:
        return len(self.source)

    def _read(self, index: int) -> tuple[list[str] | None, Sample]:
        return as_sample(self.source[index], f"{type(self.source).__name__}, sample {index}")

    def __getitem__(self, index: int) -> Sample:
        names, sample = self._read(index)
        if names != self.names:
            raise InputError(
                f"{type(self.source).__name__}: sample {index} has the fields {names}, "
                f"sample 0 has {self.names}"
            )
        return sample

    def labels(self) -> Array:
        targets = getattr(self.source, "targets", None)
        if targets is not None and len(targets) == len(self):
            return to_array("targets", targets)
        return super().labels()


class ForeignTable(Dataset):
    """A `datasets.Dataset`: columns by the names of the model's inputs.

    Raises:
        InputError: it has no rows.
    """

    names: Sequence[str]

    def __init__(self, source: Any, columns: Sequence[str] | None = None) -> None:
        if not len(source):
            raise InputError("the dataset has no rows")
        self.names = list(source.column_names if columns is None else columns)
        self.source = source
        self.rows = source.with_format("numpy", columns=self.names)
        features = getattr(source, "features", None) or {}
        named = [getattr(features.get(name), "names", None) for name in ("label", "labels")]
        self.classes = next((list(names) for names in named if names), None)

    def __len__(self) -> int:
        return len(self.source)

    def _read_values(self, row: Mapping[str, Any], what: str) -> tuple[Array, ...]:
        return tuple(to_array(f"{what}, column {name!r}", row[name]) for name in self.names)

    def __getitem__(self, index: int) -> Sample:
        return self._read_values(self.rows[index], f"row {index}")

    def take(self, indices: Indices) -> tuple[Array, ...]:
        batch = self.rows[[int(i) for i in indices]]
        if all(np.asarray(batch[name]).dtype != object for name in self.names):
            return self._read_values(batch, "rows")
        return stack([self[int(i)] for i in indices], self.names)  # reports unequal lengths

    def labels(self) -> Array:
        name = find_target(self.names) or self.names[-1]
        return to_array(f"column {name!r}", self.rows[:][name])

    def lengths(self, field: int) -> Indices:
        name = self.names[field]
        rows = self.source.with_format("numpy", columns=[name])
        counts: list[int] = []
        for begin in range(0, len(self), READ):
            counts += [len(value) for value in rows[begin : begin + READ][name]]
        return np.array(counts, np.intp)

    def select_columns(self, names: Sequence[str]) -> Dataset:
        return ForeignTable(self.source, find_columns(names, self.names, "the dataset"))
