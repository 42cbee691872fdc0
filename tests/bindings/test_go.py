"""Go: the package of a build for this machine, with cgo."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_go
from tests.support.places import BINDINGS
from tests.support.shown import shows


@needs_cc
@needs_go
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("Go", "Linux, x86-64", "run")
def test_go_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    folder = make_package(case, "go", "native")
    module = folder / "go"
    (tmp_path / "program").mkdir()
    shutil.copy(BINDINGS / "drill.go", tmp_path / "program")
    (tmp_path / "program/go.mod").write_text(
        f"module drill\n\ngo 1.18\n\nrequire mnist v0.0.0\n\nreplace mnist => {module}\n"
    )
    drill.write_steps(case, tmp_path / "steps")
    variables = {**os.environ, "GOFLAGS": "-mod=mod"}
    variables |= {"GOPROXY": "off", "GOTOOLCHAIN": "local"}
    program = tmp_path / "drill"
    with contextlib.chdir(tmp_path / "program"):  # the module of the program is looked for there
        run("go", "build", "-o", program, **variables)
    if shutil.which("gofmt"):
        assert run("gofmt", "-l", module, BINDINGS / "drill.go", **variables) == ""
    words = (folder / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    drill.check(run(program, *words, **variables), tmp_path / "out", case, exact=True)
