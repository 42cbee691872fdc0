"""Scale and zero point of the 8-bit integers that stand for a range of values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scale(NamedTuple):
    """Scale and zero point of an activation: real = (integer - zero) scale.

    dtype: the integers' type, uint8 or int8.
    """

    scale: np.float32
    zero: int
    dtype: np.dtype[np.uint8] | np.dtype[np.int8]


def find_scale(low: float, high: float, *, signed: bool, symmetric: bool) -> Scale:
    """Return the scale of values from `low` to `high`; 0 is exactly an integer.

    signed: the integers are int8 and not uint8.  symmetric: the zero point is the middle.
    """
    # In float32, as TrackedScale computes it: an exported model has the scales it was trained with.
    bottom, top = np.float32(min(low, 0.0)), np.float32(max(high, 0.0))
    least = -128 if signed else 0
    dtype = np.dtype(np.int8) if signed else np.dtype(np.uint8)
    if symmetric:
        bottom, top = np.float32(0), max(-bottom, top)
    scale = np.float32((top - bottom) / np.float32(127 if symmetric else 255))
    if not scale:  # a value that is always 0 is 0 in any scale
        scale = np.float32(1)
    if symmetric:
        return Scale(scale, least + 128, dtype)
    zero = np.rint(np.float32(least) - bottom / scale)
    return Scale(scale, int(np.clip(zero, least, least + 255)), dtype)
