"""Sequences of unequal lengths in batches of few lengths, so that a model needs few plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, NameNotFoundError, ShapeError, suggest_nearest
from engine.base.signatures import check_arguments
from engine.data import randomness
from engine.data.dataset import Dataset, Indices
from engine.data.samples import Sample, name_field, stack

MASK = "attention_mask"


@check_arguments
@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Lengths to which sequences are padded: each to the smallest length that fits.

    Args:
        lengths: the lengths.  None: `count` of them, so that each holds about as many samples.
        count: see `lengths`.
        pad: the padding value of each field of a sample that holds a sequence, by the field's
            name or position, for example `{"input_ids": 0, "labels": -100}`.  The length of the
            first counts, the others must be as long.
        mask: whether a batch gets a further array, 1 where there is a value and 0 where it
            is padded (int64, batch x length): `attention_mask` of a batch by name, and right after
            the first sequence in a batch that is a tuple.
        truncate: whether longer sequences are cut at the largest length; otherwise refused.

    Raises:
        InputError, DTypeError: a length is not a positive number; no field is padded.
    """

    lengths: Sequence[int] | None = None
    count: int = 4
    pad: Mapping[str | int, float] = field(default_factory=lambda: {0: 0})
    mask: bool = False
    truncate: bool = False

    def __post_init__(self) -> None:
        lengths = [self.count] if self.lengths is None else list(self.lengths)
        if not lengths or min(lengths) < 1:
            raise InputError(f"bucket_by: lengths {lengths}; expected positive whole numbers")
        if not self.pad:
            raise InputError(
                "bucket_by: pad={}; expected a value for each sequence, such as {0: 0}"
            )

    def fields(self, names: Sequence[str] | None) -> list[int]:
        """Return the positions of the fields that are padded.

        Raises:
            NameNotFoundError: there is no field of that name.
        """
        return [_find_position(key, names) for key in self.pad]

    def edges(self, lengths: Indices) -> Indices:
        """Return the lengths of the buckets, in rising order, given the lengths of all sequences.

        Raises:
            InputError: a sequence is longer than the largest bucket, and `truncate` is off.
        """
        if self.lengths is None:
            shares = np.arange(1, self.count + 1) / self.count
            quantiles = np.quantile(lengths, shares, method="higher").astype(np.intp)
            return np.unique(np.maximum(quantiles, 1))
        edges = np.unique(np.asarray(self.lengths, np.intp))
        if not self.truncate and lengths.max() > edges[-1]:
            index = int(lengths.argmax())
            raise InputError(
                f"bucket_by: sample {index} has length {lengths[index]}, the largest bucket "
                f"{edges[-1]}; add a length, or pass truncate=True"
            )
        return edges

    def stack(
        self, samples: Sequence[Sample], names: Sequence[str] | None, length: int
    ) -> tuple[Array, ...]:
        """Return samples as the arrays of a batch, each sequence padded or cut to `length`.

        Raises:
            ShapeError: a sample's sequences have unequal lengths.
        """
        fields = self.fields(names)
        values = dict(zip(fields, self.pad.values(), strict=True))
        padded = []
        for sample in samples:
            field_lengths = {i: len(sample[i]) for i in fields}
            if len(set(field_lengths.values())) > 1:
                told = ", ".join(
                    f"{name_field(names, i)} has {n}" for i, n in field_lengths.items()
                )
                raise ShapeError(f"bucket_by: sequences of unequal lengths in a sample: {told}")
            padded.append(
                tuple(
                    _fit(array, length, values[i]) if i in values else array
                    for i, array in enumerate(sample)
                )
            )
        arrays = stack(padded, names)
        if not self.mask:
            return arrays
        real = np.array([len(sample[fields[0]]) for sample in samples])
        mask = (np.arange(length) < real[:, np.newaxis]).astype(np.int64)
        return (*arrays[: fields[0] + 1], mask, *arrays[fields[0] + 1 :])


def _find_position(key: str | int, names: Sequence[str] | None) -> int:
    if isinstance(key, int):
        return key
    if names is None or key not in names:
        known = list(names or ())
        raise NameNotFoundError(
            f"bucket_by: no field {key!r}; there are {known}{suggest_nearest(key, known)}"
        )
    return list(names).index(key)


def _fit(array: Array, length: int, value: float) -> Array:
    """Cut or pad a sequence to a length along its first axis."""
    array = array[:length]
    missing: list[Any] = [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, missing, constant_values=value)


class Bucketed:
    """Assignment of samples to batches, each with samples of one bucket.

    If shuffled, an epoch has the samples of a bucket, and its batches, in a new order.

    names: the names of the arrays of a batch, the mask included; None if the dataset has no names.
    """

    def __init__(
        self,
        dataset: Dataset,
        buckets: Buckets,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.drop_last, self.buckets, self.names = drop_last, buckets, dataset.names
        first = buckets.fields(dataset.names)[0]
        if buckets.mask and dataset.names is not None:
            self.names = [*dataset.names[: first + 1], MASK, *dataset.names[first + 1 :]]
        self.fields = dataset.names
        lengths = dataset.lengths(first)
        self.edges = buckets.edges(lengths)
        self.of = np.minimum(np.searchsorted(self.edges, lengths), len(self.edges) - 1)
        batches = list(self.list_groups(0))
        self.count, self.samples = len(batches), sum(map(len, batches))

    def __len__(self) -> int:
        return self.count

    def stack(self, samples: Sequence[Sample], group: Indices) -> tuple[Array, ...]:
        """Return the samples of a batch as arrays, padded to the length of their bucket."""
        return self.buckets.stack(samples, self.fields, int(self.edges[self.of[group[0]]]))

    def list_groups(self, epoch: int, start: int = 0) -> Iterator[Indices]:
        """Yield the indices of each batch of an epoch, from batch `start` on."""
        order = np.arange(len(self.of))
        if self.shuffle:
            order = randomness.permute(len(self.of), self.seed, epoch)
        size = self.batch_size
        batches = []
        for bucket in range(len(self.edges)):
            members = order[self.of[order] == bucket]
            end = len(members) // size * size if self.drop_last else len(members)
            batches += [members[i : min(i + size, end)] for i in range(0, end, size)]
        if self.shuffle:
            rng = randomness.generator(self.seed, randomness.SHUFFLE, epoch, 1)
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return iter(batches[start:])
