"""The languages that run here: each is put through the same drill, with the engine's losses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bindings import drills
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import HERE, TOOLCHAINS
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_cargo
from tests.support.shown import shows


@needs_cc
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    "language",
    [
        pytest.param(name, marks=TOOLCHAINS[name].needs)
        for name in ("cpp", "python", "java", "kotlin", "csharp", "rust", "go")
    ],
)
@shows("C++17", "Linux, x86-64", "run")
@shows("Python", "Linux, x86-64", "run")
@shows("Java", "Linux, x86-64", "run", "OpenJDK 17")
@shows("Kotlin", "Linux, x86-64", "run", "OpenJDK 17")
@shows("C#", "Linux, x86-64", "run", "Mono")
@shows("Rust", "Linux, x86-64", "run")
@shows("Go", "Linux, x86-64", "run")
def test_a_language_trains_resumes_and_refuses(
    language: str, case: str, tmp_path: Path, sessions: str
) -> None:
    folder = make_package(case, NATIVE)
    drills.run(language, folder, case, tmp_path, sessions, HERE, exact=True)


@needs_cc
@needs_cargo
def test_the_crate_has_its_library() -> None:
    crate = make_package("mlp", NATIVE) / "rust"
    words = ("--list", "--allow-dirty", "--offline", f"--manifest-path={crate / 'Cargo.toml'}")
    (library,) = crate.glob("native/*/libmnist.so")
    packed = run("cargo", "package", *words, **os.environ).split()
    assert {"src/lib.rs", "build.rs", library.relative_to(crate).as_posix()} <= set(packed)
