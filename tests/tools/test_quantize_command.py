"""`edgegrad quantize`: of a file and of a run, its measurements, and wrong use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.tools import cli
from tests.support.run_models import write_classifier, write_pictures

pytest.importorskip("PIL", reason="needs Pillow")


def call(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert cli.main(["quantize", *map(str, words)]) == status, capsys.readouterr().err
    printed = capsys.readouterr()
    return printed.err if status else printed.out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/, test/, model.onnx of 3 classes and the run `run`."""
    folder = tmp_path_factory.mktemp("home")
    write_pictures(folder / "photos")
    write_pictures(folder / "test", 4, seed=3)
    write_classifier(folder / "model.onnx", 3)
    words = ("--model", folder / "model.onnx", "--data", folder / "photos", "-o", folder / "run",
             "--epochs", "8", "--batch", "8", "--lr", "0.05", "--threads", "1")  # fmt: skip
    assert cli.main(["train", *map(str, words)]) == 0
    return folder


def test_a_run_becomes_integers_and_says_what_that_loses(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "int8.onnx"
    text = call(
        capsys, home / "run", "--calibrate", home / "photos", "--validate", home / "test", "-o", out
    )
    assert "2 products in integers" in text
    assert f"measured with 12 samples of {home / 'test'}:" in text
    assert "accuracy     float 1, quantised 1" in text
    weights = {t.name: t.data_type for t in onnx.load(out).graph.initializer}
    assert weights["conv.weight_quantized"] == onnx.TensorProto.INT8


def test_a_run_with_roundings_leaves_a_model_of_integers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "aware"
    words = ("train", "--model", home / "run" / "inference.onnx", "--data", home / "photos",
             "--qat", "--set", "model.qat_options.weight_bits=4", "-o", out, "--epochs", "1",
             "--batch", "8", "--lr", "0.001", "--threads", "1")  # fmt: skip
    assert cli.main([*map(str, words)]) == 0
    told = capsys.readouterr().out
    assert "model: 2 products in integers" in told
    assert re.search(r"accuracy: float \S+, quantised without training \S+, now \S+\n", told)
    measured = json.loads((out / "quantization.json").read_text())["accuracy"]
    assert list(measured) == ["float", "post_training", "aware"]
    assert all(value > 0.5 for value in measured.values())
    report = (out / "report.html").read_text("utf-8")
    shown = "".join(f"<td>{value:.4g}</td>" for value in measured.values())
    assert f'<th scope="row">accuracy</th>{shown}' in report
    assert report.count('<a href="#quantisation">') == report.count('id="quantisation"') == 1
    assert report.index('id="summary"') < report.index('id="quantisation"')
    weights = {t.name: t for t in onnx.load(out / "inference.onnx").graph.initializer}
    integers = onnx.numpy_helper.to_array(weights["conv.weight_quantized"])
    assert weights["conv.weight_quantized"].data_type == onnx.TensorProto.INT4
    assert np.abs(integers.astype(np.int8)).max() == 7
    assert cli.main(["predict", str(out), str(home / "test")]) == 0
    resumed = ("train", "--resume", "-o", out, "--epochs", "2")
    assert cli.main([*map(str, resumed)]) == 0
    assert (out / "report.html").read_text("utf-8").count('id="quantisation"') == 1


AWARE: dict[str, tuple[tuple[str, ...], str]] = {
    "random": (("--model", "cnn"), "an architecture without weights begins with random ones"),
    "option": (("--model", "model.onnx", "--set", "model.qat_options.bits=4"), "unknown key"),
    "adapters": (("--model", "model.onnx", "--set", "model.lora={match='fc'}"), "qat and lora"),
}


@pytest.mark.parametrize("case", AWARE)
def test_roundings_that_make_no_sense_are_refused(
    case: str,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    words, told = AWARE[case]
    command = ("train", *words, "--qat", "--data", "photos", "-o", str(tmp_path / "out"))
    assert cli.main(list(command)) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_takes_options_and_prints_json(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--calibrate", home / "photos", "-o", tmp_path / "q.onnx", "--samples", "10",
             "--method", "percentile", "--percentile", "99", "--activations", "int8",
             "--per-tensor", "--keep-float", "fc", "--json")  # fmt: skip
    told = json.loads(call(capsys, home / "model.onnx", *words))
    assert told["left"] == [{"name": "fc", "op": "Gemm", "reason": "kept by a pattern"}]
    assert told["samples"] == 30
    assert "the calibration data" in told["measured"]
    assert set(told["metrics"]) == {"accuracy"}
    assert told["decibels"] > 15
    points = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer
              if t.name == "x_zero_point"]  # fmt: skip
    assert [t.data_type for t in points] == [onnx.TensorProto.INT8]


def test_rows_of_a_table_have_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 4))
    lines = ["a,b,c,price", *(",".join(f"{v:.4f}" for v in row) for row in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    words = ("--model", "mlp", "--data", tmp_path / "rows.csv", "--label", "price",
             "-o", tmp_path / "run", "--epochs", "2", "--threads", "1")  # fmt: skip
    assert cli.main(["train", *map(str, words)]) == 0
    capsys.readouterr()
    text = call(capsys, tmp_path / "run", "-o", tmp_path / "q.onnx")  # the data of the run
    assert f"of {tmp_path / 'rows.csv'} (the calibration data)" in text
    assert "mae          float " in text


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "no data": ((), "model.onnx does not say which data calibrate it: give --calibrate PATH"),
    "nothing there": (("--calibrate", "none"), "none: no such file or folder"),
    "too many": (("--calibrate", "photos", "--samples", "31"), "--samples 31: the data have 30"),
    "pattern": (
        ("--calibrate", "photos", "--keep-float", "fcc"),
        "keep_float: 'fcc' matches none of 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_told_and_nothing_is_written(
    case: str,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    words, told = WRONG[case]
    out = tmp_path / "q.onnx"
    assert told in call(capsys, "model.onnx", *words, "-o", out, status=1)
    assert not out.exists()


def test_a_folder_that_is_no_run(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (home / "photos", "--calibrate", home / "photos", "-o", tmp_path / "q.onnx")
    assert "expected an ONNX file, or the folder of a run" in call(capsys, *words, status=1)
