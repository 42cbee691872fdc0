"""Arrays as PNG files, with the standard library alone, and as addresses in a page.

Source: Portable Network Graphics (PNG) Specification, Third Edition, W3C 2025, sections 5 and 11.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from engine.base.aliases import Array
from engine.drawing.class_colours import choose_colours

MAX_SIDE = 96  # pixels of a picture's longer side; larger ones are reduced
MIN_SIDE = 4  # of an array that is taken for a picture
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # greyscale, truecolour, truecolour with alpha


def make_pixels(array: Array) -> Array | None:
    """Return one sample as u8[height, width, channels] if it looks like a picture, otherwise None.

    array: a sample of rank 3, channels first or last, with 1, 3 or 4 channels.  The numbers are
        stretched so that the smallest one is black and the largest one white, because a model's
        inputs are normalised by factors that are not known here; bytes are not changed.
        Non-finite numbers are black.
    """
    if array.ndim != 3 or array.dtype.kind not in "fiu":
        return None
    if array.shape[0] in _COLOUR_TYPES and min(array.shape[1:]) >= MIN_SIDE:
        array = np.moveaxis(array, 0, -1)
    elif array.shape[-1] not in _COLOUR_TYPES or min(array.shape[:-1]) < MIN_SIDE:
        return None
    array = _reduce(array)
    if array.dtype == np.uint8:
        return array.copy()  # which keeps no batch alive
    values = array.astype(np.float64)
    finite = np.isfinite(values)
    low = values.min(where=finite, initial=np.inf)
    high = values.max(where=finite, initial=-np.inf)
    scale = 255 / (high - low) if high > low else 0.0
    with np.errstate(invalid="ignore"):
        stretched = (values - low) * scale
    return np.where(finite, stretched, 0).round().astype(np.uint8)


def join_masks(picture: Array, masks: Sequence[Array]) -> Array:
    """Return a picture and its masks side by side, u8[height, width, 3].

    masks: numbers of classes, as large as the picture before it was reduced; -1: no class, grey.
    """
    height = len(picture)
    gap = np.full((height, 2, 3), 255, np.uint8)
    shades = picture.shape[2] == 1
    parts = [np.repeat(picture, 3, 2) if shades else picture[:, :, :3]]
    for mask in masks:
        numbers = _reduce(mask.astype(np.int64))
        colours = np.array(choose_colours(int(numbers.max(initial=0)) + 1), np.uint8)
        drawn = np.where(numbers[..., np.newaxis] < 0, np.uint8(128), colours[numbers.clip(min=0)])
        parts += [gap, drawn]
    return np.concatenate(parts, 1)


def _reduce(array: Array) -> Array:
    """Return every n-th row and column, so that no side is longer than `MAX_SIDE`."""
    stride = -(-max(array.shape[:2]) // MAX_SIDE)
    return array[::stride, ::stride]


def encode(picture: Array) -> bytes:
    """Return a PNG file of u8[height, width, channels] with 1, 3 or 4 channels."""
    height, width, channels = picture.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # byte 0: the row is not filtered
    rows[:, 1:] = picture.reshape(height, -1)
    chunks = (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def make_address(picture: Array) -> str:
    """Return the picture as a `data:` address, which an <img> shows without another file."""
    return "data:image/png;base64," + base64.b64encode(encode(picture)).decode("ascii")
