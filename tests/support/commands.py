"""Commands of `edgegrad`, run in this process, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.tools import cli


def run_cli(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    """Return the output of a command, or the error with which it ends."""
    assert cli.main([*map(str, words)]) == status, capsys.readouterr().err
    printed = capsys.readouterr()
    if status == 1:
        assert printed.out == ""
        assert "Traceback" not in printed.err
    return printed.err if status else printed.out


def report(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Return what a command prints with `--json`."""
    return json.loads(run_cli(capsys, *words, "--json"))
