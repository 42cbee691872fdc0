"""Trainings on paths and DataFrames: what is known of the data serves evaluation and prediction."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.data import ByteTokenizer, Csv, Images, LabelledTexts, Table
from engine.data.description import FILE, DataDescription
from engine.errors import EngineError, FileError, InputError, NameNotFoundError
from engine.tools import cli
from tests.support import page_setup
from tests.support.run_models import (
    write_classifier,
    write_pictures,
    write_sounds,
    write_text_model,
    write_texts,
)

OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 8}


def make(model: Path) -> Trainer:
    return Trainer.from_onnx(model, "cross_entropy", "adam", threads=1, seed=1)


@pytest.fixture(params=["pictures", "sounds"])
def divided(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Return a model, and a root of splits."""
    root, model = tmp_path / "data", tmp_path / "m.onnx"
    if request.param == "pictures":
        pytest.importorskip("PIL", reason="needs Pillow")
        write: Any = write_pictures
        write_classifier(model, 3)
    else:
        pytest.importorskip("soundfile", reason="needs soundfile")
        write = write_sounds
        write_classifier(model, 2, channels=1, size=24)
    for split in ("train", "valid", "test"):
        write(root / split)
    shutil.rmtree(sorted((root / "test").iterdir())[0])  # the first class: numbers would shift
    return model, root


def test_a_root_of_splits(divided: tuple[Path, Path], tmp_path: Path) -> None:
    model, root = divided
    trainer = make(model)
    history = trainer.fit(root, epochs=8, metrics="accuracy", folder=tmp_path / "run", **OPTIONS)
    assert "val_accuracy" in history.rows[0]
    names = sorted(path.name for path in (root / "train").iterdir())
    assert trainer.data_description is not None
    assert list(trainer.data_description.classes) == names
    accuracy = trainer.evaluate(root, metrics="accuracy")
    assert accuracy == trainer.evaluate(root / "test", metrics="accuracy")
    rows = trainer.predict(root / "test")
    right = [row["class"] == Path(row["file"]).parent.name for row in rows]
    assert np.mean(right) == pytest.approx(accuracy["accuracy"])
    assert list(rows[0]["probabilities"]) == names
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1)
    assert trainer.predict(rows[0]["file"]) == [
        {**rows[0], "probability": pytest.approx(rows[0]["probability"], rel=1e-4),
         "probabilities": pytest.approx(rows[0]["probabilities"], rel=1e-4)}
    ]  # fmt: skip
    again = make(model)
    again.load(tmp_path / "run")
    again_rows = again.predict(root / "test")
    assert [row["class"] for row in again_rows] == [row["class"] for row in rows]


