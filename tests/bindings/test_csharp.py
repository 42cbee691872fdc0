"""C#: the package of a build for this machine, with Mono."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_mono
from tests.support.places import BINDINGS
from tests.support.shown import shows


@needs_cc
@needs_mono
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("C#", "Linux, x86-64", "run", "Mono")
def test_csharp_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    folder = make_package(case, "csharp", "native")
    drill.write_steps(case, tmp_path / "steps")
    sources = [*(folder / "csharp/src").glob("*.cs"), BINDINGS / "Drill.cs"]
    program = tmp_path / "drill.exe"
    run("mcs", "-warn:4", "-warnaserror", f"-out:{program}", *sources)
    (library,) = folder.glob("csharp/runtimes/*/native/libmnist.so")
    words = (folder / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    paths = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    printed = run("mono", program, *words, **paths)
    drill.check(printed, tmp_path / "out", case, exact=True)
