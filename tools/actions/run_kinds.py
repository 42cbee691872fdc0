"""The kinds of data that a run can read, by name: pictures, sounds, tables, texts.

The modules that read files are imported when a run has such data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base import arguments
from engine.base.errors import InputError
from engine.data.arrays import Arrays
from engine.data.dataset import Dataset
from engine.data.samples import Augment, Sample
from engine.kernels.vocabulary.op import TensorType
from engine.tools.actions import run_config, tables
from engine.tools.actions.run_config import DataTable

if TYPE_CHECKING:
    from engine.data.files import DecodedFiles
    from engine.data.preparation import Preparation

_PLACE = "[data.options]"
Learned = Mapping[str, Any]
Places = list[dict[str, Any]]


class Kind:
    """A kind of data.  The methods here are for kinds that do not need them."""

    def suffixes(self) -> Sequence[str]:
        """Those of its files, in lower case."""
        raise NotImplementedError

    def open(self, table: DataTable, path: Path, learned: Learned) -> Dataset:
        """The dataset of the data in a path; see `run_data.open_data`."""
        raise NotImplementedError

    def unlabelled(
        self, table: DataTable, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        """Where each sample is from, and the samples; see `run_data.unlabelled`."""
        raise NotImplementedError

    def fitting(self, feature: TensorType, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options that the type of the model's first input decides; `given` are those given."""
        return {}

    def augmentations(self, table: DataTable) -> dict[str, Callable[[], Augment]]:
        """By name, what makes a random change."""
        return {}

    def learned(self, training: Dataset) -> dict[str, Any]:
        """Return the options that the dataset has learned from its training samples."""
        return {}

    def write(self, training: Dataset, folder: Path) -> None:
        """Write what is learned into the folder of a run."""

    def read(self, folder: Path) -> dict[str, Any]:
        """Read what `write` has written."""
        return {}


class _Files(Dataset):
    """Files that are read one by one, without labels."""

    def __init__(self, paths: Sequence[str], read: Callable[[str], Any]) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        return (self.read(self.paths[index]),)


