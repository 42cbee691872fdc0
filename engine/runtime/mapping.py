"""Files in memory: arrays that stay in their file, and regions with pages of files.

A page of a file that is mapped is read when it is first touched, shared by all processes that map
it, and dropped when memory is short: it does not belong to this process alone.  A mapped file must
keep its bytes.  To replace it by another under its name, as `files.write` does, is safe: the
mapping keeps the old one.  To cut it short in place is not: the system ends a process that touches
what is gone (SIGBUS).  `MappedFile.check` reports a file that was changed in place.

Where the system cannot lay a file into a region, as Windows, regions hold copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from engine.base import limits
from engine.base.aliases import Array, Bytes
from engine.base.errors import EngineError, FileError, OutOfMemoryError
from engine.plan.plan import ALIGN
from engine.system.files import (
    NOTE,
    describe_error,
    is_inside,
    naming_data,
    open_file,
    refuse_short,
)

PAGE = mmap.ALLOCATIONGRANULARITY
_FIXED = 0x10  # MAP_FIXED, which mmap does not name; the same on Linux and macOS


class MappedFile(mmap.mmap):
    """The bytes of a file, read-only.

    path: its name when it was opened.  identity: device, inode, size in bytes and time of change.
    address: where its first byte is.
    lays: whether regions may have its pages: external data may be used, but not a model's own
        file, which exporters rewrite in place.
    """

    path: str
    lays: bool
    identity: tuple[int, int, int, int]
    address: int

    def check(self) -> None:
        """Check that the file is as it was when it was mapped; another one may have its name.

        Raises:
            FileError: it was changed in place, so that what has been read of it may be wrong.
        """
        current = self.identity
        with contextlib.suppress(OSError):  # gone: nobody changes it any more
            current = _identify(os.stat(self.path))
        if current[:2] == self.identity[:2] and current != self.identity:
            raise FileError(f"{self.path!r} was changed while it was in use: open it again")


class MappedPiece(NamedTuple):
    """A run of bytes of a mapped file."""

    file: MappedFile
    offset: int
    nbytes: int


Content: TypeAlias = bytes | MappedFile

STAMPS = (
    NOTE + "external"
)  # in the metadata of a model: `compute_stamp` of each file that it refers to
_PARTS, _PART = 64, 4096
_ROOM = 1 << 20
LARGE = 1 << 26  # bytes of a model's file from which on it is mapped
_mapped: weakref.WeakSet[MappedFile] = weakref.WeakSet()


def _identify(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _map(
    descriptor: int, path: str, identity: tuple[int, int, int, int], *, lays: bool
) -> MappedFile:
    mapped = MappedFile(descriptor, 0, access=mmap.ACCESS_READ)
    mapped.path, mapped.identity, mapped.lays = path, identity, lays
    mapped.address = int(np.frombuffer(mapped, np.uint8).ctypes.data)
    _mapped.add(mapped)
    return mapped


def read(path: str, what: str) -> Content:
    """Return the contents of a regular file; one of `LARGE` bytes or more is mapped, and stays
    there.

    what: what errors call it.

    Raises:
        FileError: it is missing, unreadable or no regular file.
        LimitError: it has more bytes than the limit FILE_BYTES; nothing is read.
    """
    try:
        with open_file(path) as file:
            identity = _identify(os.fstat(file.fileno()))
            limits.check("FILE_BYTES", identity[2], f"cannot read {what} {path!r}")
            return (
                file.read()
                if identity[2] < LARGE
                else _map(file.fileno(), path, identity, lays=False)
            )
    except FileError as error:
        raise FileError(f"cannot read {what} {path!r}: {error}") from None
    except EngineError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise FileError(f"cannot read {what} {path!r}: {describe_error(error)}") from error


def spill(pieces: Iterable[bytes | memoryview]) -> MappedFile:
    """Put bytes into a mapped file without a name, so that the system may page them out.

    Raises:
        FileError: the temporary file cannot be written.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile() as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            return _map(file.fileno(), "", _identify(os.fstat(file.fileno())), lays=False)
    except OSError as error:
        raise FileError(f"cannot write a temporary file: {describe_error(error)}") from error


