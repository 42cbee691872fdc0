"""Targets of trimmed builds, by name.

A target has two parts.  The kernels need to know the CPU (`Target` of `kernels/machine/target.py`).
Linking needs to know the platform: ziglang's name for it, the compilers that fit, and how its
files are called.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.base.errors import EngineError, suggest_nearest
from engine.kernels.machine.features import find_features
from engine.kernels.machine.target import (
    BASELINES,
    INSTRUCTION_SETS,
    TELLING,
    Target,
    choose_instructions,
    detect_host,
    make,
    tell_products,
)


@dataclass(frozen=True, slots=True)
class Platform:
    """Target of a trimmed build.

    target: the CPU, for the kernels; of several, the one whose code runs on most.
    better: CPUs with more instructions, the best first.  A library has the code of each that gains
        by them, and chooses when a model is made.
    system: the operating system, a name of `_SYSTEMS`.
    zig: the value of ziglang's option `-target`, and options that follow it.
    cc: the commands of compilers that fit, the best first; words after the first are arguments.
    sdk: the SDK with the C library of a platform for which ziglang has none; otherwise empty.
    shared, static, executable: patterns of file names, with `{}` for the name.
    pthread: whether threads can be made.
    """

    name: str
    target: Target
    system: str
    zig: str
    cc: tuple[str, ...] = ()
    sdk: str = ""
    shared: str = "lib{}.so"
    static: str = "lib{}.a"
    executable: str = "{}"
    pthread: bool = True
    better: tuple[Target, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """All CPUs, the best first."""
        return (*self.better, self.target)

    @property
    def cpus(self) -> str:
        """LLVM's names of all CPUs, the best first."""
        return ",".join(target.cpu for target in self.targets)

    @property
    def is_elf(self) -> bool:
        """True if objects and libraries are ELF files."""
        return self.shared.endswith(".so")

    @property
    def is_wasm(self) -> bool:
        """True if the target is WebAssembly, where a shared library is a module with exports."""
        return self.shared.endswith(".wasm")

    @property
    def shares_memory(self) -> bool:
        """True if it is WebAssembly whose threads are instances of a module with one memory."""
        return self.is_wasm and _shares_memory(self.target)

    @property
    def form(self) -> str:
        """The form of its binaries, as in `Binary.form`."""
        return _SYSTEMS[self.system].form

    @property
    def tells_features(self) -> bool:
        """True if its C library tells which instructions an ARM CPU has."""
        return _SYSTEMS[self.system].tells_features

    @property
    def machine(self) -> str:
        """The architecture of its binaries, as in `Binary.machine`."""
        return self.target.machine

    @property
    def is_bionic(self) -> bool:
        """True for Android, whose C library `bionic.py` describes to ziglang."""
        return self.system == "android" and self.target.arch in _BIONIC

    @property
    def is_bare(self) -> bool:
        """True if there is no system: builds are archives, in the caller's memory and thread."""
        return self.system == "none"

    def file_name(self, kind: str, name: str) -> str:
        """Return the file name of a library or program; kind: `shared`, `static` or
        `executable`.
        """
        return {"shared": self.shared, "static": self.static, "executable": self.executable}[
            kind
        ].format(name)


@dataclass(frozen=True, slots=True)
class _System:
    """Facts about an operating system for linking.

    zig: ziglang's name of it, with {arch} and {version}, the oldest supported version.
    version: this version, if a triple has none.
    form: the form of binaries, as in `Binary.form`.
    marks: the beginnings of words that stand for it in triples; empty if its name is the only one.
    cc, sdk, pthread: as in `Platform`; {triple} is the target's.
    tells_features: whether a call of its C library tells the instructions of ARM CPUs.
    """

    zig: str
    version: str = ""
    shared: str = "lib{}.so"
    executable: str = "{}"
    form: str = "elf"
    marks: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    sdk: str = ""
    pthread: bool = True
    tells_features: bool = False


