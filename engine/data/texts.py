"""Texts: windows of tokens that predict the next one, and texts that belong to classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import FileError, InputError
from engine.base.signatures import check_arguments
from engine.data.columns import SheetRows
from engine.data.csv_file import read as read_csv
from engine.data.dataset import Dataset, Indices
from engine.data.folders import list_all, list_classes
from engine.data.samples import Sample, read_only
from engine.data.targets import find_classes
from engine.data.tokens import ByteTokenizer, Tokens

SUFFIXES = (".txt", ".md")


@check_arguments
class Texts(Dataset):
    """Windows of tokens for language models: samples (tokens, the next token of each), int64.

    The texts of all files follow one another.  A window has `length` tokens, the targets are the
    same window one token later.  Tokens at the end that do not fill a window are left out.

    Args:
        source: a file, or a folder whose files *.txt and *.md at any depth are read.
        tokenizer: see `Tokens`; `ByteTokenizer()` needs no file.
        length: tokens of a window.
        stride: tokens from one window to the next, by default `length`.
        encoding: the encoding of the files.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        InputError: the files hold fewer than `length` + 1 tokens, or are not of that encoding.
        MissingPackageError: the tokenizer is a path, and tokenizers is not installed.
    """

    cheap = True

    def __init__(
        self,
        source: str | os.PathLike[str],
        tokenizer: Any,
        length: int,
        *,
        stride: int | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self.length = length
        self.stride = length if stride is None else stride
        if min(self.length, self.stride) < 1:
            raise InputError(f"length={length}, stride={stride}; expected positive numbers")
        encode = Tokens(tokenizer, special=False)
        self.words = encode.words
        place = os.fspath(source)
        paths = list_all(place, SUFFIXES, "texts") if os.path.isdir(place) else [place]
        self.tokens = np.concatenate([encode(read(path, encoding)) for path in paths])
        if len(self.tokens) <= self.length:
            raise InputError(
                f"{place!r} has {len(self.tokens)} tokens; a window and the token after it take "
                f"{self.length + 1}"
            )

    def __len__(self) -> int:
        return 1 + (len(self.tokens) - self.length - 1) // self.stride

    def __getitem__(self, index: int) -> Sample:
        begin = index * self.stride
        window = self.tokens[begin : begin + self.length + 1]
        return read_only(window[:-1]), read_only(window[1:])

    def take(self, indices: Indices) -> tuple[Array, ...]:
        places = indices[:, np.newaxis] * self.stride + np.arange(self.length + 1)
        windows = self.tokens[places]
        return windows[:, :-1], windows[:, 1:]

    def split_rows(self, share: float, seed: int, stratify: bool | None) -> tuple[Indices, Indices]:
        """Split off the end of the texts; no window of the first part reaches into it."""
        if stratify:
            raise InputError("split: windows of texts have no classes to stratify by")
        part = arguments.check_real("share", share)
        if not 0 < part < 1:
            raise InputError(f"share={share!r}; expected a number between 0 and 1")
        border = len(self) - max(1, round(part * len(self)))
        count = border + 1 - -(-self.length // self.stride)  # those that end where it begins
        if count < 1:
            raise InputError(f"split: {len(self)} windows cannot be divided into two parts")
        return np.arange(count), np.arange(border, len(self))


@check_arguments
class LabelledTexts(Dataset):
    """Texts that belong to classes: samples (tokens, label) or (tokens, mask, label), int64.

    Args:
        source: a folder that holds a sub-folder of *.txt and *.md files for each class; or a CSV
            file with a column of texts and one of labels.
        tokenizer: see `Tokens`; `ByteTokenizer()` needs no file.
        length: tokens of a sample: longer texts are cut, shorter ones padded with `pad`.  None:
            samples are as long as their texts, for `bucket_by=`.
        mask: whether samples have a mask, 1 at the text's tokens and 0 at padding, as
            the input `attention_mask` of models wants it.  `Buckets` makes one itself.
        pad: the padding token, by default the tokenizer's.
        classes: names of the classes in the order of their labels.
        text, label: names of the columns of a CSV file.
        encoding, delimiter: the encoding and the delimiter of the files.

    Attributes:
        pad: the padding token.
        words: the size of the tokenizer's vocabulary; None if it does not say.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        InputError: a text is empty or not of that encoding, or there are fewer than two classes.
        NameNotFoundError: the file has no such column.
        MissingPackageError: the tokenizer is a path, and tokenizers is not installed.
    """

    cheap = True

    def __init__(
        self,
        source: str | os.PathLike[str],
        tokenizer: Any,
        length: int | None,
        *,
        mask: bool = False,
        pad: int | None = None,
        classes: Sequence[str] | None = None,
        text: str = "text",
        label: str = "label",
        encoding: str = "utf-8",
        delimiter: str = ",",
    ) -> None:
        self.length = length
        if self.length is not None and self.length < 1:
            raise InputError(f"length={length}; expected a positive number")
        self.mask = mask
        self._form = {"text": text, "label": label, "encoding": encoding, "delimiter": delimiter}
        self._tokenizer = tokenizer
        if self.mask and self.length is None:
            raise InputError("mask=True needs a length; Buckets(mask=True) needs none")
        encode = Tokens(tokenizer, special=True)
        self.words = encode.words
        self.pad = encode.pad if pad is None else pad
        place = os.fspath(source)
        if os.path.isdir(place):
            listing = list_classes(place, SUFFIXES, "texts", classes)
            texts = [read(path, encoding) for path in listing.paths]
            places = [repr(path) for path in listing.paths]
            targets: Array = listing.labels
            names: Sequence[str] = listing.classes
        else:
            table = SheetRows(read_csv(place, delimiter, encoding, True), [""])
            table.find_index(text)
            table.drop_missing([], drop=False, refuse=[label])
            texts = table.read_cells(text)
            places = [table.place(i, text) for i in range(len(texts))]
            known = None if classes is None else list(classes)
            targets, names = find_classes(table, label, None, known)
        self.classes = list(names)
        self._targets = targets
        self.tokens: list[Array] = []
        for content, where in zip(texts, places, strict=True):
            tokens = encode(content)[: self.length]
            if not content.strip() or not len(tokens):
                raise InputError(f"{where}: an empty text")
            self.tokens.append(tokens)

    def list_options(self) -> dict[str, Any]:
        """Return the arguments that decide what a text becomes."""
        is_bytes = type(self._tokenizer) is ByteTokenizer
        return {
            "labelled": True,
            "tokenizer": "bytes" if is_bytes else self._tokenizer,
            "length": self.length,
            "mask": self.mask,
            "pad": self.pad,
            **self._form,
        }

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Sample:
        tokens, label = self.tokens[index], np.asarray(self._targets[index])
        if self.length is None:
            return read_only(tokens), label
        missing = self.length - len(tokens)
        padded = np.pad(tokens, (0, missing), constant_values=self.pad)
        if not self.mask:
            return padded, label
        return padded, np.pad(np.ones(len(tokens), np.int64), (0, missing)), label

    def labels(self) -> Array:
        return self._targets

    def lengths(self, field: int) -> Indices:
        return np.array([len(tokens) for tokens in self.tokens], np.intp)


def read_column(path: str, column: str, delimiter: str = ",", encoding: str = "utf-8") -> list[str]:
    """Return the texts of a column of a table.

    Raises:
        FileError, InputError, NameNotFoundError: as `LabelledTexts`.
    """
    table = SheetRows(read_csv(path, delimiter, encoding, True), [""])
    table.drop_missing([], drop=False, refuse=[column])
    return table.read_cells(column)


def read(path: str, encoding: str) -> str:
    """Read the text of a file.

    Raises:
        FileError: it is missing or cannot be read.
        InputError: it is not of that encoding.
    """
    try:
        with open(path, encoding=encoding) as file:
            return file.read()
    except OSError as error:
        raise FileError(f"cannot read {path!r}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise InputError(f"{path!r} is not {encoding}: {error}; pass encoding=") from error
    except LookupError:
        raise InputError(f"encoding={encoding!r} is unknown") from None
