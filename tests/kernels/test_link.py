"""Targets and linking: names resolve, libraries export the API alone, and come out the same."""

from __future__ import annotations

import platform as machine
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD
from engine.errors import EngineError, FileError
from engine.graphs.io import onnx_io
from engine.kernels.binaries.load import get_library
from engine.kernels.machine.target import make
from engine.models.catalog import find_architecture
from engine.models.named_model import make as make_named
from engine.plan.plan import KernelSpec
from engine.quantization import quantize
from engine.tools import cli
from engine.tools.trimmed import binary, opset
from engine.tools.trimmed.build import build as build_model
from engine.tools.trimmed.build import build_library
from engine.tools.trimmed.generate import RUNTIME
from engine.tools.trimmed.link import Compiler, _list_small_flags, find_compiler, link
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import ALIASES, TARGETS, Platform, resolve
from engine.trainer.trainer import Trainer
from tests.support.builds import needs_cc
from tests.support.places import GOLDENS
from tests.support.shown import shows

SOURCE = """
#include <stdint.h>
#ifndef FREESTANDING
#include <stdlib.h>
#endif
#ifdef _WIN32
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif
typedef void kernel(const int64_t *, int64_t, int64_t);
extern kernel *const lib_kernels[];
int hidden(int x) { return x + WORD; }
API void lib_call(int i, const int64_t *words, int64_t n)
{
#ifdef FREESTANDING
    lib_kernels[i](words, 0, n);
#else
    int64_t *copy = malloc((size_t)n);
    if (copy)
        lib_kernels[i](copy, 0, *words);
    free(copy);
#endif
}
#ifdef PROGRAM
int main(void) { return hidden(-WORD); }
#endif
"""
SPEC = KernelSpec("gemm", ("f32", 0, 0))
# Exports of a WebAssembly module besides its functions.
MODULE = {"memory", "_initialize", "__stack_pointer", "malloc", "free"}
# The oldest systems that named targets promise to run on.
OLDEST = {
    "macos-arm64": "11.0", "macos-x86_64": "11.0", "ios-arm64": "13.0", "ios-simulator": "14.0",
}  # fmt: skip
HELPERS = f"""
#include <stdint.h>
#define NO_LIBRARY_CALL() __asm__ volatile("" ::: "memory")
{(RUNTIME / "helpers.c").read_text("utf-8")}
"""
NEW_ANDROID = "riscv64-linux-android35"  # an architecture that bionic.h lacks
ARCHIVED = [name for name in TARGETS if resolve(name).sdk or resolve(name).is_bare]
# Modules that share memory are linked for packages, without the C library.
LINKED = [n for n in TARGETS if not (n in ARCHIVED or resolve(n).shares_memory)]


