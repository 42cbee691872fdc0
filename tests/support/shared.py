"""Folders that all processes of one test run share; each is made once (pytest-xdist)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "PYTEST_SHARED_FOLDER"  # of the environment that workers inherit


@functools.cache
def find_shared_folder() -> Path:
    """Return the folder of this test run; the process that makes it removes it at its end."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    folder = Path(tempfile.mkdtemp(prefix="edgegrad-shared-"))
    atexit.register(_remove, folder, os.getpid())
    os.environ[VARIABLE] = str(folder)
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a child that was forked
        shutil.rmtree(folder, ignore_errors=True)


def make_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of a name; the first process that asks for it makes it, others wait.

    Tests read these folders, and write to copies.
    """
    folder = find_shared_folder() / name
    done = folder.with_name(f"{name}.done")
    with _lock(folder.with_name(f"{name}.lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            make(folder)
            done.touch()
    return folder


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait until no other process has the file, and have it; it comes free with the process."""
    with open(path, "ab") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
