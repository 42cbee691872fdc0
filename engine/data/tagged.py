"""Sentences with a tag for each word."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import InputError, NameNotFoundError, suggest_nearest
from engine.base.labels import IGNORED
from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.data.dataset import Dataset, Indices
from engine.data.folders import list_all
from engine.data.samples import Sample, read_only
from engine.data.texts import read

SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".jsonl")
LINES = (".txt",)  # a sentence a line, to predict for
PAD, UNKNOWN, FIRST = 0, 1, 2  # numbers of words
DOCUMENT = "-DOCSTART-"  # begins a document in the files of CoNLL 2003
WORD_KEYS, TAG_KEYS = ("tokens", "words"), ("tags", "ner_tags", "labels")
SHOWN = 5  # tags of a message


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and their tags; place: of its first word, in messages."""

    words: Sequence[str]
    tags: Sequence[str]
    place: str


class WordNumbers:
    """The numbers of words, in parts of one length.

    vocabulary: the words, from number `FIRST` on.
    """

    def __init__(self, vocabulary: Sequence[str], length: int, lower: bool) -> None:
        self.length, self.lower = length, lower
        self._numbers = {word: number for number, word in enumerate(vocabulary, FIRST)}

    def encode(self, words: Sequence[str]) -> list[tuple[int, Array]]:
        """Return parts of a sentence: the place of the first word, and the numbers."""
        folded = [word.lower() if self.lower else word for word in words]
        numbers = np.array([self._numbers.get(word, UNKNOWN) for word in folded], np.int64)
        return [
            (begin, _fill(numbers[begin : begin + self.length], self.length, PAD))
            for begin in range(0, len(numbers), self.length)
        ]