def make_room(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return an array for values that are computed to be written; a large one is in a file without
    a name.

    The system may take the pages of such a file from memory; arrays of 1 MB or more are large.

    Raises:
        FileError: the temporary file cannot be made, or the disk has not that much room.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _ROOM or not hasattr(os, "posix_fallocate"):
        return np.empty(shape, dtype)
    import tempfile

    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            memory = mmap.mmap(file.fileno(), nbytes)
    except OSError as error:
        raise FileError(f"cannot write a temporary file: {describe_error(error)}") from error
    return np.frombuffer(memory, dtype).reshape(shape)


def open_array(
    path: str, dtype: np.dtype[Any], count: int, offset: int, what: str, model: str = ""
) -> Array:
    """Map `count` elements of a binary file from byte `offset` on, read-only.

    what: what errors call them.  model: as `files.open_file` takes it.

    Raises:
        FileError: the file is missing, unreadable, too short, or not where `opened` wants it.
    """
    end = offset + count * dtype.itemsize
    with naming_data(what, path), open_file(path, model) as file:
        identity = _identify(os.fstat(file.fileno()))
        refuse_short(path, identity[2], offset, end)
        if count == 0:
            return np.zeros(0, dtype)
        mapped = next((f for f in _mapped if f.lays and f.identity == identity), None)
        if mapped is None:
            mapped = _map(file.fileno(), path, identity, lays=True)
    return np.frombuffer(mapped, dtype, count, offset)


def find_source(array: Array) -> MappedPiece | None:
    """Return the bytes of a mapped file that an array is, None if it is not, or is not
    contiguous.
    """
    if not array.flags.c_contiguous or array.nbytes == 0:
        return None
    at = int(array.ctypes.data)
    for file in _mapped:
        if file.address <= at and at + array.nbytes <= file.address + file.identity[2]:
            return MappedPiece(file, at - file.address, array.nbytes)
    return None


def place_below(array: Array, folder: str) -> tuple[str, int] | None:
    """Return the file in a folder or below it whose bytes an array is: its path from there, and
    where.

    None if there is no such file, if the bytes do not begin at a multiple of `ALIGN`, as all bytes
    of files in regions do, or if the file was changed or has lost its name.
    """
    piece = find_source(array)
    if piece is None or piece.offset % ALIGN or not piece.file.lays:
        return None
    inside = os.path.relpath(os.path.realpath(piece.file.path), os.path.realpath(folder or "."))
    inside = inside.replace(os.sep, "/")
    if not is_inside(inside):
        return None
    with contextlib.suppress(OSError):
        if _identify(os.stat(piece.file.path)) == piece.file.identity:
            return inside, piece.offset
    return None


def compute_stamp(path: str) -> str:
    """Return a stamp of a file's content: its size and a digest of 64 parts spread over it.

    Weights that were trained, converted or exported again have another stamp; changes between the
    parts, of 4096 bytes each, are not noticed.

    Raises:
        FileError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            for part in range(_PARTS):
                file.seek(max(size - _PART, 0) * part // (_PARTS - 1))
                digest.update(file.read(_PART))
    except OSError as error:
        raise FileError(f"cannot read external data {path!r}: {describe_error(error)}") from error
    return f"{size} {digest.hexdigest()}"


def check_stamps(text: str, model: str) -> None:
    """Refuse a model beside which external data are not what it was made with.

    text: what `onnx_io.list_stamps` told then: JSON of stamps by path from the folder of the model.
    model: its path.

    Raises:
        FileError: a file is missing, cannot be read or has another content.
    """
    try:
        known = dict[Any, Any](json.loads(text))
    except (ValueError, TypeError, RecursionError):
        known = {"": text}
    for name, expected in known.items():
        path = os.path.join(os.path.dirname(model), str(name))
        if not is_inside(str(name)):
            raise FileError(f"{model!r}: external data {name!r} is not in the model's folder")
        current = compute_stamp(path)
        if current != expected:
            raise FileError(
                f"{model!r} refers to constants in {path!r}, which has been changed since then: "
                "make the artifacts again, or put back the file that they were made of"
            )


@functools.cache
def _load_mmap() -> Any:
    """Return the function of the C library; None where files cannot be laid into regions."""
    if not sys.platform.startswith(("linux", "darwin")):
        return None
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    return function


def find_layable(array: Array) -> MappedPiece | None:
    """Return the piece of a file that an array maps if it can be laid into a region, or None.

    They must begin at a multiple of `ALIGN`, as all that kernels read, and the file must still have
    its name.
    """
    piece = find_source(array) if _load_mmap() is not None else None
    if piece is None or piece.offset % ALIGN or not piece.file.lays:
        return None
    with contextlib.suppress(OSError):
        if _identify(os.stat(piece.file.path)) == piece.file.identity:
            return piece
    return None


def lay_out(pieces: Sequence[MappedPiece]) -> tuple[list[int], dict[int, MappedPiece], int]:
    """Return the offsets of pieces of files in a region, the pieces to map there, and its size.

    Pieces that follow each other in one file are laid as one, with what is between them, if that is
    less than a page.
    """
    places: list[int] = []
    laid: dict[int, MappedPiece] = {}
    begin = top = 0
    for piece in pieces:
        last = laid.get(begin)
        gap = -1
        if last is not None and last.file is piece.file:
            gap = piece.offset - last.offset - last.nbytes
        if last is not None and 0 <= gap < PAGE:
            at = begin + piece.offset - last.offset
            laid[begin] = MappedPiece(piece.file, last.offset, at - begin + piece.nbytes)
        else:
            begin = at = -(-top // PAGE) * PAGE + piece.offset % PAGE
            laid[begin] = piece
        places.append(at)
        top = at + piece.nbytes
    return places, laid, -(-top // PAGE) * PAGE


def make_region(nbytes: int, laid: Mapping[int, MappedPiece], *, what: str) -> Bytes:
    """Return a region of memory, with pieces of files laid into it; everything else is 0.

    Like `arena.allocate` it has room for one vector register after its end.  Pages that belong to
    files cannot be written.

    laid: pieces by their offset in the region, as `lay_out` gives them.

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
            if _identify(os.fstat(file.fileno())) != piece.file.identity:
                raise FileError(f"{piece.file.path!r} was changed while it was in use")
            how = mmap.PROT_READ, mmap.MAP_PRIVATE | _FIXED
            address = _load_mmap()(base + begin, length, *how, file.fileno(), first)
        if address != base + begin:
            raise OutOfMemoryError(f"{what}: {piece.file.path!r} cannot be mapped")
    return made
