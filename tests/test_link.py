"""Targets and linking: names resolve, libraries export the API alone, and come out the same."""

from __future__ import annotations

import platform as machine
import shutil
import sys
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.kernels.compiler.load import library_code
from engine.runtime.plan import KernelSpec
from engine.tools import targets
from engine.tools.trimmed.link import exported_symbols, find_compiler, link, undefined_symbols
from engine.tools.trimmed.targets import ALIASES, TARGETS, Platform, resolve

SOURCE = """
#include <stdint.h>
#include <stdlib.h>
typedef void kernel(const int64_t *, int64_t, int64_t);
extern kernel *const lib_kernels[];
int hidden(int x) { return x + WORD; }
__attribute__((visibility("default"))) void lib_call(int i, const int64_t *words)
{
    int64_t *copy = malloc(64);
    if (copy)
        lib_kernels[i](words, 0, 1);
    free(copy);
}
#ifdef PROGRAM
int main(void) { return hidden(-WORD); }
#endif
"""
SPEC = KernelSpec("gemm", ("f32", 0, 0))
MAGIC = {".so": b"\x7fELF", ".dylib": b"\xcf\xfa\xed\xfe", ".wasm": b"\0asm"}


def build(target: Platform, folder: Path, kind: str = "shared", **options: object) -> Path:
    """A library or program of one kernel and the source above."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "lib.c"
    source.write_text(SOURCE)
    code = library_code([SPEC], target.target, table="lib_kernels", data={})
    defines = {"WORD": "3"} | ({"PROGRAM": ""} if kind == "executable" else {})
    return link(
        [code], [source], target, folder / target.file_name(kind, "x"), kind=kind,  # type: ignore[arg-type]  # one of its words
        defines=defines, threads=False, **options,  # type: ignore[arg-type]  # any option
    )  # fmt: skip


@pytest.mark.parametrize("name", ["native", *TARGETS, *ALIASES])
def test_every_name_resolves(name: str) -> None:
    found = resolve(name)
    assert found.target.lanes(4) >= 4
    assert "x" in found.file_name("shared", "x")


def test_raspberries_are_tuned_for_their_cores() -> None:
    cores = {n: resolve(f"raspberrypi{n}").target.cpu for n in ("3", "4", "5", "zero2")}
    assert cores == {"3": "cortex-a53", "4": "cortex-a72", "5": "cortex-a76", "zero2": "cortex-a53"}


def test_cpu_and_features_replace_the_rows() -> None:
    found = resolve("raspberrypi4", cpu="cortex-a76", features="+dotprod").target
    assert (found.cpu, found.features) == ("cortex-a76", "+dotprod")
    assert resolve(triple="x86_64-unknown-linux-gnu", features="+avx2,+fma").target.vector == 32
    assert resolve(triple="aarch64-unknown-linux-gnu").target.by_lane
    assert resolve(triple="armv7-unknown-linux-gnueabihf").target.features == "+neon,+vfp4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "raspberypi4"}, "nearest: 'raspberrypi4'"),
        ({"triple": "mips-unknown-linux-gnu"}, "'mips' is none of aarch64"),
        ({"triple": "aarch64-unknown-freebsd"}, "the system is none of linux"),
    ],
)
def test_an_unknown_target_is_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        resolve(**words)


@pytest.mark.parametrize("name", ["native", "macos-arm64", "wasm32"])
def test_shared_libraries(name: str, tmp_path: Path) -> None:
    made = build(resolve(name), tmp_path)
    assert made.read_bytes().startswith(MAGIC[made.suffix])
    if made.suffix == ".so":
        assert exported_symbols(made) == {"lib_call"}
        assert undefined_symbols(made) == {"malloc", "free"}


def test_archives_and_executables(tmp_path: Path) -> None:
    """A DLL, for which ziglang first compiles its C library, would take a minute."""
    native = resolve("native")
    for platform in (native, resolve("windows-x86_64")):
        assert build(platform, tmp_path, "static").read_bytes().startswith(b"!<arch>\n")
    assert build(native, tmp_path, "executable").stat().st_mode & 0o100


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
    """And nothing is left behind."""
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
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install edgegrad\[build\]"):
        find_compiler(resolve("raspberrypi4"))
    with pytest.raises(EngineError, match="Android NDK"):
        find_compiler(resolve("android-aarch64"))
    with pytest.raises(EngineError, match="not a command"):
        find_compiler(resolve("native"), "ccc")


def test_threads_are_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="wasm32 has no threads"):
        link([], [], resolve("wasm32"), tmp_path / "x.wasm", threads=True)


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert targets.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*TARGETS, *ALIASES))
    assert machine.machine() in shown or sys.platform != "linux"


def test_a_32_bit_process_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.target import host

    monkeypatch.setattr(sys, "maxsize", (1 << 31) - 1)
    host.cache_clear()
    with pytest.raises(EngineError, match=r"64-bit Raspberry Pi OS.*--target armv7"):
        host()
    monkeypatch.undo()
    assert host().lanes(4) >= 4
