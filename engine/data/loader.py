"""Batches: what a training loop iterates, epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.errors import DTypeError, InputError
from engine.base.signatures import check_arguments
from engine.data import randomness
from engine.data.buckets import Bucketed, Buckets
from engine.data.changes import Changes
from engine.data.dataset import Dataset, Indices
from engine.data.prefetch import run_ahead
from engine.data.samples import Batch, Sample, order_batch, stack


@check_arguments
class Batches(ABC):
    """The batches of every epoch.

    Attributes:
        batch_size: the samples of a batch, except the last of an epoch; None if unknown.
        samples: the samples of an epoch; None if unknown.
        classes: the names of the labels 0, 1, ...; None if unknown, or if targets are not classes.
    """

    batch_size: int | None = None
    samples: int | None = None
    classes: Sequence[str] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: it is unknown.
        """

    @property
    def identity(self) -> dict[str, Any]:
        """The options that decide which batches an epoch has, as JSON types.

        A run can be resumed only with the same ones; empty: the source decides.
        """
        return {}

    @abstractmethod
    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch, from batch `start` on.

        The same number gives the same batches, augmentation included, whichever `start` is and
        whichever process asks: this is what makes a resumed run exact.  A batch may share the
        memory of the data that it is made from, and must not be written.

        Raises:
            InputError, DTypeError: a number is negative, or not a whole number; or there are fewer
                batches than `start`.
        """

    def __repr__(self) -> str:
        count = "samples" if self.samples is None else f"{self.samples:,} samples"
        size = "" if self.batch_size is None else f" of {self.batch_size}"
        return f"{type(self).__name__}({count} in batches{size})"

    def sample_name(self, batch: int, row: int) -> str:
        """Return the name of the file of a sample of epoch 0; empty if it is not known."""
        return ""


def check_position(number: object, start: object) -> tuple[int, int]:
    """Return the number of an epoch and of its first batch.

    Raises:
        InputError, DTypeError: see `Batches.epoch`.
    """
    position = arguments.count("epoch", number), arguments.count("start", start)
    if min(position) < 0:
        raise InputError(
            f"epoch {position[0]}, batch {position[1]}; expected numbers of at least 0"
        )
    return position


class InOrder:
    """Assignment of samples to batches: in the dataset's order, or shuffled in each epoch."""

    def __init__(self, samples: int, batch_size: int, shuffle: bool, seed: int, drop_last: bool):
        self.total, self.batch_size, self.shuffle, self.seed = samples, batch_size, shuffle, seed
        self.count = samples // batch_size if drop_last else -(-samples // batch_size)
        self.samples = min(self.count * batch_size, samples)

    def __len__(self) -> int:
        return self.count

    def list_groups(self, epoch: int, start: int = 0) -> Iterator[Indices]:
        """Return the indices of each batch of an epoch, from batch `start` on."""
        order = np.arange(self.total)
        if self.shuffle:
            order = randomness.permute(self.total, self.seed, epoch)
        size = self.batch_size
        return (order[i * size : (i + 1) * size] for i in range(start, self.count))


