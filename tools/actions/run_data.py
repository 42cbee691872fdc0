"""The data of a run: which kind they are, the dataset that reads them, and its options.

Options that a configuration leaves open are taken from the model where its input says them, as the
size and the layout of pictures.  They are written into the configuration of the run, and what a
dataset learns of its samples beside it, so that what is evaluated and predicted later is prepared
in the same way.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base.errors import FileError, InputError, ShapeError, nearest
from engine.data.dataset import Dataset
from engine.data.samples import Augment
from engine.kernels.vocabulary.op import TensorType
from engine.tools.actions import run_config
from engine.tools.actions.run_config import DataTable
from engine.tools.actions.run_kinds import KINDS

_LOOKED_AT = 1000  # files of a folder


def kind_of(path: Path) -> run_config.Kind:
    """Return the kind of the data at a path, according to the names of its files.

    Raises:
        FileError: there is nothing of a kind that is known, or nothing at all.
    """
    _check_exists(path)
    counts = Counter[run_config.Kind]()
    for suffix in _suffixes(path):
        counts.update(name for name, kind in KINDS.items() if suffix in kind.suffixes())
    if not counts:
        known = "; ".join(f"{name}: {' '.join(kind.suffixes())}" for name, kind in KINDS.items())
        raise FileError(f"{path}: no data that are known by their names ({known})")
    return counts.most_common(1)[0][0]


def _check_exists(path: Path) -> None:
    if not path.exists():
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(f"{path}: no such file or folder{nearest(path.name, names)}")


def _suffixes(path: Path) -> list[str]:
    """Those of a file, or of the first files of a folder; hidden ones do not count."""
    if path.is_file():
        return [path.suffix.lower()]
    suffixes: list[str] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        suffixes += [Path(folder, n).suffix.lower() for n in sorted(names) if not n.startswith(".")]
        if len(suffixes) >= _LOOKED_AT:
            break
    return suffixes


def settle(table: DataTable, feature: TensorType) -> DataTable:
    """The table with its kind found out, and options that the model's input decides.

    feature: the type of the model's first input.

    Raises:
        FileError: as `kind_of`.
        InputError: the model does not take data of this kind.
    """
    kind = kind_of(Path(table.path)) if table.kind == "auto" else table.kind
    options = {**KINDS[kind].fitting(feature, table.options), **table.options}
    return dataclasses.replace(table, kind=kind, options=options)


def open_data(table: DataTable, path: Path, learned: Mapping[str, Any] | None = None) -> Dataset:
    """The dataset of a settled table, of the data in a path.

    learned: what `learned_of` or `read_learned` has returned of the data that are trained on.

    Raises:
        EngineError: an option is not known or does not fit, or the data are not what they should
            be.
    """
    _check_exists(path)
    return KINDS[table.kind].open(table, path, learned or {})


def check_sample(dataset: Dataset, name: str, feature: TensorType) -> None:
    """Check that samples fit the model, by the first one.

    name, feature: of the model's first input.

    Raises:
        ShapeError: they do not.
    """
    shape = dataset[0][0].shape
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


def augmentation(table: DataTable) -> list[Augment]:
    """The random changes that a table asks for.

    Raises:
        InputError: one is not known, or is not for data of this kind.
    """
    known = KINDS[table.kind].augmentations(table)
    made = []
    for name in table.augment:
        if name not in known:
            hint = nearest(name, known) or f"; known: {', '.join(known) or 'none'}"
            raise InputError(f"[data]: augment: no {name!r} for {table.kind}{hint}")
        made.append(known[name]())
    return made


def learned_of(table: DataTable, training: Dataset) -> dict[str, Any]:
    """Return the options that a dataset has learned from its training samples, for other data."""
    return KINDS[table.kind].learned(training)


def write_learned(table: DataTable, training: Dataset, folder: Path) -> None:
    """Write the learned options into the folder of a run.

    Raises:
        FileError: it cannot be written.
    """
    KINDS[table.kind].write(training, folder)


def read_learned(table: DataTable, folder: Path) -> dict[str, Any]:
    """Read the learned options from the folder of a run.

    Raises:
        FileError, InputError: it cannot be read, or is damaged.
    """
    return KINDS[table.kind].read(folder)


def unlabelled(
    table: DataTable, paths: list[Path], learned: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], Dataset]:
    """Return the origins of samples to predict for, and the samples.

    Raises:
        FileError: a file cannot be read.
        InputError: there are no files.
    """
    return KINDS[table.kind].unlabelled(table, paths, learned)
