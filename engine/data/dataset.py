"""Datasets: samples that can be read one by one, in any order."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError
from engine.base.signatures import check_arguments
from engine.data import randomness
from engine.data.samples import Augment, Sample, find_columns, stack

Indices = npt.NDArray[np.intp]
SHOWN = 6  # classes of a representation


@check_arguments
class Dataset(ABC):
    """Samples by index.  Your own class needs `__len__` and `__getitem__`.

    Attributes:
        names: the names of a sample's arrays; None if their order is the model's.
        classes: the names of the labels 0, 1, ...; None if unknown, or if targets are not classes.
        ignore_index: the label of positions without a class; None if all positions have one.
        readers: how many threads may read samples in parallel.
        cheap: whether samples are read so quickly that reading them ahead is not worth a thread.
        origin: the file that holds all samples; empty if there is none, or several.
    """

    names: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    ignore_index: int | None = None
    readers: int = 1
    cheap: bool = False
    origin: str = ""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """Return the arrays of one sample, usually its features and its target."""

    def __repr__(self) -> str:
        parts = []
        with contextlib.suppress(Exception):  # of a user's own class, or not made yet
            parts.append(f"{len(self):,} samples")
        if self.classes is not None:
            shown = ", ".join(map(str, self.classes[:SHOWN]))
            more = ", ..." if len(self.classes) > SHOWN else ""
            parts.append(f"{len(self.classes)} classes: {shown}{more}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def sample_name(self, index: int) -> str:
        """Return the name of the file that a sample is read from; empty if there is none."""
        return ""

    def take(self, indices: Indices) -> tuple[Array, ...]:
        """Return the samples of these indices as arrays, whose first axis counts them.

        Raises:
            ShapeError: they have unequal shapes.
        """
        return stack([self[int(i)] for i in indices], self.names)

    def augmented(self, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
        """Return one sample, changed by `augment`.

        A dataset that prepares what it reads applies `augment` in between.
        """
        return augment(self[index], rng)

    def labels(self) -> Array:
        """Return the last array of every sample; override it if these are known without reading."""
        return np.stack([self[i][-1] for i in range(len(self))])

    def lengths(self, field: int) -> Indices:
        """Return the length of one array of every sample, along its first axis."""
        return np.array([len(self[i][field]) for i in range(len(self))], np.intp)

    def select_columns(self, names: Sequence[str]) -> Dataset:
        """Return a dataset of these arrays, in the order of `names`; without names, itself.

        Raises:
            NameNotFoundError: a sample has no array of that name.
        """
        if self.names is None:
            return self
        origin = self.origin or type(find_root(self)).__name__
        return Columns(self, find_columns(names, self.names, origin))

    def map(self, function: Callable[[Sample], Sample]) -> Dataset:
        """Return a dataset of changed samples; `function` is called when a sample is read."""
        return Mapped(self, function)

    def subset(self, indices: Sequence[int] | Indices) -> Dataset:
        """Return a dataset of the samples of these indices.

        Raises:
            InputError: there are none, or an index is out of range.
        """
        return Subset(self, indices)

    def split(
        self, share: float, *, seed: int = 0, stratify: bool | None = None
    ) -> tuple[Dataset, Dataset]:
        """Return two datasets: the larger one to train on, `share` of the samples to validate.

        Args:
            share: the share of the second part, between 0 and 1.
            seed: decides which samples go where.
            stratify: whether each class is divided by itself, so that both parts hold all of them.
                None: if the dataset has `classes`.

        Raises:
            InputError: a part would be empty; or a class has one sample and cannot be in both.
            DTypeError: `stratify`, but the labels are not whole numbers.
        """
        first, second = self.split_rows(share, seed, stratify)
        return self.subset(first), self.subset(second)

    def split_rows(self, share: float, seed: int, stratify: bool | None) -> tuple[Indices, Indices]:
        if len(self) < 2:
            raise InputError("split: one sample cannot be divided into two parts")
        by_class = self.classes is not None if stratify is None else stratify
        labels = self.labels() if by_class else np.zeros(len(self), np.intp)
        if stratify is None and labels.ndim != 1:  # classes of positions, not of samples
            labels = np.zeros(len(self), np.intp)
        return divide(labels, share, seed, self.classes)


def divide(
    labels: Array, share: float, seed: int, classes: Sequence[str] | None
) -> tuple[Indices, Indices]:
    """Return the indices of two parts, in rising order, with `share` of each label's in the second.

    Raises:
        InputError, DTypeError: see `Dataset.split`.
    """
    part = arguments.check_real("share", share)
    if not 0 < part < 1:
        raise InputError(f"share={share!r}; expected a number between 0 and 1")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DTypeError(
            f"split: labels of type {labels.dtype} and shape {list(labels.shape)}; "
            "to divide class by class, each must be one whole number (stratify=False divides all)"
        )
    rng = randomness.generator(randomness.check_seed(seed), randomness.SPLIT)
    second = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            name = repr(classes[label]) if classes and label < len(classes) else f"label {label}"
            raise InputError(
                f"split: {name} has one sample, which cannot be in both parts; add samples, "
                "leave the class out, or pass stratify=False"
            )
        count = min(max(round(part * len(members)), 1), len(members) - 1)
        second.append(rng.permutation(members)[:count])
    chosen = np.sort(np.concatenate(second))
    return np.setdiff1d(np.arange(len(labels)), chosen, assume_unique=True), chosen


class DatasetView(Dataset):
    """A dataset that reads its samples from another one."""

    def __init__(self, source: Dataset) -> None:
        self.source = source
        self.names, self.classes = source.names, source.classes
        self.ignore_index = source.ignore_index
        self.readers, self.cheap, self.origin = source.readers, source.cheap, source.origin

    def __len__(self) -> int:
        return len(self.source)

    def sample_name(self, index: int) -> str:
        return self.source.sample_name(index)


def find_root(dataset: Dataset) -> Dataset:
    """Return the dataset from which a view of a view reads its samples."""
    while isinstance(dataset, DatasetView):
        dataset = dataset.source
    return dataset


class Subset(DatasetView):
    """Some samples of a dataset, see `Dataset.subset`."""

    def __init__(self, source: Dataset, indices: Sequence[int] | Indices) -> None:
        super().__init__(source)
        self.indices = np.asarray(indices, np.intp)
        if not self.indices.size:
            raise InputError("subset: no indices; expected one or more")
        if self.indices.min() < 0 or self.indices.max() >= len(source):
            raise InputError(
                f"subset: indices from {self.indices.min()} to {self.indices.max()}; expected 0 to "
                f"{len(source) - 1}"
            )

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.source[int(self.indices[index])]

    def sample_name(self, index: int) -> str:
        return self.source.sample_name(int(self.indices[index]))

    def take(self, indices: Indices) -> tuple[Array, ...]:
        return self.source.take(self.indices[indices])

    def augmented(self, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
        return self.source.augmented(int(self.indices[index]), augment, rng)

    def labels(self) -> Array:
        return self.source.labels()[self.indices]

    def lengths(self, field: int) -> Indices:
        return self.source.lengths(field)[self.indices]


class Columns(DatasetView):
    """Some arrays of every sample, see `Dataset.select_columns`."""

    def __init__(self, source: Dataset, names: Sequence[str]) -> None:
        super().__init__(source)
        known = list(source.names or ())
        self.names = list(names)
        self.fields = [known.index(name) for name in names]

    def _choose(self, sample: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(sample[i] for i in self.fields)

    def __getitem__(self, index: int) -> Sample:
        return self._choose(self.source[index])

    def take(self, indices: Indices) -> tuple[Array, ...]:
        return self._choose(self.source.take(indices))

    def lengths(self, field: int) -> Indices:
        return self.source.lengths(self.fields[field])


class Mapped(DatasetView):
    """Samples of a dataset, each changed by a function, see `Dataset.map`."""

    def __init__(self, source: Dataset, function: Callable[[Sample], Sample]) -> None:
        super().__init__(source)
        self.names, self.cheap = None, False
        self.function = function

    def __getitem__(self, index: int) -> Sample:
        return self.function(self.source[index])

    def augmented(self, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
        return self.function(self.source.augmented(index, augment, rng))

    def labels(self) -> Array:
        return self.source.labels() if self.classes is not None else super().labels()
