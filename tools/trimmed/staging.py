"""Staging: files move into their folder when all of them are complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from engine.base.errors import FileError
from engine.system import files as files_io


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yield a new folder inside `out`; at the end its files replace those in `out`.

    If an error leaves the body, `out` is as it was, and is gone if it did not exist.

    Raises:
        FileError: the folder, or a file in it, cannot be written.
    """
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = files_io.describe_error(error)
        raise FileError(f"cannot write into the folder {out}: {reason}") from error
    try:
        with files_io.staging(os.fspath(out)) as folder:
            made = Path(folder)
            yield made
            for path in sorted(made.rglob("*")):
                place = out / path.relative_to(made)
                if path.is_dir():
                    place.mkdir(exist_ok=True)
                else:
                    files_io.move(os.fspath(path), os.fspath(place))
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it has files, as it should
                out.rmdir()