class Balanced(InOrder):
    """Assignment of samples to batches so that an epoch has all classes equally often.

    An epoch is as long as without it: of a rare class each sample comes several times, of a
    frequent one some are left out, others in each epoch.  The index of a sample grows by the
    number of samples each time that it comes again, so that it is changed in another way.

    Raises:
        InputError, DTypeError: the labels are not numbers of classes.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, drop_last: bool) -> None:
        super().__init__(len(dataset), batch_size, True, seed, drop_last)
        labels = dataset.labels()
        if labels.ndim != 1 or labels.dtype.kind not in "iub":
            raise DTypeError(
                f"balanced=True: labels of type {labels.dtype} and shape {list(labels.shape)}; "
                "expected one whole number for each sample, its class"
            )
        self.members = [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def list_groups(self, epoch: int, start: int = 0) -> Iterator[Indices]:
        rng = randomness.generator(self.seed, randomness.BALANCE, epoch)
        counts = np.full(len(self.members), self.total // len(self.members))
        counts[rng.permutation(len(counts))[: self.total % len(counts)]] += 1
        drawn = [
            rng.permutation(members)[: count - again * len(members)] + again * self.total
            for members, count in zip(self.members, counts.tolist(), strict=True)
            for again in range(-(-count // len(members)))
        ]
        order = rng.permutation(np.concatenate(drawn))
        size = self.batch_size
        return (order[i * size : (i + 1) * size] for i in range(start, self.count))


class DatasetBatches(Batches):
    """Batches of a dataset; see `batches` for the arguments."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        augment: Changes,
        balanced: bool,
        buckets: Buckets | None,
        prefetch: int,
        names: Sequence[str] | None,
    ) -> None:
        self.dataset, self.batch_size, self.classes = dataset, batch_size, dataset.classes
        self.seed, self.augment, self.prefetch = seed, augment, prefetch
        self.names = names
        self.padded: Bucketed | None = None
        self.order: InOrder | Bucketed
        if balanced:
            if buckets is not None:
                raise InputError(
                    "balanced= draws samples by class, bucket_by= by length: give only one of them"
                )
            self.order = Balanced(dataset, batch_size, seed, drop_last)
        elif buckets is None:
            self.order = InOrder(len(dataset), batch_size, shuffle, seed, drop_last)
        else:
            self.order = self.padded = Bucketed(
                dataset, buckets, batch_size, shuffle, seed, drop_last
            )
        self.samples = self.order.samples
        if not len(self.order):
            raise InputError(
                f"no batch: {len(dataset)} samples, batches of {batch_size}, and drop_last leaves "
                "out what does not fill one"
            )

    def __len__(self) -> int:
        return len(self.order)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "shuffle": self.order.shuffle,
            "seed": self.seed,
            "balanced": isinstance(self.order, Balanced) or None,
            "bucket_by": None if self.padded is None else repr(self.padded.buckets),
            "augment": self.augment.list_names() or None,
        }

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        return self.made(number, self.list_groups(number, start))

    def list_groups(self, number: int = 0, start: int = 0) -> Iterator[Indices]:
        """Yield the indices of the samples of each batch; arguments and errors as in `epoch`."""
        number, start = check_position(number, start)
        if start > len(self):
            raise InputError(f"start={start}, but an epoch has {len(self)} batches")
        return self.order.list_groups(number, start)

    def sample_name(self, batch: int, row: int) -> str:
        group = next(iter(self.list_groups(0, batch)), ())
        return self.dataset.sample_name(int(group[row])) if row < len(group) else ""

    def made(self, number: int, groups: Iterable[Indices]) -> Generator[Batch, None, None]:
        """Yield the batches of these samples, made ahead as in epoch `number`."""
        tasks = (partial(self._make, number, group) for group in groups)
        cheap = self.dataset.cheap and not self.augment.of_samples and self.padded is None
        depth = 0 if cheap else self.prefetch
        return run_ahead(tasks, depth, min(self.dataset.readers, max(depth, 1)))

    def _make(self, epoch: int, indices: Indices) -> Batch:
        names = self.dataset.names
        if self.padded is not None:
            samples = [self._read_sample(epoch, int(index)) for index in indices]
            arrays = self.padded.stack(samples, indices)
            names = self.padded.names
        elif self.augment.of_samples:
            arrays = stack([self._read_sample(epoch, int(index)) for index in indices], names)
        else:
            arrays = self.dataset.take(indices % len(self.dataset))
        if self.augment.batch:
            rng = randomness.generator(self.seed, randomness.MIX, epoch, int(indices[0]))
            arrays = self.augment.mix(arrays, self.dataset, rng)
        if names is None:
            return arrays
        return order_batch(dict(zip(names, arrays, strict=True)), self.names, "batches")

    def _read_sample(self, epoch: int, index: int) -> Sample:
        place = index % len(self.dataset)
        if not self.augment.of_samples:
            return self.dataset[place]
        rng = randomness.generator(self.seed, randomness.AUGMENT, epoch, index)
        return self.augment.change(self.dataset, place, rng)
