"""Folders of pictures and of masks, which have a class for each pixel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import EngineError, InputError, ShapeError
from engine.base.labels import IGNORED
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.data import pictures
from engine.data.dataset import Indices
from engine.data.files import CACHE, READERS
from engine.data.folders import find_pair, list_files, refuse_divided_pair
from engine.data.images import Images
from engine.data.pictures import ColorMode, Pixels
from engine.data.samples import Sample, read_only
from engine.system.config import count_cores

BORDER = 255  # stands in masks for pixels without a class, beside 0, 1, 2, ...
MOST = 255  # classes: a file of a mask has a byte for each pixel
FOUND = 200  # values that are taken for classes without being named
SUFFIX = "_mask"  # that the name of a mask may have after the picture's
SHOWN = 8  # values of a message

Value = int | tuple[int, int, int]
Classes = npt.NDArray[np.int16]
"""The class of each pixel, height x width; `IGNORED`: none."""


@check_arguments(cache=AT_LEAST_0)
class Masks(Images):
    """Pictures of a folder and a mask for each: samples (picture, mask).

    The mask of a picture is a file in another folder with the same name, or with "_mask" appended
    to the name: a PNG, BMP, GIF or TIFF whose shades, palette numbers or colours represent the
    classes.  Both are scaled to `size` without cropping, masks by the nearest pixel.  A sample's
    mask is int64 [height, width], and -100 where there is no class, which
    `CrossEntropyLoss(ignore_index=-100)` ignores.

    Pictures become arrays as in `Images`, which explains the other options.

    Args:
        folder: a folder of pictures at any depth, or with the folders `images` and `masks`.
        size: the height and the width in pixels, or one number for both.
        masks: the folder of masks; by default the folder `masks` next to `images`.
        classes: names of the classes in the order of their numbers; by default their values.
        values: the shade, number or colour (red, green, blue) of each class in masks, in the order
            of the classes.  By default the ones that occur, in ascending order, for which every
            mask is read now; if they are 0, 1, 2, ... and 255, then 255 is a border without a
            class.
        labelled: False: samples are (picture,), of all files at any depth of the folder.
        unreadable: "drop" leaves out pictures without a mask as well.

    Attributes:
        paths, mask_paths: the paths of the pictures and of their masks.
        values: as the argument.
        dropped: path and reason of each file that was left out.

    Raises:
        MissingPackageError: Pillow is not installed.
        FileError: there is no such folder; when a sample is read, a file is not a picture.
        InputError: a picture has no mask or a mask no picture, there are fewer than two classes or
            more than 255, or an argument is wrong; when a sample is read, a mask has a value that
            stands for no class.
        ShapeError: when a sample is read, a mask is not as large as its picture.
    """

    ignore_index = IGNORED

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size: int | tuple[int, int] = (128, 128),
        *,
        masks: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        values: Sequence[int | Sequence[int]] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: Literal["NCHW", "NHWC"] = "NCHW",
        color_mode: ColorMode = "rgb",
        labelled: bool = True,
        unreadable: Literal["raise", "drop"] = "raise",
        cache: int = CACHE,
    ) -> None:
        self._masks = None if masks is None else arguments.check_path("masks", masks)
        self.values: list[Value] | None = None if values is None else _check_values(values)
        super().__init__(
            folder, size, mean=mean, std=std, layout=layout, color_mode=color_mode,
            classes=classes, labelled=labelled, unreadable=unreadable, cache=cache,
        )  # fmt: skip

    def like(
        self,
        folder: str | os.PathLike[str],
        *,
        labelled: bool = True,
        masks: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return another folder's files with the options and the classes of these.

        masks: as the argument of the class.

        Raises:
            FileError, InputError: as the class.
        """
        other = copy(self)
        other._masks = None if masks is None else arguments.check_path("masks", masks)
        other.take_folder(folder, self.classes, labelled)
        return other

    def list_options(self) -> dict[str, Any] | None:
        options = super().list_options()
        assert options is not None
        del options["resize"]
        values = [v if isinstance(v, int) else list(v) for v in self.values or ()]
        return {**options, "values": values}

    def decode(self, path: str) -> Pixels:
        """Return a picture as augmentations get it: height x width x channels, 0 to 255."""
        return pictures.read(path, self.size, self.color_mode, whole=True)

    def decode_mask(self, path: str, picture: str) -> Classes:
        """Return the class of each pixel of a picture.

        Raises:
            FileError, InputError, ShapeError: see the class.
        """
        drawn = pictures.read_mask(path)
        size = pictures.measure(picture)
        if drawn.shape[:2] != size:
            raise ShapeError(
                f"the mask {path!r} is {drawn.shape[0]} x {drawn.shape[1]}, and its picture "
                f"{picture!r} {size[0]} x {size[1]}, upright"
            )
        return _resize(self._find_classes(drawn, path), self.size)

    def sample_mask(self, index: int) -> Classes:
        """Return the class of each pixel of a sample, which must not be written to."""
        mask = self.mask_paths[index]
        return self.keep_decoded(mask, lambda: self.decode_mask(mask, self.paths[index]))

    def labels(self) -> Array:
        if not self.mask_paths:
            raise InputError("the pictures were opened without masks, by labelled=False")
        return np.stack([self.sample_mask(i) for i in range(len(self))])

    def take(self, indices: Indices) -> tuple[Array, ...]:
        (batch,) = super().take(indices)
        if not self.mask_paths:
            return (batch,)
        return batch, np.stack([self.sample_mask(int(i)) for i in indices]).astype(np.int64)

    def split_rows(self, share: float, seed: int, stratify: bool | None) -> tuple[Indices, Indices]:
        return super().split_rows(share, seed, stratify or False)

    def take_folder(
        self, folder: str | os.PathLike[str], classes: Sequence[str] | None, labelled: bool
    ) -> None:
        place, masks = os.fspath(folder), self._masks
        self.mask_paths: list[str] = []
        pair = find_pair(place)
        if pair is not None:
            place, masks = pair[0], masks or pair[1]
        lost: list[tuple[str, str]] = []
        super().take_folder(place, None, False)
        if labelled:
            if masks is None:
                raise InputError(
                    f"{place!r}: no folder of masks; give masks=, or a folder that contains the "
                    "folders 'images' and 'masks'"
                )
            refuse_divided_pair(place, masks)
            pairs, lost = _match(place, self.paths, masks, self.unreadable == "drop")
            self.paths, self.mask_paths = [a for a, _ in pairs], [b for _, b in pairs]
            self._settle_classes(classes, masks)
        self.dropped += lost
        if self.unreadable == "drop" and labelled:
            self.drop_unreadable()

    def _settle_classes(self, classes: Sequence[str] | None, masks: str) -> None:
        """Find the values of masks and the names of their classes.

        Raises:
            InputError: they do not fit each other.
        """
        if self.values is None:
            self.values = _find_values(self.mask_paths, self.unreadable == "drop")
        names = list(map(_name_value, self.values)) if classes is None else list(classes)
        if len(names) != len(self.values):
            shown = ", ".join(map(_name_value, self.values[:SHOWN]))
            raise InputError(
                f"{masks!r}: {len(names)} classes, {', '.join(map(repr, names[:SHOWN]))}, and "
                f"{len(self.values)} values in the masks: {shown}; give values= for these classes"
            )
        if not 2 <= len(names) <= MOST:
            shown = ", ".join(names[:SHOWN])
            raise InputError(f"{masks!r}: {len(names)} classes, {shown}; expected 2 to {MOST}")
        if len(set(names)) < len(names):
            raise InputError(f"classes={names}: a name occurs twice")
        self.classes = names

    def get_label(self, index: int) -> Sample:
        if not self.mask_paths:
            return ()
        return (read_only(self.sample_mask(index).astype(np.int64)),)

    def check_sample(self, index: int) -> None:
        super().check_sample(index)
        if self.mask_paths:
            self.sample_mask(index)

    def choose_samples(self, indices: Sequence[int]) -> None:
        super().choose_samples(indices)
        if self.mask_paths:
            self.mask_paths = [self.mask_paths[i] for i in indices]

    def _find_classes(self, drawn: Pixels, path: str) -> Classes:
        """Return the number of the class of each pixel of a mask.

        Raises:
            InputError: a value stands for no class.
        """
        assert self.values is not None
        codes, known = _encode(drawn), [_make_code(value) for value in self.values]
        order = np.argsort(known)
        ranked = np.asarray(known)[order]
        places = np.searchsorted(ranked, codes).clip(max=len(known) - 1)
        numbers: Classes = order[places].astype(np.int16)
        is_known = ranked[places] == codes
        others = np.argwhere(~is_known & (codes != _make_code(BORDER)))
        if len(others):
            row, column = others[0]
            value = _name_value(_decode(int(codes[row, column])))
            shown = ", ".join(map(_name_value, self.values[:SHOWN]))
            more = ", ..." if len(self.values) > SHOWN else ""
            raise InputError(
                f"the mask {path!r} has the value {value} in row {row}, column {column}, which is "
                f"not one of the classes' values: {shown}{more}"
            )
        numbers[~is_known] = IGNORED
        return numbers


