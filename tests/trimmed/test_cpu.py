"""Builds on CPUs that they were not made for: an error that says what is missing, before a step."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.base.plan_options import PlanOptions
from engine.kernels.machine.target import detect_host
from engine.tools.trimmed.build import build
from engine.tools.trimmed.cpu import list_needs
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.selftest import STEPS
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.builds import compile_c, make_build_for, make_root, make_source, needs_cc
from tests.support.places import GOLDENS

SYSROOT = ("-L", "/usr/aarch64-linux-gnu")


LOSS = re.compile(r"loss (\S+),")
LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def run_selftest(target: str, machine: str, cpu: str) -> tuple[int, str]:
    """Return the status and the output of a self-test on an emulated CPU, or "" for this one."""
    return emulate(lambda: make_build_for(target, "mlp"), machine, cpu)


def emulate(make: Callable[[], Path], machine: str, cpu: str) -> tuple[int, str]:
    """Return the status and the output of the self-test of a build that is made if it can run."""
    command = f"qemu-{machine}-static"
    has_library = machine != "aarch64" or Path(SYSROOT[1]).exists()
    if cpu and not (shutil.which(command) and has_library):
        pytest.skip(f"needs {command} and a C library")
    folder = make()
    words = [command, "-cpu", cpu, *(SYSROOT if machine == "aarch64" else ())] if cpu else []
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
        ("x86-64", "x86_64", "Conroe", ["sse4.1", "sse4.2", "popcnt"]),
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


@pytest.mark.parametrize(
    ("cpu", "level"), [("", "x86-64-v4"), ("Haswell", "x86-64-v3"), ("Nehalem", "x86-64-v2")]
)
def test_one_library_runs_the_best_code_for_a_cpu(cpu: str, level: str) -> None:
    """With the losses of a library of that level alone, to the last bit."""
    if not cpu and detect_host().vector < 64:
        pytest.skip("this CPU has no AVX-512")
    said = [run_selftest(target, "x86_64", cpu)[1] for target in ("x86-64", level)]
    assert f"with code for {level}\n" in said[0], said[0]
    assert len(LOSS.findall(said[0])) == STEPS
    assert LOSS.findall(said[0]) == LOSS.findall(said[1])


@functools.cache
def make_halves() -> Path:
    """Return the folder of a build for AArch64 whose products of float16 a Cortex-A76 has."""
    out = make_root() / "halves-aarch64"
    options = Options(
        "mnist",
        resolve("aarch64"),
        PlanRequest([8], planning=PlanOptions(precision="f16")),
        compiler="zig",
    )
    build(GOLDENS / "mlp", out, options)
    return out


@pytest.mark.parametrize(
    ("cpu", "level"),
    [("cortex-a53", "generic"), ("cortex-a72", "generic"), ("cortex-a76", "cortex-a76")],
)
def test_one_library_runs_the_best_code_for_a_core(cpu: str, level: str) -> None:
    status, said = emulate(make_halves, "aarch64", cpu)
    assert status == 0, said
    assert f"with code for {level}\n" in said
    assert len(LOSS.findall(said)) == STEPS


def test_the_report_tells_the_bytes_of_each_code() -> None:
    manifest = json.loads((make_halves() / "manifest.json").read_text("utf-8"))
    assert manifest["cpus"] == ["cortex-a76", "generic"]
    report, size = manifest["report"], (make_halves() / manifest["library"]).stat().st_size
    assert report["library"] == size == sum(report["parts"].values())
    for cpu in manifest["cpus"]:
        own = sum(n for name, n in report["kernels"].items() if name.endswith(f", {cpu}"))
        assert 0.25 < own / report["parts"]["kernels"] < 0.75, cpu


def test_code_for_several_cpus_is_that_of_single_libraries(tmp_path: Path) -> None:
    folder = make_build_for("x86-64", "mlp")
    for level in LEVELS:
        single = make_build_for(level, "mlp") / "src/kernels.o"
        for file in (folder / f"src/kernels-{level}.o", single):
            made = tmp_path / file.name
            words: list[str | Path] = [
                "objcopy",
                "-O",
                "binary",
                "--only-section=.text",
                file,
                made,
            ]
            subprocess.run(words, check=True)
        code = (tmp_path / "kernels.o").read_bytes()
        assert code
        assert code == (tmp_path / f"kernels-{level}.o").read_bytes()


def test_a_cpu_that_gains_a_model_nothing_is_left_out() -> None:
    """Products of integers, by which a newer core gains, are not in this model."""
    manifest = json.loads((make_build_for("aarch64", "mlp") / "manifest.json").read_text("utf-8"))
    assert manifest["cpus"] == ["generic"]


CPUID = """
static inline int __get_cpuid(unsigned leaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    *a = *b = *c = *d = ~0u;
    return leaf != 0;
}

