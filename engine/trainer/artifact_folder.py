"""Folders of artifacts: a given one, or a temporary one that goes with what was made of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator

from engine.base import arguments


@contextlib.contextmanager
def provide_folder(given: str | os.PathLike[str] | None) -> Iterator[str]:
    """Provide the given folder, or a temporary one, which is removed if the block fails."""
    if given is not None:
        yield arguments.check_path("folder", given)
        return
    made = tempfile.mkdtemp(prefix="edgegrad-")
    try:
        yield made
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def remove_with(owner: object, folder: str) -> None:
    """Remove a temporary folder when its owner goes."""
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
