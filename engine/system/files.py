"""Files: reads whose errors say what is wrong, and writes that never leave half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from engine.base import limits
from engine.base.errors import EngineError, FileError, suggest_nearest

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # of Windows; for pipes
_STAGE = ".edgegrad-"  # how names of folders begin that `staging` makes
_ABANDONED = 86400.0  # seconds after which the process that made one is taken for dead
NOTE = "edgegrad."  # prefix of this package's own keys in a model's metadata
BFLOATS = NOTE + "bfloats"  # the key of the names, as JSON, of values that a file has as bfloat16
SHARES = "shares"  # the key of the name of a target of shares of classes


def read(path: str, what: str) -> bytes:
    """Return the contents of a regular file; `what` it is called in errors.

    Raises:
        FileError: it is missing, unreadable or no regular file.
        LimitError: it has more bytes than the limit FILE_BYTES; nothing is read.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or device may never end
            raise FileError(f"cannot read {what} {path!r}: not a regular file")
        limits.check("FILE_BYTES", status.st_size, f"cannot read {what} {path!r}")
        with open(path, "rb") as file:
            return file.read()
    except EngineError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise FileError(f"cannot read {what} {path!r}: {describe_error(error)}") from error


def check_exists(path: Path) -> None:
    """Refuse a path where there is neither a file nor a folder.

    Raises:
        FileError: so it is; the message has the nearest name of its folder.
    """
    try:
        path.stat()
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileError(f"{path}: {describe_error(error)}") from error
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(path.parent)
        near = suggest_nearest(path.name, names)
        raise FileError(f"{path}: no such file or folder{near}") from None


