"""The data of a run: the dataset that reads them, its splits and its options.

Options that a configuration leaves open are taken from the model where its input says them, as the
size and the layout of pictures.  They are written into the configuration of the run, and what a
dataset learns of its samples beside it, so that what is evaluated and predicted later is prepared
in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.data import places
from engine.data.dataset import Dataset
from engine.data.folders import (
    TEST,
    TRAIN,
    VALIDATION,
    choose_validation,
    split_of,
)
from engine.data.kinds import KINDS
from engine.kernels.vocabulary.op import TensorType
from engine.system import files
from engine.tools.actions.run_config import DataTable


def settle(
    table: DataTable, feature: TensorType, reads: Mapping[str, Mapping[str, Any]]
) -> DataTable:
    """Return the table with its kind, and with the options that follow from the model's input.

    feature: the type of the model's first input.
    reads: options that the model needs, by the kind of the data.

    Raises:
        FileError: as `places.find_kind`.
        InputError: the model does not take data of this kind.
    """
    path = Path(split_of(table.path, TRAIN))
    kind = places.find_kind(path) if table.kind == "auto" else table.kind
    given = {**reads.get(kind, {}), **table.options}
    return dataclasses.replace(table, kind=kind, options=places.fit_options(kind, feature, given))


def open_training(table: DataTable) -> Dataset:
    """Open the data to train on: the split `train` if there are splits."""
    return open_data(table, Path(split_of(table.path, TRAIN)))


def open_rest(table: DataTable, training: Dataset, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return the data to train on, and those to validate with: a share, a split, another path."""
    share = choose_validation(table.path) if table.validation is None else table.validation
    if isinstance(share, str):
        place = Path(split_of(share, VALIDATION, TEST))
        return training, open_data(table, place, get_learned(table, training))
    if share == 0:
        return training, None
    return training.split(share, seed=seed)


def open_test(table: DataTable, training: Dataset) -> Dataset | None:
    """Open the data on which the best model is tested at the end; None if there are none."""
    if not table.test:
        return None
    source = table.path if table.test == "split" else table.test
    return open_data(table, Path(split_of(source, TEST)), get_learned(table, training))


def open_data(table: DataTable, path: Path, learned: Mapping[str, Any] | None = None) -> Dataset:
    """Open the data at a path with the options of a settled table.

    learned: what `get_learned` or `read_learned` has returned of the data that are trained on.

    Raises:
        EngineError: an option is not known or does not fit, or the data are not what they should
            be.
    """
    files.check_exists(path)
    assert table.kind != "auto"
    return KINDS[table.kind].open(table, path, learned or {})


def list_decided(table: DataTable, training: Dataset) -> dict[str, Any]:
    """Return options that the training data decide, for the configuration."""
    assert table.kind != "auto"
    return KINDS[table.kind].list_decided(training)


def holds_classes(table: DataTable, training: Dataset) -> bool:
    """Return whether targets are classes, so that cross-entropy is the default loss."""
    assert table.kind != "auto"
    return KINDS[table.kind].holds_classes(training)


def get_learned(table: DataTable, training: Dataset) -> dict[str, Any]:
    """Return the options that a dataset has learned from its training samples, for other data."""
    assert table.kind != "auto"
    return KINDS[table.kind].read_learned(training)


def write_learned(table: DataTable, training: Dataset, folder: Path) -> None:
    """Write the learned options into the folder of a run.

    Raises:
        FileError: it cannot be written.
    """
    assert table.kind != "auto"
    KINDS[table.kind].write(training, folder)


def read_learned(table: DataTable, folder: Path) -> dict[str, Any]:
    """Read the learned options from the folder of a run.

    Raises:
        FileError, InputError: it cannot be read, or is damaged.
    """
    assert table.kind != "auto"
    return KINDS[table.kind].read(folder)


def open_unlabelled(
    table: DataTable, paths: list[Path], learned: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], Dataset]:
    """Return the origins of samples to predict for, and the samples.

    Raises:
        FileError: a file cannot be read.
        InputError: there are no files.
    """
    assert table.kind != "auto"
    return KINDS[table.kind].open_unlabelled(table, paths, learned)
