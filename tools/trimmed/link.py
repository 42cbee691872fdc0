"""Link: make a library or an executable of object files and C sources, for a platform.

If a compiler that fits the platform is installed, it is used.  Otherwise ziglang is used, a Python
package with a compiler that can link for nearly every target; for Android, `bionic.py` gives it
the C library to link with.  The output is reproducible: it contains no paths, dates or build ids.
It is checked to be for the platform that was asked for.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.base.errors import EngineError
from engine.tools.trimmed import binary, bionic
from engine.tools.trimmed.arithmetic import make_arithmetic
from engine.tools.trimmed.targets import NDK, Platform

# Each thread has an instance of the module, with a stack of its own in the memory that it is given.
_SHARED_MEMORY = (
    "-Wl,--shared-memory", "-Wl,--import-memory", "-Wl,--export-memory",
    f"-Wl,--max-memory={(1 << 32) - (1 << 16)}", "-Wl,--export=__stack_pointer",
)  # fmt: skip

Kind = Literal["shared", "static", "executable"]

# Without optimisations of gcc that repeat code or make it longer.
# Without -fno-guess-branch-probability it lays blocks out for speed: 100 bytes of a build's C.
_LARGE = (
    "-fno-shrink-wrap", "-fno-thread-jumps", "-fno-move-loop-invariants", "-fno-ipa-modref",
    "-fno-guess-branch-probability", "-fno-forward-propagate", "-fno-caller-saves", "-fipa-pta",
)  # fmt: skip
_NEAR = 1 << 19  # bytes of objects of a library whose addresses are all within 1 MiB
_NEED = "install ziglang, which links for every other target: pip install edgegrad[build]"


@dataclass(frozen=True, slots=True)
class Compiler:
    """C compiler for one platform.

    command: the first words of its command line.
    zig: whether it is ziglang.
    bionic: whether it takes Android's C library from `bionic.py`.
    programs: whether it has all that programs are linked with, and not libraries alone.
    """

    command: tuple[str, ...]
    zig: bool
    bionic: bool = False
    programs: bool = True

    @property
    def archiver(self) -> tuple[str, ...]:
        """The command line of the `ar` that belongs to this compiler."""
        if self.zig:
            return (sys.executable, "-m", "ziglang", "ar")
        first = self.command[0]
        for end, tool in (("-gcc", first.removesuffix("-gcc") + "-ar"), ("-clang", "llvm-ar")):
            if first.endswith(end) and shutil.which(tool):
                return (tool,)
        return ("ar",)


def find_compiler(
    platform: Platform,
    chosen: str = "",
    *,
    threads: bool = False,
    freestanding: bool = False,
    archive: bool = False,
) -> Compiler:
    """Return the compiler for a platform; refuse unsupported ones before anything is compiled.

    chosen: `zig`, a command, or empty to take the first that fits.
    threads: whether POSIX threads are used.
    freestanding: whether an archive is made that needs no C library.
    archive: whether an archive is made, which needs the headers of the C library alone.

    Raises:
        EngineError: no compiler is installed, and the message says what to install; or there are no
            threads on the platform.
    """
    if threads and not platform.pthread:
        raise EngineError(f"target {platform.name} has no threads; build for one")
    if platform.is_bare and not freestanding:
        raise EngineError(
            f"target {platform.name} has no operating system, so only archives can be made: "
            "--freestanding"
        )
    if chosen and chosen != "zig":
        if shutil.which(chosen) is None:
            raise EngineError(f"compiler {chosen!r} is not a command of this machine")
        return Compiler((chosen,), zig=False)
    commands = [command.split() for command in platform.cc if not chosen]
    for command in commands:
        if shutil.which(command[0]):
            return Compiler(tuple(command), zig=False)
    names = ", ".join(command.split()[0] for command in platform.cc) or "its compilers"
    tried = f"target {platform.name}: none of {names} is here"
    has_headers = archive and platform.form == "macho"  # the same on all of Apple's systems
    if platform.sdk and not (freestanding or has_headers):
        others = "--static or --freestanding" if platform.form == "macho" else "--freestanding"
        raise EngineError(
            f"{tried}; they come with {platform.sdk}. Without it there are archives alone: {others}"
        )
    if importlib.util.find_spec("ziglang") is None:
        raise EngineError(f"{tried}; {_NEED}")
    # Clang's own target for Android would call functions of a library for atomic additions.
    is_bionic = platform.is_bionic and not freestanding
    target = _name_bionic(platform) if platform.is_bionic else platform.zig.split()
    target += ["-isystem", str(find_darwin_headers())] if has_headers else []
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", *target)
    has_all = not (is_bionic or platform.sdk)
    return Compiler(zig, zig=True, bionic=is_bionic, programs=has_all)


def _name_bionic(platform: Platform) -> list[str]:
    """Return ziglang's name of a system like Android, without a C library."""
    if platform.machine != "arm":
        return [f"{platform.machine}-linux-none"]
    cpu = platform.target.cpu.replace("-", "_")  # floats are passed in registers for integers
    return ["arm-linux-eabi", f"-mcpu={cpu}", "-mfloat-abi=softfp"]


