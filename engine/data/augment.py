"""Random changes of pictures, drawn anew for each sample and epoch.

Each is a function `(sample, rng) -> sample` that changes the first array of a sample and leaves the
others alone: a picture, height x width x channels.  Of uint8 the result is uint8, 0 to 255; of
floating point it is not clipped.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.base.errors import InputError, ShapeError
from engine.base.signatures import SHARE, Range, check_arguments
from engine.data.pictures import import_pillow
from engine.data.samples import Sample

Picture = npt.NDArray[Any]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # shares of the shade of grey, ITU-R BT.601
TRIES = 10  # of RandomResizedCrop for an area that lies in the picture, as torchvision has it


@check_arguments
@dataclass(frozen=True, kw_only=True)
class PictureAugmentation(ABC):
    """A random change of the first array of a sample.

    channels: which axis the channels are on: "last" as `Images` gives them, or "first".
    """

    channels: Literal["last", "first"] = "last"

    @abstractmethod
    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Return the changed picture; both are height x width x channels.  The given one stays."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with its first array changed.

        Raises:
            ShapeError: that array is not a picture.
        """
        picture, *others = sample
        if picture.ndim != 3:
            raise ShapeError(
                f"{type(self).__name__}: an array of the shape {list(picture.shape)}; expected a "
                "picture, height x width x channels (or channels='first')"
            )
        if self.channels == "last":
            return self.change(picture, rng), *others
        changed = self.change(picture.transpose(1, 2, 0), rng)
        return np.ascontiguousarray(changed.transpose(2, 0, 1)), *others


@check_arguments(probability=SHARE)
@dataclass(frozen=True, kw_only=True)
class RandomFlip(PictureAugmentation):
    """Mirrors a picture left to right, and top to bottom if asked, each with `probability`."""

    horizontal: bool = True
    vertical: bool = False
    probability: float = 0.5

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        across, down = rng.random(2) < self.probability
        if self.horizontal and across:
            picture = picture[:, ::-1]
        if self.vertical and down:
            picture = picture[::-1]
        return picture


@check_arguments
@dataclass(frozen=True)
class RandomCrop(PictureAugmentation):
    """Cuts out a random place of this size, after `padding` black pixels at each edge.

    size: height and width, or one number for both.
    """

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        if min(_check_sides(self.size)) < 1 or self.padding < 0:
            raise InputError(f"RandomCrop: size={self.size}, padding={self.padding}")

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        height, width = _check_sides(self.size)
        if self.padding:
            edge = (self.padding, self.padding)
            picture = np.pad(picture, (edge, edge, (0, 0)))
        rows, columns = picture.shape[0] - height, picture.shape[1] - width
        if min(rows, columns) < 0:
            raise ShapeError(
                f"RandomCrop: {height} x {width} does not fit into a picture of "
                f"{picture.shape[0]} x {picture.shape[1]}, padding included"
            )
        top, left = rng.integers(rows + 1), rng.integers(columns + 1)
        return picture[top : top + height, left : left + width]


