"""The kinds of data that a path may hold, by name: pictures, sounds, tables, texts, arrays.

The modules that read files are imported when such data are opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from engine.base import arguments
from engine.base import option_tables as tables
from engine.base.errors import InputError
from engine.data.arrays import Arrays
from engine.data.dataset import Dataset, find_root
from engine.data.samples import Sample
from engine.system import files

if TYPE_CHECKING:
    from engine.data.files import DecodedFiles
    from engine.data.preparation import Preparation

Name = Literal["images", "masks", "sounds", "csv", "text", "tagged", "arrays"]

_PLACE, _VOCABULARY = "[data.options]", "vocabulary.json"
Learned = Mapping[str, Any]
Places = list[dict[str, Any]]


class Shaped(Protocol):
    """An input of a model; its first dimension counts samples."""

    @property
    def shape(self) -> Sequence[Any]: ...


class DataRequest(Protocol):
    """Options of data at a path, as in a run or a trainer.

    options: the options of the dataset.
    classes: their names in the order of their labels; empty: as in the data.
    """

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def classes(self) -> Sequence[str]: ...


class Kind:
    """A kind of data.  The methods here are for kinds that do not need them."""

    def list_suffixes(self) -> Sequence[str]:
        """Return the suffixes of its files, in lower case."""
        raise NotImplementedError

    def open(self, asked: DataRequest, path: Path, learned: Learned) -> Dataset:
        """Return the dataset of the data at a path; see `places.open_data`."""
        raise NotImplementedError

    def open_unlabelled(
        self, asked: DataRequest, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        """Return the origin of each sample, and the samples; see `places.open_unlabelled`."""
        raise NotImplementedError

    def fit_options(self, feature: Shaped, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return options that the type of the model's first input decides; `given` are set."""
        return {}

    def list_decided(self, training: Dataset) -> dict[str, Any]:
        """Return options that the training data decide, and that other data need as well."""
        return {}

    def holds_classes(self, training: Dataset) -> bool:
        """Return whether targets are classes: of a sample, or of each of its parts."""
        return bool(training.classes)

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        """Return the options with which `open` makes another dataset like this one.

        None for another kind, and for a user's own class.
        """
        return None

    def read_learned(self, training: Dataset) -> dict[str, Any]:
        """Return the options that the dataset has learned from its training samples."""
        return {}

    def write(self, training: Dataset, folder: Path) -> None:
        """Write what is learned into the folder of a run."""

    def read(self, folder: Path) -> dict[str, Any]:
        """Read what `write` has written."""
        return {}


class Loose(Dataset):
    """Files that are read one by one, without labels."""

    def __init__(self, paths: Sequence[str], read: Callable[[str], Any]) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        return (self.read(self.paths[index]),)


