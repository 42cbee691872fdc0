"""Files that a training run appends to but that cannot end it: a full disk is only a warning."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from engine.base import arguments
from engine.base.errors import FileError
from engine.system import files
from engine.system.progress import get_logger

MAX_WAITING = 10_000  # records that are kept while they cannot be written


class Tolerance:
    """Turn an error of the file system in this context into a warning, once.

    path: the file, as the warning names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_said = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Return the context."""
        try:
            yield
        except OSError as error:  # a FileError is one
            if not self._is_said:
                self._is_said = True
                name = repr(os.fspath(self._path))
                why = files.describe_error(error).removeprefix(f"cannot write {name}: ")
                get_logger().warning(
                    f"cannot write {name}: {why}; the training goes on, and what is missing is "
                    "written as soon as it can be"
                )


def make_writable(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path of a file after creating its folder and writing the file for a trial.

    what: the file, in the error.

    Raises:
        FileError: the folder cannot be made, or the file cannot be written.
    """
    place = Path(arguments.check_path(what, path))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.resolve_target(os.fspath(place))
        with files.staging(os.fspath(place.parent)):
            pass
        if place.exists():
            place.open("ab").close()
    except OSError as error:
        name = repr(os.fspath(place))
        why = files.describe_error(error).removeprefix(f"cannot write {name}: ")
        raise FileError(
            f"cannot write the {what} {name}: {why}; give a folder that can be written to"
        ) from error
    return place


class LogFile:
    """A growing file of records that others may read meanwhile.

    A record reaches the file at once and completely, or not at all.  Records that cannot be written
    are kept, the newest `MAX_WAITING` of them, until a later one can be written.

    Args:
        path: the file; its folder is created.
        what: the file, in errors.
        kept: its initial content; None for its present content.

    Raises:
        FileError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], what: str, kept: bytes | None = None) -> None:
        self.path = make_writable(path, what)
        self._tolerance = Tolerance(self.path)
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        if kept is not None:
            files.write(os.fspath(self.path), [kept])

    def add(self, record: bytes) -> None:
        """Write a record, after the waiting ones."""
        self._waiting.append(record)
        self.catch_up()

    def catch_up(self) -> None:
        """Write the waiting records, if that is possible by now."""
        if not self._waiting:
            return
        with self._tolerance(), open(self.path, "ab", buffering=0) as file:
            while self._waiting:
                end = file.seek(0, os.SEEK_END)
                rest = memoryview(self._waiting[0])
                try:
                    while rest:  # a disk that is full within a record takes a part of it
                        rest = rest[file.write(rest) :]
                except OSError:
                    with contextlib.suppress(OSError):
                        file.truncate(end)
                    raise
                self._waiting.popleft()

    def replace(self, content: bytes) -> bool:
        """Rewrite the whole file in one step; return whether that was possible.

        Waiting records are dropped, because the content includes them.
        """
        with self._tolerance():
            files.write(os.fspath(self.path), [content])
            self._waiting.clear()
            return True
        return False