def build(target: Platform, folder: Path, kind: str = "shared", **options: Any) -> Path:
    """A library or program of one kernel and the source above."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "lib.c"
    # Nothing links a compiler library for Android; builds have the functions that they need.
    needs_helpers = target.is_bionic and target.machine == "arm"
    source.write_text((HELPERS if needs_helpers else "") + SOURCE)
    code = get_library([SPEC], target.target, table="lib_kernels", data={})
    defines = {"WORD": "3"} | ({"PROGRAM": ""} if kind == "executable" else {})
    defines |= {"FREESTANDING": ""} if options.get("freestanding") else {}
    return link(
        [code], [source], target, folder / target.file_name(kind, "x"), kind=kind,  # type: ignore[arg-type]  # one of its words
        defines=defines, threads=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["native", *TARGETS, *ALIASES])
def test_every_name_resolves(name: str) -> None:
    resolved = resolve(name)
    assert resolved.target.lanes(4) >= 4
    assert "x" in resolved.file_name("shared", "x")


def test_raspberries_are_tuned_for_their_cores() -> None:
    cores = {n: resolve(f"raspberrypi{n}").target.cpu for n in ("3", "4", "5", "zero2")}
    assert cores == {"3": "cortex-a53", "4": "cortex-a72", "5": "cortex-a76", "zero2": "cortex-a53"}


def test_cpu_and_features_replace_the_rows() -> None:
    actual_target = resolve("raspberrypi4", cpu="cortex-a76", features="+dotprod").target
    assert (actual_target.cpu, actual_target.features) == ("cortex-a76", "+dotprod,+fullfp16")
    assert resolve(triple="x86_64-unknown-linux-gnu", features="+avx2,+fma").target.vector == 32
    assert resolve(triple="aarch64-unknown-linux-gnu").target.by_lane
    assert resolve(triple="armv7-unknown-linux-gnueabihf").target.features == "+neon,+vfp4"


def test_a_target_can_have_several_cpus() -> None:
    """The best first; what runs on all is the last."""
    platform = resolve("x86-64")
    assert [target.vector for target in platform.targets] == [64, 64, 32, 32, 16]
    assert platform.target == resolve("x86-64-v2").target
    windows = resolve("windows-x86_64", cpu="x86-64-v3,x86-64-v2")
    assert (windows.cpus, windows.target.vector) == ("x86-64-v3,x86-64-v2", 16)
    with pytest.raises(EngineError, match="'cortex-a99' is not a recognized processor"):
        resolve("aarch64", cpu="cortex-a76,cortex-a99")


@pytest.mark.parametrize(
    ("words", "vector", "products"),
    [
        ({"cpu": "x86-64-v2"}, 16, ()),
        ({"cpu": "x86-64-v3"}, 32, ()),
        ({"cpu": "knl"}, 32, ()),  # AVX-512 without its short vectors
        ({"cpu": "x86-64-v4"}, 64, ()),
        ({"cpu": "x86-64-v4", "features": "+avx512bf16"}, 64, ("bf16",)),
        ({"cpu": "znver4"}, 64, ("bf16",)),
        ({"cpu": "znver4", "features": "-avx512bf16"}, 64, ()),
        ({"features": "+avx512f,+avx512vl,+avx512dq"}, 64, ()),
        ({"name": "x86-64-v4", "features": "+avx512bf16"}, 64, ("bf16",)),
        ({"name": "x86-64-v4", "cpu": "haswell"}, 32, ()),
        ({"name": "x86-64-v2", "features": "+avx2,+fma"}, 32, ()),
        ({"name": "raspberrypi4"}, 16, ()),
        ({"name": "raspberrypi5"}, 16, ("f16",)),
        ({"name": "aarch64", "cpu": "neoverse-n2"}, 16, ("bf16", "f16")),
        ({"name": "raspberrypi5", "features": "+bf16"}, 16, ("bf16", "f16")),
        ({"name": "raspberrypi5", "features": "-fullfp16"}, 16, ()),
    ],
)
def test_a_core_and_features_decide_vectors_and_products(
    words: dict[str, str], vector: int, products: tuple[str, ...]
) -> None:
    """The features that LLVM's name of a core stands for count, too."""
    given = words if "name" in words else {"triple": "x86_64-unknown-linux-gnu", **words}
    target = resolve(**given).target
    assert (target.vector, target.products) == (vector, products)
    row = {16: ("sse", False), 32: ("avx2", True), 64: ("avx512", True)}[vector]
    if target.arch == "x86_64":
        level, fma = row
        assert target == make(target.triple, target.cpu, target.features, level, fma=fma)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "raspberypi4"}, "nearest: 'raspberrypi4'"),
        ({"triple": "mips-unknown-linux-gnu"}, "'mips' is not one of aarch64"),
        ({"triple": "aarch64-unknown-freebsd"}, "the system is not one of linux"),
        ({"name": "pi4", "triple": "x86_64-unknown-linux-gnu"}, "are two targets"),
        (
            {"name": "cortex-m7", "cpu": "cortex-m23"},
            "core cortex-m23: bare metal is for",
        ),
        ({"name": "generic"}, "unknown target 'generic'"),
        ({"name": ""}, "unknown target ''"),
        ({"name": "help"}, "unknown target 'help'"),
        ({"name": "pi4", "cpu": "help"}, "'help' is not a recognized processor"),
        ({"name": "pi4", "features": "+neon,+help"}, "'help' is not a recognized feature"),
        ({"name": "ESP32-S3"}, "this chip has Xtensa cores"),
        ({"name": "ESP32-C5"}, "this chip has no instructions for floating point"),
        ({"name": "rp2040"}, "no instructions for floating point; the smallest cores .* cortex-m4"),
        ({"name": "pi4", "cpu": "haswell"}, "'haswell' is not a recognized processor"),
        ({"triple": "x86_64-linux-gnu", "cpu": "cortex-a72"}, "'cortex-a72' is not a recog"),
        ({"name": "pi4", "features": "+avx2"}, "'\\+avx2' is not a recognized feature"),
    ],
)
def test_an_unknown_target_is_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        resolve(**words)


