"""Builds on CPUs that they were not made for: an error that says what is missing, before a step."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.kernels.machine.target import detect_host
from engine.tools.trimmed.cpu import list_needs
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.builds import make_build_for

SYSROOT = ("-L", "/usr/aarch64-linux-gnu")


def run_selftest(target: str, machine: str, cpu: str) -> tuple[int, str]:
    """Return the status and the output of a self-test on an emulated CPU."""
    command = f"qemu-{machine}-static"
    if not shutil.which(command) or (machine == "aarch64" and not Path(SYSROOT[1]).exists()):
        pytest.skip(f"needs {command} and a C library")
    folder = make_build_for(target, "mlp")
    words = [command, "-cpu", cpu, *(SYSROOT if machine == "aarch64" else ())]
    done = subprocess.run(
        [*words, folder / "selftest", folder / "checkpoint"], capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "machine", "cpu", "lacks"),
    [
        ("x86-64-v2", "x86_64", "Conroe", ["sse4.1", "sse4.2", "popcnt"]),
        ("x86-64-v3", "x86_64", "Nehalem", ["avx", "f16c", "avx2", "saved ymm registers"]),
        ("x86-64-v3", "x86_64", "SandyBridge", ["fma", "f16c", "avx2"]),
        ("x86-64-v4", "x86_64", "Haswell", ["avx512f", "avx512vl", "saved zmm registers"]),
        ("raspberrypi5", "aarch64", "cortex-a53", ["lse", "fullfp16", "rcpc", "dotprod"]),
        ("cortex-a55", "aarch64", "cortex-a72", ["lse", "fullfp16", "rdm"]),
    ],
)
def test_an_older_cpu_is_refused(target: str, machine: str, cpu: str, lacks: list[str]) -> None:
    status, said = run_selftest(target, machine, cpu)
    assert status == 2, said
    match = re.search(r"this CPU lacks ([^:]*): the library was built for (\S+)", said)
    assert match is not None, said
    assert match[2] == resolve(target).target.cpu
    assert set(lacks) <= set(match[1].split(", "))


@pytest.mark.parametrize(
    ("target", "machine", "cpu"),
    [
        ("x86-64-v2", "x86_64", "Nehalem"),
        ("x86-64-v3", "x86_64", "Haswell"),
        ("raspberrypi5", "aarch64", "cortex-a76"),
        ("raspberrypi3", "aarch64", "cortex-a53"),
    ],
)
def test_a_cpu_that_it_was_built_for_trains(target: str, machine: str, cpu: str) -> None:
    status, said = run_selftest(target, machine, cpu)
    assert status == 0, said
    assert "passed" in said


def test_what_targets_need() -> None:
    """Wider levels of x86 need what narrower ones do; the oldest CPUs need nothing."""
    needs = {name: set(list_needs(resolve(name).target)) for name in TARGETS}
    assert needs["x86-64-v2"] < needs["x86-64-v3"] < needs["x86-64-v4"]
    assert needs["macos-x86_64"] == needs["windows-x86_64"] == needs["x86-64-v3"]
    assert not needs["raspberrypi3"] | needs["raspberrypi4"] | needs["aarch64"] | needs["wasm32"]
    assert set(list_needs(resolve("x86-64-v2", features="+avx2,+fma").target)) >= {"avx2", "fma"}
    assert list_needs(detect_host())
