"""Checkpoint files: reading, and writing such that a crash leaves the old or the new checkpoint.

A file is written under a temporary name, synced, and renamed over the old one: one rename is
atomic.  A checkpoint with external data is two files, `<path>` and `<path>.data`, and two renames
are not, so writing one goes through a state that survives a crash at any point:

    1. the new data appears as `<path>.data.odtc-new`; nothing refers to it yet
    2. the new main file appears as `<path>.odtc-new`; with this rename the new checkpoint counts
    3. `<path>.data.odtc-new` replaces `<path>.data`
    4. `<path>.odtc-new` replaces `<path>`

`read` takes `<path>.odtc-new` if it exists, with `<path>.data.odtc-new` or, after step 3, with
`<path>.data`; it changes nothing.  The next `write` first completes steps 3 and 4.  A program that
knows only the two final names can see a mixed pair between steps 3 and 4, and after a crash there
until the next `write`.  Only one process at a time may write a path that uses external data.

A killed process may leave a temporary file `<path>.<16 hex digits>.tmp`, which nothing reads.  A
`<path>.data` that a smaller checkpoint no longer needs stays where it is.  A new file takes the
permissions of the one it replaces.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterable

from engine.base import arguments
from engine.base.aliases import Array, StrPath
from engine.base.errors import CheckpointError, FileError
from engine.checkpoint.contents import (
    Checkpoint,
    NominalTensor,
    OptimizerGroup,
    decode,
    has_external_data,
    is_nominal,
)
from engine.checkpoint.encoding import EXTERNAL_THRESHOLD, encode, encode_parts
from engine.checkpoint.flatbuffer import MAX_BYTES
from engine.system import files

__all__ = [
    "EXTERNAL_THRESHOLD",
    "Array",
    "Checkpoint",
    "NominalTensor",
    "OptimizerGroup",
    "decode",
    "encode",
    "has_external_data",
    "holds_values",
    "move",
    "read",
    "write",
]


_NEW = ".odtc-new"


def read(path: StrPath, allocate: Callable[[Checkpoint], None] | None = None) -> Checkpoint:
    """Return the checkpoint in the file `path`, with values from `<path>.data` if it refers to it.

    Nothing refers to the files afterwards: they may change or be deleted.

    Args:
        allocate: See `decode`.

    Raises:
        FileError: The file or its companion is missing, unreadable or not a regular file, or
            another process has replaced it meanwhile.
        CheckpointError: The contents are corrupt or not supported, see `decode`.
    """
    name = os.path.realpath(arguments.check_path("checkpoint", path))
    try:
        with contextlib.ExitStack() as opened:
            main_name, data_name = _find_current(name)
            main = opened.enter_context(_open(main_name))
            size = os.fstat(main.fileno()).st_size
            if size > MAX_BYTES:
                raise CheckpointError(f"{name}: {size} bytes; a checkpoint has up to {MAX_BYTES}")
            if not has_external_data(main, name):
                return decode(main, source=name, allocate=allocate)
            data = opened.enter_context(_open(data_name))
            # The open files keep their content, so it only matters that they belong to one
            # checkpoint.
            if _find_current(name) != (main_name, data_name) or not os.path.samestat(
                os.stat(main_name), os.fstat(main.fileno())
            ):
                raise FileError(f"cannot read checkpoint {name!r}: it is being replaced; try again")
            return decode(main, data, name, allocate)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot read checkpoint {name!r}: {_explain(error)}") from error


def holds_values(path: StrPath) -> bool:
    """Return whether there is a checkpoint at `path` whose parameters have values."""
    name = os.path.realpath(arguments.check_path("checkpoint", path))
    try:
        with _open(_find_current(name)[0]) as file:
            return not is_nominal(file, name)
    except (OSError, FileError, CheckpointError):
        return False


def write(
    cp: Checkpoint,
    path: StrPath,
    *,
    artifact: bool = False,
    external_threshold: int = EXTERNAL_THRESHOLD,
) -> None:
    """Write a checkpoint file, and `<path>.data` if the tensors reach `external_threshold` bytes.

    The old checkpoint stays in place and complete until the new one is durable; a symbolic link is
    followed, not replaced.  See `encode` for `artifact` and `external_threshold`.

    Raises:
        FileError: The checkpoint could not be written; the old one is unchanged.  Only if the very
            last steps failed (4, or syncing the directory), the new one has replaced it.
        CheckpointError, DTypeError, InputError: See `encode`; nothing was touched.
    """
    name = os.path.realpath(arguments.check_path("checkpoint", path))
    main, data = encode_parts(cp, artifact=artifact, external_threshold=external_threshold)
    try:
        if os.path.lexists(name):
            _require_file(name)
        _complete(name)
        if data is None:
            files.replace(name, main, mode_of=name)
        else:
            _replace_pair(name, main, data)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write checkpoint {name!r}: {_explain(error)}") from error


def move(source: StrPath, target: StrPath) -> None:
    """Move a checkpoint that was written elsewhere on this disk to its place, as `write` would.

    Raises:
        FileError: see `write`.
    """
    here, name = os.fspath(source), os.path.realpath(arguments.check_path("checkpoint", target))
    try:
        with contextlib.suppress(OSError):  # no such file, or a file system without modes
            os.chmod(here, stat.S_IMODE(os.stat(name).st_mode))
        _complete(name)
        if os.path.exists(here + ".data"):
            os.replace(here + ".data", name + ".data" + _NEW)
            files.fsync_folder(os.path.dirname(name))  # before anything refers to it
        os.replace(here, name + _NEW)
        _complete(name)
    except OSError as error:
        raise FileError(f"cannot write checkpoint {name!r}: {_explain(error)}") from error


def _explain(error: OSError) -> str:
    place = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{place}"


def _require_file(name: str) -> None:
    """Refuse directories, and devices and pipes, where reading might never end."""
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise FileError(f"{name!r} is not a regular file")


def _open(name: str) -> io.FileIO:
    _require_file(name)
    return open(name, "rb", buffering=0)


def _find_current(name: str) -> tuple[str, str]:
    """Return the names under which main file and companion data are found now."""
    data = name + ".data"
    if not os.path.exists(name + _NEW):
        return name, data
    return name + _NEW, data + _NEW if os.path.exists(data + _NEW) else data


def _replace_pair(
    name: str, main: Iterable[bytes | memoryview], data: Iterable[bytes | memoryview]
) -> None:
    """Do steps 1 to 4; a failure before step 3 takes the steps back."""
    new_main, new_data = name + _NEW, name + ".data" + _NEW
    try:
        files.replace(new_data, data, mode_of=name + ".data")
        files.replace(new_main, main, mode_of=name)
        _complete(name)
    except BaseException:
        # If new_data is gone, step 3 has happened, and the old data with it.
        if os.path.exists(new_data):
            with contextlib.suppress(OSError):
                if os.path.exists(new_main):
                    os.unlink(new_main)
                    files.fsync_folder(os.path.dirname(name))
                os.unlink(new_data)
        raise


def _complete(name: str) -> None:
    """Do steps 3 and 4 if step 2 has happened; otherwise remove what step 1 may have left."""
    new_main, new_data = name + _NEW, name + ".data" + _NEW
    if not os.path.exists(new_main):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_data)
        return
    if os.path.exists(new_data):
        os.replace(new_data, name + ".data")
    files.fsync_folder(
        os.path.dirname(name)
    )  # the data must be durable under its final name before step 4
    os.replace(new_main, name)
    files.fsync_folder(os.path.dirname(name))
