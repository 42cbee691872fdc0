"""Kotlin: the package of a build for this machine, on OpenJDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_java, needs_kotlin
from tests.support.places import BINDINGS
from tests.support.shown import shows

STANDARD_LIBRARY = "/usr/share/java/kotlin-stdlib.jar"


@needs_cc
@needs_java
@needs_kotlin
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("Kotlin", "Linux, x86-64", "run", "OpenJDK 17")
def test_kotlin_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    """On classes of Java 8, which Android takes."""
    folder = make_package(case, "kotlin", "native")
    drill.write_steps(case, tmp_path / "steps")
    classes, sources = tmp_path / "classes", folder / "kotlin/src/main"
    run("javac", "--release", "8", "-Xlint:all,-options", "-Werror", "-d", classes,
        *sources.rglob("*.java"))  # fmt: skip
    own = [*sources.rglob("*.kt"), BINDINGS / "Drill.kt", folder / "kotlin/example/Example.kt"]
    run("kotlinc", "-Werror", "-jvm-target", "1.8", "-cp", classes, "-d", classes, *own)
    words = (folder / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    path = f"{classes}:{sources / 'resources'}:{STANDARD_LIBRARY}"
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-Xcheck:jni", "-cp", path)
    drill.check(run("java", *flags, "DrillKt", *words), tmp_path / "out", case, exact=True)
    printed = run("java", *flags, "ExampleKt", folder / "checkpoint", tmp_path / "trained")
    assert printed.count("loss") == 20
