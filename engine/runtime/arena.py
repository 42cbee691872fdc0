"""Aligned memory for plans."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Bytes
from engine.base.element_types import NUMPY
from engine.base.errors import OutOfMemoryError
from engine.plan.plan import ALIGN

HUGE_PAGE = 1 << 21
HUGE_BYTES = 1 << 22  # from this size on memory asks for huge pages; trimmed builds do so, too


def allocate(nbytes: int, *, zero: bool = True, what: str = "memory") -> Bytes:
    """Return `nbytes` bytes at an address that is a multiple of `ALIGN`.

    After them is room for one vector register, so that a kernel may load a whole register that
    begins at the last element.  It must not store there.  Pages that nothing touches cost no
    memory.

    zero: whether all bytes are 0.
    what: what the bytes are for, in messages.

    Raises:
        OutOfMemoryError: the system does not give that many.
    """
    size = nbytes + 2 * ALIGN
    try:
        if nbytes >= HUGE_BYTES and _load_madvise() is not None:
            return _map_huge_pages(nbytes)
        raw: Bytes = np.zeros(size, np.uint8) if zero else np.empty(size, np.uint8)
    except (MemoryError, OSError, ValueError, OverflowError):  # beyond the address space
        raise OutOfMemoryError(f"{what}: {nbytes} bytes cannot be allocated") from None
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def allocate_output(dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return an array for an output, aligned as `allocate` does and with room after it.

    It is of the allocator of arrays, which has the pages of arrays that were freed, unlike the
    system.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    raw: Bytes = np.empty(nbytes + 2 * ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    made: npt.NDArray[Any] = raw[start : start + nbytes].view(dtype)
    return made.reshape(shape)


def _map_huge_pages(nbytes: int) -> Bytes:
    """Return zeros that begin at a huge page, and let Linux back them with huge pages.

    A step walks over all of its memory.  Where that began anywhere, answers of MobileNetV3 took 11
    ms in one process and 17 or 27 in another, by chance.  After the last whole huge page there are
    small ones, so that a region takes no more memory than it has bytes.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a forked process has its own
    raw: Bytes = np.frombuffer(mmap.mmap(-1, nbytes + HUGE_PAGE + ALIGN, private), np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    whole = nbytes // HUGE_PAGE * HUGE_PAGE
    _load_madvise()(raw.ctypes.data + start, whole, mmap.MADV_HUGEPAGE)
    return raw[start : start + nbytes]


@functools.cache
def _load_madvise() -> Any:
    """Return the function of the C library; None where there are no huge pages to ask for."""
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def make_view(memory: Bytes, offset: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the tensor at a byte offset of a region, without a copy."""
    kind = np.dtype(NUMPY[dtype])
    count = math.prod(shape)
    elements: npt.NDArray[Any] = memory[offset : offset + count * kind.itemsize].view(kind)
    return elements.reshape(shape)
