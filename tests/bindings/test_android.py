"""Android: packages for Gradle, and their libraries on this machine, with its own C library."""

from __future__ import annotations

import os
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from engine.tools import cli
from engine.tools.trimmed import binary, bionic
from tests.bindings import drills
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import TOOLCHAINS, Place
from tests.support.builds import (
    compile_c,
    list_sources,
    make_build,
    make_build_for,
    needs_cc,
    run,
)
from tests.support.needs import needs_emulator
from tests.support.places import DRIVERS, GOLDENS
from tests.support.roots import needs_root
from tests.support.shown import shows

# Functions of bionic that glibc has under other names: what `stat` of 32 bits writes there is what
# `stat64` does here.  Its name in the library is changed, as glibc has a `stat`, too.
SHIM = """
extern int *__errno_location(void);
int *__errno(void) { return __errno_location(); }
#ifdef __arm__
extern int stat64(const char *path, void *out);
int sta6(const char *path, void *out) { return stat64(path, out); }
#endif
"""
CROSS = "aarch64-linux-gnu-gcc"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build for the processors of phones and of the emulator."""
    out = tmp_path_factory.mktemp("android")
    words = [
        "--target",
        "android-aarch64,android-armv7,android-x86_64",
        "--bindings",
        "kotlin,java",
    ]
    words += ["--batch", "4", "--threads", "2", "--name", "mnist", "-o", str(out)]
    assert cli.main(["build", str(GOLDENS / "mlp"), *words]) == 0
    return out


@shows("C", "Android, AArch64", "linked")
@shows("Java", "Android, AArch64", "linked")
@shows("Kotlin", "Android, AArch64", "linked")
@shows("Java", "Android, ARMv7", "linked")
@shows("Kotlin", "Android, ARMv7", "linked")
@shows("C", "Android, x86-64", "linked")
@shows("Kotlin", "Android, x86-64", "linked")
def test_a_package_has_a_library_for_each_processor(package: Path) -> None:
    """It needs only bionic, and only functions that are declared."""
    libraries = package / "kotlin/src/main/jniLibs"
    machines = {"arm64-v8a": "aarch64", "armeabi-v7a": "arm", "x86_64": "x86_64"}
    assert {p.name for p in libraries.iterdir()} == set(machines)
    for folder, machine in machines.items():
        made = binary.read(libraries / folder / "libmnist.so")
        assert (made.form, made.machine, made.libraries) == ("elf", machine, ("libc.so",))
        assert made.needs <= set(bionic.list_functions(machine))
        assert {"malloc", "pthread_create", "__errno"} <= made.needs
        assert "Java_edgegrad_mnist_Native_trainStep" in made.exports
        assert "mnist_train_step" in made.exports


def test_gradle_finds_an_android_library(package: Path) -> None:
    for language in ("kotlin", "java"):
        folder = package / language
        gradle = (folder / "build.gradle").read_text()
        assert "id 'com.android.library'" in gradle
        assert "minSdk = 26" in gradle
        assert "namespace = 'edgegrad.mnist'" in gradle
        assert ("org.jetbrains.kotlin.android" in gradle) == (language == "kotlin")
        assert "edgegrad.mnist.Native" in (folder / "consumer-rules.pro").read_text()
        assert ET.parse(folder / "src/main/AndroidManifest.xml").getroot().tag == "manifest"
        plugins = re.findall(r"id '([\w.]+)'", gradle)
        versions = re.findall(r"id '([\w.]+)' version", (folder / "settings.gradle").read_text())
        assert set(plugins) <= set(versions)


def make_shim(folder: Path, compiler: str = "cc", *words: str) -> None:
    """Make a library of the name that bionic has, which leads to the C library of Linux."""
    (folder / "shim.c").write_text(SHIM)
    flags = (*words, "-shared", "-fPIC", "-Wl,-soname,libc.so")
    compile_c(folder / "libc.so", *flags, folder / "shim.c", compiler=compiler)


def read_losses(printed: str) -> list[float]:
    return [float(line.split()[-1]) for line in printed.splitlines()]


@needs_emulator("aarch64")
@pytest.mark.skipif(not shutil.which(CROSS), reason=f"needs {CROSS}")
@shows("C", "Android, AArch64", "emulated", "on Linux")
def test_the_library_of_phones_trains_in_qemu(tmp_path: Path) -> None:
    """It opens and writes a checkpoint, too, with glibc instead of bionic; with one thread, as
    glibc's locks are larger on this processor.
    """
    folder, native = make_build_for("android-aarch64", "mlp"), make_build("mlp", batches=(8,))
    make_shim(tmp_path, CROSS)
    link = (f"-L{folder}", "-lmnist", "-Wl,--allow-shlib-undefined")
    example = folder / "src/example.c"
    program = compile_c(tmp_path / "there", example, f"-I{folder}", *link, compiler=CROSS)
    paths = f"LD_LIBRARY_PATH={folder}:{tmp_path}"
    qemu = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", "-E", paths)
    losses = read_losses(run(*qemu, program, folder / "checkpoint", tmp_path / "new"))
    here = compile_c(tmp_path / "here", example, *list_sources(native))
    expected = read_losses(run(here, native / "checkpoint", tmp_path / "expected"))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert len((tmp_path / "new").read_bytes()) == len((tmp_path / "expected").read_bytes())


@needs_emulator("raspberrypi2")
@shows("C", "Android, ARMv7", "emulated", "on Linux")
def test_the_code_of_phones_of_32_bits_trains_in_qemu(tmp_path: Path) -> None:
    """As a program with a C library in it that passes floats as Android does, in registers for
    integers, which glibc here does not.
    """
    folder, native = make_build_for("android-armv7", "mlp"), make_build("mlp", batches=(8,))
    flags = ("-target", "arm-linux-musleabi", "-mcpu=cortex_a7", "-mfloat-abi=softfp", "-static")
    zig = (sys.executable, "-m", "ziglang", "cc", *flags, DRIVERS / "train.c")
    run(*zig, *list_sources(folder), "-o", tmp_path / "there", **os.environ)
    words = (folder / "checkpoint", "4", "0.01")
    said = run("qemu-arm-static", "-cpu", "cortex-a7", tmp_path / "there", *words)
    here = compile_c(tmp_path / "here", DRIVERS / "train.c", *list_sources(native))
    losses, expected = (
        [float.fromhex(line) for line in text.split()] for text in (said, run(here, *words))
    )
    assert losses == pytest.approx(expected, rel=1e-5)


def rename_libraries(folder: Path, out: Path) -> Path:
    """Return a copy of a build whose packages of Rust and Go take its library for Linux's, as those
    programs are for Linux that are made here; in 32 bits, it calls `stat` by the name in `SHIM`.
    """
    made = out / "package"
    shutil.copytree(folder, made)
    for path in [*made.glob("*/native/android*")]:
        path.rename(path.with_name(path.name.replace("android", "linux")))
    for path in made.rglob("libmnist.so"):
        if binary.read(path).machine == "arm":
            path.write_bytes(path.read_bytes().replace(b"\0stat\0", b"\0sta6\0"))
    module = made / "go/mnist.go"
    text = module.read_text()
    assert "#cgo android," in text
    module.write_text(re.sub(r"android([,_])", r"linux\1", text))
    return made


LANGUAGES = ("cpp", "python", "java", "kotlin", "csharp", "rust", "go")


@needs_cc
@pytest.mark.parametrize(
    "language",
    [
        pytest.param(name, marks=[TOOLCHAINS[name].needs, *[pytest.mark.whole] * (name != "java")])
        for name in LANGUAGES
    ],
)
@shows("C++17", "Android, x86-64", "emulated", "on Linux")
@shows("Python", "Android, x86-64", "emulated", "on Linux")
@shows("Java", "Android, x86-64", "emulated", "on Linux")
@shows("Kotlin", "Android, x86-64", "emulated", "on Linux")
@shows("C#", "Android, x86-64", "emulated", "on Linux")
@shows("Rust", "Android, x86-64", "emulated", "on Linux")
@shows("Go", "Android, x86-64", "emulated", "on Linux")
def test_the_library_of_the_emulator_trains_here(language: str, tmp_path: Path) -> None:
    """With glibc instead of bionic: sizes and numbers are the same."""
    make_shim(tmp_path)
    made = rename_libraries(make_package("mlp", NATIVE, "android-x86_64", 2), tmp_path)
    at = Place("native", libraries=(tmp_path, made / language / "src/main/jniLibs/x86_64"))
    drills.run(language, made, "mlp", tmp_path, "200", at, exact=False)


PHONES = {  # by the target: the shim's compiler, the folder of the library, the place
    "android-aarch64": (("aarch64-linux-gnu.2.28",), "arm64-v8a", Place("raspberrypi4", "arm64")),
    "android-armv7": (
        ("arm-linux-gnueabi.2.28", "-mcpu=cortex_a7"),
        "armeabi-v7a",
        Place("raspberrypi2", "armel", zig="arm-linux-gnueabi.2.28 -mcpu=cortex_a7"),
    ),
}


@needs_cc
@pytest.mark.whole
@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=needs_root(place.root)) for name, (*_, place) in PHONES.items()],
)
@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=TOOLCHAINS[name].needs) for name in LANGUAGES]
)
@shows("C++17", "Android, AArch64", "emulated", "on Linux")
@shows("Python", "Android, AArch64", "emulated", "on Linux")
@shows("Java", "Android, AArch64", "emulated", "on Linux")
@shows("Kotlin", "Android, AArch64", "emulated", "on Linux")
@shows("C#", "Android, AArch64", "emulated", "on Linux")
@shows("Rust", "Android, AArch64", "emulated", "on Linux")
@shows("Go", "Android, AArch64", "emulated", "on Linux")
@shows("C++17", "Android, ARMv7", "emulated", "on Linux")
@shows("Python", "Android, ARMv7", "emulated", "on Linux")
@shows("Java", "Android, ARMv7", "emulated", "on Linux")
@shows("Kotlin", "Android, ARMv7", "emulated", "on Linux")
@shows("C#", "Android, ARMv7", "emulated", "on Linux")
@shows("Rust", "Android, ARMv7", "emulated", "on Linux")
@shows("Go", "Android, ARMv7", "emulated", "on Linux")
def test_languages_train_in_qemu_by_the_library_of_phones(
    language: str, target: str, tmp_path: Path
) -> None:
    """With glibc instead of bionic, and one thread, as glibc's locks are larger there.

    The Linux of 32 bits is Debian's armel, which passes floats in registers for integers, too.
    """
    words, abi, place = PHONES[target]
    make_shim(tmp_path, sys.executable, "-m", "ziglang", "cc", "-target", *words)
    made = rename_libraries(make_package("mlp", NATIVE, target), tmp_path)
    libraries = made / language / "src/main/jniLibs" / abi
    at = replace(place, libraries=(tmp_path, libraries))
    drills.run(language, made, "mlp", tmp_path, "100", at, exact=False)
