"""Picture files as arrays of bytes."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.base import limits
from engine.base.errors import EngineError, FileError, InputError
from engine.data.packages import require

Pixels = npt.NDArray[np.uint8]
"""A picture: height x width x channels, 0 to 255."""
ColorMode = Literal["rgb", "grayscale"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
MASK_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")  # without losses
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
MASK_FORMATS = ("PNG", "BMP", "GIF", "TIFF")
LONGEST = 16  # times the side of the part that is cut out: what is beyond is cut off first
MODES = {"rgb": "RGB", "grayscale": "L"}
ORIENTATION = 0x0112  # the tag of EXIF
TURNED = {5, 6, 7, 8}  # its values for pictures that lie on their side


def import_pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    return require("PIL.Image", "images", "reading pictures")


def read(
    path: str, cover: tuple[int, int], color_mode: ColorMode, *, whole: bool = False
) -> Pixels:
    """Return a picture of a file, upright, scaled so that it just covers a height and a width.

    whole: scale it to exactly this height and width, whatever its proportions.

    Palettes become colours, 16 bits a channel 8; transparency is dropped; of an animation the first
    picture is taken.  Of one whose longer side would be more than `LONGEST` times as long as needed
    the middle is taken.  A JPEG much larger than needed is decoded at a half, a fourth or an eighth
    of its size, in a part of the time.  Scaling is bilinear over the area that a pixel covers.

    Raises:
        FileError: the file is missing, unreadable, truncated, or no picture.
        LimitError: it has more pixels than the limit PIXELS.
        InputError: it has more than `PIL.Image.MAX_IMAGE_PIXELS`, which may be less.
    """
    image_module = import_pillow()
    try:
        with _open(image_module, path) as image:
            turned = image.getexif().get(ORIENTATION) in TURNED
            height, width = _scale(image.size[::-1], cover[::-1] if turned else cover)
            image.draft(MODES[color_mode], (width, height))
            upright = _turn_upright(image)
            if whole:
                height, width = cover
            else:
                upright = _cut(upright, cover)
                height, width = _scale(upright.size[::-1], cover)
            converted = _convert(image_module, upright, MODES[color_mode])
            if converted.size != (width, height):
                converted = converted.resize((width, height), image_module.Resampling.BILINEAR)
            pixels = np.array(converted, np.uint8)
    except (EngineError, MemoryError):
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and others
        raise _refuse(path, error) from error
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def read_mask(path: str) -> npt.NDArray[Any]:
    """Return the values of a mask as they are drawn: height x width, or with red, green and blue.

    Of a palette they are its numbers; shades of one bit are 0 and 255; transparency is dropped.

    Raises:
        FileError, LimitError, InputError: as `read`.
    """
    image_module = import_pillow()
    try:
        with _open(image_module, path, MASK_FORMATS) as image:
            if image.mode == "F":
                raise ValueError("floating-point numbers, which do not stand for classes")
            is_grey = image.mode in ("L", "P") or image.mode.startswith("I")
            shown = "L" if image.mode in ("1", "LA", "La") else "RGB"
            return np.array(image if is_grey else image.convert(shown))
    except (EngineError, MemoryError):
        raise
    except Exception as error:
        raise _refuse(path, error) from error


def encode_mask(numbers: Pixels, colours: Sequence[Sequence[int]]) -> bytes:
    """Return a PNG file of numbers of classes, height x width, whose palette has their colours."""
    image = import_pillow().fromarray(numbers)
    image.putpalette([part for colour in colours for part in colour])
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def measure(path: str) -> tuple[int, int]:
    """Return the height and the width of a picture, upright; only its header is read.

    Raises:
        FileError, LimitError, InputError: as `read`.
    """
    image_module = import_pillow()
    try:
        with _open(image_module, path) as image:
            width, height = image.size
            turned = image.getexif().get(ORIENTATION) in TURNED
    except (EngineError, MemoryError):
        raise
    except Exception as error:
        raise _refuse(path, error) from error
    return (width, height) if turned else (height, width)


def _refuse(path: str, error: Exception) -> FileError:
    """Return the error of a file that is not a picture."""
    size = os.path.getsize(path) if os.path.isfile(path) else None
    told = "the file is empty" if size == 0 else getattr(error, "strerror", None) or error
    more = "; unreadable='drop' leaves such files out" if os.path.isfile(path) else ""
    return FileError(f"cannot read the picture {path!r}: {told}{more}")


def _open(image_module: Any, path: str, formats: Sequence[str] = FORMATS) -> Any:
    """Open the picture of a file and read only its header.

    Only the formats of `SUFFIXES` are accepted, whatever the file is called: Pillow would run
    Ghostscript for PostScript.
    """
    most = image_module.MAX_IMAGE_PIXELS
    try:
        image = image_module.open(path, formats=formats)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise InputError(f"{path!r}: {error}") from error
    width, height = image.size
    try:
        limits.check("PIXELS", width * height, repr(path), f"{width} x {height} are")
        if most is not None and width * height > most:
            raise InputError(
                f"{path!r} has {width} x {height} pixels; at most {most} are allowed, which "
                "PIL.Image.MAX_IMAGE_PIXELS changes"
            )
    except EngineError:
        image.close()
        raise
    return image


def _turn_upright(image: Any) -> Any:
    """Return the picture as the camera was held."""
    operations = require("PIL.ImageOps", "images", "reading pictures")
    return operations.exif_transpose(image)


def _cut(image: Any, cover: tuple[int, int]) -> Any:
    """Return the middle of a picture, as much of its longer side as is `LONGEST` times what covers.

    Scaled whole, a picture of 1 x 1,000,000 pixels would become one of 32 x 32,000,000.
    """
    width, height = image.size
    scale = max(cover[0] / max(height, 1), cover[1] / max(width, 1))
    wide = min(width, math.ceil(LONGEST * cover[1] / scale))
    high = min(height, math.ceil(LONGEST * cover[0] / scale))
    if (wide, high) == (width, height):
        return image
    left, top = (width - wide) // 2, (height - high) // 2
    return image.crop((left, top, left + wide, top + high))


def _convert(image_module: Any, image: Any, mode: str) -> Any:
    """Return the picture in colours or shades of 8 bits."""
    if image.mode.startswith("I"):  # 16 bits a shade, which `convert` would cut off at 255
        shades = np.asarray(image, np.int64) >> 8
        image = image_module.fromarray(np.clip(shades, 0, 255).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("shades as floating-point numbers, whose range is unknown")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def _scale(size: tuple[int, int], cover: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest height and width of the same proportions that cover a height and a
    width.
    """
    if not min(size):
        raise FileError(f"a picture of {size[1]} x {size[0]} pixels; expected at least 1 x 1")
    scale = max(cover[0] / size[0], cover[1] / size[1])
    return (
        max(cover[0], math.floor(size[0] * scale + 0.5)),
        max(cover[1], math.floor(size[1] * scale + 0.5)),
    )


def crop_centre(pixels: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Return the middle of a picture (height x width x channels) that is at least of this size."""
    top, left = (pixels.shape[0] - size[0]) // 2, (pixels.shape[1] - size[1]) // 2
    return pixels[top : top + size[0], left : left + size[1]]
