"""`batches`: the door through which data of any kind becomes batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.base.errors import DTypeError, InputError
from engine.base.signatures import AT_LEAST_0, AT_LEAST_1, check_arguments
from engine.data import foreign
from engine.data.array_files import is_array_file
from engine.data.arrays import Arrays
from engine.data.buckets import MASK, Buckets
from engine.data.changes import Change, find_changes
from engine.data.dataset import Dataset
from engine.data.frames import is_frame
from engine.data.loader import Batches, DatasetBatches
from engine.data.randomness import check_seed
from engine.data.streams import Stream

KINDS = (
    "arrays (one, a tuple, a dict), a Dataset, a dataset or DataLoader of PyTorch, a dataset of "
    "Hugging Face, an iterable of batches, or a function that makes one for each epoch"
)


@check_arguments(batch_size=AT_LEAST_1, prefetch=AT_LEAST_0)
def batches(
    source: Any,
    *,
    batch_size: int = 32,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    balanced: bool = False,
    augment: Change | Sequence[Change] | None = None,
    bucket_by: Buckets | Sequence[int] | None = None,
    prefetch: int = 2,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    allow_nan: bool = False,
) -> Batches:
    """Return batches of data of any kind.

    Args:
        source: one of
            - `Batches`, which are returned as they are;
            - an array, a tuple or list of arrays, a dict of arrays, memory-maps and tensors
              included, whose first axes count the samples; or the path of a `*.npy` or `*.npz`;
            - a `Dataset`, or a map-style dataset of PyTorch, which has samples by index;
            - a dataset of Hugging Face, whose columns have the names of the model's inputs;
            - a DataLoader, a list of batches or another iterable of batches: each an array, a
              tuple of arrays or a dict;
            - an `IterableDataset` of PyTorch or Hugging Face, which yields samples;
            - a function that makes an iterable of batches; it gets the number of the epoch if it
              takes an argument.
        batch_size: samples of a batch.
        shuffle: whether each epoch has the samples in another order, which the seed and the number
            of the epoch decide.
        seed: the seed of shuffling and augmentation.
        drop_last: whether the last samples are left out if they do not fill a batch.
        balanced: whether an epoch has all classes equally often, in a new order in each epoch;
            samples of rare classes then come several times.
        augment: one or several random changes, by name, such as "flip", or as objects, applied in
            this order; functions `(sample, rng) -> sample` of your own among them.  A sample is a
            tuple of arrays, in the order of `names` if it has names.  They draw from `rng` alone,
            which the seed, the epoch and the sample decide.
        bucket_by: lengths to pad sequences to, or `Buckets`.
        prefetch: batches made ahead by threads while the caller works; 0: none.  Arrays in
            memory are indexed in the caller's thread, which costs less than to wake another.
        names: names of the model's inputs, in their order.  Named arrays are put in this order, and
            columns without an input are left out; tuples are not changed.
        classes: names of the labels of arrays, in the order of their numbers, so that labels of
            texts get the numbers that they have in other data.
        allow_nan: whether arrays of floating point may hold NaN.

    An iterable of batches has its own sizes and its own order: batch_size and shuffle are for
    sources of samples.

    Returns:
        Batches: tuples of arrays, or dicts where the source has names and `names` is None.

    Raises:
        DTypeError: the source is of none of these kinds; or an argument has a wrong type.
        InputError: there are no samples, batch_size is below 1, an array holds NaN, or the source
            cannot do what an argument asks for.
        ShapeError: arrays have different lengths.
        NameNotFoundError: there is no column for one of `names`.
    """
    wanted = None if names is None else list(names)
    dataset = dataset_of(source, classes=classes, allow_nan=allow_nan)
    if dataset is not None:
        buckets = bucket_by
        if buckets is not None and not isinstance(buckets, Buckets):
            buckets = Buckets(lengths=buckets)
        if wanted is not None:
            made = {MASK} if buckets is not None and buckets.mask else set()
            dataset = dataset.select_columns([name for name in wanted if name not in made])
        return DatasetBatches(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=check_seed(seed),
            drop_last=drop_last,
            augment=find_changes(augment, dataset),
            balanced=balanced,
            buckets=buckets,
            prefetch=prefetch,
            names=wanted,
        )
    for name, value in (("augment", augment), ("bucket_by", bucket_by), ("balanced", balanced)):
        if value not in (None, False):
            raise InputError(f"{name}= needs samples; {type(source).__name__} yields whole batches")
    if isinstance(source, Batches):
        return source
    options: dict[str, Any] = {"names": wanted, "prefetch": prefetch, "allow_nan": allow_nan}
    if foreign.yields_samples(source):
        return foreign.SampleStream(source, batch_size, drop_last, **options)
    if drop_last:
        raise InputError(f"drop_last= needs samples; {type(source).__name__} yields whole batches")
    if foreign.is_loader(source):
        return foreign.Loader(source, **options)
    if callable(source) or (isinstance(source, Iterable) and not isinstance(source, str | bytes)):
        return Stream(source, what=_name_source(source), **options)
    raise DTypeError(f"cannot make batches of {type(source).__name__}; expected {KINDS}")


def _name_source(source: object) -> str:
    """Return the name of a stream in messages."""
    name = getattr(source, "__name__", None)
    return f"the function {name}" if callable(source) and name else type(source).__name__


@check_arguments
def dataset_of(
    source: Any, *, classes: Sequence[str] | None = None, allow_nan: bool = False
) -> Dataset | None:
    """Return a source with samples by index as a dataset, for example to `split` it.

    Args:
        source, classes, allow_nan: see `batches`.

    Returns:
        None: the source yields batches or samples one after another, or is of no known kind.

    Raises:
        InputError, ShapeError: see `batches`.
    """
    foreign.refuse_splits(source)
    if is_frame(source):
        raise InputError(
            "a DataFrame does not say which column to predict: give Table(frame, label=...)"
        )
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Batches) or foreign.is_loader(source):
        return None
    if foreign.is_table(source):
        return foreign.ForeignTable(source)
    if is_array_file(source):
        return Arrays(source, classes=classes, allow_nan=allow_nan)
    if isinstance(source, tuple | Mapping | np.ndarray) or hasattr(source, "__array__"):
        return Arrays(source, classes=classes, allow_nan=allow_nan)
    if isinstance(source, list):
        if not source:
            raise InputError("no arrays and no batches: an empty list")
        whole = all(isinstance(item, tuple | Mapping) for item in source)
        return None if whole else Arrays(source, classes=classes, allow_nan=allow_nan)
    return foreign.MapStyle(source) if foreign.is_map(source) else None
