"""Trimmed builds of other CPUs, run here: by qemu's user mode, and WebAssembly by Node.

A self-test trains a few steps and compares its losses with what this machine's kernels gave.  What
it needs beyond a C compiler are the Debian packages qemu-user-static and gcc-aarch64-linux-gnu, and
node; `.ci/run` installs them and passes --no-skips, without which a test that lacks one is counted
and skipped.
"""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine.tools.build import Options, build
from engine.tools.trimmed.link import undefined_symbols
from engine.tools.trimmed.targets import Platform, resolve
from tests.builds import GOLDENS, compile_c, root, run
from tests.test_build_c import LIBC

KIB = 1024
SYSROOT = "/usr/aarch64-linux-gnu"
LINE = re.compile(r"step \d+: loss (\S+), recorded (\S+), (equal|close)")

# WASI's host calls, by Node's own module for them.
WASI = """
import { WASI } from 'node:wasi';
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
const preopens = { '/': dirname(process.argv[2]) };
const wasi = new WASI({ version: 'preview1', args: ['selftest'], preopens });
const wasm = await WebAssembly.compile(await readFile(process.argv[2]));
process.exitCode = wasi.start(await WebAssembly.instantiate(wasm, wasi.getImportObject()));
"""


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skip, to be counted, where a tool is missing."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    reason = f"needs {', '.join(missing or tools)}: CONTRIBUTING.md"
    return pytest.mark.skipif(bool(missing), reason=reason)


needs_aarch64 = needs("qemu-aarch64-static", "aarch64-linux-gnu-gcc")


def platform_of(name: str) -> Platform:
    """A target; those without a cross compiler here link with ziglang and need no shared libc."""
    found = resolve(name)
    musl = {"riscv64": "riscv64-linux-musl -static",
            "armv7": "arm-linux-musleabihf -mcpu=cortex_a7 -static"}  # fmt: skip
    return replace(found, cc=(), zig=musl[name]) if name in musl else found


@functools.cache
def made(case: str, target: str, threads: int = 1, *, size: bool = False) -> Path:
    """The folder of a build for another CPU, called `mnist`, batch 8."""
    out = root() / f"{case}-{target}-{threads}{'-size' if size else ''}"
    only_archive = target in ("riscv64", "armv7")
    options = Options(
        "mnist", platform_of(target), [8], threads, size=size, static=only_archive
    )  # fmt: skip
    build(GOLDENS / case, out, options)
    return out


def check(said: str) -> None:
    """The self-test passed, and all its losses agree to rounding."""
    assert "passed" in said
    losses = LINE.findall(said)
    assert len(losses) == 3, said
    for found, recorded, _ in losses:
        assert float(found) == pytest.approx(float(recorded), rel=2e-6)


@needs_aarch64
@pytest.mark.parametrize(("case", "threads"), [("mlp", 1), ("mlp", 2), ("cnn", 1)])
def test_an_aarch64_build_trains_as_this_machine_does(case: str, threads: int) -> None:
    program = made(case, "raspberrypi4", threads) / "selftest"
    check(run("qemu-aarch64-static", "-L", SYSROOT, program))


@needs_aarch64
def test_a_build_for_size_trains_alike() -> None:
    check(
        run(
            "qemu-aarch64-static",
            "-L",
            SYSROOT,
            made("mlp", "raspberrypi4", size=True) / "selftest",
        )
    )


@needs("qemu-aarch64-static", "aarch64-linux-gnu-gcc", "nm")
@pytest.mark.parametrize(("case", "most"), [("mlp", 64 * KIB), ("cnn", 128 * KIB)])
def test_aarch64_libraries_are_small_and_need_libc_alone(case: str, most: int) -> None:
    library = made(case, "raspberrypi4") / "libmnist.so"
    assert library.stat().st_size <= most
    assert undefined_symbols(library) <= LIBC


@needs_aarch64
def test_an_aarch64_program_of_the_shared_library_trains(tmp_path: Path) -> None:
    """Outside the build: a program linked with -lmnist saves a checkpoint of the known size."""
    folder = made("mlp", "raspberrypi4")
    example = compile_c(
        tmp_path / "example", folder / "src" / "example.c", f"-I{folder}", f"-L{folder}",
        "-lmnist", compiler="aarch64-linux-gnu-gcc",
    )  # fmt: skip
    said = run(
        "qemu-aarch64-static", "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={folder}", example,
        folder / "checkpoint", tmp_path / "trained",
    )  # fmt: skip
    losses = [float(x) for x in re.findall(r"loss (\S+)", said)]
    assert len(losses) == 20
    assert (tmp_path / "trained").stat().st_size > (folder / "checkpoint").stat().st_size


@pytest.mark.parametrize(
    ("target", "emulator"),
    [
        pytest.param("riscv64", "qemu-riscv64-static", marks=needs("qemu-riscv64-static")),
        pytest.param("armv7", "qemu-arm-static", marks=needs("qemu-arm-static")),
    ],
)
def test_builds_of_other_cpus_train_too(target: str, emulator: str) -> None:
    check(run(emulator, made("mlp", target) / "selftest"))


@needs("node")
def test_webassembly_trains_in_node(tmp_path: Path) -> None:
    (tmp_path / "run.mjs").write_text(WASI)
    program = made("mlp", "wasm32") / "selftest.wasm"
    check(run("node", "--no-warnings", tmp_path / "run.mjs", program))
