"""Source of kernels: where the machine code of a process comes from, as EDGEGRAD_KERNELS chooses.

    native   every kernel is compiled for this very CPU, and kept in the cache
    shipped  kernels of the wheel alone; formulas that it has no kernel for are interpreted
    auto     kernels of the wheel, where there are some; what they lack is compiled for their level,
             if numba is installed, and is interpreted otherwise.  Without a wheel: native

EDGEGRAD_LEVEL holds all of them to a level of instruction sets.

A module keeps its set as long as it lives, and a plan says which set it is for: results of one set
are the same bits at every run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from engine.base.errors import EngineError, FileError, warn_user
from engine.kernels.binaries import shipped
from engine.kernels.binaries.shipped import Shipment
from engine.kernels.machine import levels
from engine.kernels.machine.hosts import find_host
from engine.kernels.machine.levels import Level
from engine.kernels.machine.target import Target
from engine.plan.plan import Kernel, KernelSpec
from engine.system.config import PREFIX, require_64_bit, switch
from engine.system.installation import COMPILERS


@dataclass(eq=False, slots=True)
class KernelSet:
    """One source of kernels.  Every process has one object of each that it can run.

    name: where they come from, their level, and a digest of what they compute; equal names mean
        equal results.
    target: what plans for this set are made for.
    shipment: the shipped kernels, if any.
    levels: those whose libraries have them, the best first.
    compiles: whether kernels that are not shipped are compiled.
    """

    name: str
    target: Target
    shipment: Shipment | None = None
    levels: tuple[Level, ...] = ()
    compiles: bool = True
    _addresses: dict[str, list[int]] | None = None  # of the shipped kernels by kind, once loaded

    def __contains__(self, spec: object) -> bool:
        """Return whether a plan may use this kernel."""
        if self.compiles or self.shipment is None or not isinstance(spec, KernelSpec):
            return self.compiles
        kind = self.shipment.find_kind(spec)
        return any(kind in level.kinds for level in self.levels)

    def load(self) -> dict[str, list[int]]:
        """Load the shipped kernels, once; returns their addresses by kind and number.

        Raises:
            FileError: their library is damaged.
        """
        if self._addresses is None:
            addresses: dict[str, list[int]] = {}
            if self.shipment is not None:
                for level in reversed(self.levels):  # the best one's replace the others
                    addresses |= self.shipment.load(level.name, level.kinds)
            self._addresses = addresses
        return self._addresses

    def start_early(self) -> None:
        """Begin to compile what every plan needs, if that has to be compiled; returns at once."""
        if self.shipment is None and self.compiles:
            from engine.kernels.binaries.load import start_early

            start_early(self.target)

    def compile_ahead(self, specs: Iterable[KernelSpec]) -> None:
        """Compile what a plan will need, if `start_early` began to; returns at once."""
        if self.shipment is None and self.compiles:
            from engine.kernels.binaries.load import compile_ahead

            compile_ahead(specs, self.target)

    def resolve(self, kernels: Iterable[KernelSpec | Kernel]) -> Mapping[str, int]:
        """Return the addresses of kernels by symbol; those that are not shipped are compiled.

        Raises:
            PlanError: a kernel of a plan, which passes it something else than it takes.
            FileError: the library of shipped kernels is damaged.
            EngineError: a kernel cannot be compiled, or nothing can compile here.
        """
        wanted, addressed = list(kernels), dict[str, int]()
        if self.shipment is not None:
            numbers, addresses = self.shipment.find_numbers(wanted), self.load()
            addressed = {
                symbol: addresses[kind][number]
                for symbol, (kind, number) in numbers.items()
                if kind in addresses
            }
        rest = [k for k in wanted if k.symbol not in addressed]
        if rest and not self.compiles:
            specs = [k.spec if isinstance(k, Kernel) else k for k in rest]
            raise shipped.describe_missing(specs, f"the kernels {self.name!r}")
        if rest:
            from engine.kernels.binaries.load import get_linker

            addressed |= get_linker(self.target).get_addresses(rest)
        return addressed


def can_compile() -> bool:
    """Return whether numba and llvmlite are installed; neither is imported."""
    return all(importlib.util.find_spec(name) is not None for name in COMPILERS)


@functools.cache
def _make_native(most: Level | None) -> KernelSet:
    """Return the set that compiles every kernel, for a level or else for this very CPU."""
    if not can_compile():
        wanted = ", ".join(level.name for level in levels.list_levels()) or "none that is known"
        raise EngineError(
            f"no kernels: none are shipped for this CPU ({levels.name_machine()}, {sys.platform}, "
            f"level {wanted}), and numba and llvmlite, which compile them, are not installed: "
            "pip install edgegrad"
        )
    if most is not None:  # levels with other instructions may have targets of one name
        return KernelSet(f"native {most.name}", most.make_target())
    target = find_host()
    return KernelSet(f"native {target.name}", target)


def of_level(level: Level, mode: str, system: str = sys.platform) -> KernelSet | None:
    """Return the set of shipped kernels of a level; None if this installation ships none.

    mode: `shipped` or `auto`.
    system: a value of `sys.platform`.  Plans can be made for the set of another system, or of a
        level that this CPU cannot run: its library is not loaded until it is needed.

    Raises:
        FileError: what is shipped is damaged.
    """
    shipment = shipped.open_shipment()
    return None if shipment is None else _of_shipment(shipment, level, mode, system)


@functools.cache
def _of_shipment(found: Shipment, level: Level, mode: str, system: str) -> KernelSet:
    name = f"{mode} {level.name} {found.digest}"
    return KernelSet(name, level.make_target(system), found, level.chain, compiles=mode == "auto")


def list_usable() -> list[KernelSet]:
    """Return the sets that this process can run as EDGEGRAD_KERNELS says, the best first.

    Raises:
        EngineError: there is none, or a switch has a value that means nothing.
        FileError: shipped kernels are damaged, and nothing else is allowed or there.
    """
    require_64_bit()
    chosen, most = switch("KERNELS") or "auto", levels.find_most()
    if chosen == "native":
        return [_make_native(most)]
    compiles = chosen == "auto" and can_compile()
    modes = ("auto", "shipped") if compiles else ("shipped",)
    try:
        candidates = (of_level(level, mode) for level in _list_levels() for mode in modes)
        sets = [s for s in candidates if s is not None]
        if sets:
            sets[0].load()
    except FileError as error:
        if not compiles:
            raise
        warn_user(f"{error}. Kernels are compiled instead", RuntimeWarning)
        return [_make_native(most)]
    if sets:
        return sets
    if chosen == "shipped":
        raise EngineError(
            f"{PREFIX}KERNELS=shipped: this installation ships no kernels for this CPU "
            f"({levels.name_machine()}, {sys.platform}); install a wheel of edgegrad for it"
        )
    return [_make_native(most)]


def _list_levels() -> list[Level]:
    """Return the levels whose libraries are here and run on this CPU, the best first."""
    shipment = shipped.open_shipment()
    if shipment is None:
        return []
    return [
        v for v in levels.list_levels() if {each.name for each in v.chain} <= {*shipment.levels}
    ]


def choose_current(prepared: Container[str] = ()) -> KernelSet:
    """Return the best set that this process can run; raises as `list_usable`.

    prepared: the names of sets for which there are plans already; one of them is preferred.
    """
    sets = list_usable()
    return next((each for each in sets if each.name in prepared), sets[0])


def begin_compiling() -> None:
    """Begin to compile what every plan needs, if that has to be compiled; returns at once.

    The processes that compile take their time to start, so the sooner a program calls this that
    will need a plan, the more of it they share with what comes before.
    """
    with contextlib.suppress(EngineError):  # making a plan reports what is wrong
        choose_current().start_early()
