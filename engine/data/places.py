"""Data at a path: their kind, their splits, and the options that a model decides."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base.errors import FileError, ShapeError
from engine.data.dataset import Dataset
from engine.data.folders import find_pair
from engine.data.kinds import KINDS, Name, Shaped
from engine.system import files

_LOOKED_AT = 1000  # files of a folder


def find_kind(path: Path) -> Name:
    """Return the kind of the data at a path, according to the names of its files.

    Raises:
        FileError: there is nothing of a kind that is known, or nothing at all.
    """
    files.check_exists(path)
    if find_pair(path) is not None:
        return "masks"
    counts = Counter[Name]()
    for suffix in _list_suffixes(path):
        counts.update(name for name, kind in KINDS.items() if suffix in kind.list_suffixes())
    if not counts:
        known = "; ".join(
            f"{name}: {' '.join(kind.list_suffixes())}"
            for name, kind in KINDS.items()
            if kind.list_suffixes()
        )
        raise FileError(f"{path}: no data of a known kind; names of files decide it ({known})")
    return counts.most_common(1)[0][0]


def _list_suffixes(path: Path) -> list[str]:
    """List the suffixes of a file, or of the first files in a folder; hidden ones do not count."""
    if path.is_file():
        return [path.suffix.lower()]
    suffixes: list[str] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        suffixes += [Path(folder, n).suffix.lower() for n in sorted(names) if not n.startswith(".")]
        if len(suffixes) >= _LOOKED_AT:
            break
    return suffixes


def fit_options(kind: Name, feature: Shaped, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of data of a kind, with those that the model's first input decides.

    Raises:
        InputError: the model does not take data of this kind.
    """
    return {**KINDS[kind].fit_options(feature, given), **given}


def check_sample(dataset: Dataset, name: str, feature: Shaped) -> None:
    """Check that samples fit the model, by the first one.

    name, feature: the name and the type of the model's first input.

    Raises:
        ShapeError: they do not.
        NameNotFoundError: no array has the name of the input.
    """
    shape = dataset.select_columns([name])[0][0].shape
    wanted = feature.shape[1:]
    fits = len(shape) == len(wanted) and all(
        not isinstance(w, int) or w == s for s, w in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"[data]: a sample is {list(shape)}, and the model's input {name!r} takes "
            f"{list(wanted)}: change the options of the data (docs/data.md), or export the model "
            "for such samples"
        )
