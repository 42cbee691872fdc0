"""Lint, format and types are part of the tests; the tool's own words are the failure message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.places import ROOT


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_clean(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"{command}\n{done.stdout}", pytrace=False)