def _check_values(values: Sequence[Any]) -> list[Value]:
    """Return the values of classes in masks, each a number or a colour.

    Raises:
        InputError: one is neither, or occurs twice.
    """
    made: list[Value] = []
    for value in values:
        parts = [value] if isinstance(value, int | np.integer) else list(value)
        numbers = [arguments.count("values", part) for part in parts]
        if len(numbers) not in (1, 3) or not all(0 <= n <= 0xFFFF for n in numbers):
            raise InputError(f"values: {value!r}; expected a number, or red, green and blue")
        made.append(numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1], numbers[2]))
    if len({_make_code(value) for value in made}) < len(made):
        raise InputError(f"values={made}: a value occurs twice")
    return made


def _match(
    folder: str, paths: Sequence[str], masks: str, drop: bool
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return each picture with its mask, and pictures without one, with the reason.

    Raises:
        InputError: there are no masks, a picture has none or two, or a mask has no picture.
    """
    unmatched: dict[str, str] = {}
    for path in list_files(masks, pictures.MASK_SUFFIXES):
        stem = _name_stem(masks, path).removesuffix(SUFFIX)
        if stem in unmatched:
            raise InputError(f"{unmatched[stem]!r} and {path!r} are masks of the same picture")
        unmatched[stem] = path
    if not unmatched:
        lossy = next(list_files(masks, (".jpg", ".jpeg", ".webp")), None)
        more = (
            f"; {lossy!r} is compressed with losses, which change values at edges" if lossy else ""
        )
        raise InputError(
            f"{masks!r}: no masks; expected files as *{', *'.join(pictures.MASK_SUFFIXES)}{more}"
        )
    pairs, lost = [], []
    for path in paths:
        mask = unmatched.pop(_name_stem(folder, path), None)
        if mask is not None:
            pairs.append((path, mask))
        elif drop:
            lost.append((path, f"it has no mask in {masks!r}"))
        else:
            raise InputError(
                f"{path!r} has no mask of its name in {masks!r}; unreadable='drop' leaves such "
                "pictures out"
            )
    if unmatched and not drop:
        raise InputError(f"the mask {min(unmatched.values())!r} has no picture in {folder!r}")
    if not pairs:
        raise InputError(f"{folder!r}: no picture has a mask of its name in {masks!r}")
    return pairs, lost


def _name_stem(folder: str, path: str) -> str:
    return os.path.splitext(os.path.relpath(path, folder))[0]


def _find_values(paths: Sequence[str], drop: bool) -> list[Value]:
    """Return the values that stand for classes in masks.

    drop: pass over masks that cannot be read.

    Raises:
        FileError: a mask cannot be read.
        InputError: there are more than `FOUND` values.
    """

    def read(path: str) -> Array:
        try:
            return np.unique(_encode(pictures.read_mask(path)))
        except EngineError:
            if drop:
                return np.zeros(0, np.int64)
            raise

    codes: set[int] = set()
    with ThreadPoolExecutor(min(READERS, count_cores())) as pool:
        for path, distinct in zip(paths, pool.map(read, paths), strict=True):
            codes |= set(distinct.tolist())
            if len(codes) > FOUND:
                raise InputError(
                    f"{path!r}: the masks so far have {len(codes)} different values, too many for "
                    "classes. Soft edges and lossy compression add values; list the values of the "
                    f"classes with values=, {MOST} at most"
                )
    values = [_decode(code) for code in sorted(codes)]
    numbers = [value for value in values if isinstance(value, int)]
    if (
        numbers[-1:] == [BORDER]
        and len(numbers) > 2
        and values == [*range(len(values) - 1), BORDER]
    ):
        return list[Value](numbers[:-1])
    return values


# A mask's values as one number a pixel: of 16 bits each red, green and blue, alike in shades.


def _encode(drawn: Pixels) -> npt.NDArray[np.int64]:
    red, green, blue = np.moveaxis(np.broadcast_to(
        drawn if drawn.ndim == 3 else drawn[..., np.newaxis], (*drawn.shape[:2], 3)
    ), -1, 0).astype(np.int64)  # fmt: skip
    codes: npt.NDArray[np.int64] = (red << 32) + (green << 16) + blue
    return codes


def _make_code(value: Value) -> int:
    red, green, blue = (value,) * 3 if isinstance(value, int) else value
    return (red << 32) + (green << 16) + blue


def _decode(code: int) -> Value:
    colour = code >> 32, code >> 16 & 0xFFFF, code & 0xFFFF
    return colour[0] if len(set(colour)) == 1 else colour


def _name_value(value: Value) -> str:
    return str(value) if isinstance(value, int) else "#" + "".join(f"{part:02x}" for part in value)


def _resize(numbers: Classes, size: tuple[int, int]) -> Classes:
    """Scale numbers of classes, each from the nearest pixel."""
    rows, columns = (_find_nearest(*sides) for sides in zip(numbers.shape, size, strict=True))
    scaled: Classes = numbers[rows[:, np.newaxis], columns]
    return scaled


def _find_nearest(before: int, after: int) -> Indices:
    """Return the place before a scaling whose value each place after it takes: the nearest one."""
    return ((np.arange(after) + 0.5) * before / after).astype(np.intp)


def restore_mask(numbers: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return predicted numbers of classes as large as the picture."""
    return _resize(numbers.astype(np.int16), size).astype(np.uint8)
