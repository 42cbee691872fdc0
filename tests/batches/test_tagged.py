"""Sentences with a tag for each word, from files of columns and of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.data import TaggedTexts
from engine.errors import EngineError
from engine.tools import cli

NAMES = ("Ada", "Bob", "Eve", "Max")
COLUMNS = """-DOCSTART- -X- O

# a comment
Ada NNP B-PER
Byron NNP I-PER
wrote VB O

It PRP O
rains VB O
"""


def write(path: Path, count: int = 40, seed: int = 0) -> Path:
    """Write sentences in which a name is tagged PER."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        words = rng.choice([*NAMES, "goes", "home", "and", "sees"], rng.integers(2, 7))
        lines += [f"{word}\t{'PER' if word in NAMES else 'O'}" for word in words] + [""]
    path.write_text("\n".join(lines))
    return path


def test_files_of_columns_and_of_objects(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text(COLUMNS.replace("\n", "\r\n"))
    data = TaggedTexts(file)
    assert data.classes == ["B-PER", "I-PER", "O"]
    assert data.vocabulary == ["Ada", "Byron", "It", "rains", "wrote"]
    assert (data.words, data.pad, data.ignore_index, data.length) == (7, 0, -100, 3)
    words, tags = data.take(np.arange(2))
    assert words.tolist() == [[2, 3, 6], [4, 5, 0]]
    assert tags.tolist() == [[0, 1, 2], [2, 2, -100]]
    rows = [
        {"tokens": ["Ada", "Byron", "wrote"], "ner_tags": ["B-PER", "I-PER", "O"]},
        {"words": ["It", "rains"], "tags": ["O", "O"]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    same = TaggedTexts(tmp_path / "a.jsonl")
    assert all(
        np.array_equal(a, b) for a, b in zip(same.take(np.arange(2)), (words, tags), strict=True)
    )
    parts = TaggedTexts(tmp_path, length=2, tag=-1)
    assert [part.tolist() for part in parts[1]] == [[6, 0], [2, -100]]
    assert len(parts) == 6


def test_words_that_are_not_known(tmp_path: Path) -> None:
    file = tmp_path / "a.iob"
    file.write_text("The O\ncat B\n\nthe O\nTHE O\n")
    data = TaggedTexts(file, lower=True, least=2)
    assert data.vocabulary == ["the"]
    assert [data[i][0].tolist() for i in range(2)] == [[2, 1], [2, 2]]
    file.write_text("dog B\nthe O\n")
    other = data.like(file)
    assert (other[0][0].tolist(), other[0][1].tolist()) == ([1, 2], [0, 1])
    file.write_text("dog Bee\nthe O\n")
    with pytest.raises(EngineError, match=r"line 1: the tag 'Bee' is not one of 'B', 'O'"):
        data.like(file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "Ada PER\nByron\n", "line 2: 1 column; expected a word in column 0"),
        ("a.conll", "", "no sentences"),
        ("a.conll", "Ada O\nis O\n", "one tag, 'O'; expected two or more"),
        ("a.jsonl", "no", "line 1: not JSON"),
        ("a.jsonl", "[" * 9999, "line 1: not JSON"),
        ("a.jsonl", "[1]", "expected an object with the lists 'tokens' and 'tags'"),
        ("a.jsonl", '{"tokens": ["a"]}', "no list 'tags'; the object has 'tokens'"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O", "B"]}', "1 words and 2 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [1]}', "'tags'"),
    ],
)
def test_files_that_are_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EngineError, match=message):
        TaggedTexts(tmp_path / name)


def test_training_and_tags_of_new_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = TaggedTexts(write(Path("train.conll")))
    trainer = Trainer.from_model("gru_tagger", optimizer="adam", data=data, seed=0, threads=1)
    trainer.learning_rate = 0.02
    history = trainer.fit(
        data, validation=0.25, epochs=8, batch_size=8, metrics=["accuracy", "f1_per_class"],
        class_weight="balanced", folder="run", progress=False,
    )  # fmt: skip
    assert history["val_accuracy"][-1] == 1
    (row,) = trainer.predict([["Eve", "sees", "Bob"]])
    assert row["tags"] == ["PER", "O", "PER"]
    assert len(row["probabilities"]) == 3
    long = ["home", "and", "Eve", "goes", "and", "Ada", "sees", "and", "home", "Max"]
    (told,) = trainer.predict([" ".join(long)])
    assert told["words"] == long
    assert told["tags"] == ["PER" if word in NAMES else "O" for word in long]
    Path("new.txt").write_text("Max goes home\n\nand Ada\n")
    rows = Trainer.from_run("run").predict("new.txt")
    assert [row["tags"] for row in rows] == [["PER", "O", "O"], ["O", "PER"]]
    assert [row["row"] for row in rows] == [0, 1]
    test = write(Path("test.conll"), 10, seed=1)
    assert trainer.evaluate(test, metrics="accuracy")["accuracy"] == 1
    with pytest.raises(EngineError, match="has no words"):
        trainer.predict([[]])

    words = (
        "train",
        "--model",
        "gru_tagger",
        "--data",
        "train.conll",
        "--lr",
        "0.02",
        "-o",
        "told",
    )
    assert cli.main([*words, "--epochs", "8", "--batch", "8", "--threads", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["predict", "told", "new.txt"]) == 0
    assert "new.txt, row 0  Max/PER goes/O home/O" in capsys.readouterr().out
    assert cli.main(["predict", "told", "new.txt", "-o", "tags.csv"]) == 0
    expected = ["file,row,words,tags", "new.txt,0,Max goes home,PER O O"]
    assert Path("tags.csv").read_text().splitlines()[:2] == expected
    assert Trainer.from_run("told").predict("new.txt")[1]["tags"] == ["O", "PER"]
    capsys.readouterr()
    assert cli.main(["eval", "told", "--data", "test.conll", "--json"]) == 0
    measured: Any = json.loads(capsys.readouterr().out)
    assert measured["accuracy"] == 1