NDK = "the Android NDK, its bin folder on the PATH"
_XCODE = "Xcode, on a Mac"

# The oldest glibc that ziglang links against is old enough for every Raspberry Pi OS since 2019.
_SYSTEMS = {
    "linux": _System("{arch}-linux-gnu.2.28", tells_features=True),
    "android": _System(
        "{arch}-linux-android.{version}", "24",
        cc=("{arch}-linux-android{version}-clang",),
        sdk=NDK, tells_features=True,
    ),
    "macos": _System(
        "{arch}-macos.{version}", "11.0", "lib{}.dylib", form="macho",
        marks=("macos", "darwin"), tells_features=True,
    ),
    "ios": _System(
        "{arch}-ios.{version}", "13.0", "lib{}.dylib", form="macho",
        cc=("xcrun --sdk iphoneos clang -target {triple}",), sdk=_XCODE,
        tells_features=True,
    ),
    "ios-simulator": _System(
        "{arch}-ios.{version}-simulator", "13.0", "lib{}.dylib", form="macho",
        cc=("xcrun --sdk iphonesimulator clang -target {triple}",), sdk=_XCODE,
        tells_features=True,
    ),
    "windows": _System("{arch}-windows-gnu", "", "{}.dll", "{}.exe", form="pe"),
    "wasi": _System("{arch}-wasi", "", "{}.wasm", "{}.wasm", form="wasm", pthread=False),
    "none": _System("{arch}-freestanding", executable="{}.elf", pthread=False),
}  # fmt: skip

# ziglang's names of bare cores and of their units for floats, by LLVM's names.
_BARE_CORES = {
    "cortex-m4": "freestanding-eabihf -mcpu=cortex_m4+vfp4d16sp",
    "cortex-m7": "freestanding-eabihf -mcpu=cortex_m7+fp_armv8d16",
    "cortex-m33": "freestanding-eabihf -mcpu=cortex_m33+fp_armv8d16sp",
    "cortex-m55": "freestanding-eabihf -mcpu=cortex_m55+fp_armv8d16",
    "cortex-m85": "freestanding-eabihf -mcpu=cortex_m85+fp_armv8d16",
    "generic-rv32": "freestanding -mcpu=generic_rv32+m+a+f+c -mabi=ilp32f",
}

_BIONIC = ("aarch64", "armv7a", "x86_64")  # architectures of Android that need no SDK
_LINUX = "unknown-linux-gnu"
_WASM = "wasm32-unknown-wasi"
_SHARED_MEMORY = "+atomics,+bulk-memory"  # linkers share memory among modules that have both
RELAXED_SIMD = "+relaxed-simd"  # LLVM's feature of multiply-adds that may round once or twice
_BARE = "thumbv7em-none-unknown-eabihf"
_BARE_8 = "thumbv8m.main-none-unknown-eabihf"
_BARE_8_1 = "thumbv8.1m.main-none-unknown-eabihf"
_X86_64 = "cascadelake,x86-64-v4,alderlake,x86-64-v3,x86-64-v2"
# The first for i8mm: all cores of Armv8.6 and later have it.  Many lack SVE, or their system does.
_MACS = "apple-m2,apple-m1"
_ARM64, _ARM64_FEATURES = "cortex-a710,cortex-a76,generic", "+neon,-sve"


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """Row of `TARGETS`: the platform and the CPUs that a name stands for.

    triple: LLVM's.
    cpus: LLVM's names of CPUs with commas, the best first; all run the code of the last.
    instructions: the instruction set, a key of `INSTRUCTION_SETS`.
    features: LLVM's features; None for the instruction set's own.
    other_names: names of boards, chips and systems that stand for the same, with blanks.
    """

    triple: str
    cpus: str
    instructions: str
    features: str | None = ""
    other_names: str = ""