def find_darwin_headers() -> Path:
    """Return the folder of ziglang with the headers of Apple's C library, which it has for macOS
    alone.
    """
    spec = importlib.util.find_spec("ziglang")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lib/libc/include/any-darwin-any"


def link(
    objects: Sequence[bytes],
    sources: Sequence[Path],
    platform: Platform,
    out: Path,
    *,
    kind: Kind = "shared",
    defines: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    size: bool = False,
    threads: bool = True,
    freestanding: bool = False,
    compiler: str = "",
    flags: Sequence[str] = (),
    last: Sequence[str] = (),
) -> Path:
    """Compile C sources, link them with object files, and replace `out` by the result at once.

    Only symbols that the sources mark `visibility("default")` are exported.  Sections that nothing
    reaches are dropped; libraries and executables are stripped of their symbols.  With a library of
    Windows comes the import library that compilers there link with, `NAME.lib` beside it.

    objects: the contents of object files.
    defines: macros and their values, for the sources.
    include: folders of headers.
    size: prefer small code to fast code, in the sources.
    threads: whether POSIX threads are used.
    freestanding: use no C library; an archive of ELF objects has all functions that it calls.
    flags: more words for every compilation and for the link, after all others.
    last: more words for the link alone, after them, such as a script and archives.

    Raises:
        EngineError: no compiler fits, or it failed, and the message has its first lines; or what it
            made is for another platform.
    """
    driver = find_compiler(
        platform, compiler,
        threads=threads, freestanding=freestanding, archive=kind == "static",
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".link-") as folder:
        work = Path(folder)
        common = _compile_flags(platform, size=size, threads=threads)
        common += _list_small_flags(platform, driver, kind, objects) if size else []
        common += ["-ffreestanding", "-fno-builtin"] if freestanding else []
        common += [f"-D{k}={v}" if v else f"-D{k}" for k, v in (defines or {}).items()]
        common += [f"-I{path.resolve()}" for path in include]
        if driver.bionic:
            bionic.write_headers(work / "bionic")
            common += ["-isystem", "bionic", "-DEDGEGRAD_BIONIC"]
        if driver.zig and platform.form == "pe" and platform.machine == "x86_64":
            common += ["-DEDGEGRAD_WINDOWS"] * (kind != "static")
        inputs = []
        for i, code in enumerate(objects):
            (work / f"kernels{i}.o").write_bytes(code)
            inputs.append(f"kernels{i}.o")
        for source in sources:
            local = shutil.copy(source, work / source.name)  # no path of this machine in the object
            name = f"{source.stem}.o"
            here = [f"-I{source.parent.resolve()}"]
            _run(
                [*driver.command, "-c", *common, *here, *flags, Path(local).name, "-o", name], work
            )
            _check(binary.read(work / name), platform, driver)
            inputs.append(name)
        made = work / out.name
        if kind == "static" and freestanding and platform.is_elf:
            inputs += make_arithmetic([work / name for name in inputs], platform, work, _run)
        if kind == "static":
            _run([*driver.archiver, "rcsD", made.name, *inputs], work)
        elif driver.bionic:
            if kind == "executable":
                raise EngineError(
                    f"target {platform.name}: programs are linked with {NDK}; libraries without it"
                )
            _link_with_bionic(platform, driver, inputs, made)
            _check(binary.read(made), platform, driver)
        else:
            rest = _link_flags(
                platform, driver, kind, out.name, threads=threads, freestanding=freestanding
            )
            _run([*driver.command, *inputs, *rest, *flags, *last, "-o", made.name], work)
            _check(binary.read(made), platform, driver)
        if platform.shares_memory and kind == "shared":
            _append_pages(made)
        os.replace(made, out)
        for imports in work.glob("*.lib") if kind == "shared" else ():
            os.replace(imports, out.with_suffix(".lib"))
    return out


def _append_pages(module: Path) -> None:
    """Let a module tell the size of the memory that it takes, which JavaScript cannot ask for.

    The custom section `pages` is this number, of 32 bits, little-endian.
    """
    content = b"\x05pages" + struct.pack("<I", binary.read(module).pages)
    with open(module, "ab") as file:
        file.write(bytes([0, len(content)]) + content)


def _link_with_bionic(
    platform: Platform, driver: Compiler, inputs: Sequence[str], out: Path
) -> None:
    """Link a shared library for Android by ziglang's linker itself, as its driver refuses to.

    Pages have up to 16 KiB there.
    """
    work, linker = out.parent, [*driver.command[:3], "ld.lld", "-shared"]
    (work / "libc.c").write_text(bionic.write_stub(platform.machine), "utf-8")
    _run([*driver.command, "-c", "-w", "-fno-builtin", "-fPIC", "libc.c", "-o", "libc.o"], work)
    _run([*linker, "-soname", "libc.so", "libc.o", "-o", "libc.so"], work)
    flags = ["--gc-sections", "--build-id=none", "-s", "-soname", out.name]
    flags += ["-z", "noexecstack", "-z", "defs", "-z", "max-page-size=16384"]
    _run([*linker, *flags, *inputs, "libc.so", "-o", out.name], work)


