"""Kernel sets: where the machine code of a process comes from, as EDGEGRAD_KERNELS chooses.

    native   every kernel is compiled for this very CPU, and kept in the cache
    shipped  kernels of the wheel alone; formulas that it has no kernel for are interpreted
    auto     kernels of the wheel, where there are some; what they lack is compiled for their level,
             if numba is installed, and is interpreted otherwise.  Without a wheel: native

A module keeps its set as long as it lives, and a plan says which set it is for: results of one set
are the same bits at every run.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import EngineError, FileError
from engine.kernels import levels, shipped
from engine.kernels.levels import Level
from engine.kernels.target import Target, host
from engine.runtime.config import PREFIX, require_64_bit, switch
from engine.runtime.plan import Kernel, KernelSpec


@dataclass(frozen=True, eq=False, slots=True)
class KernelSet:
    """One source of kernels; every process has one object of each.

    name: where they come from, their level, and a digest of what they compute; equal names mean
        equal results.
    target: what plans for this set are made for.
    library: the shipped kernels, if any.
    compiles: whether kernels that are not shipped are compiled.
    """

    name: str
    target: Target
    library: shipped.Library | None
    compiles: bool

    def __contains__(self, spec: object) -> bool:
        """Whether a plan may use this kernel."""
        return self.compiles or (self.library is not None and spec in self.library)

    def resolve(self, kernels: Iterable[KernelSpec | Kernel]) -> Mapping[str, int]:
        """The addresses of kernels by symbol; those that are not shipped are compiled.

        Raises:
            PlanError: a kernel of a plan, which passes it something else than it takes.
            EngineError: a kernel cannot be compiled, or nothing can compile here.
        """
        wanted = list(kernels)
        found = {} if self.library is None else self.library.addresses(wanted)
        rest = [k for k in wanted if k.symbol not in found]
        if rest and not self.compiles:
            specs = [k.spec if isinstance(k, Kernel) else k for k in rest]
            raise shipped.missing(specs, f"the kernels {self.name!r}")
        if rest:
            from engine.kernels.compiler.load import linker

            found |= linker(self.target).addresses(rest)
        return found


def can_compile() -> bool:
    """Whether numba and llvmlite are installed; neither is imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "llvmlite"))


@functools.cache
def _native() -> KernelSet:
    if not can_compile():
        wanted = ", ".join(level.name for level in levels.levels()) or "none that is known"
        raise EngineError(
            f"no kernels: none are shipped for this CPU ({levels.machine()}, {sys.platform}, level "
            f"{wanted}), and numba and llvmlite, which compile them, are not installed: "
            "pip install edgegrad"
        )
    target = host()
    return KernelSet(f"native {target.name}", target, None, compiles=True)


@functools.cache
def _shipped(level: Level, mode: str, compiles: bool) -> KernelSet | None:
    """The set of a level; None if it is not shipped."""
    library, manifest = shipped.load(level), shipped.manifest()
    if library is None or manifest is None:
        return None
    return KernelSet(f"{mode} {level.name} {manifest.kernels}", level.target(), library, compiles)


def usable() -> list[KernelSet]:
    """The sets that this process can run as EDGEGRAD_KERNELS has it, the best first.

    Raises:
        EngineError: there is none, or the switch has a value that means nothing.
        FileError: shipped kernels are damaged, and nothing else is allowed or there.
    """
    require_64_bit()
    mode = switch("KERNELS") or "auto"
    if mode == "native":
        return [_native()]
    compiles = mode == "auto" and can_compile()
    try:
        found = [_shipped(level, mode, compiles) for level in levels.levels()]
    except FileError as error:
        if not compiles:
            raise
        warnings.warn(f"{error}. Kernels are compiled instead", RuntimeWarning, stacklevel=2)
        return [_native()]
    sets = [s for s in found if s is not None]
    if sets:
        return sets
    if mode == "shipped":
        raise EngineError(
            f"{PREFIX}KERNELS=shipped: this installation ships no kernels for this CPU "
            f"({levels.machine()}, {sys.platform}); install a wheel of edgegrad for it"
        )
    return [_native()]


def current() -> KernelSet:
    """The best set that this process can run; raises as `usable`."""
    return usable()[0]
