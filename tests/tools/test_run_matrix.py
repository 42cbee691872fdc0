"""Every kind of run with every kind of file: the samples that these hold, or an error.

A file is never read as something that it is not, as a table would be as one long text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import Csv
from engine.errors import EngineError
from engine.tools.actions import run_data
from engine.tools.actions.run_config import DataTable
from tests.support.run_models import write_pictures, write_sounds, write_table, write_texts

OPTIONS: dict[str, dict[str, Any]] = {
    "images": {"size": 12},
    "sounds": {"rate": 8000, "seconds": 0.2, "features": "none"},
    "csv": {"target": "kind"},
    "text": {"labelled": True, "length": 10},
    "arrays": {"arrays": ["x", "labels"]},
}
# The samples of the file in a row's first column, for each kind of run; 0: an error.
MATRIX = {
    "pictures": {"images": 30}, "picture.png": {"images": 1},
    "sounds": {"sounds": 12}, "sound.wav": {"sounds": 1},
    "table.csv": {"csv": 7}, "tables": {"csv": 7},
    "texts": {"text": 16}, "text.txt": {"text": 1}, "reviews.csv": {"text": 3},
    "data.npz": {"arrays": 5}, "x.npy": {"arrays": 4},
    "nothing": {}, "words.pdf": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("soundfile", reason="needs soundfile")
    folder = tmp_path_factory.mktemp("files")
    pictures, sounds = write_pictures(folder / "pictures"), write_sounds(folder / "sounds")
    texts = write_texts(folder / "texts")
    for name, source in {"picture.png": pictures, "sound.wav": sounds, "text.txt": texts}.items():
        first = next(path for path in sorted(source.rglob("*")) if path.is_file())
        (folder / name).write_bytes(first.read_bytes())
    write_table(folder / "table.csv", "kind", 7)
    (folder / "tables").mkdir()
    write_table(folder / "tables" / "a.csv", "kind", 7)
    (folder / "reviews.csv").write_text('text,label\n"so, so",bad\ngood,good\n"a\nb",good\n')
    np.savez(folder / "data.npz", x=np.ones((5, 4), np.float32), labels=np.arange(5))
    np.save(folder / "x.npy", np.ones((4, 4), np.float32))
    (folder / "nothing").mkdir()
    (folder / "words.pdf").write_bytes(b"%PDF-1.4 words")
    return folder


def learned(kind: str, files: Path) -> dict[str, Any]:
    if kind != "csv":
        return {}
    return {"preparation": Csv(files / "table.csv", "kind").preparation}


@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize("kind", OPTIONS)
def test_predict(kind: str, name: str, files: Path) -> None:
    table = DataTable(kind=kind, options=OPTIONS[kind])  # type: ignore[arg-type]  # of Kind
    count = MATRIX[name].get(kind, 0)
    if not count:
        with pytest.raises(EngineError):
            run_data.open_unlabelled(table, [files / name], learned(kind, files))[1][0]
        return
    places, samples = run_data.open_unlabelled(table, [files / name], learned(kind, files))
    assert (len(places), len(samples)) == (count, count)
    assert [place.get("row") for place in places[:2]] == ([None] * 2 if "row" not in places[0]
                                                          else [0, 1])[: len(places)]  # fmt: skip


LABELLED = {"pictures": "images", "sounds": "sounds", "table.csv": "csv", "texts": "text",
            "reviews.csv": "text", "data.npz": "arrays"}  # fmt: skip


@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize("kind", OPTIONS)
def test_train_and_eval(kind: str, name: str, files: Path) -> None:
    options = OPTIONS[kind]
    table = DataTable(kind=kind, options=options)  # type: ignore[arg-type]  # of Kind
    if LABELLED.get(name) == kind:
        data = run_data.open_data(table, files / name, learned(kind, files))
        assert len(data) == MATRIX[name][kind]
        assert len(data[0]) == 2
        return
    with pytest.raises(EngineError):
        run_data.open_data(table, files / name, learned(kind, files))[0]


def test_the_text_of_a_row_is_what_it_was_in_training(files: Path) -> None:
    table = DataTable(kind="text", options=OPTIONS["text"])
    trained = run_data.open_data(table, files / "reviews.csv")
    _, samples = run_data.open_unlabelled(table, [files / "reviews.csv"], {})
    for i in range(3):
        assert np.array_equal(samples[i][0], trained[i][0])