TARGETS = {
    "raspberrypi1": NamedTarget(
        f"armv6-{_LINUX}eabihf",
        "arm1176jzf-s",
        "vfp",
        other_names="pi1 rpi1 zero raspberrypizero armv6",
    ),
    "raspberrypi2": NamedTarget(
        f"armv7-{_LINUX}eabihf", "cortex-a7", "neon32", None, other_names="pi2 rpi2 armv7"
    ),
    "raspberrypi3": NamedTarget(
        f"aarch64-{_LINUX}", "cortex-a53", "neon", other_names="pi3 rpi3 imx8m"
    ),
    "raspberrypi4": NamedTarget(f"aarch64-{_LINUX}", "cortex-a72", "neon", other_names="pi4 rpi4"),
    "raspberrypi5": NamedTarget(f"aarch64-{_LINUX}", "cortex-a76", "neon", other_names="pi5 rpi5"),
    "raspberrypizero2": NamedTarget(
        f"aarch64-{_LINUX}", "cortex-a53", "neon", other_names="zero2 zero2w"
    ),
    "cortex-a55": NamedTarget(
        f"aarch64-{_LINUX}", "cortex-a55", "neon", other_names="rk3566 rk3568 imx93"
    ),
    "aarch64": NamedTarget(
        f"aarch64-{_LINUX}",
        _ARM64,
        "neon",
        features=_ARM64_FEATURES,
        other_names="arm64 armv8 jetson jetson-nano jetson-orin rk3399 rk3588 orangepi5 "
        "graviton graviton2 graviton3 graviton4",
    ),
    "x86-64": NamedTarget(f"x86_64-{_LINUX}", _X86_64, "sse", other_names="x64 amd64 n100"),
    "x86-64-v2": NamedTarget(f"x86_64-{_LINUX}", "x86-64-v2", "sse"),
    "x86-64-v3": NamedTarget(f"x86_64-{_LINUX}", "x86-64-v3", "avx2"),
    "x86-64-v4": NamedTarget(f"x86_64-{_LINUX}", "x86-64-v4", "avx512"),
    "android-aarch64": NamedTarget(
        "aarch64-linux-android24",
        _ARM64,
        "neon",
        features=_ARM64_FEATURES,
        other_names="android android-arm64 snapdragon",
    ),
    "android-armv7": NamedTarget(
        "armv7a-linux-androideabi24",
        "cortex-a7",
        "neon32",
        None,
        other_names="android-arm armeabi-v7a",
    ),
    "android-x86_64": NamedTarget("x86_64-linux-android24", "x86-64-v2", "sse"),
    "ios-arm64": NamedTarget(
        "arm64-apple-ios13.0",
        "apple-a15,apple-a13,apple-a9",  # the first for i8mm, and for dot products and float16
        "neon",
        other_names="ios ios-aarch64",
    ),
    "ios-simulator": NamedTarget("arm64-apple-ios14.0-simulator", _MACS, "neon"),
    "macos-arm64": NamedTarget(
        "arm64-apple-macosx11.0.0",
        _MACS,
        "neon",
        other_names="macos macos-aarch64 mac",
    ),
    "macos-x86_64": NamedTarget("x86_64-apple-macosx11.0.0", "x86-64-v3", "avx2"),
    "windows-x86_64": NamedTarget(
        "x86_64-w64-windows-gnu", "x86-64-v3", "avx2", other_names="windows windows-x64"
    ),
    "riscv64": NamedTarget(f"riscv64-{_LINUX}", "generic-rv64", "rv64", None, other_names="riscv"),
    "wasm32": NamedTarget(_WASM, "generic", "wasm", None, other_names="wasm"),
    "wasm32-relaxed": NamedTarget(_WASM, "generic", "wasm_relaxed", None),
    "wasm32-threads": NamedTarget(_WASM, "generic", "wasm", features=f"+simd128,{_SHARED_MEMORY}"),
    "wasm32-relaxed-threads": NamedTarget(
        _WASM, "generic", "wasm_relaxed", features=f"+simd128,{RELAXED_SIMD},{_SHARED_MEMORY}"
    ),
    "cortex-m4": NamedTarget(
        _BARE,
        "cortex-m4",
        "vfp",
        other_names="cortex-m4f stm32f4 stm32l4 nrf52 nrf52840 nano33ble",
    ),
    "cortex-m7": NamedTarget(
        _BARE,
        "cortex-m7",
        "vfp",
        other_names="stm32f7 stm32h7 imxrt1060 teensy4 teensy40 teensy41 portenta",
    ),
    "cortex-m33": NamedTarget(
        _BARE_8, "cortex-m33", "vfp", other_names="rp2350 pico2 nrf5340 stm32u5"
    ),
    "cortex-m55": NamedTarget(_BARE_8_1, "cortex-m55", "vfp"),
    "cortex-m85": NamedTarget(_BARE_8_1, "cortex-m85", "vfp"),
    "rv32imafc": NamedTarget(
        "riscv32-unknown-none-elf",
        "generic-rv32",
        "rv32",
        None,
        other_names="esp32-p4 esp32-h4 esp32-s31",
    ),
}
# The names of targets by their other names.
ALIASES = {other: name for name, row in TARGETS.items() for other in row.other_names.split()}
_XTENSA = "has Xtensa cores, for which LLVM here cannot compile"
_NO_FLOATS = (
    "has no instructions for floating point; the smallest cores that train are cortex-m4 and "
    "rv32imafc"
)
# Chips that people ask for, and why nothing can be built for them.  Of Espressif's, by its ESP-IDF,
# the C2 and C3 are RV32IMC, the C5, C6, C61, H2 and H21 RV32IMAC; the P4, H4 and S31 have floats.
_REFUSED = {
    "esp32": _XTENSA, "esp32-s2": _XTENSA, "esp32-s3": _XTENSA,
    **{f"esp32-{x}": _NO_FLOATS for x in ("c2", "c3", "c5", "c6", "c61", "h2", "h21")},
    "esp8266": _XTENSA, "rp2040": _NO_FLOATS, "pico": _NO_FLOATS,
    "android-x86": "has 32 bits, as no phone of x86; emulators run android-x86_64",
    **{f"cortex-{x}": _NO_FLOATS for x in ("m0", "m0+", "m0plus", "m1", "m3", "m23")},
}  # fmt: skip


