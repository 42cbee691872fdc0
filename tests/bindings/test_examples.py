"""Examples of packages with models of every kind of input: they train, or say how to be called."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.bindings.packages import MODELS, NATIVE, make_example
from tests.bindings.programs import (
    HERE,
    OBJECTIVE_C_EXAMPLE,
    TOOLCHAINS,
    Program,
    make_objective_c,
    needs_gnustep,
)
from tests.support.builds import needs_cc

IN_SHORT = ("c", "cpp", "java", "csharp", "go", "js")
LANGUAGES = [
    pytest.param(name, marks=[tools.needs, *[pytest.mark.whole] * (name not in IN_SHORT)])
    for name, tools in TOOLCHAINS.items()
    if tools.example
]


def check_example(program: Program, folder: Path, out: Path) -> None:
    """Check that a program trains and saves, and that without arguments it says which it takes."""
    printed = program.run(folder / "checkpoint", out / "trained")
    losses = [float(x) for x in re.findall(r"^step \d+: loss (\S+)", printed, re.MULTILINE)]
    assert len(losses) == 20
    assert np.isfinite(losses).all()
    assert (out / "trained").stat().st_size > 500
    alone = subprocess.run(program.command, env=program.variables or None, capture_output=True)
    assert alone.returncode != 0
    said = (alone.stdout + alone.stderr).decode()
    assert re.search(r"usage: .*CHECKPOINT NEW_CHECKPOINT", said), said
    assert len(said.splitlines()) == 1, said


@needs_cc
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_an_example_trains_any_model(language: str, model: str, tmp_path: Path) -> None:
    tools = TOOLCHAINS[language]
    folder = make_example(model, *(("js", "wasm32") if language == "js" else (NATIVE, "native")))
    program = tools.make(folder, folder / tools.example, tmp_path, HERE)
    check_example(program, folder, tmp_path)


@needs_cc
@needs_gnustep
@pytest.mark.parametrize("model", [pytest.param("mixed", marks=pytest.mark.whole), "wide"])
def test_an_example_of_objective_c_trains_any_model(model: str, tmp_path: Path) -> None:
    folder, native = (
        make_example(model, "swift", "macos-aarch64"),
        make_example(model, NATIVE, "native"),
    )
    program = make_objective_c(folder, folder / OBJECTIVE_C_EXAMPLE, tmp_path, native)
    check_example(program, native, tmp_path)
