"""Memory between two pages that nobody may touch.

    guard | ... slack ... data | guard        side "end"
    guard | data ... slack ... | guard        side "start"

A read or write past the guarded side is a SIGSEGV, to the element: kernels may assume of their
pointers the alignment of an element and no more, so nothing is rounded.  The slack on the other
side holds a pattern, which shows writes.  Data that a call only reads are mapped for reading alone
while it runs.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Literal

import numpy as np

PAGE = mmap.PAGESIZE
PATTERN = 0xA5
FAR = 1 << 18  # bytes on both sides of data that lie away from guards
NONE, READ, BOTH = 0, 1, 3  # mprotect's PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE

Side = Literal["end", "start", "middle"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def protect(address: int, size: int, rights: int) -> None:
    """mprotect, which must succeed."""
    if _libc.mprotect(address, size, rights):
        raise OSError(ctypes.get_errno(), "mprotect")


class Slot:
    """One operand's memory; it grows to the largest operand that it has held."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._bytes = np.zeros(0, np.uint8)
        self._first = self._room = self._at = self._size = 0

    def _grow(self, room: int) -> None:
        self._map = mmap.mmap(-1, room + 2 * PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)[PAGE : PAGE + room]
        self._first, self._room = self._bytes.ctypes.data, room
        protect(self._first - PAGE, PAGE, NONE)
        protect(self._first + room, PAGE, NONE)

    def put(self, data: np.ndarray, side: Side, *, writes: bool) -> int:
        """Copy bytes to a side, and return their address.

        writes: whether a call may change them.
        """
        size = data.size
        away = FAR if side == "middle" else 0
        room = -(-max(size, 1) // PAGE) * PAGE + 2 * away
        if room > self._room:
            self._grow(room)
        self._at = {"end": self._room - size, "start": 0, "middle": FAR}[side]
        self._size = size
        self._bytes[max(self._at - PAGE, 0) : self._at] = PATTERN
        self._bytes[self._at + size : self._at + size + PAGE] = PATTERN
        self._bytes[self._at : self._at + size] = data
        if not writes:
            protect(self._first, self._room, READ)
        return self._first + self._at

    def take(self) -> np.ndarray:
        """The data after a call, as a view; afterwards they may be changed again."""
        protect(self._first, self._room, BOTH)
        return self._bytes[self._at : self._at + self._size]

    def stray(self) -> int | None:
        """The offset from the data of a byte of the slack that was written; None if none was."""
        low, end = max(self._at - PAGE, 0), self._at + self._size
        before = np.flatnonzero(self._bytes[low : self._at] != PATTERN)
        behind = np.flatnonzero(self._bytes[end : end + PAGE] != PATTERN)
        if before.size:
            return int(before[-1]) + low - self._at
        return int(behind[0]) + self._size if behind.size else None