X86_64 = ["cascadelake", "x86-64-v4", "alderlake", "x86-64-v3", "x86-64-v2"]  # the best first


@pytest.mark.parametrize(
    ("name", "triple", "cpu"),
    [
        ("rpi5", "aarch64-unknown-linux-gnu", "cortex-a76"),
        ("Raspberry Pi 5", "aarch64-unknown-linux-gnu", "cortex-a76"),
        (
            "x86_64",
            "x86_64-unknown-linux-gnu",
            "cascadelake,x86-64-v4,alderlake,x86-64-v3,x86-64-v2",
        ),
        ("pico2", "thumbv8m.main-none-unknown-eabihf", "cortex-m33"),
        ("neoverse-n1", "aarch64-unknown-linux-gnu", "neoverse-n1"),
        ("znver4", "x86_64-unknown-linux-gnu", "znver4"),
        ("apple-m2", "arm64-apple-macosx11.0.0", "apple-m2"),
    ],
)
def test_boards_and_processors_are_targets(name: str, triple: str, cpu: str) -> None:
    platform = resolve(name)
    assert (platform.target.triple, platform.cpus) == (triple, cpu)


def test_names_of_targets_differ_in_letters_and_digits() -> None:
    folded = ["".join(filter(str.isalnum, name.lower())) for name in (*TARGETS, *ALIASES)]
    assert len({*folded}) == len(folded)
    assert {*ALIASES.values()} <= {*TARGETS}


@pytest.mark.parametrize("name", ["native", *LINKED])
@shows("C", "macOS", "linked")
def test_the_bundled_linker_makes_a_library_for_every_named_target(
    name: str, tmp_path: Path
) -> None:
    """Of the right form, CPU and system; it offers the API and takes the C library alone."""
    platform = resolve(name)
    made = binary.read(build(platform, tmp_path, compiler="zig"))
    assert (made.form, made.machine) == (platform.form, platform.machine)
    assert made.system == ("" if platform.form in ("elf", "wasm") else platform.system)
    assert made.oldest == OLDEST.get(name, "")
    if platform.is_wasm:
        assert made.exports == {"lib_call"} | MODULE
        assert made.needs == set()
        return
    assert made.exports == {"lib_call"}
    assert {"malloc", "free"} <= made.needs
    match platform.system:
        case "linux":
            assert made.needs == {"malloc", "free"}
            assert set(made.libraries) <= {"libc.so.6"}
        case "android":
            assert made.needs == {"malloc", "free"}
            assert made.libraries == ("libc.so",)
        case "macos":
            assert made.libraries == ("/usr/lib/libSystem.B.dylib",)
            content = build(platform, tmp_path / "small", compiler="zig", size=True).read_bytes()
            sections = (b"__stubs", b"__stub_helper", b"__eh_frame", b"__unwind_info")
            assert [name for name in sections if name in content] == []
            assert SPEC.symbol.encode() not in content, "the name of a kernel"
        case "windows":
            assert all(n.startswith(("api-ms-win-crt-", "KERNEL32")) for n in made.libraries)
            assert (tmp_path / "x.lib").read_bytes().startswith(b"!<arch>\n")


