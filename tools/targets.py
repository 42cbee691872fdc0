"""Targets: the devices a trimmed build can be made for, by name.

A row says what the kernels must know of the CPU (`kernels/_target.py`) and what linking must know
of the platform: ziglang's name for it, compilers that fit, the file names it expects.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.errors import EngineError, nearest
from engine.kernels._target import TILES, Target, host, make


@dataclass(frozen=True, slots=True)
class Platform:
    """A target of a trimmed build.

    `zig` is the value of ziglang's `-target`, empty for a platform it has no C library for; `cc`
    names compilers that fit when they are installed.  `shared`, `static` and `executable` are file
    name patterns with `{}` for the name.  `pthread` says whether POSIX threads exist (on Windows
    by ziglang's libraries).
    """

    name: str
    target: Target
    zig: str
    cc: tuple[str, ...] = ()
    shared: str = "lib{}.so"
    static: str = "lib{}.a"
    executable: str = "{}"
    pthread: bool = True

    @property
    def is_elf(self) -> bool:
        """Whether objects and libraries are ELF files."""
        return self.shared.endswith(".so")

    def file_name(self, kind: str, name: str) -> str:
        """File name of a `kind` (shared, static or executable) called `name`."""
        return {"shared": self.shared, "static": self.static, "executable": self.executable}[
            kind
        ].format(name)


# Operating systems: what linking knows of them.  The oldest glibc that ziglang links against is
# old enough for every 64-bit Raspberry Pi OS; Android links with its NDK alone.
# name -> (ziglang target, shared library, executable)
_SYSTEMS = {
    "linux": ("{}-linux-gnu.2.28", "lib{}.so", "{}"),
    "android": ("", "lib{}.so", "{}"),
    "macos": ("{}-macos", "lib{}.dylib", "{}"),
    "windows": ("{}-windows-gnu", "{}.dll", "{}.exe"),
}

_LINUX = "unknown-linux-gnu"
_RV64 = "+m,+a,+f,+d,+c"

# name -> (triple, LLVM CPU, LLVM features, level of kernels/_target.py)
TARGETS: dict[str, tuple[str, str, str, str]] = {
    "raspberrypi3": (f"aarch64-{_LINUX}", "cortex-a53", "", "neon"),
    "raspberrypi4": (f"aarch64-{_LINUX}", "cortex-a72", "", "neon"),
    "raspberrypi5": (f"aarch64-{_LINUX}", "cortex-a76", "", "neon"),
    "raspberrypizero2": (f"aarch64-{_LINUX}", "cortex-a53", "", "neon"),
    "aarch64": (f"aarch64-{_LINUX}", "generic", "+neon", "neon"),
    "x86-64-v2": (f"x86_64-{_LINUX}", "x86-64-v2", "", "sse"),
    "x86-64-v3": (f"x86_64-{_LINUX}", "x86-64-v3", "", "avx2"),
    "x86-64-v4": (f"x86_64-{_LINUX}", "x86-64-v4", "", "avx512"),
    "android-aarch64": ("aarch64-linux-android24", "generic", "+neon", "neon"),
    "macos-arm64": ("arm64-apple-macosx11.0.0", "apple-m1", "", "neon"),
    "macos-x86_64": ("x86_64-apple-macosx11.0.0", "x86-64-v3", "", "avx2"),
    "windows-x86_64": ("x86_64-w64-windows-gnu", "x86-64-v3", "", "avx2"),
    "riscv64": (f"riscv64-{_LINUX}", "generic-rv64", _RV64, "rv64"),
}
ALIASES = {"zero2": "raspberrypizero2", "pi3": "raspberrypi3", "pi4": "raspberrypi4",
           "pi5": "raspberrypi5"}  # fmt: skip

_NARROW = (
    "kernels address memory with 64-bit words (arguments, shapes, indices); a 32-bit target has "
    "none of its pointers that wide. On a 64-bit Raspberry (3, 4, 5, Zero 2) install the 64-bit "
    "Raspberry Pi OS and build for it: docs/raspberry-pi.md"
)


def names() -> list[str]:
    """Every name `resolve` takes."""
    return ["native", *TARGETS, *ALIASES]


def resolve(
    name: str = "native", *, triple: str = "", cpu: str = "", features: str | None = None
) -> Platform:
    """The platform of a target name, or of an LLVM triple; `cpu` and `features` replace the row's.

    Raises:
        EngineError: the name or triple is not known, or is of a 32-bit CPU.
    """
    if triple:
        found = _of_triple(triple, triple, cpu or "generic", features or "", "")
    elif name == "native":
        found = native()
    else:
        row = TARGETS.get(ALIASES.get(name, name))
        if row is None:
            raise EngineError(_unknown(name))
        found = _of_triple(name, *row)
    target = found.target
    if cpu or features is not None:
        new = target.features if features is None else features
        target = replace(target, cpu=cpu or target.cpu, features=new)
    return replace(found, target=target)


def native() -> Platform:
    """This machine, tuned for the CPU this process runs on."""
    systems = {"linux": "linux", "darwin": "macos", "win32": "windows"}
    if sys.platform not in systems:
        raise EngineError(f"target native: unknown system {sys.platform!r}; name a target")
    found = _of_system("native", host(), systems[sys.platform])
    return replace(found, cc=() if sys.platform == "win32" else ("cc", "gcc", "clang"))


def _of_triple(name: str, triple: str, cpu: str, features: str, level: str) -> Platform:
    arch = triple.split("-")[0]
    if arch in ("wasm32", "riscv32", "i386", "i686") or arch.startswith(("armv", "thumb")):
        raise EngineError(f"target {triple}: {_NARROW}")
    levels = {"aarch64": "neon", "arm64": "neon", "x86_64": "sse", "riscv64": "rv64"}
    if not level and arch not in levels:
        raise EngineError(f"target {triple}: {arch!r} is none of {', '.join(levels)}")
    level = level or _level(levels[arch], features)
    fma = level != "sse"
    made = make(triple, cpu, features, level, fma=fma)
    for system, mark in (("android", "android"), ("windows", "windows"), ("macos", "apple")):
        if mark in triple:
            return _of_system(name, made, system)
    if "linux" not in triple:
        raise EngineError(f"target {triple}: the system is none of {', '.join(_SYSTEMS)}")
    return _of_system(name, made, "linux")


def _level(level: str, features: str) -> str:
    """The widest x86 level that explicit features allow."""
    flags = set(features.split(","))
    if level == "sse" and {"+avx512f", "+avx512vl", "+avx512dq"} <= flags:
        return "avx512"
    return "avx2" if level == "sse" and {"+avx2", "+fma"} <= flags else level


def _of_system(name: str, target: Target, system: str) -> Platform:
    zig, shared, executable = _SYSTEMS[system]
    cc: tuple[str, ...] = ()
    if system == "linux":
        same = sys.platform == "linux" and platform.machine() == target.arch
        cc = (f"{target.arch}-linux-gnu-gcc", *(("cc", "gcc", "clang") if same else ()))
    if system == "android":
        cc = ("aarch64-linux-android24-clang",)  # of an NDK whose folder is on the PATH
    return Platform(name, target, zig.format(target.arch), cc, shared=shared, executable=executable)


def _unknown(name: str) -> str:
    if name.startswith(("arm", "wasm", "raspberrypi")) and name not in TARGETS:
        return f"target {name!r}: {_NARROW}. Targets: {', '.join(names())}"
    return f"unknown target {name!r}{nearest(name, names())}. Targets: {', '.join(names())}"


assert {row[3] for row in TARGETS.values()} <= set(TILES), "a row names an unknown level"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the targets, what they are tuned for, and which compiler would link for them."""
    from engine.tools.link import find_compiler

    argparse.ArgumentParser("edgegrad targets", description=main.__doc__).parse_args(argv)
    print(f"{'name':18} {'triple':28} {'cpu':14} {'vectors':8} linked by")
    for name in ("native", *TARGETS):
        found = resolve(name)
        try:
            compiler = find_compiler(found)
            by = "ziglang" if compiler.zig else compiler.command[0]
        except EngineError as error:
            by = str(error).partition(": ")[2]
        t = found.target
        print(f"{name:18} {t.triple:28} {t.cpu:14} {t.vector:2} bytes {by}")
    print("other names: " + ", ".join(f"{a} = {b}" for a, b in ALIASES.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
