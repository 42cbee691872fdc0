"""Folders of pictures, a sub-folder a class."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from engine import arguments
from engine.data import pictures
from engine.data.dataset import Dataset, Indices
from engine.data.folders import all_of, classes_of
from engine.data.pictures import ColorMode, Pixels
from engine.data.samples import Array, Augment, Sample
from engine.errors import DTypeError, EngineError, InputError, ShapeError

CACHE = 512 << 20  # bytes of decoded pictures that a dataset keeps
READERS = 4  # threads at most; decoding scales with cores, but training needs them too
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(Dataset):
    """Pictures of a folder and their classes: samples (picture, label).

    A picture is scaled so that its shorter side fits, its middle is cut out, and each channel
    becomes (value / 255 - mean) / std, float32.  The label is the index of the sub-folder in
    `classes`, int64.  Augmentations get the picture before its middle is cut out: height x width x
    channels, 0 to 255, uint8.

    Decoded pictures stay in memory until they take `cache` bytes; those beyond are decoded again in
    each epoch.

    Args:
        folder: holds a sub-folder for each class; files are found at any depth in it.
        size: height and width, or one number for both.
        mean, std: of the channels, as fractions of 255; by default those of ImageNet, which most
            pre-trained models were trained with; 0.5 for shades of grey.
        layout: "NCHW" for channels x height x width, "NHWC" for height x width x channels.
        color_mode: "rgb" for three channels, "grayscale" for one.
        resize: length of the shorter side before the middle is cut out; by default it fits `size`.
            Models of ImageNet are often tested with 256 for a size of 224.
        classes: names of the classes in the order of their labels; by default the sub-folders by
            name.  Give those of the training data for another folder.
        labelled: False: samples are (picture,), of all files at any depth of the folder.
        unreadable: "raise" an error when such a file is read, or "drop" them at once, which reads
            every file now; `dropped` tells which, and why.
        cache: bytes of decoded pictures to keep; 0: none.

    Attributes:
        paths: of the files.
        dropped: what was left out: path and reason.

    Raises:
        MissingPackageError: Pillow is not installed.
        FileError: there is no such folder; when a sample is read, a file is no picture.
        InputError: a class has no pictures, there are fewer than two classes, or an argument is
            wrong; when a sample is read, a picture has more pixels than Pillow allows.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size: int | tuple[int, int] = (224, 224),
        *,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: Literal["NCHW", "NHWC"] = "NCHW",
        color_mode: ColorMode = "rgb",
        resize: int | None = None,
        classes: Sequence[str] | None = None,
        labelled: bool = True,
        unreadable: Literal["raise", "drop"] = "raise",
        cache: int = CACHE,
    ) -> None:
        pictures.pillow()
        self.size = _size(size)
        self.layout = _one_of("layout", layout, ("NCHW", "NHWC"))
        self.color_mode: ColorMode = "rgb" if color_mode == "rgb" else "grayscale"
        _one_of("color_mode", color_mode, tuple(pictures.MODES))
        _one_of("unreadable", unreadable, ("raise", "drop"))
        grey = self.color_mode == "grayscale"
        self.mean = _channels("mean", mean, 0.5 if grey else IMAGENET_MEAN, 1 if grey else 3)
        self.std = _channels("std", std, 0.5 if grey else IMAGENET_STD, 1 if grey else 3)
        if not np.all(self.std > 0):
            raise InputError(f"std={self.std.tolist()}; expected positive numbers")
        shorter = min(self.size) if resize is None else arguments.count("resize", resize)
        if shorter < min(self.size):
            raise InputError(f"resize={shorter} is less than size={list(self.size)}")
        scale = shorter / min(self.size)
        self.cover = round(self.size[0] * scale), round(self.size[1] * scale)
        self.readers = min(READERS, os.cpu_count() or 1)
        self._targets: Array | None = None
        if labelled:
            listing = classes_of(folder, pictures.SUFFIXES, "pictures", classes)
            self.paths, self._targets = listing.paths, listing.labels
            self.classes = listing.classes
        else:
            self.paths = all_of(folder, pictures.SUFFIXES, "pictures")
        self.cache, self._used = arguments.count("cache", cache), 0
        self._kept: dict[int, Pixels] = {}
        self._lock = threading.Lock()
        self.dropped: list[tuple[str, str]] = []
        if unreadable == "drop":
            self._drop_unreadable()

    def __len__(self) -> int:
        return len(self.paths)

    def picture(self, index: int) -> Pixels:
        """A picture as augmentations get it: height x width x channels, 0 to 255, read-only.

        Raises:
            FileError, InputError: see the class.
        """
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        pixels = pictures.read(self.paths[index], self.cover, self.color_mode)
        with self._lock:
            if self._used + pixels.nbytes <= self.cache and index not in self._kept:
                pixels.setflags(write=False)
                self._kept[index] = pixels
                self._used += pixels.nbytes
        return pixels

    def prepare(self, pixels: Array) -> Array:
        """A picture (height x width x channels, 0 to 255) as a model takes it, in `layout`.

        Raises:
            ShapeError: it is smaller than `size`, or has another number of channels.
        """
        height, width = self.size
        good = pixels.ndim == 3 and pixels.shape[2] == len(self.mean)
        if not good or pixels.shape[0] < height or pixels.shape[1] < width:
            raise ShapeError(
                f"a picture of the shape {list(pixels.shape)}; expected height x width x channels "
                f"of at least {[height, width, len(self.mean)]}"
            )
        values = pictures.crop_centre(pixels, self.size)
        scale, shift = 1 / (255 * self.std), -self.mean / self.std
        if self.layout == "NCHW":
            values = np.ascontiguousarray(values.transpose(2, 0, 1))
            scale, shift = scale[:, np.newaxis, np.newaxis], shift[:, np.newaxis, np.newaxis]
        out: Array = np.multiply(values, scale, dtype=np.float32)
        out += shift
        return out

    def read(self, path: str | os.PathLike[str]) -> Array:
        """A picture of any file, as the samples have it.

        Raises:
            FileError, InputError: see the class.
        """
        return self.prepare(
            pictures.read(arguments.path("path", path), self.cover, self.color_mode)
        )

    def _sample(self, pixels: Array, index: int) -> Sample:
        if self._targets is None:
            return (self.prepare(pixels),)
        return self.prepare(pixels), self._targets[index]

    def __getitem__(self, index: int) -> Sample:
        return self._sample(self.picture(index), index)

    def augmented(self, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
        label = () if self._targets is None else (self._targets[index],)
        pixels, *_ = augment((self.picture(index), *label), rng)
        return self._sample(pixels, index)

    def take(self, indices: Indices) -> tuple[Array, ...]:
        found = np.stack([self.prepare(self.picture(int(i))) for i in indices])
        return (found,) if self._targets is None else (found, self._targets[indices])

    def labels(self) -> Array:
        if self._targets is None:
            raise InputError("pictures without labels: labelled=False")
        return self._targets

    def _drop_unreadable(self) -> None:
        """Read every file, and leave out those that are no pictures."""
        good: list[int] = []
        for index in range(len(self.paths)):
            try:
                self.picture(index)
            except EngineError as error:
                self.dropped.append((self.paths[index], str(error)))
            else:
                good.append(index)
        if not good:
            raise InputError(f"no file is a picture; the first: {self.dropped[0][1]}")
        if self._targets is not None:
            lost = set(self._targets.tolist()) - set(self._targets[good].tolist())
            if lost and self.classes is not None:
                name = self.classes[min(lost)]
                raise InputError(f"no file of the class {name!r} is a picture")
            self._targets = self._targets[good]
        self._kept = {new: self._kept[old] for new, old in enumerate(good) if old in self._kept}
        self.paths = [self.paths[i] for i in good]


def _size(value: int | tuple[int, int]) -> tuple[int, int]:
    try:
        sides = (value, value) if isinstance(value, int) else tuple(value)
    except TypeError:
        raise DTypeError(f"size={value!r}; expected a number, or height and width") from None
    found = [arguments.count("size", side) for side in sides]
    if len(found) != 2 or min(found) < 1:
        raise InputError(f"size={value!r}; expected positive numbers, height and width")
    return found[0], found[1]


def _channels(what: str, value: Any, default: float | Sequence[float], count: int) -> Array:
    found = np.asarray(default if value is None else value, np.float32)
    if found.ndim > 1 or found.size not in (1, count):
        raise InputError(f"{what}={value!r}; expected {count} numbers, one a channel")
    return np.broadcast_to(found, (count,))


def _one_of(what: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise InputError(f"{what}={value!r}; expected {' or '.join(map(repr, known))}")
    return str(value)
