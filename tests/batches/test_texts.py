"""Texts as data: windows for language models, labelled texts, tokenizers, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import (
    Buckets,
    ByteTokenizer,
    LabelledTexts,
    Texts,
    batches,
    train_tokenizer,
)
from engine.errors import (
    DTypeError,
    FileError,
    InputError,
    MissingPackageError,
    NameNotFoundError,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BYTES = ByteTokenizer()
OTHER: Any = "3"  # of a type that is not declared


class Words:
    """A tokenizer as in transformers: numbers, and special tokens if they are asked for."""

    pad_token_id = 9

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        inner = [len(word) for word in text.split()]
        return [7, *inner, 8] if add_special_tokens else inner


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    path = tmp_path / "letters.txt"
    path.write_text(LETTERS)
    return path


# --- windows


def test_windows_predict_the_next_token(letters: Path) -> None:
    data = Texts(letters, BYTES, 5)
    assert len(data) == 5
    texts = [tuple(BYTES.decode(part.tolist()) for part in data[i]) for i in range(5)]
    assert texts[0] == ("abcde", "bcdef")
    assert texts[4] == ("uvwxy", "vwxyz")
    (batch,) = batches(data).epoch()
    assert isinstance(batch, tuple)
    assert all(np.array_equal(batch[0][i], data[i][0]) for i in range(5))
    assert batch[1].dtype == np.int64
    assert len(Texts(letters, BYTES, 5, stride=2)) == 11
    assert len(Texts(letters, BYTES, 25)) == 1


def test_a_folder_of_texts_is_read_in_order_of_names(tmp_path: Path) -> None:
    for name, content in (("b.txt", "def"), ("a/z.md", "abc"), ("c.bin", "xyz")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert BYTES.decode(Texts(tmp_path, BYTES, 5)[0][0].tolist()) == "abcde"


@pytest.mark.parametrize("stride", [5, 2, 1])
def test_the_end_of_a_text_validates_and_no_window_of_the_training_reaches_into_it(
    letters: Path, stride: int
) -> None:
    train, validation = Texts(letters, BYTES, 5, stride=stride).split(0.4)
    assert len(train) > 0
    ends = max(int(train[i][0][-1]) for i in range(len(train)))
    begins = min(int(validation[i][0][0]) for i in range(len(validation)))
    assert ends < begins
    with pytest.raises(InputError, match="cannot be divided into two parts"):
        Texts(letters, BYTES, 25, stride=1).split(0.5)
    with pytest.raises(InputError, match="no classes to stratify by"):
        Texts(letters, BYTES, 5).split(0.5, stratify=True)
    with pytest.raises(InputError, match="share=2"):
        Texts(letters, BYTES, 5).split(2)


# --- labelled texts


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    for name, texts in (("bad", ["so so", "no"]), ("good", ["grand", "fine film indeed"])):
        (tmp_path / "reviews" / name).mkdir(parents=True)
        for i, text in enumerate(texts):
            (tmp_path / "reviews" / name / f"{i}.txt").write_text(text)
    return tmp_path / "reviews"


CSV = 'text,label,more\n"so, so",bad,1\nno,bad,2\ngrand,good,3\nfine film indeed,good,4\n'


def test_texts_are_cut_and_filled_up(reviews: Path) -> None:
    data = LabelledTexts(reviews, BYTES, 6)
    assert (data.classes, data.labels().tolist()) == (["bad", "good"], [0, 0, 1, 1])
    assert data[1][0].tolist() == [*b"no", 256, 256, 256, 256]
    assert bytes(data[3][0].tolist()) == b"fine f"
    tokens, mask, label = LabelledTexts(reviews, BYTES, 6, mask=True, pad=0)[1]
    assert (tokens.tolist(), mask.tolist(), int(label)) == (
        [*b"no", 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], 0,
    )  # fmt: skip


def test_texts_of_a_table(tmp_path: Path, reviews: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text(CSV)
    data = LabelledTexts(path, Words(), 5)
    assert data.classes == ["bad", "good"]
    assert data[0][0].tolist() == [7, 3, 2, 8, 9], "special tokens, and the tokenizer's pad"
    other = LabelledTexts(path, BYTES, 5, classes=["good", "bad"])
    assert other.labels().tolist() == [1, 1, 0, 0]
    path.write_text(CSV.replace("bad", "10").replace("good", "9"))
    assert LabelledTexts(path, BYTES, 5).classes == ["9", "10"], "numbers in their order"


def test_texts_of_any_length_go_into_buckets(reviews: Path) -> None:
    data = LabelledTexts(reviews, BYTES, None)
    actual_batches = batches(data, bucket_by=Buckets(lengths=[6, 20], pad={0: data.pad}, mask=True))
    shapes = [
        [part.shape for part in batch]
        for batch in actual_batches.epoch()
        if isinstance(batch, tuple)
    ]
    assert shapes == [[(3, 6), (3, 6), (3,)], [(1, 20), (1, 20), (1,)]]


# --- tokenizers


def test_bytes_are_tokens_of_every_text() -> None:
    text = "Grüße, 世界 🙂"
    tokens = BYTES.encode(text)
    assert max(tokens) < BYTES.pad < BYTES.size
    assert BYTES.decode([*tokens, BYTES.pad]) == text
    assert BYTES.decode([255]) == "\ufffd"


def test_a_tokenizer_is_learned_saved_and_read(tmp_path: Path, letters: Path) -> None:
    learned = train_tokenizer(["the cat and the hat", "the dog and the log"] * 5, size=300)
    text = "the cat – not seen before"
    assert learned.decode(learned.encode(text).ids) == text
    assert len(learned.encode("the cat").ids) < 7
    learned.save(str(tmp_path / "tokenizer.json"))
    letters.write_text(text)
    read = Texts(letters, tmp_path / "tokenizer.json", 4)
    assert np.array_equal(read.tokens, learned.encode(text).ids)
    (tmp_path / "t.csv").write_text("text,label\nthe cat,a\nthe dog,b\n")
    assert LabelledTexts(tmp_path / "t.csv", learned, 12)[0][0][-1] == 0, "<pad>"


def test_windows_have_no_special_tokens(letters: Path) -> None:
    letters.write_text("a bb ccc dddd")
    assert Texts(letters, Words(), 3).tokens.tolist() == [1, 2, 3, 4]


class Texty:
    def encode(self, text: str) -> list[str]:
        return text.split()


@pytest.mark.parametrize(
    ("tokenizer", "error", "text"),
    [
        (3, DTypeError, r"expected a path or an object with encode\(\), got int"),
        (Texty(), DTypeError, r"encode\(\) of Texty returned list; expected a list of numbers"),
        ("none.json", FileError, "cannot read the tokenizer 'none.json': No such file"),
        (__file__, InputError, "is not a tokenizer: "),
    ],
)
def test_tokenizers_that_are_none(
    letters: Path, tokenizer: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Texts(letters, tokenizer, 3)


class Plain:
    def encode(self, text: str) -> list[int]:
        return [1]


def test_a_tokenizer_without_a_pad_asks_for_one(reviews: Path) -> None:
    with pytest.raises(InputError, match="Plain has no token to pad with; pass pad="):
        LabelledTexts(reviews, Plain(), 3)
    assert LabelledTexts(reviews, Plain(), 3, pad=0)[0][0].tolist() == [1, 0, 0]


def test_a_missing_package_is_told_with_the_extra(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for need in (lambda: Texts(letters, letters, 3), lambda: train_tokenizer(["a"])):
        with pytest.raises(MissingPackageError, match=r"tokenizers: .*edgegrad\[text\]"):
            need()
    assert len(Texts(letters, BYTES, 5)) == 5, "bytes need no package"


# --- bad input


def test_sources_that_are_none(tmp_path: Path, reviews: Path, letters: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read '.*none.txt': No such file"):
        Texts(tmp_path / "none.txt", BYTES, 3)
    with pytest.raises(InputError, match="has 26 tokens; a window and the token after it take 27"):
        Texts(letters, BYTES, 26)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no texts; expected files as \*.txt"):
        Texts(tmp_path / "empty", BYTES, 3)
    letters.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"is not utf-8: .*pass encoding="):
        Texts(letters, BYTES, 3)
    with pytest.raises(InputError, match="encoding='utf-9' is unknown"):
        Texts(letters, BYTES, 3, encoding="utf-9")
    (reviews / "bad" / "2.txt").write_text(" \n")
    with pytest.raises(InputError, match=r"2.txt': an empty text"):
        LabelledTexts(reviews, BYTES, 3)


@pytest.mark.parametrize(
    ("content", "options", "error", "text"),
    [
        ("text,label\n,a\nb,b\n", {}, InputError, "line 2, column 'text': an empty text"),
        ("text,label\na,\nb,b\n", {}, InputError, "line 2, column 'label': the value is missing"),
        ("text,label\na,b\nc,b\n", {}, InputError, "all targets are of one class, 'b'"),
        ("text,kind\na,b\nc,d\n", {}, NameNotFoundError, "no column 'label'"),
        ("text,label\na,b\nc,d\n", {"classes": ["b", "e"]}, InputError, "'d' is not one of the cl"),
        ("text;label\na;b\n", {}, InputError, "pass delimiter=';'"),
    ],
)
def test_tables_that_are_refused(
    tmp_path: Path, content: str, options: Any, error: type[Exception], text: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(error, match=text):
        LabelledTexts(tmp_path / "t.csv", BYTES, 3, **options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda path: Texts(path, BYTES, 0), InputError, "length=0"),
        (lambda path: Texts(path, BYTES, OTHER), DTypeError, "length: expected a whole number"),
        (lambda path: Texts(path, BYTES, 3, stride=0), InputError, "stride=0"),
        (lambda path: LabelledTexts(path, BYTES, 0), InputError, "length=0"),
        (lambda path: LabelledTexts(path, BYTES, None, mask=True), InputError, "needs a length"),
        (lambda path: train_tokenizer(["a"], 100), InputError, "size=100; expected at least 257"),
        (
            lambda path: train_tokenizer("text"),
            InputError,
            "texts: expected a list of names",
        ),
    ],
)
def test_options_that_are_none(letters: Path, make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(letters)
