"""Aligned memory for plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.element_types import NUMPY
from engine.errors import OutOfMemoryError
from engine.runtime.plan import ALIGN

Bytes = npt.NDArray[np.uint8]


def allocate(nbytes: int, *, zero: bool = True, what: str = "memory") -> Bytes:
    """`nbytes` bytes at an address that is a multiple of `ALIGN`.

    Behind them is room for one vector register, so that a kernel may load a whole register that
    begins at the last element.  It must not store there.  Pages that nothing touches cost no
    memory.

    zero: whether all bytes are 0.
    what: what the bytes are for, in messages.

    Raises:
        OutOfMemoryError: the system does not give that many.
    """
    size = nbytes + 2 * ALIGN
    try:
        raw: Bytes = np.zeros(size, np.uint8) if zero else np.empty(size, np.uint8)
    except (MemoryError, ValueError, OverflowError):  # ValueError: beyond the address space
        raise OutOfMemoryError(f"{what}: {nbytes} bytes cannot be allocated") from None
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def view(memory: Bytes, offset: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The tensor at a byte offset of a region, without a copy."""
    kind = np.dtype(NUMPY[dtype])
    count = int(np.prod(shape, dtype=np.int64))
    found: npt.NDArray[Any] = memory[offset : offset + count * kind.itemsize].view(kind)
    return found.reshape(shape)
