"""Marks of tests that need a program which a machine may lack."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.tools.dev.browser import PROGRAM
from engine.tools.dev.emulators import find_emulator

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="needs chromium")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
needs_java = pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")
needs_kotlin = pytest.mark.skipif(shutil.which("kotlinc") is None, reason="needs kotlinc")
needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo")
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="needs go")
needs_mono = pytest.mark.skipif(
    not (shutil.which("mcs") and shutil.which("mono")), reason="needs mcs and mono"
)
GNUSTEP = Path("/usr/include/GNUstep")  # headers of Objective-C's Foundation
needs_gnustep = pytest.mark.skipif(
    not (GNUSTEP / "Foundation/Foundation.h").exists(), reason="needs libgnustep-base-dev"
)


def needs_emulator(target: str) -> pytest.MarkDecorator:
    """Skip, to be counted, where a target's programs cannot be run."""
    emulator = find_emulator(target)
    missing = emulator.list_missing() if emulator else [f"a machine for {target}"]
    reason = f"needs {', '.join(missing)}: CONTRIBUTING.md"
    return pytest.mark.skipif(bool(missing), reason=reason)


def require_flower(*, simulation: bool = False) -> None:
    """Skip the test where Flower, or what its simulation needs, is not installed."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    if simulation:
        pytest.importorskip("ray", reason="the simulation of Flower is not installed")
