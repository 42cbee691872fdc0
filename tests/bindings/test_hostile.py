"""Bindings in the hands of people who mean harm: every method, with values that nobody should pass.

Each is called with five or more lists of such values, on a model and on one that has ended.  The
program goes on to the end, prints nothing but a finite loss, and what it catches has a message.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from tests.bindings import drills
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import HERE, make_go, make_objective_c
from tests.support.builds import make_build, needs_cc, run
from tests.support.needs import needs_gnustep, needs_go, needs_java, needs_mono, needs_node
from tests.support.places import BINDINGS

EMPTY = "checkpoint: header: not a checkpoint: identifier ODTC is missing"  # of an empty file


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
def test_java_refuses_in_words(tmp_path: Path) -> None:
    folder = make_package("mlp", NATIVE)
    sources = [*(folder / "java").rglob("*.java"), BINDINGS / "Hostile.java"]
    run("javac", "-J-Xshare:auto", "-d", tmp_path / "classes", *sources)
    path = f"{tmp_path / 'classes'}:{folder / 'java/src/main/resources'}"
    with contextlib.chdir(tmp_path):
        printed = run("java", "-Xcheck:jni", "-cp", path, "Hostile", folder / "checkpoint")
    assert printed.splitlines() == [EMPTY, "loss true"]
    words = ("java", "-Djava.io.tmpdir=missing", "-cp", path, "Hostile", folder / "checkpoint")
    done = subprocess.run(words, capture_output=True, text=True)
    assert "cannot copy libmnist.so to a temporary file: " in done.stderr
    assert "choose its folder by -Djava.io.tmpdir=" in done.stderr


@needs_cc
@needs_mono
def test_csharp_refuses_in_words(tmp_path: Path) -> None:
    folder = make_package("mlp", NATIVE)
    program = tmp_path / "hostile.exe"
    run("mcs", f"-out:{program}", *(folder / "csharp/src").glob("*.cs"), BINDINGS / "Hostile.cs")
    (library,) = folder.glob("csharp/runtimes/*/native/libmnist.so")
    paths = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    with contextlib.chdir(tmp_path):
        printed = run("mono", program, folder / "checkpoint", **paths)
    assert printed.splitlines() == [EMPTY, "loss true"]


@needs_cc
@needs_go
def test_go_refuses_texts_that_end_too_early(tmp_path: Path) -> None:
    folder = make_package("mlp", NATIVE)
    program = make_go(folder, BINDINGS / "hostile.go", tmp_path, HERE)
    with contextlib.chdir(tmp_path):
        printed = program.run(folder / "checkpoint")
    assert printed.splitlines() == [
        "true path: expected text without null characters",
        f"true {EMPTY}",
        "true path: expected text without null characters",
        "true name: expected text without null characters",
        "true value: expected text without null characters",
        "true Parameter: there is none at that index, or it takes no values",
        "-1 0",
        "<nil> <nil> false",
    ]