@pytest.mark.parametrize("name", ARCHIVED)
@shows("C", "iOS", "made")
def test_without_its_c_library_a_target_has_freestanding_archives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """iOS, whose C library ziglang lacks, and bare metal, which has none."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    platform = resolve(name)
    with pytest.raises(EngineError, match=f"{platform.sdk}.*--freestanding"):
        build(platform, tmp_path)
    made = build(platform, tmp_path, "static", freestanding=True)
    extract = [sys.executable, "-m", "ziglang", "ar", "x", made.name]
    subprocess.run(extract, cwd=tmp_path, check=True)
    for member in ("kernels0.o", "lib.o"):
        content = binary.read(tmp_path / member)
        assert (content.form, content.machine) == (platform.form, platform.machine)
        assert content.system == ("" if platform.is_bare else platform.system)
        assert content.oldest == OLDEST.get(name, "")


def test_a_triple_names_its_system() -> None:
    systems = {
        "arm64-apple-ios15.2": ("ios", "aarch64-ios.15.2"),
        "arm64-apple-ios13.0-simulator": ("ios-simulator", "aarch64-ios.13.0-simulator"),
        "arm64-apple-macosx12.3": ("macos", "aarch64-macos.12.3"),
        "arm64-apple-darwin23.1.0": ("macos", "aarch64-macos.14.0"),
        "x86_64-apple-macosx": ("macos", "x86_64-macos.11.0"),
        "aarch64-linux-android29": ("android", "aarch64-linux-android.29"),
        "x86_64-pc-windows-msvc": ("windows", "x86_64-windows-gnu"),
        "wasm32-wasip1": ("wasi", "wasm32-wasi"),
    }
    for triple, expected in systems.items():
        resolved = resolve(triple=triple)
        assert (resolved.system, resolved.zig) == expected
    assert (
        "iphoneos clang -target arm64-apple-ios15.2" in resolve(triple="arm64-apple-ios15.2").cc[0]
    )


def test_what_is_made_for_another_platform_is_refused(tmp_path: Path) -> None:
    """A user's own compiler that makes other code than the target's."""
    if not shutil.which("cc"):
        pytest.skip("needs cc")
    for kind in ("static", "shared"):
        with pytest.raises(
            EngineError, match=r"cc compiles for elf .*; target riscv64 is elf riscv64"
        ):
            build(resolve("riscv64"), tmp_path, kind, compiler="cc")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lib.c"]


def test_without_a_compiler_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor planned: what cannot be linked is refused first."""
    monkeypatch.setattr("engine.tools.trimmed.build.make_closed_plans", None)
    monkeypatch.setattr("engine.tools.trimmed.compilation.make_plans", None)
    monkeypatch.setattr("engine.tools.trimmed.build.find_kernel_set", None)
    for target, message, compiler, threads in (
        (resolve(triple=NEW_ANDROID), "Android NDK", "", 1),
        (resolve("ios-arm64"), "Xcode", "", 1),
        (resolve("native"), "not a command", "ccc", 1),
        (resolve("wasm32"), "has no threads", "", 2),
    ):
        options = Options("mnist", target, PlanRequest([8], threads), compiler=compiler)
        with pytest.raises(EngineError, match=message):
            build_model(GOLDENS / "mlp", tmp_path / "out", options)
        with pytest.raises(EngineError, match=message):
            build_library(opset.parse("ai.onnx;17;Gemm\n"), [], tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_a_compiler_has_the_archiver_that_knows_its_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    archivers = {
        "aarch64-linux-gnu-gcc": "aarch64-linux-gnu-ar",
        "aarch64-linux-android24-clang": "llvm-ar",
        "cc": "ar",
    }
    for command, expected in archivers.items():
        assert Compiler((command,), zig=False).archiver == (expected,)


def test_options_that_a_compiler_lacks_are_left_out(tmp_path: Path) -> None:
    """And a library that may be larger than the reach of short addresses does not get them."""
    compiler = tmp_path / "older-gcc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-fno-ipa-modref*) exit 1;; esac\nexit 0\n')
    compiler.chmod(0o755)
    driver, platform = Compiler((str(compiler),), zig=False), resolve("raspberrypi4")
    near = _list_small_flags(platform, driver, "shared", [bytes(1000)])
    assert {"-fno-shrink-wrap", "-fno-plt", "-mcmodel=tiny"} <= set(near)
    assert "-fno-ipa-modref" not in near
    far = _list_small_flags(platform, driver, "shared", [bytes(1 << 19)])
    assert set(near) - set(far) == {"-mcmodel=tiny"}
    archive = _list_small_flags(platform, driver, "static", [bytes(1000)])
    assert set(near) - set(archive) == {"-fno-plt", "-mcmodel=tiny"}


def test_archives_and_executables(tmp_path: Path) -> None:
    native = resolve("native")
    for platform in (native, resolve("windows-x86_64")):
        assert build(platform, tmp_path, "static").read_bytes().startswith(b"!<arch>\n")
    assert build(native, tmp_path, "executable").stat().st_mode & 0o100
    with pytest.raises(EngineError, match="programs are linked with the Android NDK"):
        build(resolve("android-aarch64"), tmp_path, "executable", compiler="zig")


def test_damaged_binaries_are_refused(tmp_path: Path) -> None:
    library = build(resolve("native"), tmp_path, compiler="zig").read_bytes()
    for data in (b"", b"MZ", b"\0asm\1\0\0\0\7", library[:64], library[: len(library) // 2]):
        with pytest.raises(EngineError, match=r"neither ELF|damaged"):
            binary.parse(data)
    with pytest.raises(FileError):
        binary.read(tmp_path / "none")


@pytest.mark.parametrize("compiler", ["", "zig"])
@pytest.mark.parametrize("kind", ["shared", "static"])
def test_outputs_are_reproducible_and_name_no_path(
    kind: str, compiler: str, tmp_path: Path
) -> None:
    native = resolve("native")
    made = [build(native, tmp_path / n, kind, compiler=compiler).read_bytes() for n in ("a", "bc")]
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


def test_what_the_compiler_says_is_reported(tmp_path: Path) -> None:
    """No file is left either."""
    (tmp_path / "bad.c").write_text("int main(void) { return missing; }\n")
    with pytest.raises(EngineError, match=r"'missing' undeclared|undeclared identifier"):
        link([], [tmp_path / "bad.c"], resolve("native"), tmp_path / "x", kind="executable")
    public = '__attribute__((visibility("default")))'
    text = f"int never_defined(void); {public} int f(void) {{ return never_defined(); }}\n"
    (tmp_path / "open.c").write_text(text)
    with pytest.raises(EngineError, match="never_defined"):
        link([], [tmp_path / "open.c"], resolve("native"), tmp_path / "libx.so")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.c", "open.c"]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install edgegrad\[build\]"):
        find_compiler(resolve("raspberrypi4"))
    with pytest.raises(EngineError, match="Android NDK"):
        find_compiler(resolve(triple=NEW_ANDROID))
    with pytest.raises(EngineError, match="not a command"):
        find_compiler(resolve("native"), "ccc")


def test_threads_are_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="wasm32 has no threads"):
        link([], [], resolve("wasm32"), tmp_path / "x.wasm", threads=True)


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["targets"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*TARGETS, *ALIASES))
    assert machine.machine() in shown or sys.platform != "linux"