def open_file(path: str, model: str = "") -> BinaryIO:
    """Return a regular file, open for reading.

    model: the path of the model whose external data it is.  The file must then lie in the folder of
        the model when all symbolic links are followed; or, where the path of the model is itself a
        link, in the folder that this leads to, as in the caches of model hubs.  It is opened
        without following a link, so that none can be put in its place meanwhile.

    Raises:
        FileError: it is not a regular file, or leads out of the folder.
        OSError: it is missing or cannot be read.
    """
    place, flags = os.path.realpath(path), os.O_RDONLY | _PLAIN
    if not stat.S_ISREG(os.stat(place).st_mode):  # opening a device may do something
        raise FileError(f"{path!r} is not a regular file")
    if not model:
        descriptor = os.open(place, flags)
    else:
        paths = os.path.abspath(model), os.path.realpath(model)
        folders = [os.path.realpath(os.path.dirname(each)) for each in paths]
        folder = next((each for each in folders if _is_inside(place, each)), None)
        if folder is None:
            raise FileError(f"{path!r} leads to {place!r}, outside the folder of the model")
        descriptor = _open_inside(folder, os.path.relpath(place, folder), flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{path!r} is not a regular file")
    return os.fdopen(descriptor, "rb")


def is_inside(location: str) -> bool:
    """Return whether a name from a file stays inside a folder, on any system.

    It has no drive, no root and no `..`, and on Windows no colon, which starts a stream of a file.
    """
    path = PureWindowsPath(location)  # both kinds of separators
    colon = os.name == "nt" and ":" in location
    return bool(path.name) and not (path.drive or path.root or ".." in path.parts or colon)


def _is_inside(place: str, folder: str) -> bool:
    try:
        return os.path.commonpath((place, folder)) == folder
    except ValueError:  # of two drives
        return False


def _open_inside(folder: str, path: str, flags: int) -> int:
    """Return the descriptor of a file below a folder, on whose path no symbolic link is
    followed.
    """
    if os.open not in os.supports_dir_fd:
        return os.open(os.path.join(folder, path), flags)
    *above, name = path.split(os.sep)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for each in above:
            below = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


@contextlib.contextmanager
def naming_data(what: str, path: str) -> Iterator[None]:
    """Turn errors of the block, which reads external data, into ones that name what is read.

    Raises:
        FileError: the block raised one, an OSError or a ValueError.
    """
    try:
        yield
    except FileError as error:
        raise FileError(f"{what}: {error}") from None
    except (OSError, ValueError) as error:
        raise FileError(
            f"{what}: cannot read external data {path!r}: {describe_error(error)}"
        ) from error


def refuse_short(path: str, size: int, start: int, end: int) -> None:
    """Refuse a file whose size in bytes is less than the end of the bytes to read.

    Raises:
        FileError: it is.
    """
    if end > size:
        raise FileError(f"bytes {start} to {end} of {path!r}, which has {size}: it is incomplete")


def read_array(
    path: str, dtype: np.dtype[Any], count: int, offset: int, what: str, model: str = ""
) -> Array:
    """Read `count` elements of a binary file, from byte `offset` on.

    model: as `open_file` takes it.

    Raises:
        FileError: the file is missing, unreadable, too short, or not where `open_file` wants it.
    """
    end = offset + count * dtype.itemsize
    with naming_data(what, path), open_file(path, model) as file:
        refuse_short(path, os.fstat(file.fileno()).st_size, offset, end)
        return np.fromfile(file, dtype, count, offset=offset)


def write(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Put a file with this content at `path`, in one step; its folder must exist.

    When it returns, the file outlives a power cut.  A symbolic link is followed, not replaced; a
    folder, device or pipe is refused.

    Raises:
        FileError: it could not be written; what was there before is unchanged.  Only if the very
            last step failed, syncing the folder, the new content has taken its place.
    """
    path = resolve_target(path)
    try:
        replace(path, pieces)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {describe_error(error)}") from error


def replace(path: str, pieces: Iterable[bytes | memoryview], mode_of: str | None = None) -> None:
    """Do the same as `write`, for a path without symbolic links, with the system's errors.

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
        raise FileError(
            f"cannot write into the folder {folder!r}: {describe_error(error)}"
        ) from error


def fsync_folder(folder: str) -> None:
    """Do the same as `sync_folder`, with the system's errors.

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
        FileError: it cannot be made, or something else than a folder is there.
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
        raise FileError(f"cannot make the folder {folder!r}: {describe_error(error)}") from error


@contextlib.contextmanager
def staging(folder: str) -> Iterator[str]:
    """Make a folder inside `folder` for files that are to appear together; delete it at the end.

    Those that killed processes have left there a day ago or earlier are deleted, too.

    Raises:
        FileError: it cannot be made.
    """
    import shutil
    import tempfile

    for left in _list_abandoned(folder or "."):
        shutil.rmtree(left, ignore_errors=True)
    try:
        made = tempfile.mkdtemp(prefix=_STAGE, suffix=".tmp", dir=folder or ".")
    except OSError as error:
        raise FileError(
            f"cannot write into the folder {folder!r}: {describe_error(error)}"
        ) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _list_abandoned(folder: str) -> list[str]:
    """Return the folders in `folder` that `staging` made long ago, and that nothing was put into
    since.
    """
    oldest, paths = time.time() - _ABANDONED, []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_STAGE) and entry.name.endswith(".tmp"):
                known = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(known.st_mode) and known.st_mtime < oldest:
                    paths.append(entry.path)
    return paths


def replace_together(moves: Sequence[tuple[str, str]], keys: Sequence[str]) -> None:
    """Rename files that belong together onto the previous ones.

    A crash leaves all previous files, all new files, or no keys: without keys nothing can read the
    others.  When it returns, the new files survive a power cut.

    moves: pairs of a file that is synced, and the path that it gets; all of them in one folder.
    keys: the new paths that are removed first, and put back last.

    Raises:
        FileError: it is not possible; previous files may be gone.
    """
    folder = os.path.dirname(moves[0][1])
    gone = [resolve_target(path) for path in keys]
    if any(os.path.lexists(path) for path in gone):
        for path in gone:
            remove(path)
        sync_folder(folder)
    for is_key in (False, True):
        for source, path in moves:
            if (path in keys) == is_key:
                move(source, path)
        sync_folder(folder)


def copy(source: str, path: str) -> None:
    """Let a new path have the content of a file: as a second name of it, otherwise as a copy.

    For files that are replaced and never changed, such as artifacts.

    Raises:
        FileError: it cannot be made.
    """
    import shutil

    try:
        os.link(source, path)
    except OSError:  # of two devices, or a file system without links
        try:
            shutil.copyfile(source, path)
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"cannot write {path!r}: {describe_error(error)}") from error


def move(source: str, path: str) -> None:
    """Rename a file onto another one, in one step; `sync_folder` lets that outlive a power cut.

    Raises:
        FileError: it is not possible; both are as they were.
    """
    path = resolve_target(path)
    try:
        os.replace(source, path)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {describe_error(error)}") from error


def remove(path: str) -> None:
    """Remove a file, if there is one.

    Raises:
        FileError: it cannot be removed.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise FileError(f"cannot remove {path!r}: {describe_error(error)}") from error


def resolve_target(path: str) -> str:
    """Return the path to which a file for `path` is written: symbolic links are followed.

    Raises:
        FileError: something else than a regular file is there.
    """
    place = os.path.realpath(path)
    try:
        if os.path.lexists(place) and not stat.S_ISREG(os.stat(place).st_mode):
            kind = "Is a directory" if os.path.isdir(place) else "not a regular file"
            raise FileError(f"cannot write {path!r}: {kind}")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {describe_error(error)}") from error
    return place


def describe_error(error: Exception) -> str:
    """Return the message of an OSError, without the path."""
    return getattr(error, "strerror", None) or str(error)
