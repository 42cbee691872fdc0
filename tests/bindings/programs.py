"""Programs in every language that runs here, compiled against the package of a build.

`make_program` returns the command of a program: of the tests' own, or of the package's example.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.builds import compile_c, needs_cc, run
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

KOTLIN = "/usr/share/java/kotlin-stdlib.jar"
OFFLINE = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
# How the runtime of GCC wants Objective-C, which has neither ARC nor subscripts there.
PLAIN = ("-fobjc-runtime=gcc", "-fobjc-exceptions", "-fexceptions",
         "-fconstant-string-class=NSConstantString")  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Command of a program, without the program's own arguments, and its environment."""

    command: tuple[str | Path, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path) -> str:
        """Return what it prints; the test fails unless its status is 0."""
        return run(*self.command, *arguments, **{**os.environ, **self.variables})


def make_java(folder: Path, source: Path, out: Path) -> Program:
    """Compile for Java, with every warning an error."""
    sources = [*(folder / "java").rglob("src/**/*.java"), source]
    run("javac", "-J-Xshare:auto", "-Xlint:all", "-Werror", "-d", out / "classes", *sources)
    path = f"{out / 'classes'}:{folder / 'java/src/main/resources'}"
    return Program(("java", "-Xcheck:jni", "-cp", path, source.stem))


def make_kotlin(folder: Path, source: Path, out: Path) -> Program:
    """Compile to classes of Java 8, which Android takes."""
    classes, sources = out / "classes", folder / "kotlin/src/main"
    run("javac", "--release", "8", "-Xlint:all,-options", "-Werror", "-d", classes,
        *sources.rglob("*.java"))  # fmt: skip
    own = [*sources.rglob("*.kt"), source]
    run("kotlinc", "-Werror", "-jvm-target", "1.8", "-cp", classes, "-d", classes, *own)
    path = f"{classes}:{sources / 'resources'}:{KOTLIN}"
    return Program(("java", "-Xcheck:jni", "-cp", path, f"{source.stem}Kt"))


def make_csharp(folder: Path, source: Path, out: Path) -> Program:
    """Compile for Mono."""
    program = out / f"{source.stem}.exe"
    sources = [*(folder / "csharp/src").glob("*.cs"), source]
    run("mcs", "-warn:4", "-warnaserror", f"-out:{program}", *sources)
    (library,) = folder.glob("csharp/runtimes/*/native/libmnist.so")
    return Program(("mono", program), {"LD_LIBRARY_PATH": str(library.parent)})


def make_rust(folder: Path, source: Path, out: Path) -> Program:
    """Compile as an example of the crate, as crates without `std` do, too."""
    crate = out / "crate"
    shutil.copytree(folder / "rust", crate)
    if source.parent.name != "examples":
        shutil.copy(source, crate / "examples")
    manifest = f"--manifest-path={crate / 'Cargo.toml'}"
    variables = {"LD_LIBRARY_PATH": str(folder), "RUSTFLAGS": "-Dwarnings"}
    words = ("--quiet", "--offline", manifest)
    run("cargo", "build", *words, "--example", source.stem, **{**os.environ, **variables})
    run("cargo", "check", *words, "--no-default-features", **{**os.environ, **variables})
    return Program((crate / "target/debug/examples" / source.stem,), variables)


def make_go(folder: Path, source: Path, out: Path) -> Program:
    """Compile by cgo; the source is formatted as Go wants it."""
    place = out / "program"
    place.mkdir()
    shutil.copy(source, place)
    text = f"module drill\n\ngo 1.18\n\nrequire mnist v0.0.0\n\nreplace mnist => {folder / 'go'}\n"
    (place / "go.mod").write_text(text)
    variables = {**os.environ, **OFFLINE}
    with contextlib.chdir(place):  # the module of the program is looked for there
        run("go", "build", "-o", out / source.stem, **variables)
    if shutil.which("gofmt"):
        assert run("gofmt", "-l", folder / "go", source, **variables) == ""
    return Program((out / source.stem,))


def make_javascript(folder: Path, source: Path, out: Path) -> Program:
    """Return the script itself, with the package where it takes one."""
    own = source.parent == folder / "js"
    return Program(("node", source, *[folder / "js"] * (not own)))


def make_c(folder: Path, source: Path, out: Path) -> Program:
    """Compile with a compiler of C."""
    link = (f"-I{folder}", f"-L{folder}", "-lmnist", f"-Wl,-rpath,{folder}")
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror")
    return Program((compile_c(out / source.stem, *flags, source, *link),))


def make_cpp(folder: Path, source: Path, out: Path) -> Program:
    """Compile with a compiler of C++."""
    link = (f"-I{folder}", f"-L{folder}", "-lmnist", f"-Wl,-rpath,{folder}")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic")
    return Program((compile_c(out / source.stem, *flags, source, *link, compiler="c++"),))


def compile_objective_c(source: Path, package: Path, *options: str | Path) -> None:
    """Compile a source; a warning is an error, except in headers of the system."""
    words = [sys.executable, "-m", "ziglang", "cc", "-O2", "-fno-sanitize=all", "-Wall", "-Wextra"]
    words += ["-Werror", "-Wno-unused-command-line-argument", f"-I{package}"]
    words += [f"-I{package / 'swift/Sources/MnistObjC'}/include", *map(str, options), str(source)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_objective_c(folder: Path, source: Path, out: Path, native: Path) -> Program:
    """Compile with GNUstep's Foundation, over the library of a native build with the same
    functions as one for Apple's systems.
    """
    own = run("cc", "-print-file-name=include", **os.environ).strip()  # GCC's of Objective-C
    headers = ("-isystem", GNUSTEP, "-isystem", own)
    objects = []
    for each in (folder / "swift/Sources/MnistObjC/MnistModel.m", source):
        objects.append(out / f"{each.stem}.o")
        compile_objective_c(each, folder, *PLAIN, *headers, "-c", "-o", objects[-1])
    libraries = [f"-L{native}", "-lmnist", "-lgnustep-base", "-lobjc", f"-Wl,-rpath,{native}"]
    run("cc", *objects, *libraries, "-o", out / source.stem, **os.environ)
    return Program((out / source.stem,))


# By name: what makes a program, where the package has its example, and what a test of it needs.
LANGUAGES: dict[str, tuple[Callable[[Path, Path, Path], Program], str, pytest.MarkDecorator]] = {
    "c": (make_c, "src/example.c", needs_cc),
    "cpp": (make_cpp, "src/example.cpp", needs_cc),
    "java": (make_java, "java/example/Example.java", needs_java),
    "kotlin": (make_kotlin, "kotlin/example/Example.kt", needs_kotlin),
    "csharp": (make_csharp, "csharp/example/Example.cs", needs_mono),
    "rust": (make_rust, "rust/examples/example.rs", needs_cargo),
    "go": (make_go, "go/example/main.go", needs_go),
    "js": (make_javascript, "js/example.mjs", needs_node),
}
OBJECTIVE_C_EXAMPLE = "swift/ExamplesObjC/main.m"
__all__ = ["LANGUAGES", "OBJECTIVE_C_EXAMPLE", "Program", "make_objective_c", "needs_gnustep"]