def test_a_32_bit_process_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.machine.target import detect_host

    monkeypatch.setattr(sys, "maxsize", (1 << 31) - 1)
    detect_host.cache_clear()
    with pytest.raises(EngineError, match=r"64-bit Raspberry Pi OS.*--target armv7"):
        detect_host()
    monkeypatch.undo()
    assert detect_host().lanes(4) >= 4


@needs_cc
def test_code_for_dot_products_is_left_out_of_float_models_alone(tmp_path: Path) -> None:
    """Plans of integers are the same for AVX-512 with and without VNNI, and the kernels differ."""
    rng = np.random.default_rng(0)
    graph = make_named(find_architecture("mlp"), classes=4, input_shape=(24,), seed=0).graph
    quantize(graph, rng.standard_normal((32, 24), np.float32)).save(tmp_path / "int8.onnx")
    onnx_io.save(graph, tmp_path / "float.onnx")
    floats = {"x86-64-v4", "x86-64-v3", "x86-64-v2"}
    for name, train, wanted in (("float", "*", floats), ("int8", "head", {*X86_64})):
        folder = tmp_path / name
        Trainer.from_onnx(
            tmp_path / f"{name}.onnx", "cross_entropy", SGD(), train=train, folder=folder
        )
        made = build_model(
            folder, tmp_path / f"{name}_build", Options("one", resolve("x86-64"), PlanRequest([4]))
        )
        assert {*made["cpus"]} == wanted
