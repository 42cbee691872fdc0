"""Loaders: an epoch of pictures or arrays, shuffled, with nothing to train.

Columns are thousands of samples a second of the clock, and of processor time, all threads together:
other load changes that less.

    jpeg         JPEGs of 224 x 224, decoded in every epoch
    photo        JPEGs of 3000 x 4000, decoded at a part of their size
    cached       JPEGs of 224 x 224 after the first epoch, from memory
    augmented    JPEGs of 256 x 256, decoded; a resized crop, a flip and colours changed for each
    arrays       60 000 rows of 784 numbers in batches of 64
    mapped       the same from a file
    sound        WAVs of a second at 44.1 kHz, to log-mel features at 16 kHz, not kept

`data.augmentation` has the processor time of each random change by name, of a picture of 224 x 224
or a sound of a second at 16 kHz; mixup and cutmix in batches of 16.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.measuring import time_call, time_rounds
from bench.rows import Bench, Cells
from engine.data import (
    Batches,
    ColorJitter,
    Images,
    RandomFlip,
    RandomResizedCrop,
    Sounds,
    batches,
)
from engine.data.changes import find_changes

RNG = np.random.default_rng(0)
BATCH = 16
AUGMENT = (RandomResizedCrop(224), RandomFlip(), ColorJitter())


def write_pictures(folder: Path, height: int, width: int, count: int) -> Path:
    """Write two classes of pictures as smooth as photos are."""
    from PIL import Image

    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(count // 2):
            coarse = RNG.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
            smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            smooth.save(folder / name / f"{i}.jpg", quality=85)
    return folder


def write_sounds(folder: Path, count: int) -> Path:
    """Write two classes of noise of a second."""
    import soundfile

    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(count // 2):
            soundfile.write(folder / name / f"{i}.wav", RNG.uniform(-0.5, 0.5, 44100), 44100)
    return folder


def open_pictures(path: Path, **options: Any) -> Batches:
    """Return batches of 16 pictures of 224 x 224."""
    augment = options.pop("augment", None)
    return batches(Images(path, 224, **options), batch_size=16, shuffle=True, augment=augment)


def open_rows(path: Path, mapped: bool) -> Batches:
    """Return batches of 64 rows, from memory or from a mapped file."""
    np.save(path / "rows.npy", RNG.random((60000, 784), np.float32))
    x = np.load(path / "rows.npy", mmap_mode="r" if mapped else None)
    return batches((x, np.zeros(len(x), np.int64)), batch_size=64, shuffle=True)


ROWS: dict[str, Callable[[Path], Batches]] = {
    "jpeg": lambda path: open_pictures(write_pictures(path / "p", 224, 224, 256), cache=0),
    "photo": lambda path: open_pictures(write_pictures(path / "p", 3000, 4000, 16), cache=0),
    "cached": lambda path: open_pictures(write_pictures(path / "p", 224, 224, 256)),
    "augmented": lambda path: open_pictures(
        write_pictures(path / "p", 256, 256, 256), resize=256, augment=AUGMENT, cache=0
    ),
    "arrays": lambda path: open_rows(path, mapped=False),
    "mapped": lambda path: open_rows(path, mapped=True),
    "sound": lambda path: batches(Sounds(write_sounds(path / "s", 64), cache=0)),
}


def measure(make: Callable[[Path], Batches], _: Namespace) -> Iterator[Cells]:
    """Yield the row of a source."""
    with tempfile.TemporaryDirectory() as folder:
        data = make(Path(folder))

        def run_epoch() -> None:
            deque(data.epoch(1), maxlen=0)

        took, samples = time_rounds(run_epoch, 3), (data.samples or 0) / 1e3
        yield samples / median(took), samples / time_call(run_epoch, time.process_time)


CHANGES = {
    name: (name, of)
    for of, names in (
        ("picture", ("flip", "crop", "color", "rotate", "erase", "mixup", "cutmix")),
        ("sound", ("shift", "spec")),
    )
    for name in names
}


def measure_change(subject: tuple[str, str], _: Namespace) -> Iterator[Cells]:
    """Yield the row of a change by name, of a picture or a sound."""
    name, of = subject
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "data"
        if of == "picture":
            dataset: Images | Sounds = Images(write_pictures(place, 224, 224, BATCH), 224)
            decoded: Any = RNG.integers(0, 256, (224, 224, 3), np.uint8)
        else:
            dataset = Sounds(write_sounds(place, BATCH))
            decoded = RNG.uniform(-0.5, 0.5, 16000).astype(np.float32)
        changes, rng = find_changes(name, dataset), np.random.default_rng(0)
        samples = [dataset[i] for i in range(BATCH)]
        columns = tuple(map(np.stack, zip(*samples, strict=True)))

        def change_batch() -> None:
            for sample in samples:
                for change in changes.decoded:
                    change((decoded, *sample[1:]), rng)
                for change in changes.prepared:
                    change(sample, rng)
            if changes.batch:
                changes.mix(columns, dataset, rng)

        change_batch()
        yield (time_call(change_batch, time.process_time) / BATCH * 1e3,)


BENCHES = (
    Bench(
        "data",
        "loaders of pictures, sounds and arrays, with nothing to train",
        ROWS,
        ("k samples/s:.2f", "k samples/s of processor time:.2f"),
        measure,
    ),
    Bench(
        "data.augmentation",
        "random changes of pictures and sounds, by name",
        CHANGES,
        ("ms of processor time a sample:.2f",),
        measure_change,
    ),
)