def names() -> list[str]:
    """Return the names of targets; `resolve` accepts names of processors, too."""
    return ["native", *TARGETS, *ALIASES]


def resolve(
    name: str = "native", *, triple: str = "", cpu: str = "", features: str | None = None
) -> Platform:
    """Return the platform of a target.

    name: a name of `names()`, with or without blanks, hyphens and capitals; or LLVM's name of a
        processor, which runs Linux, or macOS if it is Apple's.
    triple: an LLVM triple, instead of a name other than `native`.
    cpu: LLVM's name of the CPU, or several names with commas, the best first, instead of the
        target's own.
    features: LLVM's features of all of them, instead of the target's own.

    Raises:
        EngineError: the name or the triple is not known, both are given, or the architecture has
            no such CPU or feature.
    """
    if triple and name != "native":
        raise EngineError(
            f"target {name} and triple {triple} are two targets: give only one of them"
        )
    if triple:
        return _of_triple(triple, triple, cpu or "generic", features, "", is_checked=False)
    is_known = not cpu and features is None
    if name == "native":
        platform, target = native(), detect_host()
        if is_known:
            return platform
        features = target.features if features is None else features
        each = (cpu or target.cpu).split(",")
        return _take_cpus(platform, [replace(target, cpu=name, features=features) for name in each])
    known = {_fold(each): each for each in (*TARGETS, *ALIASES)}.get(_fold(name), name)
    row = TARGETS.get(ALIASES.get(known, known)) or _find_processor(name)
    if row is None:
        raise EngineError(_refuse(name))
    features = row.features if features is None else features
    return _of_triple(
        known, row.triple, cpu or row.cpus, features, row.instructions, is_checked=is_known
    )


