"""Random changes of pictures, drawn again for each sample and epoch.

Each is a function `(sample, rng) -> sample` that changes the first array of a sample, a picture:
height x width x channels.  Of uint8 the result is uint8, 0 to 255; of floating point it is not
clipped.  Arrays of the same height and width, such as a mask with a class for each pixel, move
along; whole numbers among them are taken from the nearest pixel, and so stay numbers of classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.base.errors import InputError, ShapeError
from engine.base.fields import describe_fields
from engine.base.signatures import SHARE, Range, check_arguments
from engine.data.pictures import import_pillow
from engine.data.samples import Sample

Picture = npt.NDArray[Any]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # shares of the shade of grey, ITU-R BT.601
TRIES = 10  # of RandomResizedCrop for an area that lies in the picture, as in torchvision


@check_arguments
@dataclass(frozen=True, kw_only=True)
class PictureAugmentation(ABC):
    """A random change of the first array of a sample.

    channels: the axis of the channels: "last", as in `Images`, or "first".
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
        return self._restore(self.change(self._find_picture(picture), rng)), *others

    def _find_picture(self, array: Picture) -> Picture:
        """Return a picture with its channels last."""
        if array.ndim != 3:
            raise ShapeError(
                f"{type(self).__name__}: an array of shape {list(array.shape)}; expected a "
                "picture, height x width x channels (or channels='first')"
            )
        return array if self.channels == "last" else array.transpose(1, 2, 0)

    def _restore(self, picture: Picture) -> Picture:
        """Return a picture with its channels where they were."""
        if self.channels == "last":
            return picture
        return np.ascontiguousarray(picture.transpose(2, 0, 1))


@dataclass(frozen=True, slots=True)
class Layer:
    """A picture, or an array that lies over it, such as a mask: height x width x channels.

    fill: stands where nothing was.
    exact: whether values are taken from the nearest pixel, since values between them mean nothing.
    """

    array: Picture
    fill: float
    exact: bool


Move = Callable[[Layer], Picture]
"""Takes the pixels of a layer from other places."""


@check_arguments
@dataclass(frozen=True, kw_only=True)
class PictureMove(PictureAugmentation):
    """A random change of the places of pixels, which masks follow.

    mask_fill: the class of new pixels in masks; the `ignore_index` of the loss leaves them out.
    """

    mask_fill: int = 0

    @abstractmethod
    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Move:
        """Draw a move of layers of this height and width."""

    def choose_fill(self) -> float:
        """Return the value that stands in pictures where nothing was."""
        return 0.0

    def change(self, picture: Picture, rng: np.random.Generator) -> Picture:
        move = self.draw((picture.shape[0], picture.shape[1]), rng)
        return move(Layer(picture, self.choose_fill(), exact=False))

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with its first array moved, and with it what lies over it.

        Raises:
            ShapeError: that array is not a picture, or another one has places but is not as large.
        """
        first, *others = sample
        picture = self._find_picture(first)
        size = (picture.shape[0], picture.shape[1])
        places = [self._find_axes(other, size) for other in others]
        move = self.draw(size, rng)
        moved = [self._restore(move(Layer(picture, self.choose_fill(), exact=False)))]
        for other, axes in zip(others, places, strict=True):
            if axes is None:
                moved.append(other)
                continue
            layer = np.moveaxis(other, axes, (0, 1)).reshape(*size, -1)
            exact = other.dtype.kind in "iub"
            away = move(Layer(layer, self.mask_fill if exact else 0, exact))
            shape = *away.shape[:2], *(n for i, n in enumerate(other.shape) if i not in axes)
            moved.append(np.ascontiguousarray(np.moveaxis(away.reshape(shape), (0, 1), axes)))
        return tuple(moved)

    def _find_axes(self, other: Picture, size: tuple[int, int]) -> tuple[int, int] | None:
        """Return the axes of an array that are height and width; None if it has no places.

        Raises:
            ShapeError: it has two axes or more, and others, so that it would not move along.
        """
        if other.ndim < 2:
            return None
        for axes in ((0, 1), (other.ndim - 2, other.ndim - 1)):
            if tuple(other.shape[axis] for axis in axes) == size:
                return axes
        raise ShapeError(
            f"{type(self).__name__} moves the pixels of pictures of {size[0]} x {size[1]}, and "
            f"masks of this size with them; the sample has an array of shape "
            f"{list(other.shape)}, which would stay where it is: move it in a function of your own"
        )


@describe_fields
@check_arguments(probability=SHARE)
@dataclass(frozen=True, kw_only=True)
class RandomFlip(PictureMove):
    """Mirrors a picture.

    horizontal, vertical: whether to mirror left to right, and top to bottom.
    probability: of each of the two.
    """

    horizontal: bool = True
    vertical: bool = False
    probability: float = 0.5

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Move:
        across, down = rng.random(2) < self.probability
        columns = slice(None, None, -1 if self.horizontal and across else 1)
        rows = slice(None, None, -1 if self.vertical and down else 1)
        return lambda layer: layer.array[rows, columns]


@describe_fields
@check_arguments
@dataclass(frozen=True)
class RandomCrop(PictureMove):
    """Cuts out a random part of a picture.

    size: the height and the width of the part in pixels, or one number for both.
    padding: the number of black pixels that are first added at each edge.
    """

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        if min(_check_sides(self.size)) < 1 or self.padding < 0:
            raise InputError(
                f"RandomCrop: size={self.size}, padding={self.padding}; expected a positive size, "
                "and a padding of 0 pixels or more"
            )

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Move:
        height, width = _check_sides(self.size)
        high, wide = (side + 2 * self.padding for side in shape)
        if high < height or wide < width:
            raise ShapeError(
                f"RandomCrop: {height} x {width} does not fit into a picture of {high} x {wide}, "
                "padding included"
            )
        top, left = rng.integers(high - height + 1), rng.integers(wide - width + 1)
        edge = (self.padding, self.padding)

        def move(layer: Layer) -> Picture:
            array = layer.array
            if self.padding:
                array = np.pad(array, (edge, edge, (0, 0)), constant_values=layer.fill)
            return array[top : top + height, left : left + width]

        return move


@describe_fields
@check_arguments
@dataclass(frozen=True)
class RandomResizedCrop(PictureMove):
    """Cuts out a random part and scales it to a size, as Inception was trained (arXiv:1409.4842).

    It needs Pillow, `pip install 'edgegrad[images]'`.

    size: the height and the width of the result in pixels, or one number for both.
    scale: the smallest and the largest share of the picture's area.
    ratio: the smallest and the largest width / height; drawn evenly on a logarithmic scale.
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

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Move:
        box = _draw_box(shape, self.scale, self.ratio, rng)
        sides = _check_sides(self.size)
        return lambda layer: resize(layer.array, sides, exact=layer.exact, box=box)