def test_a_fifth_of_an_undivided_folder_validates(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    write_classifier(tmp_path / "m.onnx", 3)
    write_pictures(tmp_path / "photos")
    columns = [
        make(tmp_path / "m.onnx").fit(tmp_path / "photos", epochs=1, validation=share, **OPTIONS)
        for share in (None, 0.2, 0)
    ]
    assert columns[0]["val_loss"] == columns[1]["val_loss"]
    assert "val_loss" not in columns[2]


def test_a_folder_is_prepared_as_the_dataset_of_the_training(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    data = Images(write_pictures(tmp_path / "photos"), 8, mean=0.1, std=2.0)
    trainer = make(write_classifier(tmp_path / "m.onnx", 3))
    trainer.fit(data.split(0.2)[0], **OPTIONS)
    scores = trainer.predict(Images(tmp_path / "photos", 8, mean=0.1, std=2.0, labelled=False))
    rows = trainer.predict(tmp_path / "photos")
    assert isinstance(scores, np.ndarray)
    assert data.classes is not None
    assert [row["class"] for row in rows] == [data.classes[i] for i in scores.argmax(1)]
    expected = trainer.evaluate(data)
    assert trainer.evaluate(tmp_path / "photos")["loss"] == pytest.approx(expected["loss"])


def test_texts_of_a_folder(tmp_path: Path) -> None:
    data, model = write_texts(tmp_path / "texts"), write_text_model(tmp_path / "m.onnx", False)
    with pytest.raises(InputError, match="length is missing"):
        make(model).fit(data, **OPTIONS)


def test_labels_of_texts_have_the_numbers_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page_setup.forward(features=2)
    x = np.random.default_rng(0).standard_normal((12, 2)).astype(np.float32)
    names = ["ant", "bee", "cat"] * 4
    trainer = make(tmp_path / "forward.onnx")
    history = trainer.fit((x, names), validation=(x[1::3], ["bee"] * 4), **OPTIONS)
    numbers = np.ones(4, np.int64)
    expected = trainer.evaluate((x[1::3], numbers))["loss"]
    assert trainer.evaluate((x[1::3], ["bee"] * 4))["loss"] == expected
    assert history.rows[-1]["val_loss"] == pytest.approx(expected)
    with pytest.raises(InputError, match="the label 'dog', which is not one of the classes"):
        trainer.evaluate((x, ["dog"] * 12))


def test_frames_are_prepared_as_the_table_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pd = pytest.importorskip("pandas", reason="needs pandas")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(5, 3, 30), "b": ["x", "y", "z"] * 10})
    frame["kind"] = np.where(frame["a"] > 5, "high", np.where(frame["b"] == "x", "odd", "low"))
    table = Table(frame, "kind")
    page_setup.forward(features=table.width)
    trainer = make(tmp_path / "forward.onnx")
    trainer.fit(table, folder="run", **OPTIONS)
    few = frame[3:9]
    expected = trainer.predict(table)
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(trainer.predict(few.drop(columns="kind")), expected[3:9], rtol=1e-5)
    assert trainer.evaluate(frame)["loss"] == pytest.approx(trainer.evaluate(table)["loss"])
    again = make(tmp_path / "forward.onnx")
    again.load(tmp_path / "run")
    np.testing.assert_allclose(again.predict(few), expected[3:9], rtol=1e-5)
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match=r"photos': no tables; expected files as \*.csv"):
        trainer.predict("photos")
    fresh = make(tmp_path / "forward.onnx")
    with pytest.raises(InputError, match="a DataFrame does not say"):
        fresh.predict(few)
    few.to_csv("few.csv", index=False)
    with pytest.raises(InputError, match=r"give Table\('few.csv', label=\.\.\.\)"):
        fresh.fit("few.csv", **OPTIONS)
    assert len(Csv("few.csv", "kind", preparation=table.preparation)) == 6


def test_paths_that_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    trainer = make(write_classifier(tmp_path / "m.onnx", 3))
    for split in ("train", "val"):
        write_pictures(tmp_path / "data" / split)
    shutil.copytree(tmp_path / "data/val/red", tmp_path / "data/val/pink")
    with pytest.raises(NameNotFoundError, match="'pink' is not one of the classes"):
        trainer.fit(tmp_path / "data", **OPTIONS)
    shutil.rmtree(tmp_path / "data/val/pink")
    trainer.fit(tmp_path / "data", **OPTIONS)
    assert trainer.evaluate(tmp_path / "data") == trainer.evaluate(tmp_path / "data/val")
    (tmp_path / "data/train").rename(tmp_path / "data/valid")
    with pytest.raises(InputError, match="'val' and 'valid' are both the validation data"):
        trainer.fit(tmp_path / "data", **OPTIONS)
    shutil.rmtree(tmp_path / "data/valid")
    with pytest.raises(InputError, match="expected one with train data"):
        trainer.fit(tmp_path / "data", **OPTIONS)
    with pytest.raises(FileError, match=r"nowhere: no such file or folder"):
        trainer.fit(tmp_path / "nowhere", **OPTIONS)


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "x", "options": {}, "classes": []}', "{}"])
def test_damaged_files(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(EngineError, match="is damaged"):
        DataDescription.read(tmp_path)
    assert DataDescription.read(tmp_path / "none") is None


def test_files_of_tables_are_prepared_as_the_frame_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(5, 3, 30), "b": ["x", "y", "z"] * 10, "kind": ["c", "d"] * 15}
    table = Table(columns, "kind")
    trainer = Trainer.from_model("mlp", data=table, seed=0, threads=1)
    trainer.fit(table, folder="run", **OPTIONS)
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    Path("new.csv").write_text("\n".join(["a,b,kind", *lines]))
    rows = trainer.predict("new.csv")
    assert [row["row"] for row in rows] == list(range(30))
    assert [row["class"] for row in rows] == [
        "cd"[number] for number in np.asarray(trainer.predict(table)).argmax(1)
    ]
    assert trainer.evaluate("new.csv") == pytest.approx(trainer.evaluate(table), rel=1e-5)
    assert Trainer.from_run("run").predict("new.csv") == rows


