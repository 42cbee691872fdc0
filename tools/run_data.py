"""The data of a run: which kind they are, the dataset that reads them, and its options.

Options that a configuration leaves open are taken from the model where its input says them: the
size and the layout of pictures.  They are written into the configuration of the run, so that what
is evaluated and predicted later is prepared in the same way.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.data.dataset import Dataset
from engine.data.samples import Augment, Sample
from engine.errors import FileError, InputError, nearest
from engine.kernels.vocabulary.op import TensorType
from engine.tools import run_config, tables
from engine.tools.run_config import DataTable

_LOOKED_AT = 1000  # files of a folder


def kind_of(path: Path) -> run_config.Kind:
    """What the data of a path are, as the names of its files say.

    Raises:
        FileError: there is nothing of a kind that is known, or nothing at all.
    """
    if not path.exists():
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(f"{path}: no such file or folder{nearest(path.name, names)}")
    found = Counter[run_config.Kind]()
    for suffix in _suffixes(path):
        found.update(name for name, kind in KINDS.items() if suffix in kind.suffixes())
    if not found:
        known = "; ".join(f"{name}: {' '.join(kind.suffixes())}" for name, kind in KINDS.items())
        raise FileError(f"{path}: no data that are known by their names ({known})")
    return found.most_common(1)[0][0]


def _suffixes(path: Path) -> list[str]:
    """Those of a file, or of the first files of a folder; hidden ones do not count."""
    if path.is_file():
        return [path.suffix.lower()]
    found: list[str] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, n).suffix.lower() for n in sorted(names) if not n.startswith(".")]
        if len(found) >= _LOOKED_AT:
            break
    return found


def settle(table: DataTable, feature: TensorType) -> DataTable:
    """The table with its kind found out, and options that the model's input decides.

    feature: the type of the model's first input.

    Raises:
        FileError: as `kind_of`.
    """
    kind = kind_of(Path(table.path)) if table.kind == "auto" else table.kind
    options = {**KINDS[kind].fitting(feature, table.options), **table.options}
    return dataclasses.replace(table, kind=kind, options=options)


def open_data(table: DataTable, path: Path, **given: Any) -> Dataset:
    """The dataset of a settled table, of the data in a path.

    given: further arguments of the dataset.

    Raises:
        EngineError: an option is not known or does not fit, or the data are not what they should
            be.
    """
    if not path.exists():
        kind_of(path)  # says what is there instead
    kind = KINDS[table.kind]
    if table.classes:
        given["classes"] = list(table.classes)
    return kind.make(table, path, given)


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


def unlabelled(table: DataTable, paths: Sequence[Path]) -> tuple[list[dict[str, Any]], Dataset]:
    """What predictions are made for: where each sample is from, and the samples.

    Raises:
        FileError: a path does not exist, or a file cannot be read.
        InputError: there are no files.
    """
    return KINDS[table.kind].unlabelled(table, paths)


class Files(Dataset):
    """Files that are read one by one, without labels."""

    def __init__(self, paths: Sequence[Path], read: Callable[[Path], Any]) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        return (self.read(self.paths[index]),)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data.

    suffixes: of its files, in lower case.
    make: the dataset of a table and a path, with further arguments.
    fitting: options that the type of the model's input decides; the options that are given.
    augmentations: by name, what makes a random change.
    unlabelled: samples to predict for, and where each is from.
    """

    suffixes: Callable[[], tuple[str, ...]]
    make: Callable[[DataTable, Path, dict[str, Any]], Dataset]
    fitting: Callable[[TensorType, Mapping[str, Any]], dict[str, Any]]
    augmentations: Callable[[DataTable], dict[str, Callable[[], Augment]]]
    unlabelled: Callable[[DataTable, Sequence[Path]], tuple[list[dict[str, Any]], Dataset]]


# --- pictures


def _picture_suffixes() -> tuple[str, ...]:
    from engine.data.pictures import SUFFIXES

    return SUFFIXES


def _images(table: DataTable, path: Path, given: dict[str, Any]) -> Dataset:
    from engine.data.images import Images

    return tables.make(Images, table.options, "[data.options]", folder=path, **given)


def _picture_files(table: DataTable, paths: Sequence[Path]) -> tuple[list[dict[str, Any]], Dataset]:
    from engine.data.images import Images

    readers = [
        tables.make(Images, table.options, "[data.options]", folder=path, classes=None,
                    labelled=False)
        for path in paths
    ]  # fmt: skip
    found = [Path(file) for reader in readers for file in reader.paths]
    return [{"file": str(path)} for path in found], Files(found, readers[0].read)


def _fitting_images(feature: TensorType, given: Mapping[str, Any]) -> dict[str, Any]:
    """Size, layout and colours of pictures, as an input of four axes declares them."""
    if len(feature.shape) != 4:
        raise InputError(
            f"pictures need a model whose first input has four axes, as [batch, 3, 224, 224]; this "
            f"one is {list(feature.shape)}"
        )
    _, *rest = feature.shape
    layout = given.get("layout") or ("NHWC" if rest[2] in (1, 3) and rest[0] != 3 else "NCHW")
    channels, sides = (rest[0], rest[1:]) if layout == "NCHW" else (rest[2], rest[:2])
    found: dict[str, Any] = {"layout": layout}
    if all(isinstance(side, int) for side in sides):
        found["size"] = list(sides)
    if channels == 1:
        found["color_mode"] = "grayscale"
    return found


def _picture_changes(table: DataTable) -> dict[str, Callable[[], Augment]]:
    from engine.data.augment import ColorJitter, RandomFlip, RandomResizedCrop

    size = table.options.get("size", 224)
    sides = size if isinstance(size, int) else (size[0], size[1])
    return {"flip": RandomFlip, "crop": lambda: RandomResizedCrop(sides), "color": ColorJitter}


KINDS: dict[run_config.Kind, Kind] = {
    "images": Kind(_picture_suffixes, _images, _fitting_images, _picture_changes, _picture_files),
}
