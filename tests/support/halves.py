"""The rounding of 16-bit floats, in numpy."""

from __future__ import annotations

import numpy as np

EPSILON = {"bf16": 2.0**-8}  # the half of the distance from 1 to the next number


def round_to_half(x: np.ndarray, half: str) -> np.ndarray:
    """Return float32 rounded to a half float, ties to even."""
    assert half == "bf16"
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
