"""Data that the workloads of known models can learn, in a few hundred steps and without a download.

Handwritten digits of scikit-learn, as they are and as coloured pictures; our own pages, letter by
letter; words spoken by `engine.data.voices`.

ViT-Tiny learns nothing of digits of any place, size and contrast in its first 200 steps: its loss
stays at a guess.  So the digits of pictures fill them, light on dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import ROOT
from engine.data.features import LogMel
from engine.data.voices import speak

Array = np.ndarray[Any, Any]
SPOKEN = ("yees", "noou", "a-p", "daaun", "s-too-p", "goou", "left", "rait", "wan", "tuu")
SIDE = 96  # of a picture


@dataclass(frozen=True, slots=True)
class Lesson:
    """Samples to learn from and others to be asked, as a workload takes them.

    x, held_x: [samples, ...]; bytes are pictures, whose numbers `batch` spreads over about [-2, 2].
    y, held_y: i64[samples, labels of a sample].
    """

    x: Array
    y: Array
    held_x: Array
    held_y: Array

    def save(self, path: Path) -> None:
        """Write it into an .npz file."""
        np.savez(path, x=self.x, y=self.y, held_x=self.held_x, held_y=self.held_y)


def take_batch(x: Array, y: Array, chosen: Array) -> tuple[Array, Array]:
    """Return chosen samples and their labels, in a row."""
    taken = x[chosen]
    if taken.dtype == np.uint8:
        taken = taken.astype(np.float32) / 64 - 2
    return taken, y[chosen].reshape(-1)


def draw_batches(samples: int, size: int, seed: int) -> Iterator[Array]:
    """Yield the places of whole batches without end, in a new order each epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - size + 1, size):
            yield order[start : start + size]


def split(x: Array, y: Array, held_out: int) -> Lesson:
    """Return the lesson whose last samples are held out."""
    y = y.reshape(len(x), -1).astype(np.int64)
    return Lesson(x[:-held_out], y[:-held_out], x[-held_out:], y[-held_out:])


def load_digits() -> tuple[Array, Array]:
    """Return digits of 8 by 8, from 0 to 1, and their classes, in an order that says nothing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.images[order].astype(np.float32) / 16, data.target[order]


def make_digits() -> Lesson:
    """Return digits of 28 by 28: f32[n, 1, 28, 28]."""
    images, labels = load_digits()
    large = np.kron(images, np.ones((3, 3), np.float32))
    return split(np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None], labels, 360)


def make_pictures() -> Lesson:
    """Return digits of a light colour on noise of a dark one: u8[n, 3, 96, 96]."""
    images, labels = load_digits()
    rng = np.random.default_rng(1)
    pictures = np.empty((len(images), 3, SIDE, SIDE), np.uint8)
    for picture, image in zip(pictures, images, strict=True):
        ink = np.kron(image, np.ones((SIDE // 8, SIDE // 8), np.float32))
        dark, light = rng.uniform(0, 80, (3, 1, 1)), rng.uniform(120, 200, (3, 1, 1))
        picture[...] = dark + (light - dark) * ink + rng.integers(0, 24, (3, SIDE, SIDE))
    return split(pictures, labels, 360)


def make_text(length: int = 128) -> Lesson:
    """Return stretches of our pages and the letters that follow: i64[n, 128]."""
    pages = b"".join(page.read_bytes() for page in sorted((ROOT / "docs").glob("*.md")))
    letters = np.frombuffer(pages, np.uint8).astype(np.int64)
    count = (len(letters) - 1) // length
    x = letters[: count * length].reshape(count, length)
    y = letters[1 : count * length + 1].reshape(count, length)
    order = np.random.default_rng(0).permutation(count)
    return split(x[order], y[order], 200)


def make_sounds(samples: int = 1000, held_out: int = 200, frames: int = 100) -> Lesson:
    """Return spectrograms of ten spoken words: f32[n, frames, 64]."""
    rng, features = np.random.default_rng(0), LogMel(n_mels=64)
    labels = np.arange(samples) % len(SPOKEN)
    heard = np.zeros((samples, frames, 64), np.float32)
    for sound, label in zip(heard, labels, strict=True):
        spectrum = np.squeeze(features(speak(SPOKEN[label], rng))).T[:frames]
        sound[: len(spectrum)] = spectrum
    return split(heard, labels, held_out)
