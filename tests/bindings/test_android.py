"""Android: packages for Gradle, and their libraries on this machine, with its own C library."""

from __future__ import annotations

import os
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from engine.tools import cli
from engine.tools.trimmed import binary, bionic
from tests.bindings import drill
from tests.support.builds import (
    compile_c,
    list_sources,
    make_build,
    make_build_for,
    needs_cc,
    run,
)
from tests.support.needs import needs_emulator, needs_java
from tests.support.places import BINDINGS, DRIVERS, GOLDENS
from tests.support.shown import shows

# The function of bionic that glibc has under another name.
SHIM = """
extern int *__errno_location(void);
int *__errno(void) { return __errno_location(); }
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


def make_shim(folder: Path, compiler: str = "cc") -> None:
    """Make a library of the name that bionic has, which leads to the C library of Linux."""
    (folder / "shim.c").write_text(SHIM)
    flags = ("-shared", "-fPIC", "-Wl,-soname,libc.so")
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


@needs_cc
@needs_java
@shows("Java", "Android, x86-64", "emulated", "on Linux")
def test_the_library_of_the_emulator_trains_here(package: Path, tmp_path: Path) -> None:
    """In a machine of Java, with glibc instead of bionic: sizes and numbers are the same."""
    make_shim(tmp_path)
    drill.write_steps("mlp", tmp_path / "steps")
    sources = [*(package / "java").rglob("*.java"), BINDINGS / "Drill.java"]
    run("javac", "-J-Xshare:auto", "-d", tmp_path / "classes", *sources)
    path = f"-Djava.library.path={package / 'java/src/main/jniLibs/x86_64'}"
    words = (package / "checkpoint", tmp_path / "steps", tmp_path / "out", "200")
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-Xcheck:jni", path, "-cp", tmp_path / "classes")
    printed = run(
        "java", *flags, "Drill", *words, **{**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    )
    drill.check(printed, tmp_path / "out", "mlp", exact=False)
