"""Languages on other processors and systems: their programs run under qemu.

`make languages` fetches what these tests need, and runs them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import needs_cc, run
from tests.support.needs import (
    needs_java,
    needs_mono,
)
from tests.support.places import BINDINGS
from tests.support.roots import ROOTS, Root, needs_root
from tests.support.shown import shows

pytestmark = [pytest.mark.whole, needs_cc]
NATIVE = "java,csharp"
TARGETS = {"arm64": "raspberrypi4", "armhf": "raspberrypi2", "riscv64": "riscv64"}  # by root
arm64 = pytest.param("arm64", marks=needs_root("arm64"))
armhf = pytest.param("armhf", marks=needs_root("armhf"))
riscv64 = pytest.param("riscv64", marks=needs_root("riscv64"))


def start(name: str, out: Path) -> tuple[Root, Path, tuple[str | Path, ...]]:
    """Return a system, a build for it, and the arguments of a drill."""
    folder = make_package("mlp", NATIVE, TARGETS[name])
    drill.write_steps("mlp", out / "steps")
    return ROOTS[name], folder, (folder / "checkpoint", out / "steps", out / "out", "100")


def run_java(root: Root, path: str, main: str, *words: str | Path) -> str:
    """Run a program of Java there; its collector must not need the memory of many cores."""
    java = root.find_program("usr/lib/jvm/java-[12][0-9]-openjdk-*/bin/java")
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", path, main)
    return run(*root.emulate(), java, *flags, *words, **os.environ)


@needs_java
@pytest.mark.parametrize("name", [arm64, armhf])
@shows("Java", "Linux, AArch64", "emulated", "OpenJDK 17")
@shows("Java", "Linux, ARMv6 and ARMv7", "emulated", "OpenJDK 17")
def test_java_trains_there(name: str, tmp_path: Path) -> None:
    root, folder, words = start(name, tmp_path)
    sources = [*(folder / "java").rglob("src/**/*.java"), BINDINGS / "Drill.java"]
    run("javac", "-J-Xshare:auto", "-d", tmp_path / "classes", *sources)
    path = f"{tmp_path / 'classes'}:{folder / 'java/src/main/resources'}"
    printed = run_java(root, path, "Drill", *words)
    drill.check(printed, tmp_path / "out", "mlp", exact=False)


@needs_mono
@pytest.mark.parametrize("name", [arm64, armhf])
@shows("C#", "Linux, AArch64", "emulated", "Mono")
@shows("C#", "Linux, ARMv6 and ARMv7", "emulated", "Mono")
def test_csharp_trains_there(name: str, tmp_path: Path) -> None:
    root, folder, words = start(name, tmp_path)
    program = tmp_path / "drill.exe"
    run("mcs", f"-out:{program}", *(folder / "csharp/src").glob("*.cs"), BINDINGS / "Drill.cs")
    (library,) = folder.glob("csharp/runtimes/*/native/libmnist.so")
    mono = root.find_program("usr/bin/mono-sgen")
    paths = {**os.environ, "MONO_PATH": str(root.folder / "usr/lib/mono/4.5"),
             "MONO_CFG_DIR": str(root.folder / "etc")}  # fmt: skip
    printed = run(*root.emulate(library.parent), mono, program, *words, **paths)
    drill.check(printed, tmp_path / "out", "mlp", exact=False)


@pytest.mark.parametrize("name", [arm64, armhf, riscv64])
@shows("Python", "Linux, AArch64", "emulated", "3.11")
@shows("Python", "Linux, ARMv6 and ARMv7", "emulated", "3.11")
@shows("Python", "Linux, RISC-V 64", "emulated", "3.13")
def test_python_trains_there(name: str, tmp_path: Path) -> None:
    root, folder, (_, steps, out, _) = start(name, tmp_path)
    python = root.find_program("usr/bin/python3.[0-9]*")
    paths = {**os.environ, "PYTHONPATH": str(root.folder / "usr/lib/python3/dist-packages")}
    words = (*root.emulate(), python, BINDINGS / "device.py", folder, steps, out)
    lines = run(*words, **{**paths, "OPENBLAS_NUM_THREADS": "1"}).splitlines()
    reference = drill.Reference("mlp")
    numbers = [int(line.split()[1]) for line in lines if line.startswith(("loss", "eval"))]
    expected = [*reference.losses[:9], reference.evaluated, reference.losses[9]]
    losses = np.array(numbers, np.int32).view(np.float32)
    np.testing.assert_allclose(losses, np.array(expected, np.float32), rtol=1e-5)
    rest = [line for line in lines if not line.startswith(("loss", "eval"))]
    assert re.fullmatch(r"refused label 1\d at position 0 is outside \[0, 10\)", rest[0])
    assert rest[1:] == ["unchanged True", "round trip True"]
