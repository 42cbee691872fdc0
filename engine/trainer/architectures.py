"""Architectures by name, built for given data, and folders as data for a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.base.errors import InputError, ModelWarning, warn_user
from engine.data.array_files import is_data_path
from engine.data.dataset import Dataset
from engine.data.folders import TRAIN, split_of
from engine.data.sources import dataset_of
from engine.kernels.vocabulary.op import TensorType

if TYPE_CHECKING:
    from engine.models.catalog import Architecture
    from engine.models.named_model import NamedModel
    from engine.trainer.batch_trainer import BatchTrainer

_KINDS = ("images", "masks", "sounds", "tagged")  # which say what the classes are


class _Asked(NamedTuple):
    options: Mapping[str, Any]
    classes: Sequence[str]


def begin(kind: Architecture, *, data: Any, seed: int, **given: Any) -> NamedModel:
    """Build an architecture for data that are given as `fit` takes them; see `models.made.make`.

    Raises:
        InputError: samples of the data cannot be read one by one.
        EngineError: as `make`.
    """
    from engine.models.named_model import make

    if is_data_path(data):
        data = _open(data, kind.feature, (), "data")
    dataset = None if data is None else dataset_of(data)
    if data is not None and dataset is None:
        raise InputError(
            f"data: the sizes of samples can be taken from arrays and from a Dataset, not from "
            f"{type(data).__name__}: give classes= and input_shape="
        )
    made = make(kind, data=dataset, seed=seed, **given)
    if made.random:
        warn_user(
            f"{kind.name}: {', '.join(made.random)} stay random: the weights have them for "
            "another number of classes",
            ModelWarning,
        )
    return made


def check_classes(trainer: BatchTrainer, classes: Sequence[str] | None) -> None:
    """Refuse data whose classes are not the model's, since scores would get wrong names.

    Raises:
        InputError: they differ, or have another order.
    """
    if trainer.classes is not None and classes is not None and [*classes] != [*trainer.classes]:
        raise InputError(
            f"the model is for the classes {list(trainer.classes)}, and the data have "
            f"{list(classes)}"
        )


def _open(
    data: str | os.PathLike[str], feature: TensorType, classes: Sequence[str], what: str
) -> Dataset:
    from engine.data import places
    from engine.data.kinds import KINDS

    path = Path(split_of(os.fspath(data), TRAIN))
    kind = places.find_kind(path)
    if kind not in _KINDS:
        raise InputError(
            f"{what}: {os.fspath(data)!r} contains {kind}, which need columns or lengths; give a "
            "Table, Texts or LabelledTexts"
        )
    asked = _Asked(places.fit_options(kind, feature, {}), classes)
    return KINDS[kind].open(asked, path, {})
