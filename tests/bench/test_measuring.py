"""Processes that benches measure."""

from __future__ import annotations

import sys

import pytest

from bench.measuring import MIB, run
from engine.errors import EngineError

PYTHON = (sys.executable, "-I", "-S", "-c")


def test_a_peak_is_that_of_the_command_alone() -> None:
    held = bytearray(200 * MIB)
    held[::4096] = b"x" * len(held[::4096])  # each page is there
    small = run([*PYTHON, "pass"]).peak
    assert small < 50 * MIB
    large = run([*PYTHON, f"held = b'x' * {100 * MIB}"]).peak
    assert 90 * MIB < large - small < 110 * MIB


def test_a_command_reads_its_input_and_takes_processor_time() -> None:
    code = (
        "import sys, time\nassert sys.stdin.read() == 'text'\nwhile time.process_time() < 0.2: pass"
    )
    done = run([*PYTHON, code], "text")
    assert done.processor >= 0.2
    assert done.processor <= done.seconds * 2


def test_a_command_that_fails_says_how() -> None:
    with pytest.raises(EngineError, match="status 3"):
        run([*PYTHON, "raise SystemExit(3)"])
    with pytest.raises(EngineError, match="no-such-program: status not started"):
        run(["no-such-program"])
