"""Roots with folders train/, val/ and test/, on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.tools.actions import runs
from tests.support.commands import report, run_cli
from tests.support.run_models import (
    write_classifier,
    write_pictures,
    write_sounds,
    write_text_model,
    write_texts,
)

FAST = ("--batch", "8", "--threads", "1", "--epochs", "1")


def picture_run(folder: Path) -> tuple[Callable[[Path], Path], Path, list[str]]:
    return write_pictures, write_classifier(folder / "m.onnx", classes=3), []


def sound_run(folder: Path) -> tuple[Callable[[Path], Path], Path, list[str]]:
    pytest.importorskip("soundfile", reason="needs soundfile")
    return write_sounds, write_classifier(folder / "m.onnx", 2, channels=1, size=24), []


def text_run(folder: Path) -> tuple[Callable[[Path], Path], Path, list[str]]:
    words = ["--set", "data.options.labelled=true", "--set", "data.options.length=12"]
    return write_texts, write_text_model(folder / "m.onnx", per_token=False), words


@pytest.mark.parametrize("kind", [picture_run, sound_run, text_run])
def test_a_root_of_splits(kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, model, options = kind(tmp_path)
    for name in ("train", "Validation", "testing"):
        write(tmp_path / "data" / name)
    left_out = sorted((tmp_path / "data" / "Validation").iterdir())[0]
    shutil.rmtree(left_out)  # a class may be missing there
    run = tmp_path / "run"
    words = ("--model", model, "--data", tmp_path / "data", "-o", run, *FAST, *options)
    actual = report(capsys, "train", *words, "--test", "split")
    assert left_out.name in actual["classes"]
    assert actual["test"]["loss"] > 0
    evaluated = report(capsys, "eval", run, "--data", tmp_path / "data")
    alone = report(capsys, "eval", run, "--data", tmp_path / "data" / "testing")
    assert evaluated == alone
    assert {k: evaluated[k] for k in actual["test"]} == actual["test"]
    assert runs.read_config(run).data.validation is None


def test_a_class_that_only_the_validation_data_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, model, _ = picture_run(tmp_path)
    for name in ("train", "val"):
        write(tmp_path / "data" / name)
    first = sorted((tmp_path / "data" / "val").iterdir())[0]
    shutil.copytree(first, tmp_path / "data" / "val" / "zebra")
    words = ("--model", model, "--data", tmp_path / "data", "-o", tmp_path / "run", *FAST)
    told = run_cli(capsys, "train", *words, status=1)
    assert "'zebra' is not one of the classes" in told


def test_a_root_without_a_test_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, model, _ = picture_run(tmp_path)
    for name in ("train", "val"):
        write(tmp_path / "data" / name)
    words = ("--model", model, "--data", tmp_path / "data", "-o", tmp_path / "run", *FAST)
    told = run_cli(capsys, "train", *words, "--test", "split", status=1)
    assert "expected one with test data" in told