def _fold(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(c for c in name.lower() if c.isalnum())


def _find_processor(name: str) -> NamedTarget | None:
    """Return the target of a processor that LLVM knows by a name; otherwise None."""
    if name in ("", "generic"):  # of any architecture
        return None
    systems = ("macos-arm64",) if name.startswith("apple-") else ("aarch64", "x86-64")
    for system in map(TARGETS.__getitem__, systems):
        try:
            _check_core(make(system.triple, name, "", system.instructions))
        except EngineError:
            continue
        return NamedTarget(system.triple, name, system.instructions)
    return None


def _refuse(name: str) -> str:
    """Return the reason why there is no target of a name."""
    chips = {_fold(chip): why for chip, why in _REFUSED.items()}
    if why := chips.get(_fold(name)):
        return f"target {name!r}: this {'system' if 'android' in name else 'chip'} {why}"
    return (
        f"unknown target {name!r}{suggest_nearest(name, names())}. Targets: {', '.join(TARGETS)}; "
        "`edgegrad targets` lists their other names; processors have LLVM's names, such as "
        "cortex-a76 or znver4"
    )


# LLVM writes what it does not know to the standard error, and goes on without it.
_MAKE_MACHINE = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets()
triple, cpu, features = sys.argv[1:]
llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
"""


def _check_core(target: Target) -> None:
    """Check that LLVM knows the CPU and the features for the architecture of a target.

    Raises:
        EngineError: it does not.
    """
    features = [feature.strip("+-") for feature in target.features.split(",")]
    for name, kind in ((target.cpu, "processor"), *((name, "feature") for name in features)):
        if name == "help":  # for LLVM a request to list what it knows
            raise EngineError(
                f"target {target.triple}: 'help' is not a recognized {kind} for this target"
            )
    words = [sys.executable, "-c", _MAKE_MACHINE, target.triple, target.cpu, target.features]
    done = subprocess.run(words, capture_output=True, text=True)
    line = next(iter(done.stderr.strip().splitlines()[-1:]), "")
    if done.returncode or "is not a recognized" in done.stderr:
        raise EngineError(f"target {target.triple}: {line.removesuffix(' (ignoring processor)')}")


def of_target(target: Target) -> Platform:
    """Return the platform of a target for the kernels, by the system in its triple.

    Raises:
        EngineError: the system is not known.
    """
    return _of_system(target.name, target, *_find_system(target.triple))


def native() -> Platform:
    """Return the platform of this machine, tuned for the CPU that this process runs on.

    Raises:
        EngineError: the operating system is not known.
    """
    if sys.platform not in ("linux", "darwin", "win32"):
        raise EngineError(f"target native: unknown system {sys.platform!r}; name a target")
    platform = _of_system("native", detect_host(), *_find_system(detect_host().triple))
    return replace(platform, cc=() if sys.platform == "win32" else ("cc", "gcc", "clang"))


def _of_triple(
    name: str,
    triple: str,
    cpu: str,
    features: str | None,
    instructions: str,
    *,
    is_checked: bool = True,
) -> Platform:
    arch = triple.split("-")[0]
    if arch not in BASELINES:
        raise EngineError(f"target {triple}: {arch!r} is not one of {', '.join(sorted(BASELINES))}")
    instructions = instructions or BASELINES[arch]
    features = INSTRUCTION_SETS[instructions].features if features is None else features
    made = [make(triple, each, features, instructions) for each in cpu.split(",")]
    platform = _of_system(name, made[-1], *_find_system(triple))
    return _take_cpus(platform, made, is_checked=is_checked)


def _take_cpus(
    platform: Platform, targets: Sequence[Target], *, is_checked: bool = False
) -> Platform:
    """Return a platform for these CPUs, the best first.

    Raises:
        EngineError: LLVM does not know a CPU or a feature; it is not asked if they `is_checked`.
    """
    for target in () if is_checked else targets:
        _check_core(target)  # LLVM ends the process where it compiles for a core that it lacks
    *better, last = map(_fit, targets)
    return replace(platform, target=last, better=tuple(better))


def _find_system(triple: str) -> tuple[str, str]:
    """Return the name in `_SYSTEMS` of a triple's system, and the version it names or an empty
    string.

    Raises:
        EngineError: the system is not known.
    """
    words = triple.split("-")[1:]
    marks = {mark: name for name, row in _SYSTEMS.items() for mark in row.marks or (name,)}
    pattern = re.compile(rf"({'|'.join(marks)})[a-z]*(\d+(?:\.\d+)?)?[.\d]*")
    for word in reversed(words if "macabi" not in words else ()):  # android stands after linux
        if match := pattern.fullmatch(word):
            mark, version = match[1], match[2] or ""
            if mark == "darwin":  # the kernel, whose version 20 belongs to macOS 11
                version = f"{int(float(version)) - 9}.0" if version else ""
            return marks[mark] + "-simulator" * ("simulator" in words), version
    raise EngineError(f"target {triple}: the system is not one of {', '.join(_SYSTEMS)}")


def _fit(target: Target) -> Target:
    """Return a target for the instructions that its CPU and its features have.

    On x86 these decide the instruction set; products of 16 and 8 bits are used where a target
    names them.
    """
    if target.arch not in TELLING:
        return target
    has = find_features(target.triple, target.cpu, target.features, TELLING[target.arch])
    features = tell_products(target.arch, target.features, has)
    if target.arch != "x86_64":
        return replace(target, features=features)
    return make(target.triple, target.cpu, features, choose_instructions(target.arch, has))


def _shares_memory(target: Target) -> bool:
    return set(_SHARED_MEMORY.split(",")) <= set(target.features.split(","))


def _of_system(name: str, target: Target, system: str, version: str = "") -> Platform:
    row, arch, version = _SYSTEMS[system], target.arch, version or _SYSTEMS[system].version
    known = {"arch": arch, "triple": target.triple, "version": version}
    zig, cc = row.zig.format(**known), tuple(command.format(**known) for command in row.cc)
    if system == "linux" and arch.startswith("armv"):
        # Compilers of Debian are for ARMv7 and newer.
        cpu = "cortex-a7" if target.cpu == "generic" else target.cpu
        zig = f"arm-linux-gnueabihf.2.28 -mcpu={cpu.replace('-', '_')}"
        cc = ("arm-linux-gnueabihf-gcc",) if arch != "armv6" else ()
    elif system == "none":
        if target.cpu not in _BARE_CORES:
            raise EngineError(
                f"core {target.cpu}: bare metal is for the cores {', '.join(_BARE_CORES)}"
            )
        zig = f"{arch if arch == 'riscv32' else 'thumb'}-{_BARE_CORES[target.cpu]}"
    elif system == "wasi" and _shares_memory(target):
        zig += f" -mcpu=generic{_SHARED_MEMORY.replace(',', '').replace('-', '_')}"
    elif system == "linux":
        same = sys.platform == "linux" and platform.machine() == arch
        cc = (f"{arch}-linux-gnu-gcc", *(("cc", "gcc", "clang") if same else ()))
    elif system == "android" and arch.startswith("armv"):
        zig, cc = f"arm-linux-androideabi.{version}", (f"armv7a-linux-androideabi{version}-clang",)
    return Platform(
        name,
        target,
        system,
        zig,
        cc,
        "" if system == "android" and arch in _BIONIC else row.sdk,
        shared=row.shared,
        executable=row.executable,
        pthread=row.pthread,
    )


assert {row.instructions for row in TARGETS.values()} <= {*INSTRUCTION_SETS}, (
    "an unknown instruction set"
)