def _check(made: binary.Binary, platform: Platform, driver: Compiler) -> None:
    """Check that a compiler made a binary for the platform it was asked to.

    Raises:
        EngineError: it made one for another.
    """
    system = platform.system if platform.form in ("macho", "pe") else ""
    wanted = (platform.form, platform.machine, system)
    facts = (made.form, made.machine, made.system)
    if facts != wanted:
        raise EngineError(
            f"{' '.join(driver.command)} compiles for {' '.join(facts).strip()}; target "
            f"{platform.name} is {' '.join(wanted).strip()}"
        )


def _compile_flags(platform: Platform, *, size: bool, threads: bool) -> list[str]:
    flags = ["-std=c11", "-Os" if size else "-O2", "-g0", "-fvisibility=hidden"]
    flags += [] if platform.is_bare else ["-fPIC"]
    flags += ["-ffunction-sections", "-fdata-sections", "-fno-ident"]
    flags += ["-fno-sanitize=undefined", "-fno-stack-protector"]
    if platform.form in ("elf", "macho"):  # nothing unwinds C; they are 8 KB of a library for macOS
        flags += ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
    if platform.is_elf:
        flags += ["-fomit-frame-pointer"]  # gcc keeps it on aarch64, where it costs 400 bytes
        flags += ["-fno-semantic-interposition"]  # a library calls its own functions directly
    if size:
        flags += ["-fno-inline-functions"]  # clang's cost the runtime 1 KB on aarch64
    if platform.is_elf and platform.target.arch == "aarch64":
        flags += ["-mno-outline-atomics"]  # those ask the C library for the CPU at start
    return [*flags, "-pthread"] if threads else flags


def _list_small_flags(
    platform: Platform, driver: Compiler, kind: Kind, objects: Sequence[bytes]
) -> list[str]:
    """Return the options of `--size` that depend on the compiler or on what is linked."""
    flags = [] if driver.zig else [f for f in _LARGE if _has_option(driver.command, f)]
    if kind == "shared" and platform.is_elf and platform.target.arch == "aarch64":
        flags += ["-fno-plt"]  # each function of the C library takes 40 bytes there
        if sum(map(len, objects)) < _NEAR:
            flags += ["-mcmodel=tiny"]  # addresses in one instruction
    if kind == "shared" and platform.form == "macho" and driver.zig:
        flags += ["-Xclang", "-fno-plt"]  # stubs, and pointers that may be bound later
        flags += ["-mllvm", "-aarch64-macho-enable-nonlazybind"] * (platform.machine == "aarch64")
    return flags


@functools.cache
def _has_option(command: tuple[str, ...], flag: str) -> bool:
    """Return whether a compiler has an option, and does not warn of it."""
    words = [*command, "-Werror", flag, "-E", "-x", "c", os.devnull]
    return subprocess.run(words, capture_output=True).returncode == 0


def _link_flags(
    platform: Platform,
    driver: Compiler,
    kind: Kind,
    name: str,
    *,
    threads: bool,
    freestanding: bool,
) -> list[str]:
    if platform.is_wasm:
        flags = ["-s", "-Wl,--gc-sections", "-Wl,-z,stack-size=65536"]
        if freestanding:  # memory from there on is the caller's
            flags += ["-nostdlib", "-Wl,--no-entry", "-Wl,--export=__heap_base"]
            flags += _SHARED_MEMORY if platform.shares_memory else []
        elif kind == "shared":
            flags += ["-mexec-model=reactor"]
            flags += ["-Wl,--export=malloc", "-Wl,--export=free"]  # of the memory of arguments
        return [*flags, *(["-Wl,--export-dynamic"] if kind == "shared" else [])]
    flags = ["-shared"] if kind == "shared" else []
    if platform.is_elf:
        flags += ["-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,-z,defs"]
        flags += [f"-Wl,-soname,{name}"] if kind == "shared" else []
        if not driver.zig:
            flags += ["-Wl,-z,max-page-size=16384", "-Wl,-z,noseparate-code"]
            flags += ["-Wl,-z,norelro"]  # avoids a gap of up to 16 KiB in the file
            # A library has no constructors, so nothing runs at its start or end.
            flags += ["-nostartfiles"] if kind == "shared" else []
    elif platform.shared.endswith(".dylib"):
        # Local symbols go, and room in the header is what Apple's linker leaves: -s and ziglang's
        # 4 KiB take 8 KB.
        flags += ["-Wl,-dead_strip", "-Wl,-x", "-Wl,-headerpad,0x20"]
        flags += [f"-Wl,-install_name,@rpath/{name}"] if kind == "shared" else []
    elif kind == "shared":
        flags += [f"-Wl,--out-implib,{Path(name).stem}.lib"]
    return [*flags, "-s", *(["-pthread"] if threads else [])]


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a tool in a folder.

    Raises:
        EngineError: it failed, with the first lines it printed.
    """
    env = {**os.environ, "SOURCE_DATE_EPOCH": "0"}  # libraries of Windows hold a date
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[:12])
        raise EngineError(f"{' '.join(command[:4])} ... failed:\n{said}")
