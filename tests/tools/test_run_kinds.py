"""Runs on sounds and on tables, from training to prediction."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.quantization import quantize
from engine.tools.actions import runs
from tests.support.commands import report, run_cli
from tests.support.run_models import (
    write_autoencoder,
    write_classifier,
    write_regressor,
    write_sounds,
    write_table,
    write_text_model,
    write_texts,
)

FAST = ("--batch", "8", "--threads", "1", "--optimizer", "adam", "--lr", "0.03")


def test_sounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("soundfile", reason="needs soundfile")
    data, test = write_sounds(tmp_path / "words"), write_sounds(tmp_path / "test", 3, seed=1)
    model = write_classifier(tmp_path / "m.onnx", 4, channels=1, size=18, pooled=False)
    run = tmp_path / "run"
    words = ("--model", model, "--data", data, "-o", run, "--epochs", 20, *FAST)
    options = ("--set", "data.options.rate=8000", "--set", "data.options.features={n_mels=18, "
               "rate=8000, window=200, hop=80}", "--set", "data.options.seconds=0.195")  # fmt: skip
    actual = report(capsys, "train", *words, *options)
    assert actual["best"]["val_accuracy"] == 1
    assert runs.read_config(run).data.kind == "sounds"
    assert report(capsys, "eval", run, "--data", test)["accuracy"] == 1
    rows = report(capsys, "predict", run, test)
    assert [row["class"] for row in rows] == ["high"] * 3 + ["low"] * 3


def test_the_features_of_sounds_fit_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("soundfile", reason="needs soundfile")
    data = write_sounds(tmp_path / "words")
    model = write_classifier(tmp_path / "m.onnx", classes=2, channels=1, size=24)
    words = ("--model", model, "--data", data, "-o", tmp_path / "run", "--epochs", 1, *FAST)
    report(capsys, "train", *words)
    options = runs.read_config(tmp_path / "run").data.options
    assert options["features"] == {"rate": 16000, "n_mels": 24}
    assert options["seconds"] == (400 + 23 * 160) / 16000


def test_a_table_of_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "train.csv", "kind")
    test = write_table(tmp_path / "test.csv", "kind", 30, seed=1)
    model, run = write_regressor(tmp_path / "m.onnx", outputs=5), tmp_path / "run"
    words = ("--model", model, "--data", table, "--label", "kind", "-o", run)
    actual = report(capsys, "train", *words, *FAST, "--epochs", 30)
    assert actual["classes"] == ["large", "small"]
    assert (run / "preparation.json").exists()
    assert report(capsys, "eval", run, "--data", test)["accuracy"] > 0.8
    rows = report(capsys, "predict", run, test)
    truth = [row["kind"] for row in csv.DictReader(test.read_text().splitlines())]
    assert np.mean([row["class"] == kind for row, kind in zip(rows, truth, strict=True)]) > 0.8
    assert [row["row"] for row in rows] == list(range(30))
    assert run_cli(capsys, "predict", run, test).startswith(f"{test}, row 0  ")


def test_a_table_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "train.csv", "area")
    test = write_table(tmp_path / "test.csv", "area", 20, seed=1)
    model, run = write_regressor(tmp_path / "m.onnx"), tmp_path / "run"
    words = ("--model", model, "--data", table, "--label", "area", "-o", run)
    actual = report(capsys, "train", *words, *FAST, "--epochs", 60, "--validation", test)
    assert actual["best"]["val_mae"] < 2
    assert actual["classes"] == []
    assert report(capsys, "eval", run, "--data", test)["mae"] < 2
    rows = report(capsys, "predict", run, test)
    assert len(rows) == 20
    assert len(rows[0]["values"]) == 1
    run_cli(capsys, "predict", run, test, "-o", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "file,row,value 0"


def test_a_table_that_is_rebuilt_needs_no_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An autoencoder: the loss compares the output with the input."""
    table = write_table(tmp_path / "train.csv", "area")
    model, run = write_regressor(tmp_path / "m.onnx", outputs=5, features=5), tmp_path / "run"
    words = ("--model", model, "--data", table, "--label", "", "-o", run)
    loss = ("--set", "model.loss_inputs=['y', 'x']", "--set", "fit.metrics=[]", "--loss", "mse")
    actual = report(capsys, "train", *words, *FAST, "--epochs", 20, *loss)
    assert actual["epochs"][-1]["loss"] < actual["epochs"][0]["loss"]
    assert len(report(capsys, "predict", run, table)[0]["values"]) == 5


