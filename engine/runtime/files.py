"""Files: reads whose errors say what is wrong, and writes that never leave half a file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import FileError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

NOTE = "edgegrad."  # with this begin the keys of a model's metadata that are this package's own


def read(path: str, what: str) -> bytes:
    """The contents of a regular file; `what` it is called in errors.

    Raises:
        FileError: it is missing, unreadable or no regular file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe or device may never end
            raise FileError(f"cannot read {what} {path!r}: not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise FileError(f"cannot read {what} {path!r}: {reason(error)}") from error


def read_array(path: str, dtype: np.dtype[Any], count: int, offset: int, what: str) -> Array:
    """`count` elements of a binary file, from byte `offset` on.

    Raises:
        FileError: the file is missing, unreadable or too short.
    """
    end = offset + count * dtype.itemsize
    try:
        size = os.path.getsize(path)
        if end > size:
            raise FileError(
                f"{what}: bytes {offset} to {end} of {path!r}, which has {size}: it is incomplete"
            )
        return np.fromfile(path, dtype, count, offset=offset)
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"{what}: cannot read external data {path!r}: {reason(error)}") from error


def write(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Put a file with this content at `path`, in one step; its folder must exist.

    A symbolic link is followed, not replaced; a folder, device or pipe is refused.

    Raises:
        FileError: it could not be written; what was there before is unchanged.
    """
    import secrets  # as tempfile below: a session that writes nothing does without

    path = target(path)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # gone already, unless something failed


@contextlib.contextmanager
def staging(folder: str) -> Iterator[str]:
    """A new folder inside `folder`, for files that are to appear together; deleted at the end.

    Raises:
        FileError: it cannot be made.
    """
    import shutil
    import tempfile

    try:
        made = tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=folder or ".")
    except OSError as error:
        raise FileError(f"cannot write into the folder {folder!r}: {reason(error)}") from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def move(source: str, path: str) -> None:
    """Rename a file onto another one, in one step.

    Raises:
        FileError: it is not possible; both are as they were.
    """
    path = target(path)
    try:
        os.replace(source, path)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {reason(error)}") from error


def target(path: str) -> str:
    """The path to which a file for `path` is written: symbolic links are followed.

    Raises:
        FileError: there is something that is no regular file.
    """
    place = os.path.realpath(path)
    try:
        if os.path.lexists(place) and not stat.S_ISREG(os.stat(place).st_mode):
            kind = "Is a directory" if os.path.isdir(place) else "not a regular file"
            raise FileError(f"cannot write {path!r}: {kind}")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {reason(error)}") from error
    return place


def reason(error: Exception) -> str:
    """What an OSError says, without the path."""
    return getattr(error, "strerror", None) or str(error)
