"""Instruction-set levels: the CPUs that shipped kernels are compiled for, and which this one is.

A level is a baseline that many CPUs share.  It is chosen at run time by the features that the CPU
has, never by its name, as NumPy dispatches its own loops; the features are those that NumPy found,
and of those that it does not know, the ones that Linux names.

A level may extend another one by instructions for products of 16- or 8-bit numbers.  Kernels that
do not multiply such are the same for both, so its library has the others alone.

One level serves float32 on all 64-bit ARM under Linux: newer instructions gain it nothing, and by
LLVM's models of Cortex-A72 and Neoverse N1 the loops of generic code take the cycles of code for
that very core; on Cortex-A53 the hot loop of a product takes 140 instead of 94 (bench/cores.py).
"""

from __future__ import annotations

import functools
import importlib
import platform
import sys
from dataclasses import dataclass, replace

from engine.base.errors import EngineError
from engine.kernels.machine.hosts import CPUINFO
from engine.kernels.machine.target import FACTORS, Target, make
from engine.system.config import PREFIX, switch

SYSTEMS = {"linux": "unknown-linux-gnu", "darwin": "apple-macosx11.0.0", "win32": "w64-windows-gnu"}
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}  # other names of architectures


# The kinds of shipped kernels: of 16-bit numbers, of products of 8-bit integers, and all others.
FLOATS, INTEGERS = "f32", "i8"
KINDS = (FLOATS, INTEGERS, *FACTORS)
# Features that NumPy may not know, and the words for them in /proc/cpuinfo.
_WORDS = {
    "AVXVNNI": "avx_vnni", "AVX512VNNI": "avx512_vnni", "AVX512BF16": "avx512_bf16",
    "ASIMDBF16": "bf16", "ASIMDI8MM": "i8mm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction-set level.

    arch: the architecture, as in `Target.arch`.
    cpu, instructions: LLVM's name of the CPU; its row of `INSTRUCTION_SETS` (target.py).
    needs: the features, by NumPy's names, without which kernels of this level do not run.
    also: features that they need as well, which older versions of NumPy do not tell.  Every CPU
        that has `needs` has them.
    systems: the values of `sys.platform` for which kernels of this level are shipped.
    features: LLVM's features that the CPU does not imply.
    base: the level that this one extends; None if its library has all kernels that it can run.
    """

    name: str
    arch: str
    cpu: str
    instructions: str
    needs: frozenset[str]
    also: frozenset[str] = frozenset()
    systems: tuple[str, ...] = tuple(SYSTEMS)
    features: str = ""
    base: Level | None = None

    def extend(self, name: str, needs: str, features: str) -> Level:
        """Return a level with more instructions for products of small numbers."""
        return replace(
            self,
            name=name,
            needs=self.needs.union(needs.split()),
            features=",".join(filter(None, [self.features, features])),
            base=self,
        )

    def make_target(self, system: str = sys.platform) -> Target:
        """Return the target of kernels of this level on a system, a value of `sys.platform`."""
        arch = "arm64" if (self.arch, system) == ("aarch64", "darwin") else self.arch
        return make(f"{arch}-{SYSTEMS[system]}", self.cpu, self.features, self.instructions)

    @property
    def chain(self) -> tuple[Level, ...]:
        """The levels whose libraries a process loads: this one, its base, the base's, and so on."""
        return (self,) if self.base is None else (self, *self.base.chain)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of kernels in the library of this level, in the order of `KINDS`.

        Numbers of 16 bits are shipped where the CPU multiplies them, and integers where it does so
        by better instructions.
        """
        gained = list_gains(self.make_target(self.systems[0]))
        if self.base is not None:
            gained -= list_gains(self.base.make_target(self.systems[0]))
        kinds = {name if name in FACTORS else INTEGERS for name in gained}
        if self.base is None:
            kinds |= {FLOATS, INTEGERS}
        return tuple(kind for kind in KINDS if kind in kinds)


def list_gains(target: Target) -> set[str]:
    """Return the types of 16 bits that a target multiplies, and its instructions for integers."""
    return {*target.products, *target.list_dots()}


def _make_x86(name: str, instructions: str, needs: str, also: str = "") -> Level:
    features = frozenset(needs.split()), frozenset(also.split())
    return Level(name, "x86_64", name, instructions, *features)


_V2, _V3 = "SSE3 SSSE3 SSE41 SSE42 POPCNT", "AVX AVX2 FMA3 F16C"
_V4 = "AVX512F AVX512CD AVX512BW AVX512DQ AVX512VL"
_AVX2 = _make_x86("x86-64-v3", "avx2", f"{_V2} {_V3}", "BMI BMI2 LZCNT MOVBE")
_AVX512 = _make_x86("x86-64-v4", "avx512", f"{_V2} {_V3} {_V4}", "BMI BMI2 LZCNT MOVBE")
_VNNI = _AVX512.extend("x86-64-v4-vnni", "AVX512VNNI", "+avx512vnni")
_ARM = Level(
    "aarch64", "aarch64", "generic", "neon", frozenset({"ASIMD"}), systems=("linux",),
    features="+neon",
)  # fmt: skip
_FP16 = _ARM.extend("aarch64-fp16", "ASIMDHP ASIMDDP", "+fullfp16,+dotprod")
_BF16 = _FP16.extend("aarch64-bf16", "ASIMDBF16", "+bf16")
# The best of an architecture first.
LEVELS = (
    _VNNI.extend("x86-64-v4-bf16", "AVX512BF16", "+avx512bf16"),
    _VNNI,
    _AVX512,
    _AVX2.extend("x86-64-v3-vnni", "AVXVNNI", "+avxvnni"),
    _AVX2,
    _make_x86("x86-64-v2", "sse", _V2),
    Level(
        "apple-m1", "aarch64", "apple-m1", "neon", frozenset({"ASIMD"}), systems=("darwin",),
        features="+fullfp16,+dotprod",
    ),
    _BF16.extend("aarch64-i8mm", "ASIMDI8MM", "+i8mm"),
    _BF16,
    _FP16,
    _ARM,
)  # fmt: skip


def name_machine() -> str:
    """Return the architecture of this process, as in `Target.arch`."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


@functools.cache
def list_features() -> dict[str, bool]:
    """Return the features of this CPU that NumPy or Linux name, and whether they are there.

    Empty where NumPy does not tell, so that no level fits.
    """
    try:
        umath = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        return {}
    known = dict(getattr(umath, "__cpu_features__", {}))
    return read_words(CPUINFO) | known if known else {}


def read_words(path: str) -> dict[str, bool]:
    """Return the features of `_WORDS`, and whether a file like /proc/cpuinfo names them.

    Empty if there is no such file, as on systems other than Linux.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file.read().partition("\n\n")[0].splitlines()]
    except OSError:
        return {}
    rows = [row.split() for key, _, row in lines if key.strip() in ("flags", "Features")]
    words = {word for row in rows for word in row}
    return {name: word in words for name, word in _WORDS.items()}


def find_most() -> Level | None:
    """Return the level that kernels must stay within, by EDGEGRAD_LEVEL; None without the switch.

    Raises:
        EngineError: this CPU has no such level.
    """
    name = switch("LEVEL")
    runnable = {level.name: level for level in _list_runnable()}
    if name and name not in runnable:
        raise EngineError(
            f"{PREFIX}LEVEL={name!r}: expected a level that this CPU can run: "
            f"{', '.join(runnable) or 'there is none'}"
        )
    return runnable[name] if name else None


def list_levels() -> list[Level]:
    """Return the levels that this CPU and system can run and EDGEGRAD_LEVEL allows, the best first.

    Raises:
        EngineError: as `find_most`.
    """
    most, runnable = find_most(), _list_runnable()
    return runnable if most is None else runnable[runnable.index(most) :]


def _list_runnable() -> list[Level]:
    """Return the levels that this CPU and system can run, the best first."""
    known = list_features()
    return [
        level
        for level in LEVELS
        if level.arch == name_machine()
        and sys.platform in level.systems
        and all(known.get(name, False) for name in level.needs)
        and all(known.get(name, True) for name in level.also)
    ]
