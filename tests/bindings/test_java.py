"""Java: the package of a build for this machine, with OpenJDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_java
from tests.support.places import BINDINGS
from tests.support.shown import shows


@needs_cc
@needs_java
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("Java", "Linux, x86-64", "run", "OpenJDK 17")
def test_java_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    folder = make_package(case, "java", "native")
    drill.write_steps(case, tmp_path / "steps")
    sources = [*(folder / "java").rglob("*.java"), BINDINGS / "Drill.java"]
    classes = tmp_path / "classes"
    run("javac", "-J-Xshare:auto", "-Xlint:all", "-Werror", "-d", classes, *sources)
    resources = folder / "java/src/main/resources"
    words = (folder / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-Xcheck:jni")
    printed = run("java", *flags, "-cp", f"{classes}:{resources}", "Drill", *words)
    drill.check(printed, tmp_path / "out", case, exact=True)
