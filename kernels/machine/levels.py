"""Instruction-set levels: the CPUs that shipped kernels are compiled for, and which this one is.

A level is a baseline that many CPUs share.  It is chosen at run time by the features that the CPU
has, never by its name, as NumPy dispatches its own loops; the features are those that NumPy found.

One level serves all 64-bit ARM under Linux: newer instructions gain float32 nothing, and by LLVM's
models of Cortex-A72 and Neoverse N1 the loops of generic code take the cycles of code for that very
core; on Cortex-A53 the hot loop of a product takes 140 instead of 94 (bench/cores.py).
"""

from __future__ import annotations

import functools
import importlib
import platform
import sys
from dataclasses import dataclass

from engine.base.errors import EngineError
from engine.kernels.machine.target import Target, make
from engine.system.config import PREFIX, switch

SYSTEMS = {"linux": "unknown-linux-gnu", "darwin": "apple-macosx11.0.0", "win32": "w64-windows-gnu"}
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}  # other names of architectures


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction-set level.

    arch: the architecture, as in `Target.arch`.
    cpu, instructions: LLVM's name of the CPU; its row of `INSTRUCTION_SETS` (target.py).
    needs: the features, by NumPy's names, without which kernels of this level do not run.
    also: features that they need as well, which older versions of NumPy do not tell.  Every CPU
        that has `needs` has them.
    systems: the values of `sys.platform` for which kernels of this level are shipped.
    """

    name: str
    arch: str
    cpu: str
    instructions: str
    needs: frozenset[str]
    also: frozenset[str] = frozenset()
    systems: tuple[str, ...] = tuple(SYSTEMS)

    def make_target(self, system: str = sys.platform) -> Target:
        """Return the target of kernels of this level on a system, a value of `sys.platform`."""
        arch = "arm64" if (self.arch, system) == ("aarch64", "darwin") else self.arch
        features = "+neon" if self.instructions == "neon" and self.cpu == "generic" else ""
        return make(f"{arch}-{SYSTEMS[system]}", self.cpu, features, self.instructions)


def _make_x86(name: str, instructions: str, needs: str, also: str = "") -> Level:
    features = frozenset(needs.split()), frozenset(also.split())
    return Level(name, "x86_64", name, instructions, *features)


_V2, _V3 = "SSE3 SSSE3 SSE41 SSE42 POPCNT", "AVX AVX2 FMA3 F16C"
_V4 = "AVX512F AVX512CD AVX512BW AVX512DQ AVX512VL"
# The best of an architecture first.
LEVELS = (
    _make_x86("x86-64-v4", "avx512", f"{_V2} {_V3} {_V4}", "BMI BMI2 LZCNT MOVBE"),
    _make_x86("x86-64-v3", "avx2", f"{_V2} {_V3}", "BMI BMI2 LZCNT MOVBE"),
    _make_x86("x86-64-v2", "sse", _V2),
    Level("apple-m1", "aarch64", "apple-m1", "neon", frozenset({"ASIMD"}), systems=("darwin",)),
    Level("aarch64", "aarch64", "generic", "neon", frozenset({"ASIMD"}), systems=("linux",)),
)


def name_machine() -> str:
    """Return the architecture of this process, as in `Target.arch`."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


@functools.cache
def list_features() -> dict[str, bool]:
    """Return the features of this CPU that NumPy knows of, and whether they are there.

    Empty where NumPy does not tell, so that no level fits.
    """
    try:
        umath = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        return {}
    return dict(getattr(umath, "__cpu_features__", {}))


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