static inline int __get_cpuid_count(unsigned leaf, unsigned part, unsigned *a, unsigned *b,
                                    unsigned *c, unsigned *d)
{
    return part < 2 && __get_cpuid(leaf, a, b, c, d);
}
"""
MAIN = """
#include "mnist.c"
#include <stdio.h>
int main(void)
{
    char said[MODEL_MESSAGE_BYTES] = "";
    int level, code = choose_level(&level, said);
    puts(said);
    return code == MODEL_OK ? 0 : code == MODEL_BAD_CPU ? 1 : 2;
}
"""


@needs_cc
@pytest.mark.skipif(detect_host().vector < 64, reason="needs saved registers of AVX-512")
def test_tile_registers_need_a_permission(tmp_path: Path) -> None:
    """Of a system that may not save them, on a CPU that claims to have all features."""
    triple = "x86_64-unknown-linux-gnu"
    target = resolve(triple=triple, cpu="sapphirerapids", features="+amx-bf16").target
    made = make_source("mnist", target=target)
    source = made.write_source()
    files = {"mnist.h": made.write_header(), "mnist.c": source, "main.c": MAIN, "cpuid.h": CPUID}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    linked = re.findall(r"^extern const .*?(\w+)\[\] HIDDEN", source, re.MULTILINE)
    absent = [f"-Wl,--defsym={symbol}=0" for symbol in linked]
    program = compile_c(tmp_path / "main", f"-I{tmp_path}", tmp_path / "main.c", *absent)
    done = subprocess.run([program], capture_output=True, text=True)
    lacks = r"this CPU lacks (saved tile registers, )?permission for tiles: the library was built"
    assert done.returncode in (0, 1)  # 0: a machine that has them
    expected = rf"{lacks} for sapphirerapids\n" if done.returncode else r"\n"
    assert re.fullmatch(expected, done.stdout)


# As Apple's system: it tells the features that its environment names, each by a name of its own.
SYSCTL = """
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
static int sysctlbyname(const char *name, void *to, size_t *bytes, void *from, size_t count)
{
    static const char prefix[] = "hw.optional.arm.FEAT_";
    const char *known = getenv("FEATURES");
    if (strncmp(name, prefix, sizeof prefix - 1) || *bytes != sizeof(int) || from || count)
        abort();
    known = strstr(known, name + sizeof prefix - 1);
    if (known)
        *(int *)to = strchr(known, '=')[1] == '1';
    return known ? 0 : -1;
}
"""
A11 = "FP16=1 LSE=1 RDM=1 DotProd=0 "
A13 = A11.replace("=0", "=1") + "FCMA=1 FHM=1 JSCVT=1 LRCPC=1 SHA3=1 "


@functools.cache
def make_halves_for_apple(target: str) -> Path:
    """Return the folder of a library for Apple's systems whose products are of float16."""
    out = make_root() / f"halves-{target}"
    planning = PlanOptions(precision="f16")
    options = Options("mnist", resolve(target), PlanRequest([8], planning=planning), static=True)
    build(GOLDENS / "mlp", out, options)
    return out


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64-static")),
    reason="needs aarch64-linux-gnu-gcc and qemu-aarch64-static",
)
@pytest.mark.parametrize(
    ("target", "cpu", "known", "expected"),
    [
        ("ios-arm64", "", "", "apple-a9"),  # iOS 14 and older have no such names
        ("ios-arm64", "", A11, "apple-a9"),
        ("ios-arm64", "", A13, "apple-a13"),
        ("macos-arm64", "apple-m4", "", "this CPU lacks i8mm, bf16: the library was built for "
         "apple-m4"),
        ("macos-arm64", "apple-m4", "I8MM=1 BF16=0", "this CPU lacks bf16: the library was built "
         "for apple-m4"),
        ("macos-arm64", "apple-m4", "I8MM=1 BF16=1", "apple-m4"),
    ],
)  # fmt: skip
def test_apples_systems_are_asked_which_code_fits(
    target: str, cpu: str, known: str, expected: str, tmp_path: Path
) -> None:
    """The C of a library for them, compiled for Linux on ARM beside a system of the test's own."""
    if cpu:
        made = make_source("mnist", target=resolve(target, cpu=cpu).target)
        header, source = made.write_header(), made.write_source()
    else:
        folder = make_halves_for_apple(target)
        header, source = ((folder / name).read_text("utf-8") for name in ("mnist.h", "src/mnist.c"))
    (tmp_path / "sys").mkdir()
    main = MAIN.replace("puts(said)", "puts(code == MODEL_OK ? level_at(level)->cpu : said)")
    files = {"mnist.h": header, "mnist.c": source, "main.c": main, "sys/sysctl.h": SYSCTL}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    linked = re.findall(r"^extern const .*?(\w+)\[\] HIDDEN", source, re.MULTILINE)
    words: list[str | Path]
    words = [f"-I{tmp_path}", "-U__linux__", "-D__APPLE__", "-static", tmp_path / "main.c", "-lm",
             *(f"-Wl,--defsym={symbol}=0" for symbol in linked)]  # fmt: skip
    program = compile_c(tmp_path / "main", *words, compiler="aarch64-linux-gnu-gcc")
    done = subprocess.run(
        ["qemu-aarch64-static", program], env={"FEATURES": known}, capture_output=True, text=True
    )
    assert done.stdout == f"{expected}\n", done.stderr


def test_what_targets_need() -> None:
    """Wider levels of x86 need what narrower ones do; the oldest CPUs need nothing."""
    needs = {name: set(list_needs(resolve(name).target)) for name in TARGETS}
    assert needs["x86-64-v2"] < needs["x86-64-v3"] < needs["x86-64-v4"]
    assert needs["macos-x86_64"] == needs["windows-x86_64"] == needs["x86-64-v3"]
    assert not needs["macos-arm64"] | needs["ios-arm64"] | needs["ios-simulator"]
    assert not needs["raspberrypi3"] | needs["raspberrypi4"] | needs["aarch64"] | needs["wasm32"]
    assert set(list_needs(resolve("x86-64-v2", features="+avx2,+fma").target)) >= {"avx2", "fma"}
    assert list_needs(detect_host())