def test_a_model_may_compute_its_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "train.csv", "area")
    model, run = write_autoencoder(tmp_path / "m.onnx"), tmp_path / "run"
    words = ("--model", model, "--data", table, "--label", "", "--loss", "none", "-o", run)
    actual = report(capsys, "train", *words, *FAST, "--epochs", 20)
    assert actual["best"]["val_loss"] < actual["epochs"][0]["val_loss"]
    assert "val_mae" not in actual["best"]
    rows = report(capsys, "predict", run, table)
    errors = [row["values"] for row in rows]
    evaluated = report(capsys, "eval", run, "--data", table)
    assert np.mean(errors) == pytest.approx(evaluated["loss"], rel=1e-4)


def test_texts_of_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_texts(tmp_path / "texts")
    model, run = write_text_model(tmp_path / "m.onnx", per_token=False), tmp_path / "run"
    words = ("--model", model, "--data", data, "-o", run, "--set", "data.options.length=32")
    actual = report(capsys, "train", *words, "--set", "data.options.labelled=true", *FAST)
    assert actual["classes"] == ["digits", "letters"]
    assert actual["best"]["val_accuracy"] == 1
    assert report(capsys, "eval", run, "--data", data)["accuracy"] == 1
    rows = report(capsys, "predict", run, data / "letters" / "3.txt", data / "digits")
    assert [row["class"] for row in rows] == ["letters", *["digits"] * 8]


