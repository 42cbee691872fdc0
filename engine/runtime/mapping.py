"""Files in memory: arrays that stay in their file, and regions whose pages are those of a file.

A page of a file that is mapped is read when it is first touched, shared by all processes that map
it, and dropped when memory is short: it is no memory of this process alone.  A file that is mapped
must keep its bytes.  To replace it by another under its name, as `files.write` does, is safe: the
mapping keeps the old one.  To cut it short in place is not: the system ends a process that touches
what is gone (SIGBUS).  `MappedFile.check` tells of a file that was changed in place.

Where the system cannot lay a file into a region, as Windows, regions hold copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import FileError, OutOfMemoryError
from engine.runtime.arena import Bytes
from engine.runtime.files import opened, reason
from engine.runtime.plan import ALIGN

Array = npt.NDArray[Any]

PAGE = mmap.ALLOCATIONGRANULARITY
_FIXED = 0x10  # MAP_FIXED, which mmap does not name; the same on Linux and macOS


class MappedFile(mmap.mmap):
    """The bytes of a file, read-only.

    path: its name when it was opened.  identity: device, inode, size in bytes and time of change.
    address: where its first byte is.
    """

    path: str
    identity: tuple[int, int, int, int]
    address: int

    def check(self) -> None:
        """Check that the file is as it was when it was mapped; another one may have its name.

        Raises:
            FileError: it was changed in place, so that what has been read of it may be wrong.
        """
        found = self.identity
        with contextlib.suppress(OSError):  # gone: nobody changes it any more
            found = _identity(os.stat(self.path))
        if found[:2] == self.identity[:2] and found != self.identity:
            raise FileError(f"{self.path!r} was changed while it was in use: open it anew")


class Piece(NamedTuple):
    """A run of bytes of a mapped file."""

    file: MappedFile
    offset: int
    nbytes: int


_mapped: weakref.WeakSet[MappedFile] = weakref.WeakSet()


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_array(
    path: str, dtype: np.dtype[Any], count: int, offset: int, what: str, model: str = ""
) -> Array:
    """`count` elements of a binary file from byte `offset` on, which stay in the file; read-only.

    what: what errors call them.  model: as `files.opened` takes it.

    Raises:
        FileError: the file is missing, unreadable, too short, or not where `opened` wants it.
    """
    end = offset + count * dtype.itemsize
    try:
        with opened(path, model) as file:
            identity = _identity(os.fstat(file.fileno()))
            size = identity[2]
            if end > size:
                raise FileError(
                    f"bytes {offset} to {end} of {path!r}, which has {size}: it is incomplete"
                )
            if count == 0:
                return np.zeros(0, dtype)
            found = next((f for f in _mapped if f.identity == identity), None)
            if found is None:
                found = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
                found.path, found.identity = path, identity
                found.address = int(np.frombuffer(found, np.uint8).ctypes.data)
                _mapped.add(found)
    except FileError as error:
        raise FileError(f"{what}: {error}") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{what}: cannot read external data {path!r}: {reason(error)}") from error
    return np.frombuffer(found, dtype, count, offset)


def source(array: Array) -> Piece | None:
    """The bytes of a mapped file that an array is, None if it is not, or is not contiguous."""
    if not array.flags.c_contiguous or array.nbytes == 0:
        return None
    at = int(array.ctypes.data)
    for file in _mapped:
        if file.address <= at and at + array.nbytes <= file.address + file.identity[2]:
            return Piece(file, at - file.address, array.nbytes)
    return None


@functools.cache
def _mmap() -> Any:
    """The function of the C library; None where files cannot be laid into regions."""
    if not sys.platform.startswith(("linux", "darwin")):
        return None
    found = ctypes.CDLL(None, use_errno=True).mmap
    found.restype = ctypes.c_void_p
    found.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    return found


def layable(array: Array) -> Piece | None:
    """The bytes of a file that an array is, if they can be laid into a region; else None.

    They must begin at a multiple of `ALIGN`, as all that kernels read, and the file must still have
    its name.
    """
    piece = source(array) if _mmap() is not None else None
    if piece is None or piece.offset % ALIGN:
        return None
    with contextlib.suppress(OSError):
        if _identity(os.stat(piece.file.path)) == piece.file.identity:
            return piece
    return None


def laid_out(pieces: Sequence[Piece]) -> tuple[list[int], dict[int, Piece], int]:
    """Where pieces of files lie in a region, what is to be laid into it, and its size in bytes.

    Pieces that follow each other in one file are laid as one, with what is between them, if that is
    less than a page.
    """
    places: list[int] = []
    laid: dict[int, Piece] = {}
    begin = top = 0
    for piece in pieces:
        last = laid.get(begin)
        gap = -1
        if last is not None and last.file is piece.file:
            gap = piece.offset - last.offset - last.nbytes
        if last is not None and 0 <= gap < PAGE:
            at = begin + piece.offset - last.offset
            laid[begin] = Piece(piece.file, last.offset, at - begin + piece.nbytes)
        else:
            begin = at = -(-top // PAGE) * PAGE + piece.offset % PAGE
            laid[begin] = piece
        places.append(at)
        top = at + piece.nbytes
    return places, laid, -(-top // PAGE) * PAGE


def region(nbytes: int, laid: Mapping[int, Piece], *, what: str) -> Bytes:
    """A region of memory, with pieces of files laid into it; all else is 0.

    Like `arena.allocate` it has room for one vector register behind its end.  Pages that belong to
    files cannot be written.

    laid: pieces by their offset in the region, as `laid_out` gives them.

    Raises:
        FileError: a file has been changed, or another has its name.
        OutOfMemoryError: the system does not give that many bytes, or does not lay the files.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, nbytes + ALIGN, flags=flags)
    except (OSError, ValueError, OverflowError):
        raise OutOfMemoryError(f"{what}: {nbytes} bytes cannot be allocated") from None
    made: Bytes = np.frombuffer(memory, np.uint8)[:nbytes]
    base = int(made.ctypes.data)
    for at, piece in laid.items():
        begin = at - at % PAGE
        first = piece.offset - piece.offset % PAGE
        length = piece.offset + piece.nbytes - first
        with open(piece.file.path, "rb") as file:
            if _identity(os.fstat(file.fileno())) != piece.file.identity:
                raise FileError(f"{piece.file.path!r} was changed while it was in use")
            how = mmap.PROT_READ, mmap.MAP_PRIVATE | _FIXED
            found = _mmap()(base + begin, length, *how, file.fileno(), first)
        if found != base + begin:
            raise OutOfMemoryError(f"{what}: {piece.file.path!r} cannot be mapped")
    return made
