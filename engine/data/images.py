"""Folders of pictures, a sub-folder a class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError, ShapeError
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.data import pictures
from engine.data.files import CACHE, DecodedFiles
from engine.data.pictures import ColorMode, Pixels

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@check_arguments(cache=AT_LEAST_0)
class Images(DecodedFiles):
    """Pictures of a folder and their classes: samples (picture, label).

    A picture is scaled so that its shorter side fits, and cropped to its centre; then each channel
    becomes (value / 255 - mean) / std, float32.  The label is the index of the sub-folder in
    `classes`, int64.  Augmentations get the picture before it is cropped: height x width x
    channels, 0 to 255, uint8.

    Up to `cache` bytes of decoded pictures stay in memory; the others are decoded again in each
    epoch.

    Args:
        folder: a folder with a sub-folder for each class; files may be at any depth.
        size: the height and the width in pixels, or one number for both.
        mean, std: means and deviations of the channels, as fractions of 255; by default
            ImageNet's, with which most models were pre-trained; 0.5 for shades of grey.
        layout: "NCHW" for channels x height x width, "NHWC" for height x width x channels.
        color_mode: "rgb" for three channels, "grayscale" for one.
        resize: the length of the shorter side before the crop; by default it fits `size`.  Models
            of ImageNet are often tested with 256 for a size of 224.
        classes: names of the classes in the order of their labels; by default the sub-folders by
            name.  For another folder, give the classes of the training data.
        labelled: False: samples are (picture,), of all files at any depth of the folder.
        unreadable: "raise" an error when an unreadable file is needed, or "drop" all of them at
            the start, which reads every file now; `dropped` lists them with the reasons.
        cache: bytes of decoded pictures to keep; 0: none.

    Attributes:
        paths: the paths of the files.
        dropped: path and reason of each file that was left out.

    Raises:
        MissingPackageError: Pillow is not installed.
        FileError: there is no such folder; when a sample is read, a file is not a picture.
        InputError: a class has no pictures, there are fewer than two classes, or an argument is
            wrong.
        LimitError: when a sample is read, a picture has more pixels than the limit PIXELS.
    """

    what, suffixes = "pictures", pictures.SUFFIXES

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
        pictures.import_pillow()
        self.size = _check_size(size)
        self.layout = layout
        self.color_mode: ColorMode = "rgb" if color_mode == "rgb" else "grayscale"
        grey = self.color_mode == "grayscale"
        self.mean = _check_channels("mean", mean, 0.5 if grey else IMAGENET_MEAN, 1 if grey else 3)
        self.std = _check_channels("std", std, 0.5 if grey else IMAGENET_STD, 1 if grey else 3)
        if not np.all(self.std > 0):
            raise InputError(f"std={self.std.tolist()}; expected positive numbers")
        shorter = min(self.size) if resize is None else resize
        if shorter < min(self.size):
            raise InputError(f"resize={shorter} is less than size={list(self.size)}")
        scale = shorter / min(self.size)
        self.cover = round(self.size[0] * scale), round(self.size[1] * scale)
        super().__init__(
            folder, classes=classes, labelled=labelled, unreadable=unreadable, cache=cache
        )

    def list_options(self) -> dict[str, Any] | None:
        return {
            "size": list(self.size),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "layout": self.layout,
            "color_mode": self.color_mode,
            "resize": min(self.cover),
            "unreadable": self.unreadable,
        }

    def decode(self, path: str) -> Pixels:
        """Return a picture as augmentations get it: height x width x channels, 0 to 255."""
        return pictures.read(path, self.cover, self.color_mode)

    def prepare(self, decoded: Array) -> Array:
        """Return a picture (height x width x channels, 0 to 255) as a model takes it, in `layout`.

        Raises:
            ShapeError: it is smaller than `size`, or has another number of channels.
        """
        height, width = self.size
        good = decoded.ndim == 3 and decoded.shape[2] == len(self.mean)
        if not good or decoded.shape[0] < height or decoded.shape[1] < width:
            raise ShapeError(
                f"a picture of shape {list(decoded.shape)}; expected height x width x channels "
                f"of at least {[height, width, len(self.mean)]}"
            )
        values = pictures.crop_centre(decoded, self.size)
        scale, shift = 1 / (255 * self.std), -self.mean / self.std
        if self.layout == "NCHW":
            values = np.ascontiguousarray(values.transpose(2, 0, 1))
            scale, shift = scale[:, np.newaxis, np.newaxis], shift[:, np.newaxis, np.newaxis]
        out: Array = np.multiply(values, scale, dtype=np.float32)
        out += shift
        return out


def _check_size(value: int | tuple[int, int]) -> tuple[int, int]:
    try:
        sides = (value, value) if isinstance(value, int) else tuple(value)
    except TypeError:
        raise DTypeError(f"size={value!r}; expected a number, or height and width") from None
    counts = [arguments.count("size", side) for side in sides]
    if len(counts) != 2 or min(counts) < 1:
        raise InputError(f"size={value!r}; expected positive numbers, height and width")
    return counts[0], counts[1]


def _check_channels(what: str, value: Any, default: float | Sequence[float], count: int) -> Array:
    array = arguments.cast(what, default if value is None else value, np.dtype(np.float32))
    if array.ndim > 1 or array.size not in (1, count):
        raise InputError(f"{what}={value!r}; expected {count} numbers, one per channel")
    return np.broadcast_to(array, (count,))