@check_arguments
@dataclass(frozen=True)
class RandomResizedCrop(PictureAugmentation):
    """Cuts out a random part and scales it to a size, as Inception was trained (arXiv:1409.4842).

    Args:
        size: height and width, or one number for both.
        scale: share of the area, from and to.
        ratio: width by height, from and to; evenly on a logarithmic scale.

    It needs Pillow, `pip install 'edgegrad[images]'`.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        good = 0 < self.scale[0] <= self.scale[1] <= 1 and 0 < self.ratio[0] <= self.ratio[1]
        if not good or min(_check_sides(self.size)) < 1:
            raise InputError(
                f"RandomResizedCrop: size={self.size}, scale={self.scale}, ratio={self.ratio}; "
                "expected a positive size, and pairs of rising positive numbers, scale up to 1"
            )

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        box = _draw_box(picture.shape[:2], self.scale, self.ratio, rng)
        return _resize(picture, box, _check_sides(self.size))


@check_arguments(degrees=Range(0, 180))
@dataclass(frozen=True)
class RandomRotation(PictureAugmentation):
    """Turns a picture about its middle by up to `degrees`, bilinear; the size stays.

    fill: stands where nothing was, in the picture's own values; by default black.
    """

    degrees: float = 15.0
    fill: float = 0.0

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        return _rotate(picture, rng.uniform(-self.degrees, self.degrees), self.fill)


@check_arguments
@dataclass(frozen=True, kw_only=True)
class RandomErasing(PictureAugmentation):
    """Replaces a random rectangle by noise, with `probability` (Zhong et al., arXiv:1708.04896).

    Args:
        scale: share of the area, from and to.
        ratio: width by height, from and to; evenly on a logarithmic scale.
    """

    probability: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)

    def __post_init__(self) -> None:
        good = 0 < self.scale[0] <= self.scale[1] <= 1 and 0 < self.ratio[0] <= self.ratio[1]
        if not good or not 0 <= self.probability <= 1:
            raise InputError(
                f"RandomErasing: probability={self.probability}, scale={self.scale}, "
                f"ratio={self.ratio}; expected 0 to 1, and pairs of rising positive numbers"
            )

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        if rng.random() >= self.probability:
            return picture
        left, top, right, bottom = _draw_box(picture.shape[:2], self.scale, self.ratio, rng)
        erased = np.array(picture)
        shape = (bottom - top, right - left, picture.shape[2])
        if picture.dtype.kind in "iu":
            erased[top:bottom, left:right] = rng.integers(0, 256, shape)
        else:
            erased[top:bottom, left:right] = rng.standard_normal(shape)
        return erased


@check_arguments(brightness=SHARE, contrast=SHARE, saturation=SHARE)
@dataclass(frozen=True, kw_only=True)
class ColorJitter(PictureAugmentation):
    """Changes brightness, contrast and saturation, each by a factor from 1 - x to 1 + x.

    Brightness scales all values; contrast scales their distance from the mean shade of grey,
    saturation their distance from the pixel's own shade, which is 0.299 R + 0.587 G + 0.114 B.
    A picture of one channel has no saturation.
    """

    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        if picture.shape[2] not in (1, 3):
            raise ShapeError(f"ColorJitter: {picture.shape[2]} channels; expected 1 or 3")
        spread = np.array([self.brightness, self.contrast, self.saturation])
        bright, contrast, saturation = (1 + spread * rng.uniform(-1, 1, 3)).tolist()
        values: Picture = picture.astype(np.float32) * np.float32(bright)
        shades = values @ LUMA if picture.shape[2] == 3 else values[..., 0]
        mean = shades.mean(dtype=np.float32)
        values *= contrast
        values += (1 - contrast) * mean
        if picture.shape[2] == 3:
            shades = shades * contrast + (1 - contrast) * mean
            values *= saturation
            values += ((1 - saturation) * shades)[..., np.newaxis]
        if picture.dtype == np.uint8:
            values = np.clip(np.rint(values, out=values), 0, 255)
        return values.astype(picture.dtype, copy=False)


def _check_sides(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _draw_box(
    shape: tuple[int, ...],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[int, int, int, int]:
    """Draw left, top, right and bottom of a part of a picture.

    shape: height and width.  scale: share of the area.  ratio: width by height.
    """
    height, width = shape
    for _ in range(TRIES):
        area = height * width * rng.uniform(*scale)
        drawn = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        columns = round(math.sqrt(area * drawn))
        rows = round(math.sqrt(area / drawn))
        if 0 < columns <= width and 0 < rows <= height:
            left = int(rng.integers(width - columns + 1))
            top = int(rng.integers(height - rows + 1))
            return left, top, left + columns, top + rows
    columns = min(width, max(1, round(height * ratio[1])))  # none fits: the middle
    rows = min(height, max(1, round(width / ratio[0])))
    left, top = (width - columns) // 2, (height - rows) // 2
    return left, top, left + columns, top + rows


def _rotate(picture: Picture, degrees: float, fill: float) -> Picture:
    """Turn a picture about its middle."""
    image_module = import_pillow()
    method = image_module.Resampling.BILINEAR
    if picture.dtype == np.uint8 and picture.shape[2] == 3:
        image = image_module.fromarray(np.ascontiguousarray(picture))
        return np.array(image.rotate(degrees, method, fillcolor=(round(fill),) * 3))
    planes = [
        image_module.fromarray(np.ascontiguousarray(picture[..., i], np.float32))
        for i in range(picture.shape[2])
    ]
    turned = np.stack([np.array(p.rotate(degrees, method, fillcolor=fill)) for p in planes], -1)
    return (np.rint(turned) if picture.dtype.kind in "iu" else turned).astype(picture.dtype)


def _resize(picture: Picture, box: tuple[int, int, int, int], size: tuple[int, int]) -> Picture:
    """Scale a part of a picture: bilinear over the area that a pixel covers."""
    image_module = import_pillow()
    target, method = size[::-1], image_module.Resampling.BILINEAR
    if picture.dtype == np.uint8 and picture.shape[2] == 3:
        image = image_module.fromarray(np.ascontiguousarray(picture))
        return np.array(image.resize(target, method, box=box))
    planes = [
        image_module.fromarray(np.ascontiguousarray(picture[..., i], np.float32))
        for i in range(picture.shape[2])
    ]
    scaled = np.stack([np.array(plane.resize(target, method, box=box)) for plane in planes], -1)
    return (np.rint(scaled) if picture.dtype.kind in "iu" else scaled).astype(picture.dtype)
