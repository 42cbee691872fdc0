"""Shares: the part of each batch that one rank of several trains on, and the batches it evaluates.

Rank r of n has the samples from ceil(r s / n) up to ceil((r + 1) s / n) of a batch of s: shares
differ by one sample at most, and the first rank always has some.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from engine.base.aliases import Array
from engine.base.errors import ShapeError
from engine.data.loader import Batches, DatasetBatches
from engine.data.samples import Batch, count_samples


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a batch.

    total: how many samples the batch has.
    own: how many of them this rank has.
    batch: their arrays; the first sample of the batch if this rank has none.
    """

    total: int
    own: int
    batch: Batch


ONE = (0, 1)  # the bounds of the sample that a rank without samples gets


def find_bounds(samples: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the first sample of a rank in a batch, and the one after its last."""
    return -(-rank * samples // ranks), -(-(rank + 1) * samples // ranks)


def list_shares(
    source: Batches, rank: int, ranks: int, number: int = 0, start: int = 0
) -> Generator[Share, None, None]:
    """Yield the share of a rank in each batch of an epoch, from batch `start` on.

    Of a `Dataset` the samples of this rank alone are read.  Other batches are read whole, since
    nothing else tells which samples they have.

    number, start: see `Batches.epoch`.

    Raises:
        InputError, DTypeError, ShapeError: as `Batches.epoch`, or an array of a batch has not as
            many rows as there are samples, nor a multiple of it.
    """
    if isinstance(source, DatasetBatches):
        groups = source.list_groups(number, start)
        parts = [(group, find_bounds(len(group), rank, ranks)) for group in groups]
        read = source.made(number, [group[slice(*_take_some(*part))] for group, part in parts])
        try:
            for (group, (begin, end)), batch in zip(parts, read, strict=True):
                yield Share(len(group), end - begin, batch)
        finally:
            read.close()
        return
    for batch in source.epoch(number, start):
        total = count_samples(batch)
        begin, end = find_bounds(total, rank, ranks)
        yield Share(total, end - begin, cut(batch, total, *_take_some(begin, end)))


def _take_some(begin: int, end: int) -> tuple[int, int]:
    """Return these bounds, or the bounds of one sample if nothing lies between them."""
    return (begin, end) if end > begin else ONE


def list_turns(source: Batches, rank: int, ranks: int) -> Generator[tuple[int, Batch], None, None]:
    """Yield the batches of epoch 0 that a rank evaluates, each `ranks`-th, with their numbers."""
    if isinstance(source, DatasetBatches):
        groups = list(source.list_groups())[rank::ranks]
        numbers = range(rank, len(source), ranks)
        yield from zip(numbers, source.made(0, groups), strict=True)
        return
    for number, batch in enumerate(source.epoch()):
        if number % ranks == rank:
            yield number, batch


def cut(batch: Batch, total: int, begin: int, end: int) -> Batch:
    """Return some samples of a batch of `total`, as views.

    Raises:
        ShapeError: an array has not as many rows as there are samples, nor a multiple of it.
    """
    if isinstance(batch, dict):
        return {name: _cut_rows(repr(name), a, total, begin, end) for name, a in batch.items()}
    return tuple(_cut_rows(f"array {i}", a, total, begin, end) for i, a in enumerate(batch))


def _cut_rows(what: str, array: Array, total: int, begin: int, end: int) -> Array:
    if array.ndim == 0 or len(array) % total:
        raise ShapeError(
            f"a batch of {total} samples is shared by ranks: {what} has the shape "
            f"{list(array.shape)}, expected as many rows as samples, or a multiple"
        )
    rows = len(array) // total
    return array[begin * rows : end * rows]
