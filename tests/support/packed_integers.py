"""Integers of less than a byte in the bytes of a MatMulNBits."""

from __future__ import annotations

import numpy as np


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Return integers [..., n] in bytes, the first ones of a byte in its lowest bits."""
    per = 8 // bits
    padded = np.zeros((*values.shape[:-1], -(-values.shape[-1] // per) * per), np.int64)
    padded[..., : values.shape[-1]] = values
    parts = padded.reshape(*values.shape[:-1], -1, per) << (bits * np.arange(per))
    return np.asarray(parts.sum(-1), np.uint8)