@check_arguments(length=AT_LEAST_1, least=AT_LEAST_1)
class TaggedTexts(Dataset):
    """Sentences with a tag for each word: samples (words, tags), int64 [length].

    A file has a line for each word, with its tag in the last column, and an empty line after each
    sentence, like the files of CoNLL; columns are separated by tabs or spaces, and lines that begin
    with "# " are comments.  Or it is a *.jsonl, whose lines are objects with the lists "tokens" and
    "tags" of texts.

    Words have the numbers 2, 3, ..., the most frequent first.  1 is a word that the training data
    lack, and 0 is padding, whose tag is -100, which `CrossEntropyLoss(ignore_index=-100)` ignores.

    Args:
        source: a file, or a folder whose files *.conll, *.conllu, *.iob, *.iob2, *.bio and *.jsonl
            at any depth are read.
        length: words of a sample: longer sentences become several samples, shorter ones are
            padded.  By default the length of the longest sentence.
        vocabulary: the words in the order of their numbers; by default the words of the file.
        least: how often a word of the vocabulary must occur; rarer words are unknown ones.
        lower: whether to ignore the difference between capital and small letters.
        word, tag: the columns of words and tags, counted from 0; from the end, if below 0.
        classes: the tags in the order of their numbers; by default in the order of the alphabet.
        encoding: the encoding of the files.

    Attributes:
        vocabulary: as the argument.
        words: the size of the vocabulary, including the numbers for unknown words and padding.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        InputError: a line lacks a column, the numbers of words and tags differ, or there are fewer
            than two tags.
        NameNotFoundError: a tag is not in `classes`.
    """

    cheap = True
    ignore_index = IGNORED
    pad = PAD

    def __init__(
        self,
        source: str | os.PathLike[str],
        length: int | None = None,
        *,
        vocabulary: Sequence[str] | None = None,
        least: int = 1,
        lower: bool = False,
        word: int = 0,
        tag: int = -1,
        classes: Sequence[str] | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self.lower, self.word, self.tag, self.encoding = lower, word, tag, encoding
        sentences = self._read(source)
        if vocabulary is None:
            counts = Counter(
                each.lower() if lower else each for one in sentences for each in one.words
            )
            ranked = sorted(counts, key=lambda each: (-counts[each], each))
            vocabulary = [each for each in ranked if counts[each] >= least]
        self.vocabulary = list(vocabulary)
        if classes is None:
            classes = sorted({tag for one in sentences for tag in one.tags})
        if len(classes) < 2:
            raise InputError(
                f"{os.fspath(source)!r}: one tag, {classes[0]!r}; expected two or more"
            )
        self.classes = list(classes)
        self.length = length or max(len(one.words) for one in sentences)
        self._make_samples(sentences)

    @property
    def words(self) -> int:
        """The size of the vocabulary, including the numbers for unknown words and padding."""
        return FIRST + len(self.vocabulary)

    def like(self, source: str | os.PathLike[str]) -> Self:
        """Return other sentences with the words, tags and options of these.

        Raises:
            EngineError: as the class.
        """
        options = {**self.list_options(), "classes": self.classes}
        return type(self)(source, **options)

    def list_options(self) -> dict[str, Any]:
        """Return the arguments that decide what a sentence becomes, as JSON types."""
        return {
            "length": self.length,
            "vocabulary": self.vocabulary,
            "lower": self.lower,
            "word": self.word,
            "tag": self.tag,
            "encoding": self.encoding,
        }

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> Sample:
        return read_only(self._words[index]), read_only(self._tags[index])

    def take(self, indices: Indices) -> tuple[Array, ...]:
        return self._words[indices], self._tags[indices]

    def labels(self) -> Array:
        return self._tags

    def _read(self, source: str | os.PathLike[str]) -> list[Sentence]:
        """Read all sentences of a file or a folder.

        Raises:
            FileError, InputError: see the class.
        """
        sentences: list[Sentence] = []
        for path in list_all(source, SUFFIXES, "tagged texts"):
            text = read(path, self.encoding)
            is_json = path.lower().endswith(".jsonl")
            sentences += _read_json(path, text) if is_json else self._read_columns(path, text)
        if not sentences:
            raise InputError(f"{os.fspath(source)!r}: no sentences")
        return sentences

    def _read_columns(self, path: str, text: str) -> Iterator[Sentence]:
        for place, rows in list_rows(path, text):
            words, tags = [], []
            for line, row in rows:
                columns = len(row)
                if not (-columns <= self.word < columns and -columns <= self.tag < columns > 1):
                    raise InputError(
                        f"{path!r}, line {line}: {columns} column{'s' * (columns != 1)}; expected "
                        f"a word in column {self.word} and its tag in column {self.tag}"
                    )
                words.append(row[self.word])
                tags.append(row[self.tag])
            yield Sentence(words, tags, place)

    def _make_samples(self, sentences: Sequence[Sentence]) -> None:
        numbers = {tag: number for number, tag in enumerate(self.classes or ())}
        encoder = WordNumbers(self.vocabulary, self.length, self.lower)
        words: list[Array] = []
        tags: list[Array] = []
        for sentence in sentences:
            for tag in sentence.tags:
                if tag not in numbers:
                    known = list(numbers)
                    shown = ", ".join(map(repr, known[:SHOWN]))
                    raise NameNotFoundError(
                        f"{sentence.place}: the tag {tag!r} is not one of {shown}"
                        f"{', ...' if len(known) > SHOWN else ''}{suggest_nearest(tag, known)}"
                    )
            labels = np.array([numbers[tag] for tag in sentence.tags])
            for begin, part in encoder.encode(sentence.words):
                words.append(part)
                tags.append(_fill(labels[begin : begin + self.length], self.length, IGNORED))
        self._words, self._tags = np.stack(words), np.stack(tags)


def list_rows(path: str, text: str) -> Iterator[tuple[str, list[tuple[int, list[str]]]]]:
    """List the sentences of a file of columns: the place, then the lines with their numbers."""
    rows: list[tuple[int, list[str]]] = []
    for line, content in enumerate([*text.split("\n"), ""], 1):
        columns = content.split("\t") if "\t" in content else content.split()
        columns = [column.strip() for column in columns]
        if content.startswith("# ") or columns[:1] == [DOCUMENT]:
            continue
        if any(columns):
            rows.append((line, columns))
        elif rows:
            yield f"{path!r}, line {rows[0][0]}", rows
            rows = []


def _list_objects(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the objects of a *.jsonl, each with its place.

    Raises:
        InputError: a line is not a JSON object.
    """
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        place = f"{path!r}, line {line}"
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{place}: expected an object with the lists 'tokens' and 'tags'")
        yield place, row


def _read_list(place: str, row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Return the list of texts that an object has by one of these names.

    Raises:
        InputError, DTypeError: it has none, or not of texts.
    """
    for key in keys:
        if row.get(key):
            return list(arguments.check_names(f"{place}: {key!r}", row[key]))
    raise InputError(f"{place}: no list {keys[0]!r}; the object has {', '.join(map(repr, row))}")


def _read_json(path: str, text: str) -> Iterator[Sentence]:
    for place, row in _list_objects(path, text):
        words, tags = _read_list(place, row, WORD_KEYS), _read_list(place, row, TAG_KEYS)
        if len(words) != len(tags):
            raise InputError(f"{place}: {len(words)} words and {len(tags)} tags")
        yield Sentence(words, tags, place)


def read_sentences(path: str, encoding: str, column: int) -> list[list[str]]:
    """Read the words of sentences to predict for; a file *.txt has one a line.

    column: the column of the words in files of columns.

    Raises:
        FileError, InputError: it cannot be read, or a line lacks the column.
    """
    text, ending = read(path, encoding), os.path.splitext(path)[1].lower()
    if ending in LINES:
        return [line.split() for line in text.split("\n") if line.strip()]
    if ending == ".jsonl":
        return [_read_list(place, row, WORD_KEYS) for place, row in _list_objects(path, text)]
    sentences: list[list[str]] = []
    for _, rows in list_rows(path, text):
        for line, row in rows:
            if not -len(row) <= column < len(row):
                raise InputError(f"{path!r}, line {line}: no column {column}")
        sentences.append([row[column] for _, row in rows])
    return sentences


def _fill(values: Array, length: int, by: int) -> Array:
    filled = np.full(length, by, np.int64)
    filled[: len(values)] = values
    return filled
