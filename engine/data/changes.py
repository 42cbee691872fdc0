"""Augmentation: the random changes of an epoch, by name or as objects, in three stages.

A change of what was decoded comes first, as of a picture of bytes; then the dataset prepares the
sample; then a change of what was prepared, as of the features of a sound; then one of the whole
batch.  Each draws from a generator of its own that the seed, the epoch and the sample decide, or
the first sample of the batch, so that a resumed run draws the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError, suggest_nearest
from engine.data.samples import BATCH, DECODED, PREPARED, Augment, Sample, Stage

if TYPE_CHECKING:
    from engine.data.dataset import Dataset
    from engine.data.mixing import Mixing

MIXING = ("mixup", "cutmix")  # names of changes that mix labels
Change = Callable[..., Any] | str


@dataclass(frozen=True)
class Changes:
    """The changes of samples and batches, by their stages, each in its order."""

    decoded: Sequence[Augment] = ()
    prepared: Sequence[Augment] = ()
    batch: Sequence[Mixing] = ()

    def __bool__(self) -> bool:
        return bool(self.decoded or self.prepared or self.batch)

    @property
    def of_samples(self) -> bool:
        """True if samples are changed one by one."""
        return bool(self.decoded or self.prepared)

    def list_names(self) -> list[str]:
        """Return each change with its options, the same in every process."""
        every = (*self.decoded, *self.prepared, *self.batch)
        return [re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(change)) for change in every]

    def change(self, dataset: Dataset, index: int, rng: np.random.Generator) -> Sample:
        """Return a sample of a dataset, changed."""
        sample = dataset.augmented(index, self._change, rng) if self.decoded else dataset[index]
        for change in self.prepared:
            sample = change(sample, rng)
        return sample

    def _change(self, sample: Sample, rng: np.random.Generator) -> Sample:
        for change in self.decoded:
            sample = change(sample, rng)
        return sample

    def mix(
        self, arrays: tuple[Array, ...], dataset: Dataset, rng: np.random.Generator
    ) -> tuple[Array, ...]:
        """Return the arrays of a batch, changed."""
        classes = None if dataset.classes is None else len(dataset.classes)
        for change in self.batch:
            arrays = change(arrays, rng, classes)
        return arrays


def find_changes(augment: Change | Sequence[Change] | None, dataset: Dataset) -> Changes:
    """Return the changes that are asked for.

    augment: names or functions, in their order.

    Raises:
        DTypeError: one of them is neither.
        InputError: there is nothing of that name for such data.
    """
    if augment is None:
        return Changes()
    given = list(augment) if isinstance(augment, Sequence) and not isinstance(augment, str) else [
        augment
    ]  # fmt: skip
    stages: dict[Stage, list[Any]] = {DECODED: [], PREPARED: [], BATCH: []}
    for each in given:
        change = _make_change(each, dataset) if isinstance(each, str) else each
        stage = getattr(change, "stage", DECODED)
        if not callable(change):
            raise DTypeError(f"augment: expected names or functions, got {type(change).__name__}")
        stages[stage].append(change)
    return Changes(*(tuple(stages[stage]) for stage in (DECODED, PREPARED, BATCH)))


def _make_change(name: str, dataset: Dataset) -> Any:
    """Return a change by its name, with the options that fit a dataset."""
    known, what = _list_known(dataset)
    if name not in known:
        hint = suggest_nearest(name, known) or f"; known: {', '.join(known)}"
        raise InputError(f"augment: no {name!r} for {what}{hint}")
    return known[name]()


def _list_known(dataset: Dataset) -> tuple[dict[str, Callable[[], Any]], str]:
    """Return the changes that a dataset's samples can have, by name, and what the samples are."""
    from engine.data import augment, mixing, sound_changes
    from engine.data.dataset import find_root

    source = find_root(dataset)
    what, sample = getattr(source, "what", type(source).__name__), dataset[0]
    known: dict[str, Callable[[], Any]] = {"mixup": mixing.Mixup}
    if what == "sounds":
        known |= {"shift": sound_changes.TimeShift, "spec": sound_changes.SpecAugment}
    shape = sample[0].shape
    if what == "pictures" or (what not in ("sounds", "texts") and len(shape) == 3):
        channels: Literal["last", "first"] = "last"
        sides = getattr(source, "size", None)
        if sides is None:
            first = shape[0] in (1, 3) and shape[2] not in (1, 3)
            channels, sides = ("first", shape[1:]) if first else ("last", shape[:2])
        options: dict[str, Any] = {"channels": channels}
        known |= {
            "flip": lambda: augment.RandomFlip(**options),
            "crop": lambda: augment.RandomResizedCrop(sides, **options),
            "color": lambda: augment.ColorJitter(**options),
            "rotate": lambda: augment.RandomRotation(**options),
            "erase": lambda: augment.RandomErasing(**options),
            "cutmix": mixing.CutMix,
        }
    if len(sample) > 1 and sample[-1].ndim > 1:
        known = {name: kind for name, kind in known.items() if name not in MIXING}
        what = f"{what} with a label for each place"
    return known, what
