"""Folders whose sub-folders are classes: `photos/<class>/<file>`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import FileError, InputError, NameNotFoundError, suggest_nearest

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SHARE = 0.2  # of data that are not divided, to validate with
SPLITS = {  # the names of folders, in any case of letters
    TRAIN: ("train", "training"),
    VALIDATION: ("val", "valid", "validation", "dev"),
    TEST: ("test", "testing"),
}
_SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names}
PICTURES = ("images", "image", "imgs", "img", "pictures", "photos", "jpegimages")
MASKS = ("masks", "mask", "labels", "annotations", "segmentations", "segmentationclass")


@dataclass(frozen=True)
class Listing:
    """Files and their classes.

    Attributes:
        paths: the paths of the files, class by class, in order of their names.
        labels: the class of each file, as its index into `classes` (int64).
        classes: names of the sub-folders.
    """

    paths: list[str]
    labels: npt.NDArray[np.int64]
    classes: list[str]


def list_classes(
    folder: Any, suffixes: Sequence[str], what: str, classes: Sequence[str] | None = None
) -> Listing:
    """List the files of a folder whose sub-folders are classes, without hidden ones.

    Args:
        folder: a path.
        suffixes: the suffixes of the files to list, in lower case, such as ".jpg".
        what: the word for the files in messages, such as "pictures".
        classes: names of the classes in the order of their labels; by default the sub-folders in
            the order of their names.

    Raises:
        FileError: there is no such folder, or it cannot be read.
        InputError: a class has no files, or holds folders alone, as a split (`train`, `val`) does;
            or there are fewer than two classes.
        NameNotFoundError: a sub-folder is not in `classes`.
    """
    path = arguments.check_path("folder", folder)
    shape = f"expected {os.path.join(path, '<class>', '<file>')} with {_join_names(suffixes)}"
    entries = _list_entries(path)
    folders = _list_folders(path)
    if not folders:
        loose = [name for name in entries if name.lower().endswith(tuple(suffixes))]
        told = f"{len(loose)} {what}, but no sub-folders" if loose else "nothing to read"
        raise InputError(f"{path!r} has {told}; {shape}")
    _refuse_splits(path, folders, suffixes, what)
    known = folders if classes is None else arguments.check_names("classes", classes)
    if len(set(known)) < len(known):
        raise InputError(f"classes={known}: a name occurs twice")
    for name in folders:
        if name not in known:
            raise NameNotFoundError(
                f"{path!r}: the sub-folder {name!r} is not one of the "
                f"classes{suggest_nearest(name, known)}"
            )
    if len(known) < 2:
        raise InputError(
            f"{path!r} has one class, {known[0]!r}; a classifier needs two or more: {shape}"
        )
    paths: list[str] = []
    labels: list[int] = []
    for name in folders:
        files = list(list_files(os.path.join(path, name), suffixes))
        if not files:
            raise InputError(f"{path!r}: no {what} in the class {name!r}; {shape}")
        paths += files
        labels += [known.index(name)] * len(files)
    return Listing(paths, np.array(labels, np.int64), list(known))


def _list_folders(path: str) -> list[str]:
    return [name for name in _list_entries(path) if os.path.isdir(os.path.join(path, name))]


def _refuse_splits(path: str, folders: Sequence[str], suffixes: Sequence[str], what: str) -> None:
    """Refuse sub-folders that are not classes: splits, pictures beside their masks, and folders
    that hold folders alone.
    """
    if find_pair(path) is not None:
        raise InputError(
            f"{path!r} holds pictures and their masks, in {' and '.join(map(repr, folders))}, "
            f"which are not classes: Masks({path!r}) reads them"
        )
    splits = find_splits(path)
    if splits:
        names = [os.path.basename(place) for place in splits.values()]
        first = next(iter(splits.values()))
        raise InputError(
            f"{path!r} is divided into {', '.join(map(repr, names))}, which are splits and not "
            f"classes; fit({path!r}) trains on one and validates on another, and "
            f"{first!r} alone is data of one split"
        )
    for name in folders:
        place = os.path.join(path, name)
        deeper = _list_folders(place)
        if deeper and not any(
            each.lower().endswith(tuple(suffixes)) for each in _list_entries(place)
        ):
            shown = ", ".join(map(repr, deeper[:3])) + (", ..." if len(deeper) > 3 else "")
            raise InputError(
                f"{path!r}: the sub-folder {name!r} holds the folders {shown} and no {what}, so it "
                f"is a split or a group and not a class; give the folder above the classes, as "
                f"{place!r} (and another one as the validation data)"
            )


def find_splits(folder: Any) -> dict[str, str]:
    """Return the folders of a root that is divided already, by "train", "validation" and "test".

    It is if all its sub-folders have names of `SPLITS`, and one of them is for training or holds
    folders itself.  Otherwise the sub-folders are classes, and nothing is returned.

    Raises:
        FileError: the folder cannot be read.
        InputError: two folders are the same split.
    """
    path = arguments.check_path("folder", folder)
    if not os.path.isdir(path):
        return {}
    names = _list_folders(path)
    splits: dict[str, str] = {}
    if not names or any(name.lower() not in _SPLIT_OF for name in names):
        return {}
    for name in names:
        split = _SPLIT_OF[name.lower()]
        if split in splits:
            before = os.path.basename(splits[split])
            raise InputError(
                f"{path!r}: the folders {before!r} and {name!r} are both the {split} data; "
                "leave one of them"
            )
        splits[split] = os.path.join(path, name)
    return splits if TRAIN in splits or any(map(_list_folders, splits.values())) else {}


def find_pair(folder: Any) -> tuple[str, str] | None:
    """Return the folders of pictures and of their masks in a folder that holds these two alone.

    Raises:
        FileError: the folder cannot be read.
    """
    from engine.data.pictures import MASK_SUFFIXES, SUFFIXES

    path = arguments.check_path("folder", folder)
    names = _list_folders(path) if os.path.isdir(path) else []
    known = {name.lower(): os.path.join(path, name) for name in names}
    of_pictures = [place for name, place in known.items() if name in PICTURES]
    of_masks = [place for name, place in known.items() if name in MASKS]
    if len(names) != 2 or len(of_pictures) != 1 or len(of_masks) != 1:
        return None
    pair = of_pictures[0], of_masks[0]
    are_there = [
        next(list_files(place, suffixes), None) is not None
        for place, suffixes in zip(pair, (SUFFIXES, MASK_SUFFIXES), strict=True)
    ]
    return pair if all(are_there) else None


def refuse_divided_pair(pictures: str, masks: str) -> None:
    """Refuse pictures and masks that are both divided into splits, since these would be mixed.

    Raises:
        InputError: they are.
    """
    splits = find_splits(pictures)
    if splits and find_splits(masks):
        first = os.path.basename(next(iter(splits.values())))
        root = os.path.dirname(pictures)
        raise InputError(
            f"{pictures!r} and {masks!r} are divided into splits, which would be one set of data: "
            "let the splits hold pictures and masks, such as "
            f"{os.path.join(root, first, 'images')!r} and {os.path.join(root, first, 'masks')!r}"
        )


def choose_validation(folder: Any) -> str | float:
    """Return the data at a path to validate with: a folder, or the share to be set apart.

    The share is 0 if the data are divided without a split for validation.
    """
    splits = find_splits(folder)
    return splits.get(VALIDATION, 0.0 if splits else SHARE)


def split_of(folder: Any, *wanted: str) -> str:
    """Return the folder of the first of these splits that a root has; a root without any itself.

    Raises:
        FileError: the folder cannot be read.
        InputError: it has splits, but none of these.
    """
    splits = find_splits(folder)
    path = arguments.check_path("folder", folder)
    if not splits:
        return path
    for split in wanted:
        if split in splits:
            return splits[split]
    names = [os.path.basename(place) for place in splits.values()]
    raise InputError(
        f"{path!r} has the folders {', '.join(map(repr, names))}; expected one with {wanted[0]} "
        f"data, such as {SPLITS[wanted[0]][0]!r}"
    )


def list_all(folder: Any, suffixes: Sequence[str], what: str) -> list[str]:
    """List the files of a folder at any depth, in order of names; a file is itself.

    Raises:
        FileError: there is no such folder, or it cannot be read.
        InputError: there are none.
    """
    path = arguments.check_path("folder", folder)
    if os.path.isfile(path):
        return [path]
    _list_entries(path)
    paths = list(list_files(path, suffixes))
    if not paths:
        raise InputError(f"{path!r}: no {what}; expected {_join_names(suffixes)}")
    return paths


def list_files(folder: str, suffixes: Sequence[str]) -> Iterator[str]:
    """List every file with one of these suffixes in a folder at any depth, in order of names.

    Raises:
        FileError: a folder cannot be read.
    """
    for name in _list_entries(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from list_files(path, suffixes)
        elif name.lower().endswith(tuple(suffixes)):
            yield path


def _list_entries(folder: str) -> list[str]:
    """List the names in a folder, in order, without hidden ones."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except NotADirectoryError:
        raise FileError(f"{folder!r} is a file; expected a folder") from None
    except OSError as error:
        raise FileError(f"cannot read the folder {folder!r}: {error.strerror or error}") from error


def _join_names(suffixes: Sequence[str]) -> str:
    return f"files as *{', *'.join(suffixes)}"
