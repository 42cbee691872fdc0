"""Compilation of a build: from artifacts to the source of its library and the object files of its
kernels, one for each CPU that the library has code for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import engine
from engine.base.element_types import ITEMSIZE
from engine.base.errors import OutOfMemoryError
from engine.kernels.analysis.flops import find_factors
from engine.kernels.binaries import load
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import KernelSpec, format_bytes
from engine.tools.trimmed.bundle import MOST_MEMORY, Bundle
from engine.tools.trimmed.cpu import can_choose
from engine.tools.trimmed.export import make_graph
from engine.tools.trimmed.generate import CpuLevel, Source
from engine.tools.trimmed.options import Options
from engine.tools.trimmed.plans import Planned, make_plans
from engine.tools.trimmed.progress import StagePrinter


@dataclass(frozen=True, slots=True)
class CompiledLibrary:
    """All that a library of one platform is linked of: its source, and an object file of kernels
    for each CPU that it has code for, the best first.
    """

    options: Options
    source: Source
    bundles: Sequence[Bundle]
    codes: Sequence[bytes]


def compile_library(
    files: Mapping[str, Path], options: Options, progress: StagePrinter
) -> CompiledLibrary:
    """Plan a model for the CPUs of a platform, and compile its kernels.

    A CPU is left out if the next one has the same plans and kernels: its instructions gain nothing.
    """
    platform, targets = options.platform, list_targets(options)
    if len(targets) < len(platform.targets):
        progress.say(
            f"code for {platform.target.cpu} alone: this library could not ask which CPU runs it"
        )
    plans = []
    for target in targets:
        more = f": code for {target.cpu}" if len(targets) > 1 else ""
        progress.begin("planning", f"planning for {platform.name}{more}")
        plans.append(make_plans(files, target, options.plans, progress))
    digest = digest_build(
        options, (str(plan) for planned in plans for plan in planned.list_plans())
    )
    bundles, levels = list[Bundle](), list[CpuLevel]()
    for target, planned in zip(reversed(targets), reversed(plans), strict=True):
        if bundles and _is_like(target, planned, bundles[0]):
            progress.drop("kernels")
            continue
        symbols = [spec.symbol for spec in planned.list_kernels()]
        packs = bundles[0].packs if bundles else None
        bundle = Bundle(planned, target, options.plans.threads, packs=packs)
        _check_memory(bundle, options)
        bundles.insert(0, bundle)
        levels.insert(0, CpuLevel(target, symbols, bundle))
    graph = make_graph(plans[-1]) if options.export else None
    source = Source(options.name, levels, options.plans.threads, digest, graph, options.federated)
    codes = [
        compile_kernels(source, number, bundle.planned.list_kernels(), options, progress)
        for number, bundle in enumerate(bundles)
    ]
    return CompiledLibrary(options, source, bundles, codes)


def _check_memory(bundle: Bundle, options: Options) -> None:
    """Check that addresses of the target reach all memory of a model, as `plan_read.c` demands.

    Raises:
        OutOfMemoryError: they do not.
    """
    bits = bundle.target.address_bits
    needed, most = bundle.count_memory(), MOST_MEMORY[bits]
    if needed > most:
        raise OutOfMemoryError(
            f"target {options.platform.name}: the model takes {format_bytes(needed)}, and "
            f"addresses of {bits} bits reach {format_bytes(most)} at most: give a smaller --batch, "
            "or a --budget"
        )


def list_targets(options: Options) -> Sequence[Target]:
    """Return the CPUs of a platform that a library can have code for, the best first."""
    platform = options.platform
    is_told = can_choose(platform, freestanding=options.freestanding)
    return platform.targets if is_told else (platform.target,)


def _is_like(target: Target, planned: Planned, other: Bundle) -> bool:
    """Return whether another CPU has the same plans and kernels, except for tuning.

    Plans of integers may be the same where kernels are not: these sum products by what a CPU has.
    """
    if target.dots != other.target.dots:
        specs = (spec for spec in planned.list_kernels() if spec.template in list_templates())
        if any(ITEMSIZE.get(find_factors(spec)) == 1 for spec in specs):
            return False
    kernels = [replace(each, cpu="", features="") for each in (target, other.target)]
    return kernels[0] == kernels[1] and planned.is_like(other.planned)


def compile_kernels(
    source: Source,
    number: int,
    specs: Sequence[KernelSpec],
    options: Options,
    progress: StagePrinter,
) -> bytes:
    """Return the object file of the kernels of a library for one of its CPUs."""
    level = source.levels[number]
    return load.get_library(
        progress.count_each("compiling kernels, or reading them from the cache", specs),
        level.target,
        table=source.name_table(number),
        data=source.list_data()[number],
        small=options.plans.size,
        calls=level.bundle.steps.calls if level.bundle else (),
        constants=source.find_constants(number),
        has_threads=options.plans.threads > 1,
        distances=level.target.is_elf,
    )


def digest_build(options: Options, contents: Iterable[str]) -> str:
    """Return a digest that two builds share only if all that went into them is equal."""
    parts = [engine.__version__, repr(options), *contents]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