class _Decoded(Kind):
    """Files in folders, a sub-folder a class."""

    def make(self, table: DataTable, path: Path, **given: Any) -> DecodedFiles:
        """The dataset, with further arguments."""
        raise NotImplementedError

    def open(self, table: DataTable, path: Path, learned: Learned) -> Dataset:
        return self.make(table, path, classes=list(table.classes) or None)

    def unlabelled(
        self, table: DataTable, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        readers = [self.make(table, path, classes=None, labelled=False) for path in paths]
        files = [file for reader in readers for file in reader.paths]
        return [{"file": path} for path in files], _Files(files, readers[0].read)


class _Images(_Decoded):
    def suffixes(self) -> Sequence[str]:
        from engine.data.pictures import SUFFIXES

        return SUFFIXES

    def make(self, table: DataTable, path: Path, **given: Any) -> DecodedFiles:
        from engine.data.images import Images

        return tables.make(Images, table.options, _PLACE, folder=path, **given)

    def fitting(self, feature: TensorType, given: Mapping[str, Any]) -> dict[str, Any]:
        """Size, layout and colours, as an input of four axes declares them."""
        if len(feature.shape) != 4:
            raise InputError(
                "pictures need a model whose first input has four axes, as [batch, 3, 224, 224]; "
                f"this one is {list(feature.shape)}"
            )
        _, *rest = feature.shape
        last = rest[2] in (1, 3) and rest[0] not in (1, 3)
        layout = given.get("layout") or ("NHWC" if last else "NCHW")
        channels, sides = (rest[0], rest[1:]) if layout == "NCHW" else (rest[2], rest[:2])
        options: dict[str, Any] = {"layout": layout}
        if all(isinstance(side, int) for side in sides):
            options["size"] = sides
        if channels == 1:
            options["color_mode"] = "grayscale"
        return options

    def augmentations(self, table: DataTable) -> dict[str, Callable[[], Augment]]:
        from engine.data.augment import ColorJitter, RandomFlip, RandomResizedCrop

        size = table.options.get("size", 224)
        sides = size if isinstance(size, int) else (size[0], size[1])
        return {"flip": RandomFlip, "crop": lambda: RandomResizedCrop(sides), "color": ColorJitter}


class _Sounds(_Decoded):
    def suffixes(self) -> Sequence[str]:
        from engine.data.sounds import SUFFIXES

        return SUFFIXES

    def make(self, table: DataTable, path: Path, **given: Any) -> DecodedFiles:
        from engine.data.sounds import Sounds

        options = dict(table.options)
        if options.get("features") == "none":  # TOML has no null
            options["features"] = None
        return tables.make(Sounds, options, _PLACE, folder=path, **given)

    def fitting(self, feature: TensorType, given: Mapping[str, Any]) -> dict[str, Any]:
        """Bands and length, as an input [batch, 1, bands, frames] or [batch, 1, samples] has it."""
        from engine.data.features import LogMel

        rate = given.get("rate", 16000)
        if len(feature.shape) == 3:
            samples = feature.shape[2]
            length = {"seconds": samples / rate} if isinstance(samples, int) else {}
            return {"features": "none", **length}
        if len(feature.shape) != 4:
            raise InputError(
                "sounds need a model whose first input is [batch, 1, bands, frames] or "
                f"[batch, 1, samples]; this one is {list(feature.shape)}"
            )
        bands, frames = feature.shape[2:]
        if "features" in given:
            return {}
        options: dict[str, Any] = {}
        chosen = LogMel(rate=rate)
        if isinstance(bands, int):
            options["features"] = {"rate": rate, "n_mels": bands}
            chosen = LogMel(rate=rate, n_mels=bands)
        if isinstance(frames, int) and chosen.frames(rate) != frames:  # otherwise it is the default
            options["seconds"] = (chosen.window + (frames - 1) * chosen.hop) / rate
        return options


class _Tables(Kind):
    def suffixes(self) -> Sequence[str]:
        return (".csv",)

    def open(self, table: DataTable, path: Path, learned: Learned) -> Dataset:
        from engine.data.tables import Csv

        if "target" not in table.options:
            raise InputError(
                f'{_PLACE}: target is missing: the column to predict, several, or "" for none'
            )
        options = dict(table.options)
        given = options.pop("target")
        given = arguments.names(f"{_PLACE}: target", [given] if isinstance(given, str) else given)
        target = [name for name in given if name] or None
        return tables.make(Csv, options, _PLACE, path=path, target=target, **learned)

    def unlabelled(
        self, table: DataTable, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        from engine.data.tables import Csv

        of_training = ("target", "features", "task", "categorical", "normalize", "missing")
        options = {k: v for k, v in table.options.items() if k not in of_training}
        places: Places = []
        parts = []
        for path in paths:
            rows = tables.make(Csv, options, _PLACE, path=path, target=None, **learned)
            places += [{"file": str(path), "row": i} for i in range(len(rows))]
            parts.append(rows.take(np.arange(len(rows)))[0])
        return places, Arrays(np.concatenate(parts))

    def learned(self, training: Dataset) -> dict[str, Any]:
        return {"preparation": _preparation(training)}

    def write(self, training: Dataset, folder: Path) -> None:
        _preparation(training).save(folder / "preparation.json")

    def read(self, folder: Path) -> dict[str, Any]:
        from engine.data.preparation import Preparation

        return {"preparation": Preparation.load(folder / "preparation.json")}


def _preparation(training: Dataset) -> Preparation:
    from engine.data.tables import Csv

    assert isinstance(training, Csv), training
    return training.preparation


class _Texts(Kind):
    """Texts whose next token is predicted, or with `labelled`, that belong to classes."""

    def suffixes(self) -> Sequence[str]:
        from engine.data.texts import SUFFIXES

        return SUFFIXES

    def open(self, table: DataTable, path: Path, learned: Learned) -> Dataset:
        from engine.data.texts import LabelledTexts, Texts

        labelled, tokenizer, options = _text_options(table)
        if not labelled:
            return tables.make(Texts, options, _PLACE, source=path, tokenizer=tokenizer)
        classes = list(table.classes) or None
        return tables.make(
            LabelledTexts, options, _PLACE, source=path, tokenizer=tokenizer, classes=classes
        )

    def fitting(self, feature: TensorType, given: Mapping[str, Any]) -> dict[str, Any]:
        """The number of tokens, as an input [batch, tokens] declares it."""
        if len(feature.shape) != 2:
            raise InputError(
                "texts need a model whose first input is [batch, tokens]; this one is "
                f"{list(feature.shape)}"
            )
        if isinstance(feature.shape[1], int):
            return {"length": feature.shape[1]}
        if "length" not in given:
            raise InputError(f"{_PLACE}: length is missing: the tokens of a sample, as 128")
        return {}

    def unlabelled(
        self, table: DataTable, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        from engine.data.folders import all_of
        from engine.data.texts import SUFFIXES, read
        from engine.data.tokens import Tokens

        labelled, tokenizer, options = _text_options(table)
        if not labelled:
            raise InputError("of models of the next token predictions are made in Python")
        files = [file for path in paths for file in all_of(path, SUFFIXES, "texts")]
        encode, length = Tokens(tokenizer, special=True), options["length"]
        pad = options.get("pad", encode.pad)
        tokens, masks = (np.full((len(files), length), v, np.int64) for v in (pad, 0))
        for i, file in enumerate(files):
            words = encode(read(file, options.get("encoding", "utf-8")))[:length]
            tokens[i, : len(words)], masks[i, : len(words)] = words, 1
        arrays = (tokens, masks) if options.get("mask") else (tokens,)
        return [{"file": file} for file in files], Arrays(arrays)


def _text_options(table: DataTable) -> tuple[bool, Any, dict[str, Any]]:
    """Return whether texts have labels, their tokenizer, and the options of the dataset."""
    from engine.data.tokens import ByteTokenizer

    options = dict(table.options)
    labelled = arguments.flag(f"{_PLACE}: labelled", options.pop("labelled", False))
    name = arguments.text(f"{_PLACE}: tokenizer", options.pop("tokenizer", "bytes"))
    return labelled, ByteTokenizer() if name == "bytes" else name, options


KINDS: dict[run_config.Kind, Kind] = {
    "images": _Images(),
    "sounds": _Sounds(),
    "csv": _Tables(),
    "text": _Texts(),
}
