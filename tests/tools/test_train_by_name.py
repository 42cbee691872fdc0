"""`edgegrad train --model NAME`: architectures that no file has."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from engine import Trainer
from engine.tools import cli
from engine.tools.actions import runs
from tests.support.run_models import write_pictures

FAST = ("--epochs", "1", "--threads", "1", "--batch", "8")

pytest.importorskip("PIL", reason="needs Pillow")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "photos")
    return tmp_path / "photos"


def train(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert cli.main(["train", *FAST, *words]) == status
    told = capsys.readouterr()
    return told.err if status else told.out


def test_a_run_begins_goes_on_and_gives_its_weights(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words: tuple[str, ...] = ("--model", "cnn", "--data", "photos", "-o", "run")
    assert "model: cnn: 3x32x32 to 3, 1,625,539 parameters\n" in train(capsys, *words)
    assert runs.read_config(Path("run")).data.options["size"] == [32, 32]
    train(capsys, "--resume", "-o", "run", "--epochs", "2")
    assert len(Path("run/history.csv").read_text().splitlines()) == 1 + 2
    words = ("--config", "run/run.toml", "-o", "again")
    assert "model: cnn: 3x32x32 to 3" in train(capsys, *words)
    for path in (photos / "red").iterdir():
        path.unlink()
    (photos / "red").rmdir()
    words = ("--model", "cnn", "--weights", "run/inference.onnx", "--data", "photos", "-o", "two")
    told = train(capsys, *words)
    assert "model: fc2.weight, fc2.bias stay random, for another number of classes\n" in told


def test_a_trainer_of_a_run_of_the_command_makes_its_artifacts_anew(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(capsys, "--model", "cnn", "--data", "photos", "-o", "run")
    shutil.move("run", "moved")
    trainer = Trainer.from_run("moved", threads=1)
    for asked in ({"class_weight": "balanced"}, {"augment": ["cutmix"]}):
        history = trainer.fit("photos", batch_size=8, progress=False, **asked)
        assert np.isfinite(history["loss"]).all()


def test_rows_and_texts_have_models_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [("ab"[i % 2], f"{i % 2 + i / 100}", "good" if i % 2 else "bad") for i in range(20)]
    Path("rows.csv").write_text("".join(f"{a},{b},{c}\n" for a, b, c in [("a", "b", "c"), *rows]))
    assert "model: mlp: 3 to 2, " in train(
        capsys, "--model", "mlp", "--data", "rows.csv", "--label", "c", "-o", "mlp"
    )
    assert "model: autoencoder: 5 to 5, " in train(
        capsys, "--model", "autoencoder", "--data", "rows.csv", "-o", "autoencoder"
    )
    Path("texts.csv").write_text("text,label\n" + "".join(f"{a} {b},{c}\n" for a, b, c in rows))
    assert "model: textcnn: 20 to 2, " in train(
        capsys, "--model", "textcnn", "--data", "texts.csv", "--kind", "text",
        "--set", "data.options.length=20", "-o", "texts",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--model", "resnet"), "no model 'resnet'; nearest: 'resnet18'; there are mlp, cnn, "),
        (("--model", "resnet.onnx"), "resnet.onnx: no such file"),
        (("--model", "mlp"), "pictures need a model whose first input has four axes"),
        (("--model", "photos/red/000.png", "--weights", "x.onnx"), "has weights of its own"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    words: tuple[str, ...], text: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in train(capsys, *words, "--data", "photos", status=1)
    assert not Path("run").exists()
