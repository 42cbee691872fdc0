"""Folders whose sub-folders are classes: `photos/<class>/<file>`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import FileError, InputError, NameNotFoundError, nearest


@dataclass(frozen=True)
class Listing:
    """Files and their classes.

    Attributes:
        paths: of the files, class by class, in order of their names.
        labels: the class of each file, as its index into `classes` (int64).
        classes: names of the sub-folders.
    """

    paths: list[str]
    labels: npt.NDArray[np.int64]
    classes: list[str]


def classes_of(
    folder: Any, suffixes: Sequence[str], what: str, classes: Sequence[str] | None = None
) -> Listing:
    """List the files of a folder whose sub-folders are classes, without hidden ones.

    Args:
        folder: a path.
        suffixes: of the files to list, in lower case, as ".jpg"; others are passed over.
        what: what the files are called in messages, as "pictures".
        classes: names of the classes in the order of their labels; by default the sub-folders in
            the order of their names.

    Raises:
        FileError: there is no such folder, or it cannot be read.
        InputError: a class has no files, or holds folders alone, as a split (`train`, `val`) does;
            or there are fewer than two classes.
        NameNotFoundError: a sub-folder is none of `classes`.
    """
    path = arguments.path("folder", folder)
    shape = f"expected {os.path.join(path, '<class>', '<file>')} with {_listed(suffixes)}"
    entries = _entries(path)
    folders = [name for name in entries if os.path.isdir(os.path.join(path, name))]
    if not folders:
        loose = [name for name in entries if name.lower().endswith(tuple(suffixes))]
        told = f"{len(loose)} {what}, but no sub-folders" if loose else "nothing to read"
        raise InputError(f"{path!r} has {told}; {shape}")
    known = folders if classes is None else arguments.names("classes", classes)
    if len(set(known)) < len(known):
        raise InputError(f"classes={known}: a name stands there twice")
    for name in folders:
        if name not in known:
            raise NameNotFoundError(
                f"{path!r}: the sub-folder {name!r} is none of the classes{nearest(name, known)}"
            )
    if len(known) < 2:
        raise InputError(
            f"{path!r} has one class, {known[0]!r}; a classifier needs two or more: {shape}"
        )
    _refuse_splits(path, folders, suffixes, what)
    paths: list[str] = []
    labels: list[int] = []
    for name in folders:
        files = list(files_of(os.path.join(path, name), suffixes))
        if not files:
            raise InputError(f"{path!r}: no {what} in the class {name!r}; {shape}")
        paths += files
        labels += [known.index(name)] * len(files)
    return Listing(paths, np.array(labels, np.int64), list(known))


def _refuse_splits(path: str, folders: Sequence[str], suffixes: Sequence[str], what: str) -> None:
    """Refuse sub-folders that hold folders of files and no files: these are not classes."""
    for name in folders:
        place = os.path.join(path, name)
        inner = _entries(place)
        deeper = [each for each in inner if os.path.isdir(os.path.join(place, each))]
        if deeper and not any(each.lower().endswith(tuple(suffixes)) for each in inner):
            shown = ", ".join(map(repr, deeper[:3])) + (", ..." if len(deeper) > 3 else "")
            raise InputError(
                f"{path!r}: the sub-folder {name!r} holds the folders {shown} and no {what}, so it "
                f"is a split or a group and not a class; give the folder above the classes, as "
                f"{place!r} (and another one as the validation data)"
            )


def all_of(folder: Any, suffixes: Sequence[str], what: str) -> list[str]:
    """List the files of a folder at any depth, in order of names; a file is itself.

    Raises:
        FileError: there is no such folder, or it cannot be read.
        InputError: there are none.
    """
    path = arguments.path("folder", folder)
    if os.path.isfile(path):
        return [path]
    _entries(path)
    paths = list(files_of(path, suffixes))
    if not paths:
        raise InputError(f"{path!r}: no {what}; expected {_listed(suffixes)}")
    return paths


def files_of(folder: str, suffixes: Sequence[str]) -> Iterator[str]:
    """List every file with one of these suffixes in a folder at any depth, in order of names.

    Raises:
        FileError: a folder cannot be read.
    """
    for name in _entries(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from files_of(path, suffixes)
        elif name.lower().endswith(tuple(suffixes)):
            yield path


def _entries(folder: str) -> list[str]:
    """List the names in a folder, in order, without hidden ones."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except NotADirectoryError:
        raise FileError(f"{folder!r} is a file; expected a folder") from None
    except OSError as error:
        raise FileError(f"cannot read the folder {folder!r}: {error.strerror or error}") from error


def _listed(suffixes: Sequence[str]) -> str:
    return f"files as *{', *'.join(suffixes)}"
