"""Runs of self-tests of builds for other platforms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed.selftest import STEPS
from engine.tools.trimmed.targets import resolve

LINE = re.compile(r"step \d+: loss (\S+), recorded (\S+), (equal|close)")


def run_selftest(folder: Path, target: str) -> list[float]:
    """The losses of a self-test, which passes, and whose losses agree to rounding."""
    emulator = find_emulator(target)
    assert emulator is not None
    program = folder / resolve(target).file_name("executable", "selftest")
    said = emulator.run(program, folder / "checkpoint")
    assert "passed" in said
    losses = LINE.findall(said)
    assert len(losses) == STEPS, said
    for loss, recorded, _ in losses:
        assert float(loss) == pytest.approx(float(recorded), rel=2e-6)
    return [float(loss) for loss, _, _ in losses]