def test_texts_are_read_as_in_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files were refused after a training run on `LabelledTexts`, and in another process."""
    monkeypatch.chdir(tmp_path)
    lines = ["a bad one,bad", "good as gold,good", "so bad a film,bad", "it is good,good"] * 4
    Path("reviews.csv").write_text("\n".join(["text,label", *lines]))
    texts = LabelledTexts("reviews.csv", ByteTokenizer(), length=16)
    trainer = Trainer.from_model("textcnn", data=texts, seed=0, threads=1)
    trainer.fit(texts, folder="run", **OPTIONS)
    rows = trainer.predict("reviews.csv")
    assert [row["class"] for row in rows] == [
        ["bad", "good"][number] for number in np.asarray(trainer.predict(texts)).argmax(1)
    ]
    assert Trainer.from_run("run").predict("reviews.csv") == rows
    told = trainer.predict([line.split(",")[0] for line in lines])
    assert told[0]["text"] == "a bad one"
    assert [row["class"] for row in told] == [row["class"] for row in rows]
    with pytest.raises(InputError, match="text 1 is empty"):
        trainer.predict(["a", ""])
    own = LabelledTexts("reviews.csv", Words(), length=16)
    other = Trainer.from_model("textcnn", data=own, seed=0, threads=1)
    other.fit(own, folder="other", **OPTIONS)
    assert len(other.predict("reviews.csv")) == 16
    with pytest.raises(InputError, match="does not know how to turn files into samples"):
        Trainer.from_run("other").predict("reviews.csv")


class Words(ByteTokenizer):
    """A user's own tokenizer, which no file can name."""


def test_runs_of_other_doors_predict_files(tmp_path: Path) -> None:
    """Runs of `Images` and of the command were refused: "data that were not files"."""
    pytest.importorskip("PIL", reason="needs Pillow")
    photos = write_pictures(tmp_path / "photos")
    images = Images(photos, 16, mean=0.4)
    trainer = Trainer.from_model("cnn", data=images, seed=0, threads=1)
    trainer.fit(images, folder=tmp_path / "run", **OPTIONS)
    rows = trainer.predict(photos)
    assert [row["probability"] for row in Trainer.from_run(tmp_path / "run").predict(photos)] == [
        pytest.approx(row["probability"], rel=1e-5) for row in rows
    ]
    words = ["--model", "cnn", "--data", photos, "--epochs", 1, "-o", tmp_path / "told"]
    assert cli.main(["train", *map(str, words)]) == 0
    of_command = Trainer.from_run(tmp_path / "told")
    assert of_command.predict(photos)[0]["file"] == rows[0]["file"]
    assert "accuracy" in of_command.evaluate(photos, metrics="accuracy")
    files = [rows[3]["file"], Path(rows[1]["file"])]
    told = trainer.predict(files)
    assert [row["class"] for row in told] == [rows[3]["class"], rows[1]["class"]]
    with pytest.raises(FileError, match=r"none\.png: no such file"):
        trainer.predict([*files, "none.png"])
