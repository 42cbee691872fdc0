"""Rust: the crate of a build for this machine, with cargo."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_cargo
from tests.support.places import BINDINGS
from tests.support.shown import shows


@needs_cc
@needs_cargo
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("Rust", "Linux, x86-64", "run")
def test_rust_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    """And the type ends with its scope, so that no call can come later."""
    crate = tmp_path / "crate"
    folder = make_package(case, "rust", "native")
    shutil.copytree(folder / "rust", crate)
    shutil.copy(BINDINGS / "drill.rs", crate / "examples")
    drill.write_steps(case, tmp_path / "steps")
    manifest = f"--manifest-path={crate / 'Cargo.toml'}"
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), "RUSTFLAGS": "-Dwarnings"}
    run("cargo", "build", "--quiet", "--offline", manifest, "--examples", **variables)
    run("cargo", "check", "--quiet", "--offline", manifest, "--no-default-features", **variables)
    packed = run("cargo", "package", "--list", "--allow-dirty", "--offline", manifest, **variables)
    (library,) = crate.glob("native/*/libmnist.so")
    packed_library = library.relative_to(crate).as_posix()
    assert {"src/lib.rs", "build.rs", packed_library} <= set(packed.split())
    words = (folder / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    printed = run(crate / "target/debug/examples/drill", *words, **variables)
    drill.check(printed, tmp_path / "out", case, exact=True, ends=False, turns=False)