class _Decoded(Kind):
    """Files in folders, a sub-folder a class."""

    def make(self, asked: DataRequest, path: Path, **given: Any) -> DecodedFiles:
        """Make the dataset, with further arguments."""
        raise NotImplementedError

    def open(self, asked: DataRequest, path: Path, learned: Learned) -> Dataset:
        return self.make(asked, path, classes=list(asked.classes) or None)

    def open_unlabelled(
        self, asked: DataRequest, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        readers = [self.make(asked, path, classes=None, labelled=False) for path in paths]
        files = [file for reader in readers for file in reader.paths]
        return [{"file": path} for path in files], Loose(files, readers[0].read)


class _Images(_Decoded):
    def list_suffixes(self) -> Sequence[str]:
        from engine.data.pictures import SUFFIXES

        return SUFFIXES

    def make(self, asked: DataRequest, path: Path, **given: Any) -> DecodedFiles:
        from engine.data.images import Images

        return tables.make(Images, asked.options, _PLACE, folder=path, **given)

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        from engine.data.images import Images

        return dataset.list_options() if type(dataset) is Images else None

    def fit_options(self, feature: Shaped, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return size, layout and colours, as an input of four axes declares them."""
        if len(feature.shape) != 4:
            raise InputError(
                "pictures need a model whose first input has four axes, such as [batch, 3, 224, "
                f"224]; this one is {list(feature.shape)}"
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


class _Masks(_Images):
    def list_suffixes(self) -> Sequence[str]:
        return ()  # two folders say that these are pictures with masks, see `places.find_kind`

    def make(self, asked: DataRequest, path: Path, **given: Any) -> DecodedFiles:
        from engine.data.masks import Masks

        return tables.make(Masks, asked.options, _PLACE, folder=path, **given)

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        from engine.data.masks import Masks

        return dataset.list_options() if type(dataset) is Masks else None

    def list_decided(self, training: Dataset) -> dict[str, Any]:
        """Return the values that stand for the classes in masks."""
        from engine.data.masks import Masks

        assert isinstance(training, Masks), training
        return {"values": [v if isinstance(v, int) else list(v) for v in training.values or ()]}


class _Sounds(_Decoded):
    def list_suffixes(self) -> Sequence[str]:
        from engine.data.sounds import SUFFIXES

        return SUFFIXES

    def make(self, asked: DataRequest, path: Path, **given: Any) -> DecodedFiles:
        from engine.data.sounds import Sounds

        options = dict(asked.options)
        if options.get("features") == "none":  # TOML has no null
            options["features"] = None
        return tables.make(Sounds, options, _PLACE, folder=path, **given)

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        from engine.data.sounds import Sounds

        return dataset.list_options() if type(dataset) is Sounds else None

    def fit_options(self, feature: Shaped, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return bands and length for an input [batch, 1, bands, frames] or [batch, 1, samples]."""
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
    def list_suffixes(self) -> Sequence[str]:
        return (".csv",)

    def open(self, asked: DataRequest, path: Path, learned: Learned) -> Dataset:
        from engine.data.tables import Table

        options = dict(asked.options)
        if "target" not in options:
            names = _list_columns(path, options)
            raise InputError(
                f"{path}: which column is to be predicted?  Give --label NAME, or target in "
                f'{_PLACE}: a name, several, or "" for none; the columns are {names}'
            )
        given = options.pop("target")
        given = arguments.check_names(
            f"{_PLACE}: target", [given] if isinstance(given, str) else given
        )
        target = [name for name in given if name] or None
        return tables.make(Table, options, _PLACE, source=str(path), label=target, **learned)

    def open_unlabelled(
        self, asked: DataRequest, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        from engine.data.folders import list_all
        from engine.data.tables import Table

        form = ("delimiter", "encoding", "header", "missing_values")  # the rest is learned
        options = {k: v for k, v in asked.options.items() if k in form}
        places: Places = []
        parts = []
        for file in (file for path in paths for file in list_all(path, (".csv",), "tables")):
            rows = tables.make(Table, options, _PLACE, source=file, label=None, **learned)
            places += [{"file": file, "row": i} for i in range(len(rows))]
            parts.append(rows.take(np.arange(len(rows)))[0])
        return places, Arrays(np.concatenate(parts))

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        from engine.data.tables import Table

        return dataset.list_options() if isinstance(dataset, Table) else None

    def read_learned(self, training: Dataset) -> dict[str, Any]:
        return {"preparation": _find_preparation(training)}

    def write(self, training: Dataset, folder: Path) -> None:
        _find_preparation(training).save(folder / "preparation.json")

    def read(self, folder: Path) -> dict[str, Any]:
        from engine.data.preparation import Preparation

        return {"preparation": Preparation.load(folder / "preparation.json")}


def _list_columns(path: Path, options: Mapping[str, Any]) -> str:
    """Return the names of the columns of a file, for a message."""
    from engine.data.csv_file import read

    form = options.get("delimiter", ","), options.get("encoding", "utf-8")
    names = read(path, *form, header=options.get("header", True)).names
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")


def _find_preparation(training: Dataset) -> Preparation:
    from engine.data.tables import Table

    assert isinstance(training, Table), training
    return training.preparation


class _Texts(Kind):
    """Texts whose next token is predicted, or with `labelled`, that belong to classes."""

    def list_suffixes(self) -> Sequence[str]:
        from engine.data.texts import SUFFIXES

        return SUFFIXES

    def open(self, asked: DataRequest, path: Path, learned: Learned) -> Dataset:
        from engine.data.texts import LabelledTexts, Texts

        labelled, tokenizer, options = _split_text_options(asked)
        if not labelled:
            return tables.make(Texts, options, _PLACE, source=path, tokenizer=tokenizer)
        classes = list(asked.classes) or None
        return tables.make(
            LabelledTexts, options, _PLACE, source=path, tokenizer=tokenizer, classes=classes
        )

    def fit_options(self, feature: Shaped, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of tokens of an input [batch, tokens]."""
        if len(feature.shape) != 2:
            raise InputError(
                "texts need a model whose first input is [batch, tokens]; this one is "
                f"{list(feature.shape)}"
            )
        if isinstance(feature.shape[1], int):
            return {"length": feature.shape[1]}
        if "length" not in given:
            raise InputError(f"{_PLACE}: length is missing: the tokens of a sample, such as 128")
        return {}

    def holds_classes(self, training: Dataset) -> bool:
        return True  # without labels, the next token is the class

    def open_unlabelled(
        self, asked: DataRequest, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        texts, places = _read_loose_texts(paths, asked.options)
        return places, make_texts(asked, texts)

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        from engine.data.texts import LabelledTexts

        return dataset.list_options() if type(dataset) is LabelledTexts else None


class _Tagged(Kind):
    """Sentences with a tag for each word."""

    def list_suffixes(self) -> Sequence[str]:
        from engine.data.tagged import SUFFIXES

        return SUFFIXES

    def open(self, asked: DataRequest, path: Path, learned: Learned) -> Dataset:
        from engine.data.tagged import TaggedTexts

        options = {**asked.options, **learned}
        classes = list(asked.classes) or None
        return tables.make(TaggedTexts, options, _PLACE, source=path, classes=classes)

    def fit_options(self, feature: Shaped, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of words of an input [batch, words]."""
        if len(feature.shape) != 2:
            raise InputError(
                "tagged texts need a model whose first input is [batch, words]; this one is "
                f"{list(feature.shape)}"
            )
        return {"length": feature.shape[1]} if isinstance(feature.shape[1], int) else {}

    def open_unlabelled(
        self, asked: DataRequest, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        from engine.data.folders import list_all
        from engine.data.tagged import LINES, SUFFIXES, read_sentences

        form = asked.options.get("encoding", "utf-8"), asked.options.get("word", 0)
        places: Places = []
        for file in (f for p in paths for f in list_all(p, (*SUFFIXES, *LINES), "sentences")):
            sentences = read_sentences(file, *form)
            places += [
                {"file": file, "row": i, "words": words} for i, words in enumerate(sentences)
            ]
        return make_sentences(asked, places, learned)

    def describe(self, dataset: Dataset) -> dict[str, Any] | None:
        from engine.data.tagged import TaggedTexts

        return dataset.list_options() if type(dataset) is TaggedTexts else None

    def read_learned(self, training: Dataset) -> dict[str, Any]:
        from engine.data.tagged import TaggedTexts

        source = find_root(training)
        assert isinstance(source, TaggedTexts), source
        return {"vocabulary": source.vocabulary, "length": source.length}

    def write(self, training: Dataset, folder: Path) -> None:
        text = json.dumps(self.read_learned(training), ensure_ascii=False, indent=0)
        files.write(str(folder / _VOCABULARY), [text.encode()])

    def read(self, folder: Path) -> dict[str, Any]:
        path = str(folder / _VOCABULARY)
        try:
            content = json.loads(files.read(path, "vocabulary"))
            vocabulary = arguments.check_names("vocabulary", content["vocabulary"])
            length = arguments.count("length", content["length"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path!r} is damaged: {error}") from error
        return {"vocabulary": list(vocabulary), "length": length}


def make_sentences(asked: DataRequest, places: Places, learned: Learned) -> tuple[Places, Dataset]:
    """Return words to predict tags for as samples, each with its place; long ones are several.

    Raises:
        InputError: there are no words, or a sentence has none.
    """
    from engine.data.tagged import WordNumbers

    known = {**asked.options, **learned}
    numbers = WordNumbers(known["vocabulary"], known["length"], known.get("lower", False))
    parts: Places = []
    samples = []
    for place in places:
        if not place["words"]:
            raise InputError(f"sentence {len(parts)} has no words")
        for begin, sample in numbers.encode(place["words"]):
            parts.append({**place, "begin": begin})
            samples.append(sample)
    if not samples:
        raise InputError("no sentences")
    return parts, Arrays(np.stack(samples))


def make_texts(asked: DataRequest, texts: Sequence[str]) -> Dataset:
    """Return texts to predict for as samples.

    Raises:
        InputError: the model predicts the next token, or a text is empty.
    """
    from engine.data.tokens import Tokens

    labelled, tokenizer, options = _split_text_options(asked)
    if not labelled:
        raise InputError("models of the next token predict only from Python")
    encode, length = Tokens(tokenizer, special=True), options["length"]
    pad = options.get("pad", encode.pad)
    encoded = [encode(content)[:length] for content in texts]
    for number, words in enumerate(encoded):
        if not len(words):
            raise InputError(f"text {number} is empty")
    if length is None:  # each text has its own: they are padded to the longest one
        length = max(map(len, encoded))
    tokens, masks = (np.full((len(texts), length), v, np.int64) for v in (pad, 0))
    for i, words in enumerate(encoded):
        tokens[i, : len(words)], masks[i, : len(words)] = words, 1
    return Arrays((tokens, masks) if options.get("mask") else (tokens,))


def _read_loose_texts(
    paths: Sequence[Path], options: Mapping[str, Any]
) -> tuple[list[str], Places]:
    """Return texts to predict for: of files, and of the rows of tables, with where each is from.

    Raises:
        InputError: a file is neither a text nor a table, or a text is empty.
    """
    from engine.data.folders import list_all
    from engine.data.texts import SUFFIXES, read, read_column

    texts: list[str] = []
    places: Places = []
    form = {k: options[k] for k in ("encoding", "delimiter") if k in options}
    for file in (file for path in paths for file in list_all(path, (*SUFFIXES, ".csv"), "texts")):
        ending = Path(file).suffix.lower()
        if ending == ".csv":
            column = read_column(file, options.get("text", "text"), **form)
            texts += column
            places += [{"file": file, "row": i} for i in range(len(column))]
        elif ending in SUFFIXES:
            content = read(file, options.get("encoding", "utf-8"))
            if not content.strip():
                raise InputError(f"{file!r}: an empty text")
            texts.append(content)
            places.append({"file": file})
        else:
            raise InputError(
                f"{file!r}: a text to predict for is a file *{', *'.join(SUFFIXES)}, or a row of "
                "a *.csv"
            )
    return texts, places


def _split_text_options(asked: DataRequest) -> tuple[bool, Any, dict[str, Any]]:
    """Return whether texts have labels, their tokenizer, and the options of the dataset."""
    from engine.data.tokens import ByteTokenizer

    options = dict(asked.options)
    labelled = arguments.check_flag(f"{_PLACE}: labelled", options.pop("labelled", False))
    tokenizer = options.pop("tokenizer", "bytes")
    if not callable(getattr(tokenizer, "encode", None)) or isinstance(tokenizer, str):
        tokenizer = arguments.check_text(f"{_PLACE}: tokenizer", tokenizer)
    return labelled, ByteTokenizer() if tokenizer == "bytes" else tokenizer, options


class _Arrays(Kind):
    """Arrays of a file: the inputs of a model by their names, or in the order that is given."""

    def list_suffixes(self) -> Sequence[str]:
        from engine.data.array_files import SUFFIXES

        return SUFFIXES

    def open(self, asked: DataRequest, path: Path, learned: Learned) -> Dataset:
        options = dict(asked.options)
        names = options.pop("arrays", None)
        target = options.pop("labels", None)
        if options:
            wrong = next(iter(options))
            raise InputError(f"{_PLACE}: unknown key {wrong!r}; known: arrays, labels")
        source = str(path) if target is None else (str(path), str(target))
        classes = list(asked.classes) or None
        return Arrays(
            source, arrays=names and arguments.check_names("arrays", names), classes=classes
        )

    def holds_classes(self, training: Dataset) -> bool:
        return len(training[0]) > 1 and training.labels().dtype.kind in "iub"

    def open_unlabelled(
        self, asked: DataRequest, paths: Sequence[Path], learned: Learned
    ) -> tuple[Places, Dataset]:
        from engine.data.array_files import list_names
        from engine.data.folders import list_all

        (file, *others) = [
            f for path in paths for f in list_all(path, self.list_suffixes(), "arrays")
        ]
        if others:
            raise InputError(
                f"predict reads one file of arrays at a time, got {file!r} and {others[0]!r}"
            )
        given = asked.options.get("arrays")
        wanted = None
        if given is not None and file.lower().endswith(".npz"):
            there = list_names(file)
            wanted = [name for name in given if name in there] or list(given)
        arrays = Arrays(file, arrays=wanted)
        return [{"file": file, "row": i} for i in range(len(arrays))], arrays


KINDS: dict[Name, Kind] = {
    "images": _Images(),
    "masks": _Masks(),
    "sounds": _Sounds(),
    "csv": _Tables(),
    "text": _Texts(),
    "tagged": _Tagged(),
    "arrays": _Arrays(),
}


def describe(dataset: Dataset) -> tuple[Name, dict[str, Any]] | None:
    """Return the kind of a dataset of files, and the options with which it is opened; None if it is
    of no kind.
    """
    for name, kind in KINDS.items():
        options = kind.describe(dataset)
        if options is not None:
            return name, options
    return None
