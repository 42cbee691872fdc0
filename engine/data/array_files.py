"""Files of arrays as NumPy writes them: `*.npy`, mapped from the disk, and `*.npz`.

A header may claim anything.  Its shape is compared with the bytes that the file has before memory
is asked for, and arrays of Python objects are refused, since reading them would run their code.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from engine.base import arguments, limits
from engine.base.aliases import Array
from engine.base.errors import (
    EngineError,
    FileError,
    InputError,
    NameNotFoundError,
    suggest_nearest,
)

SUFFIXES = (".npy", ".npz")
FLAWS = (ValueError, TypeError, SyntaxError, TokenError, OverflowError, RecursionError, EOFError)
DAMAGES = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)  # of an archive


def is_array_file(value: Any) -> bool:
    """Return whether it is a path whose name is one of a file of arrays."""
    return isinstance(value, str | os.PathLike) and os.fspath(value).lower().endswith(SUFFIXES)


def is_data_path(data: Any) -> bool:
    """Return whether data are given as a path, and not of a file of arrays."""
    return isinstance(data, str | os.PathLike) and not is_array_file(data)


def read(path: Any, names: Sequence[str] | None = None) -> Array | dict[str, Array]:
    """Return the array of a `*.npy` as a memory-map, or the arrays of a `*.npz` by their names.

    names: the names of the arrays of a `*.npz` that are read, in this order; by default all.

    Raises:
        FileError: the file is missing or cannot be read.
        InputError: it is not such a file, is cut off, or holds Python objects.
        NameNotFoundError: a `*.npz` has no array of such a name.
        LimitError: an array of a `*.npz` has more bytes than the limit FILE_BYTES.
    """
    place = arguments.check_path("path", path)
    try:
        if place.lower().endswith(".npz"):
            return _read_archive(place, names)
        if names is not None:
            raise InputError(
                f"{place!r} holds a single array without a name; names select arrays of a .npz file"
            )
        with open(place, "rb") as file:
            shape, fortran, dtype = _read_header(file, repr(place))
            begin = file.tell()
            _check_size(repr(place), shape, dtype, os.fstat(file.fileno()).st_size - begin)
        order = "F" if fortran else "C"
        if not math.prod(shape):
            return np.empty(shape, dtype)
        return np.memmap(place, dtype, "r", begin, shape, order)  # type: ignore[call-overload, no-any-return]  # "F" or "C"
    except OSError as error:
        raise FileError(f"cannot read {place!r}: {error.strerror or error}") from error


def list_names(path: str) -> list[str]:
    """Return the names of the arrays of a `*.npz`.

    Raises:
        FileError, InputError: as `read`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return list(_list_members(archive))
    except OSError as error:
        raise FileError(f"cannot read {path!r}: {error.strerror or error}") from error
    except EngineError:
        raise
    except DAMAGES as error:
        raise InputError(f"{path!r} is not a .npz file, or is damaged: {error}") from error


def _list_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive that are arrays, by their names."""
    return {
        info.filename.removesuffix(".npy"): info
        for info in archive.infolist()
        if info.filename.endswith(".npy")
    }


def _read_archive(place: str, names: Sequence[str] | None) -> dict[str, Array]:
    """Read the arrays of a `*.npz`."""
    try:
        with zipfile.ZipFile(place) as archive:
            members = _list_members(archive)
            if not members:
                raise InputError(f"{place!r} has no arrays; expected what numpy.savez writes")
            for name in names or ():
                if name not in members:
                    raise NameNotFoundError(
                        f"{place!r}: no array {name!r}; there are "
                        f"{', '.join(map(repr, members))}{suggest_nearest(name, members)}"
                    )
            chosen = list(members) if names is None else list(names)
            return {name: _read_member(archive, members[name], place, name) for name in chosen}
    except EngineError:
        raise
    except DAMAGES as error:
        raise InputError(f"{place!r} is not a .npz file, or is damaged: {error}") from error


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str, name: str) -> Array:
    where = f"{place!r}, array {name!r}"
    limits.check("FILE_BYTES", info.file_size, where)
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file, where)
        _check_size(where, shape, dtype, info.file_size - file.tell())
        content = file.read(math.prod(shape) * dtype.itemsize)
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise InputError(f"{where}: the file is cut off")
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _read_header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array: its shape, whether its first axis varies fastest, its type.

    Raises:
        InputError: it is not such a file, or its type is not of numbers or texts.
    """
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise InputError(f"{where}: version {version} of the format; supported: 1 and 2")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
    except FLAWS as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where} is not an array as numpy.save writes it: {error}") from error
    if dtype.hasobject:
        raise InputError(
            f"{where} holds Python objects (pickle), which are not read since they could run "
            "code; save an array of numbers or texts: array.astype(str) or np.float32"
        )
    if dtype.kind not in "biufcSU":
        raise InputError(f"{where} has the type {dtype}; expected numbers or texts")
    if any(size < 0 for size in shape):
        raise InputError(f"{where}: the header has the shape {list(shape)}")
    return shape, fortran, dtype


def _check_size(where: str, shape: tuple[int, ...], dtype: np.dtype[Any], have: int) -> None:
    needed = math.prod(shape) * dtype.itemsize
    if needed > have:
        raise InputError(
            f"{where}: the header says {dtype}{list(shape)}, {needed} bytes, and the file has "
            f"{have}: it is cut off or damaged"
        )
