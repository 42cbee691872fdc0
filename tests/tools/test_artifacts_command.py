"""`edgegrad artifacts`: what `generate_artifacts` writes, chosen by words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import artifacts
from engine.api import CheckpointState
from engine.tools import cli
from tests.support.places import GOLDENS

FORWARD = GOLDENS / "mlp/forward.onnx"
NAMES = [i.name for i in onnx.load(FORWARD).graph.initializer]


def made(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert cli.main(["artifacts", *map(str, words)]) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


def test_the_files_are_those_of_generate_artifacts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    words = ("--loss", "cross_entropy", "--loss-option", "label_smoothing=0.1", "--lr", 0.01)
    more = ("--optimizer-option", "weight_decay=0.1", "--proximal")
    told = made(capsys, FORWARD, *words, *more, "-o", one)
    artifacts.generate_artifacts(
        FORWARD,
        requires_grad=NAMES,
        loss=artifacts.CrossEntropyLoss(label_smoothing=0.1),
        optimizer=artifacts.AdamW(0.01, weight_decay=0.1),
        artifact_directory=two,
        proximal=True,
    )
    assert {p.name for p in one.iterdir()} == {p.name for p in two.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name
    assert told.endswith(f"next: edgegrad prepare {one} --batch 8\n")
    assert f"in {len(NAMES)} parameters" in told


def test_parameters_are_chosen_by_patterns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--loss", "mse", "--optimizer", "sgd", "--json", "-o", tmp_path)
    data = json.loads(made(capsys, FORWARD, "--train", NAMES[-1], *words))
    assert data["trained"] == NAMES[-1:]
    assert sorted(data["frozen"]) == sorted(NAMES[:-1])
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert [n for n, p in state.parameters if p.requires_grad] == NAMES[-1:]
    assert data["files"].keys() == {p.name for p in tmp_path.iterdir()}


def test_the_last_layer_fits_the_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (FORWARD, "--loss", "cross_entropy", "--classes", 3, "--seed", 5)
    data = json.loads(made(capsys, *words, "--json", "-o", tmp_path / "a"))
    state = CheckpointState.load_checkpoint(tmp_path / "a" / "checkpoint")
    sizes = [np.shape(p.data) for _, p in state.parameters]
    assert (3,) in sizes
    told = made(capsys, *words, "-o", tmp_path / "b")
    assert f"the last layer {data['replaced_layer']!r} is replaced, for 3 classes" in told


def test_artifacts_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (FORWARD, "--loss", "cross_entropy", "-o", tmp_path)
    made(capsys, *words)
    assert "give another folder, or --force" in made(capsys, *words, status=1)
    made(capsys, *words, "--force")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss", "cross_entrpy"], "--loss: no loss 'cross_entrpy'; nearest: 'cross_entropy'"),
        (["--loss", "mse", "--optimizer", "adamx"], "no optimizer 'adamx'; nearest: 'adam"),
        (
            ["--loss", "mse", "--optimizer-option", "decay=1"],
            "--optimizer adamw: unknown key 'decay'",
        ),
        (
            ["--loss", "cross_entropy", "--loss-option", "label_smoothing=much"],
            "--loss cross_entropy: label_smoothing: expected a number, got 'much'",
        ),
        (["--loss", "mse", "--loss-option", "reduction"], "expected NAME=VALUE"),
        (["--loss", "mse", "--train", "fc9.*"], "'fc9.*' matches none"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = made(capsys, FORWARD, *words, "-o", tmp_path / "out", "--json", status=1)
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()
