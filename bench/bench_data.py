"""Loaders: an epoch of pictures or arrays, shuffled, with nothing to train.

A row also tells how many samples a second of processor time makes, all threads together: other load
changes that less than the time by the clock.

    jpeg         JPEGs of 224 x 224, decoded in every epoch
    photo        JPEGs of 3000 x 4000, decoded at a part of their size
    kept         JPEGs of 224 x 224 after the first epoch, from memory
    augmented    JPEGs of 256 x 256, decoded; a resized crop, a flip and colours changed for each
    arrays       60 000 rows of 784 numbers in batches of 64
    mapped       the same from a file
    sound        WAVs of a second at 44.1 kHz, to log-mel features at 16 kHz, not kept
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import (
    Batches,
    ColorJitter,
    Images,
    RandomFlip,
    RandomResizedCrop,
    Sounds,
    batches,
)

RNG = np.random.default_rng(0)
AUGMENT = (RandomResizedCrop(224), RandomFlip(), ColorJitter())


def write_pictures(folder: Path, height: int, width: int, count: int) -> Path:
    """Two classes of pictures as smooth as photos are."""
    from PIL import Image

    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(count // 2):
            coarse = RNG.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
            smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            smooth.save(folder / name / f"{i}.jpg", quality=85)
    return folder


def write_sounds(folder: Path, count: int) -> Path:
    import soundfile

    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(count // 2):
            soundfile.write(folder / name / f"{i}.wav", RNG.uniform(-0.5, 0.5, 44100), 44100)
    return folder


def pictures(path: Path, **options: Any) -> Batches:
    augment = options.pop("augment", None)
    return batches(Images(path, 224, **options), batch_size=16, shuffle=True, augment=augment)


def rows(path: Path, mapped: bool) -> Batches:
    np.save(path / "rows.npy", RNG.random((60000, 784), np.float32))
    x = np.load(path / "rows.npy", mmap_mode="r" if mapped else None)
    return batches((x, np.zeros(len(x), np.int64)), batch_size=64, shuffle=True)


ROWS: dict[str, Callable[[Path], Batches]] = {
    "jpeg": lambda path: pictures(write_pictures(path / "p", 224, 224, 256), cache=0),
    "photo": lambda path: pictures(write_pictures(path / "p", 3000, 4000, 16), cache=0),
    "kept": lambda path: pictures(write_pictures(path / "p", 224, 224, 256)),
    "augmented": lambda path: pictures(
        write_pictures(path / "p", 256, 256, 256), resize=256, augment=AUGMENT, cache=0
    ),
    "arrays": lambda path: rows(path, mapped=False),
    "mapped": lambda path: rows(path, mapped=True),
    "sound": lambda path: batches(Sounds(write_sounds(path / "s", 64), cache=0)),
}


@pytest.mark.parametrize("name", ROWS)
def bench_epoch(benchmark: Any, tmp_path: Path, name: str) -> None:
    data = ROWS[name](tmp_path)

    def epoch() -> None:
        deque(data.epoch(1), maxlen=0)

    samples = data.samples or 0
    benchmark.pedantic(epoch, rounds=3, warmup_rounds=1)
    benchmark.extra_info["samples a second"] = round(samples / benchmark.stats["median"])
    begin = time.process_time()
    epoch()
    spent = time.process_time() - begin
    benchmark.extra_info["samples a second of processor time"] = round(samples / spent)
