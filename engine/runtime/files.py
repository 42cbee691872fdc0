"""Files: reads whose errors say what is wrong, and writes that never leave half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import limits
from engine.errors import EngineError, FileError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

NOTE = "edgegrad."  # with this begin the keys of a model's metadata that are this package's own


def read(path: str, what: str) -> bytes:
    """The contents of a regular file; `what` it is called in errors.

    Raises:
        FileError: it is missing, unreadable or no regular file.
        LimitError: it has more bytes than the limit FILE_BYTES; nothing is read.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or device may never end
            raise FileError(f"cannot read {what} {path!r}: not a regular file")
        limits.check("FILE_BYTES", found.st_size, f"cannot read {what} {path!r}")
        with open(path, "rb") as file:
            return file.read()
    except EngineError:
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

    When it returns, the file outlives a power cut.  A symbolic link is followed, not replaced; a
    folder, device or pipe is refused.

    Raises:
        FileError: it could not be written; what was there before is unchanged.  Only if the very
            last step failed, syncing the folder, the new content has taken its place.
    """
    path = target(path)
    try:
        replace(path, pieces)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {reason(error)}") from error


def replace(path: str, pieces: Iterable[bytes | memoryview], mode_of: str | None = None) -> None:
    """As `write`, for a path of no symbolic link, with the errors of the system.

    mode_of: a file whose permissions the new one gets, if it exists.

    Raises:
        OSError: it could not be written, as `write` says.
    """
    import secrets  # as tempfile below: a session that writes nothing does without

    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            if mode_of is not None:
                with contextlib.suppress(OSError):  # no such file, or a file system without modes
                    os.chmod(temporary, stat.S_IMODE(os.stat(mode_of).st_mode))
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Let renames, new and removed files in a folder outlive a power cut, if the system can.

    Windows opens no folders; NTFS keeps a journal of renames, in their order.  File systems that
    cannot sync folders, and folders that may not be read, are left to the system.

    Raises:
        FileError: the disk is full or broken.
    """
    try:
        fsync_folder(folder)
    except OSError as error:
        raise FileError(f"cannot write into the folder {folder!r}: {reason(error)}") from error


def fsync_folder(folder: str) -> None:
    """As `sync_folder`, with the errors of the system.

    Raises:
        OSError: as `sync_folder`.
    """
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder or ".", os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: str) -> None:
    """Make a folder, and those above it that are missing; they outlive a power cut.

    Raises:
        FileError: it cannot be made, or there is something that is no folder.
    """
    missing = []
    place = os.path.abspath(folder)
    while not os.path.isdir(place):
        missing.append(place)
        place = os.path.dirname(place)
        if place in missing:
            break
    try:
        for each in reversed(missing):
            try:
                os.mkdir(each)
            except FileExistsError:
                if not os.path.isdir(each):
                    raise
            fsync_folder(os.path.dirname(each))
    except OSError as error:
        raise FileError(f"cannot make the folder {folder!r}: {reason(error)}") from error


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


def replace_together(moves: Sequence[tuple[str, str]], keys: Sequence[str]) -> None:
    """Rename files that are of use together only, onto those of before.

    A crash leaves all of before, all of now, or no keys: without these nothing can read the others.
    When it returns, all of now outlive a power cut.

    moves: pairs of a file that is synced, and the path that it gets; all of them in one folder.
    keys: those of the new paths that are taken away first, and put back last.

    Raises:
        FileError: it is not possible; files of before may be gone.
    """
    folder = os.path.dirname(moves[0][1])
    gone = [target(path) for path in keys]
    if any(os.path.lexists(path) for path in gone):
        for path in gone:
            remove(path)
        sync_folder(folder)
    for is_key in (False, True):
        for source, path in moves:
            if (path in keys) == is_key:
                move(source, path)
        sync_folder(folder)


def move(source: str, path: str) -> None:
    """Rename a file onto another one, in one step; `sync_folder` lets that outlive a power cut.

    Raises:
        FileError: it is not possible; both are as they were.
    """
    path = target(path)
    try:
        os.replace(source, path)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {reason(error)}") from error


def remove(path: str) -> None:
    """Remove a file, if there is one.

    Raises:
        FileError: it cannot be removed.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise FileError(f"cannot remove {path!r}: {reason(error)}") from error


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