@describe_fields
@check_arguments(degrees=Range(0, 180))
@dataclass(frozen=True)
class RandomRotation(PictureMove):
    """Rotates a picture about its centre, with bilinear interpolation; the size stays the same.

    degrees: the largest angle, in both directions.
    fill: the value of pixels from outside the picture; by default black.
    """

    degrees: float = 15.0
    fill: float = 0.0

    def choose_fill(self) -> float:
        return self.fill

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Move:
        degrees = rng.uniform(-self.degrees, self.degrees)
        return lambda layer: _rotate(layer, degrees)


@describe_fields
@check_arguments
@dataclass(frozen=True, kw_only=True)
class RandomErasing(PictureAugmentation):
    """Replaces a random rectangle of a picture by noise (Zhong et al., arXiv:1708.04896).

    probability: the share of pictures that are changed.
    scale: the smallest and the largest share of the picture's area.
    ratio: the smallest and the largest width / height; drawn evenly on a logarithmic scale.
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


@describe_fields
@check_arguments(brightness=SHARE, contrast=SHARE, saturation=SHARE)
@dataclass(frozen=True, kw_only=True)
class ColorJitter(PictureAugmentation):
    """Changes brightness, contrast and saturation, each by a random factor from 1 - x to 1 + x.

    The shade of grey of a pixel is 0.299 R + 0.587 G + 0.114 B.

    brightness: x for the factor of all values.
    contrast: x for the factor of their distance from the mean shade of grey.
    saturation: x for the factor of their distance from the pixel's own shade of grey; a picture
        with one channel has no saturation.
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


def _rotate(layer: Layer, degrees: float) -> Picture:
    """Turn a layer about its middle."""

    def turn(image: Any, method: Any) -> Any:
        fill = (round(layer.fill),) * 3 if image.mode == "RGB" else layer.fill
        return image.rotate(degrees, method, fillcolor=fill)

    return _change_image(layer.array, layer.exact, turn)


def resize(
    array: Picture,
    size: tuple[int, int],
    *,
    exact: bool = False,
    box: tuple[int, int, int, int] | None = None,
) -> Picture:
    """Scale a picture or a part of it: bilinear over the area that a pixel covers.

    exact: take each value from the nearest pixel.
    """
    return _change_image(array, exact, lambda image, way: image.resize(size[::-1], way, box=box))


def _change_image(array: Picture, exact: bool, change: Callable[[Any, Any], Any]) -> Picture:
    """Change an array as a picture of Pillow's, or plane by plane.

    change: gets a picture and the way to resample.
    """
    image_module = import_pillow()
    way = image_module.Resampling.NEAREST if exact else image_module.Resampling.BILINEAR
    if array.dtype == np.uint8 and array.shape[2] == 3:
        return np.array(change(image_module.fromarray(np.ascontiguousarray(array)), way))
    kind = np.int32 if exact else np.float32
    planes = [
        change(image_module.fromarray(np.ascontiguousarray(array[..., i], kind)), way)
        for i in range(array.shape[2])
    ]
    changed = np.stack([np.array(plane) for plane in planes], -1)
    whole = array.dtype.kind in "iu" and not exact
    return (np.rint(changed) if whole else changed).astype(array.dtype)