def test_texts_predict_the_next_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "book.txt"
    text.write_text("abcdefgh" * 100)
    model, run = write_text_model(tmp_path / "m.onnx", per_token=True), tmp_path / "run"
    words = ("--model", model, "--data", text, "-o", run)
    told = run_cli(capsys, "train", *words, *FAST, status=1)
    assert "[data.options]: length is missing: the tokens of a sample, such as 128" in told
    actual = report(capsys, "train", *words, *FAST, "--set", "data.options.length=16")
    assert actual["best"]["val_perplexity"] < 3
    told = run_cli(capsys, "predict", run, text, status=1)
    assert "predict only from Python" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which column is to be predicted?  Give --label NAME"),
        ([], "the columns are 'width', 'height', 'color', 'area'"),
        (["--label", "aera"], "'aera'"),
        (["--label", "area", "--set", "data.options.missing=skip"], "expected one of"),
        (
            ["--label", "area", "--set", "data.options.features=['width']"],
            "a sample is [1], and the model's input 'x' takes [4]: change the options of the data",
        ),
        (["--label", "area", "--augment", "flip"], "augment: no 'flip' for Table; known: mixup"),
        (["--label", "area", "--metric", "accuracy"], "accuracy"),
    ],
)
def test_wrong_words(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, model = write_table(tmp_path / "t.csv", "area"), write_regressor(tmp_path / "m.onnx")
    given = ("--model", model, "--data", table, "-o", tmp_path / "run", "--epochs", 1, *FAST)
    told = run_cli(capsys, "train", *given, *words, "--json", status=1)
    assert message in told


def test_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A divided root of pictures with masks, from the training to files of masks."""
    image_module = pytest.importorskip("PIL.Image", reason="needs Pillow")
    rng = np.random.default_rng(0)
    for number in range(12):
        mask = np.zeros((16, 20), np.uint8)
        mask[: rng.integers(4, 12), : rng.integers(4, 12)] = 200
        place = tmp_path / "data" / ("train" if number < 8 else "val")
        for what, pixels in (("images", np.stack([mask] * 3, -1)), ("masks", mask)):
            (place / what).mkdir(parents=True, exist_ok=True)
            image_module.fromarray(pixels).save(place / what / f"{number}.png")
    run, made = tmp_path / "run", tmp_path / "made"
    words = ("--model", "unet_small", "--data", tmp_path / "data", "-o", run, "--epochs", 8, *FAST)
    size = ("--set", "data.options.size=16", "--class", "rest", "--class", "corner", "--batch", 2)
    actual = report(capsys, "train", *words, *size, "--augment", "flip")
    assert actual["classes"] == ["rest", "corner"]
    assert actual["best"]["val_iou"] > 0.3
    config = runs.read_config(run)
    assert (config.data.kind, config.data.options["values"]) == ("masks", [0, 200])
    assert report(capsys, "eval", run, "--data", tmp_path / "data")["iou"] > 0.3
    new = tmp_path / "data/val/images"
    assert run_cli(capsys, "predict", run, new, "-o", made) == f"{made}: 4 predictions\n"
    drawn = image_module.open(made / "10.png")  # the first one by name
    assert (drawn.mode, drawn.size, set(np.unique(drawn))) == ("P", (20, 16), {0, 1})
    rows = report(capsys, "predict", run, new, "-o", tmp_path / "p.csv")
    assert sum(rows[0]["shares"].values()) == pytest.approx(1)
    assert rows[0]["shares"]["corner"] == pytest.approx(np.mean(np.asarray(drawn) == 1))
    head = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert head == "file,share(rest),share(corner)"
    assert "is the picture itself" in run_cli(capsys, "predict", run, new, "-o", new, status=1)
    other = ("--model", "cnn", "--data", tmp_path / "data", "-o", tmp_path / "other")
    refused = run_cli(capsys, "train", *other, status=1)
    assert "as unet_small learns; expected a class for each sample" in refused


def test_arrays_train_the_head_of_an_int8_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes are known from the loss alone, which decides the metric."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((64, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 64)
    model, int8, data = (tmp_path / name for name in ("float.onnx", "int8.onnx", "data.npz"))
    Trainer.from_model("ds_cnn", data=(x, labels), seed=1).export(model)
    quantize(model, x).save(int8)
    np.savez(data, x=x, labels=labels)
    words = ("--train", "head", "--loss", "cross_entropy", "--epochs", 1)
    told = run_cli(
        capsys, "train", "--model", int8, "--data", data, "--out", tmp_path / "run", *words
    )
    assert "val_accuracy" in told
    assert (tmp_path / "run/inference.onnx").stat().st_size < model.stat().st_size / 2


# Names of the arrays of a file: of features, and of their labels.
ARRAY_NAMES = [("x", "labels"), ("x", "y"), ("image", "label"), ("X", "target")]


@pytest.mark.parametrize(("features", "target"), ARRAY_NAMES)
def test_arrays_of_whole_numbers_are_classes(
    features: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((32, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 32)
    model, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    Trainer.from_model("cnn", data=(x, labels), seed=1).export(model)
    arrays: dict[str, Any] = {features: x, target: labels}
    np.savez(data, **arrays)
    told = run_cli(capsys, "train", "--model", model, "--data", data, "--out", tmp_path / "run")
    assert "val_accuracy" in told
    (config,) = (tmp_path / "run").glob("run.toml")
    assert 'loss = "cross_entropy"' in config.read_text()
    assert "row 31  " in (told := run_cli(capsys, "predict", tmp_path / "run", data))
    assert " %" in told, "predictions are classes with their probabilities"


def test_arrays_of_real_numbers_are_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((32, 4)), y=rng.standard_normal((32, 2)))
    words = ("--model", "mlp", "--data", tmp_path / "data.npz", "--out", tmp_path / "run")
    assert "val_mae" in run_cli(capsys, "train", *words)


def test_an_autoencoder_learns_from_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("--model", "autoencoder", "--data", tmp_path / "x.npy", "--out", tmp_path / "run")
    assert "val_loss" in run_cli(capsys, "train", *words)
