"""The bench of browsers: bad input, and our own row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from tests.support.needs import needs_browser


@needs_browser
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "{}"], "{}: node_modules has no onnxruntime-web"),
        (
            ["--libraries", "brain"],
            "--libraries brain: expected some of edgegrad, edgegrad-simd, edgegrad-threads, ort",
        ),
    ],
)
def test_bad_input_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["browser", "mlp", *(word.format(tmp_path) for word in words)]) == 1
    assert message.format(tmp_path) in capsys.readouterr().err


@needs_browser
@pytest.mark.whole
def test_the_page_has_the_losses_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["browser", "mlp", "--batch", "2", "--time", "0.01", "--turns", "1"]
    words += ["--libraries", "edgegrad"]
    assert command.main([*words, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["benches"]["browser"]
    assert row["library"] == "edgegrad"
    assert row["losses differ"] < 1e-4
    assert row["download KB"] < 80
