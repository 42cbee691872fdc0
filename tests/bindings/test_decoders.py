"""Decoders in every language that runs here: the same calls, and the scores of the engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builds import compile_c, needs_cc, run
from tests.support.decoders import check_drill, make_decoder_build
from tests.support.needs import (
    GNUSTEP,
    needs_cargo,
    needs_gnustep,
    needs_go,
    needs_java,
    needs_kotlin,
    needs_mono,
    needs_node,
)
from tests.support.places import BINDINGS, DRIVERS

NATIVE = "java,kotlin,csharp,rust,go"
KOTLIN = "/usr/share/java/kotlin-stdlib.jar"


def make_words(folder: Path, out: Path) -> tuple[Path, Path]:
    """Return the arguments of a drill."""
    return folder / "checkpoint", out / "scores"


@needs_cc
@pytest.mark.skipif(not shutil.which("c++"), reason="needs c++")
def test_cpp_continues_a_text(tmp_path: Path) -> None:
    folder = make_decoder_build("qwen2", NATIVE)
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{folder}")
    link = (f"-L{folder}", "-lmnist", f"-Wl,-rpath,{folder}")
    program = compile_c(tmp_path / "tokens", *flags, DRIVERS / "tokens.cpp", *link, compiler="c++")
    check_drill(run(program, *make_words(folder, tmp_path)), tmp_path / "scores", "qwen2")


@needs_cc
@needs_java
def test_java_continues_a_text(tmp_path: Path) -> None:
    folder, classes = make_decoder_build("qwen2", NATIVE), tmp_path / "classes"
    sources = [*(folder / "java").rglob("*.java"), BINDINGS / "Tokens.java"]
    run("javac", "-J-Xshare:auto", "-Xlint:all", "-Werror", "-d", classes, *sources)
    path = f"{classes}:{folder / 'java/src/main/resources'}"
    words = ("-Xcheck:jni", "-cp", path, "Tokens", *make_words(folder, tmp_path))
    check_drill(run("java", *words), tmp_path / "scores", "qwen2")


@needs_cc
@needs_java
@needs_kotlin
def test_kotlin_continues_a_text(tmp_path: Path) -> None:
    folder, classes = make_decoder_build("qwen2", NATIVE), tmp_path / "classes"
    sources = folder / "kotlin/src/main"
    run("javac", "--release", "8", "-Xlint:all,-options", "-Werror", "-d", classes,
        *sources.rglob("*.java"))  # fmt: skip
    own = [*sources.rglob("*.kt"), BINDINGS / "Tokens.kt"]
    run("kotlinc", "-Werror", "-jvm-target", "1.8", "-cp", classes, "-d", classes, *own)
    path = f"{classes}:{sources / 'resources'}:{KOTLIN}"
    printed = run("java", "-cp", path, "TokensKt", *make_words(folder, tmp_path))
    check_drill(printed, tmp_path / "scores", "qwen2")


@needs_cc
@needs_mono
def test_csharp_continues_a_text(tmp_path: Path) -> None:
    folder, program = make_decoder_build("qwen2", NATIVE), tmp_path / "tokens.exe"
    sources = [*(folder / "csharp/src").glob("*.cs"), BINDINGS / "Tokens.cs"]
    run("mcs", "-warn:4", "-warnaserror", f"-out:{program}", *sources)
    (library,) = folder.glob("csharp/runtimes/*/native/libmnist.so")
    paths = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    printed = run("mono", program, *make_words(folder, tmp_path), **paths)
    check_drill(printed, tmp_path / "scores", "qwen2")


@needs_cc
@needs_cargo
def test_rust_continues_a_text(tmp_path: Path) -> None:
    folder, crate = make_decoder_build("qwen2", NATIVE), tmp_path / "crate"
    shutil.copytree(folder / "rust", crate)
    shutil.copy(BINDINGS / "tokens.rs", crate / "examples")
    manifest = f"--manifest-path={crate / 'Cargo.toml'}"
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), "RUSTFLAGS": "-Dwarnings"}
    words = ("--quiet", "--offline", manifest, "--example", "tokens")
    run("cargo", "build", *words, **variables)
    program = crate / "target/debug/examples/tokens"
    printed = run(program, *make_words(folder, tmp_path), **variables)
    check_drill(printed, tmp_path / "scores", "qwen2")


@needs_cc
@needs_go
def test_go_continues_a_text(tmp_path: Path) -> None:
    folder = make_decoder_build("qwen2", NATIVE)
    (tmp_path / "program").mkdir()
    shutil.copy(BINDINGS / "tokens.go", tmp_path / "program")
    (tmp_path / "program/go.mod").write_text(
        f"module tokens\n\ngo 1.18\n\nrequire mnist v0.0.0\n\nreplace mnist => {folder / 'go'}\n"
    )
    variables = {**os.environ, "GOFLAGS": "-mod=mod"}
    variables |= {"GOPROXY": "off", "GOTOOLCHAIN": "local"}
    with contextlib.chdir(tmp_path / "program"):
        run("go", "build", "-o", tmp_path / "tokens", **variables)
    if shutil.which("gofmt"):
        files = (folder / "go", BINDINGS / "tokens.go")
        assert run("gofmt", "-l", *files, **variables) == ""
    printed = run(tmp_path / "tokens", *make_words(folder, tmp_path), **variables)
    check_drill(printed, tmp_path / "scores", "qwen2")


@needs_node
@pytest.mark.parametrize("shape", ["gpt2", "qwen2"])
def test_node_continues_a_text(shape: str, tmp_path: Path) -> None:
    """WebAssembly rounds otherwise: it has no fused sums."""
    folder = make_decoder_build(shape, "js", "wasm32")
    words = ("node", BINDINGS / "tokens.mjs", folder / "js", *make_words(folder, tmp_path))
    check_drill(run(*words), tmp_path / "scores", shape, exact=False)
    assert "append(tokens: Int32Array): void;" in (folder / "js/mnist.d.ts").read_text()


@needs_cc
@needs_gnustep
def test_objective_c_continues_a_text(tmp_path: Path) -> None:
    """Over the library of this machine, which has the same functions as one for Apple's systems."""
    package = make_decoder_build("qwen2", "swift", "macos-aarch64")
    native = make_decoder_build("qwen2", NATIVE)
    sources = package / "swift/Sources/MnistObjC"
    own = run("cc", "-print-file-name=include", **os.environ).strip()
    flags = ["-fobjc-runtime=gcc", "-fobjc-exceptions", "-fexceptions"]
    flags += ["-fconstant-string-class=NSConstantString", "-O2", "-fno-sanitize=all"]
    flags += [f"-I{sources}/include", f"-I{package}", "-isystem", str(GNUSTEP), "-isystem", own]
    objects = []
    for source in (sources / "MnistModel.m", BINDINGS / "Tokens.m"):
        objects.append(tmp_path / f"{source.stem}.o")
        words = [sys.executable, "-m", "ziglang", "cc", *flags, "-c", source, "-o", objects[-1]]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    libraries = [f"-L{native}", "-lmnist", "-lgnustep-base", "-lobjc", f"-Wl,-rpath,{native}"]
    run("cc", *objects, *libraries, "-o", tmp_path / "tokens", **os.environ)
    printed = run(tmp_path / "tokens", *make_words(native, tmp_path))
    check_drill(printed, tmp_path / "scores", "qwen2")


def test_swift_has_the_functions(tmp_path: Path) -> None:
    package = make_decoder_build("qwen2", "swift", "macos-aarch64")
    text = (package / "swift/Sources/Mnist/Model.swift").read_text()
    for head in (
        "public func append(_ tokens: [Int32]) throws",
        "public func scores() -> Values?",
        "public func truncate(_ length: Int64) throws",
    ):
        assert head in text, head
