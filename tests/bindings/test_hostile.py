"""Bindings in the hands of people who mean harm, besides the calls of `test_walks.py`: values of
types that only JavaScript can pass, no memory, and a library that cannot be loaded.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from tests.bindings import drills
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import make_objective_c
from tests.support.builds import make_build, needs_cc, run
from tests.support.needs import needs_gnustep, needs_java, needs_node
from tests.support.places import BINDINGS


@needs_node
def test_javascript_refuses_in_words(tmp_path: Path) -> None:
    folder = make_package("mlp", "js", "wasm32")
    with contextlib.chdir(tmp_path):  # where it may write files
        printed = run("node", BINDINGS / "hostile.mjs", folder / "js", folder / "checkpoint")
    assert printed.splitlines() == [
        "input 'y': expected numbers for BigInt64Array, got null at 0",
        "input 'y': expected numbers for BigInt64Array, got 1.5 at 0",
        "input 'y': expected numbers for BigInt64Array, got 18446744073709551616 at 0",
        "input 'x': expected numbers for Float32Array, got x at 3",
        "offset: expected a size of less than 4 GiB, got 4294967296",
        "index: expected a whole number of 32 bits, got 4294967296",
        "loss true",
    ]


@needs_cc
@needs_gnustep
def test_objective_c_refuses_in_words(tmp_path: Path) -> None:
    folder, native = make_package("mlp", "swift", "macos-aarch64"), make_package("mlp", NATIVE)
    program = make_objective_c(folder, BINDINGS / "Hostile.m", tmp_path, native)
    other = make_build("cnn") / "checkpoint"
    drills.check_refusals(program.run(native / "checkpoint", other))


@needs_cc
@needs_java
def test_java_says_where_its_library_cannot_be_copied_to(tmp_path: Path) -> None:
    folder = make_package("mlp", NATIVE)
    sources = [*(folder / "java").rglob("src/**/*.java"), folder / "java/example/Example.java"]
    run("javac", "-J-Xshare:auto", "-d", tmp_path / "classes", *sources)
    path = f"{tmp_path / 'classes'}:{folder / 'java/src/main/resources'}"
    words = ("java", "-Djava.io.tmpdir=missing", "-cp", path, "Example", folder / "checkpoint")
    done = subprocess.run([*words, "out"], capture_output=True, text=True)
    assert "cannot copy libmnist.so to a temporary file: " in done.stderr
    assert "set another folder with -Djava.io.tmpdir=" in done.stderr
