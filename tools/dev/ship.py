"""Shipped kernels: compiled ahead of time, one shared library for each instruction-set level.

    python -m engine.tools.dev.ship [--level LEVEL ...] [--system SYSTEM] [--out FOLDER] [--jobs N]

Wheels have these libraries (kernels/binaries/shipped.py reads them).  The kernels are all that
`find_kernel_set` knows for all ops, those that profiles measure with, and those in zoo.txt: what
the plans of all models of the benchmarks and tests use, collected by `python -m
engine.tools.dev.zoo`.  A library has the kinds that its level is shipped with.  It is compiled and
linked by the path of trimmed builds, needs no other library, and is the same for every distribution
of Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from engine.base.element_types import ITEMSIZE
from engine.base.errors import EngineError
from engine.kernels.analysis.flops import find_factors
from engine.kernels.binaries import fingerprint, load, shipped
from engine.kernels.compiler.emit import emit_library
from engine.kernels.machine.levels import (
    FLOATS,
    INTEGERS,
    KINDS,
    LEVELS,
    SYSTEMS,
    Level,
    name_machine,
)
from engine.kernels.machine.target import FACTORS
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import KernelSpec
from engine.runtime.roofline import PEAK, STREAM
from engine.runtime.team import LAUNCH, WORKER
from engine.runtime.timing import TIMED_KERNEL
from engine.system.installation import list_compilers
from engine.tools.trimmed.kernel_set import find_kernel_set
from engine.tools.trimmed.link import link
from engine.tools.trimmed.opset import OpSet
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.tools.trimmed.targets import of_target

ZOO, SOURCE = (Path(__file__).with_name(name) for name in ("zoo.txt", "shipped.c"))
ALWAYS = (LAUNCH, WORKER, PEAK, STREAM, TIMED_KERNEL)  # to run plans, and to measure them
SHARE = 96  # kernels of one object, which a process emits at a time


def read_zoo() -> list[KernelSpec]:
    """Return the kernels in zoo.txt: a JSON list a line, the template and its parameters."""
    rows = (json.loads(line) for line in ZOO.read_text("utf-8").splitlines())
    return [KernelSpec(template, tuple(params)) for template, *params in rows]


def name_kind(spec: KernelSpec) -> str:
    """Return the kind of a kernel, one of `KINDS`."""
    words = re.findall(r"\w+", repr(spec.params))
    half = next((P for P in FACTORS if P in words), "")
    factors = find_factors(spec)
    return half or (INTEGERS if ITEMSIZE.get(factors) == 1 else FLOATS)


def list_kernels() -> list[KernelSpec]:
    """Return all kernels that wheels ship."""
    return list(dict.fromkeys((*ALWAYS, *find_kernel_set(OpSet(all_if_none=True)), *read_zoo())))


def ship_kernels(
    specs: Iterable[KernelSpec],
    levels: Sequence[Level],
    system: str,
    folder: Path,
    jobs: int = 1,
    progress: StagePrinter = SILENT,
) -> Path:
    """Make a folder of shipped kernels: a library for each level, and the manifest; returns that.

    levels: those to ship; the ones that they extend are shipped, too.
    system: a value of `sys.platform`.
    jobs: processes that emit objects side by side; compiling takes all cores.

    Raises:
        EngineError: a kernel cannot be compiled, or nothing can link for the system.
    """
    wanted = sorted({*ALWAYS, *specs}, key=lambda spec: (KINDS.index(name_kind(spec)), repr(spec)))
    keys = [
        shipped.make_spec_key(s)
        + shipped.make_takes_key(list_templates()[s.template].takes(*s.params))
        for s in wanted
    ]
    if len({key[:8] for key in keys}) != len(keys):
        raise EngineError("two kernels have the same key: their specs must differ in 64 bits")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / shipped.KEYS).write_bytes(b"".join(keys))
    made = {shipped.KEYS: folder / shipped.KEYS}
    for level in dict.fromkeys(each for chosen in levels for each in chosen.chain):
        own = [spec for spec in wanted if name_kind(spec) in level.kinds]
        progress.say(f"compiling {len(own)} kernels for {level.name}")
        made[level.name] = _make_library(own, level, system, folder, jobs)
        progress.say(f"{made[level.name].name}: {made[level.name].stat().st_size:,} bytes")
    sources = fingerprint.digest_package()
    compilers = list_compilers()
    digest = hashlib.sha256(b"".join([sources, *keys, *map(str.encode, compilers)]))
    counts = Counter(map(name_kind, wanted))
    manifest = {
        "version": shipped.VERSION,
        "digest": digest.hexdigest()[:12],
        "sources": sources.hex(),
        "compilers": compilers,
        "kinds": {kind: counts[kind] for kind in KINDS},
        "files": {name: read_row(path) for name, path in made.items()},
    }
    path = folder / shipped.MANIFEST
    path.write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return path


def read_row(path: Path) -> dict[str, str | int]:
    """Return the facts of the manifest about a file."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"file": path.name, "bytes": len(content), "sha256": digest}


def _make_library(
    specs: Sequence[KernelSpec], level: Level, system: str, folder: Path, jobs: int
) -> Path:
    """Compile and link the library of one level."""
    target = level.make_target(system)
    platform = of_target(target)
    code = load.get_codes(specs, target, load.BITCODE)
    symbols = [spec.symbol for spec in specs]
    shares = [
        {symbol: code[symbol] for symbol in symbols[at : at + SHARE]}
        for at in range(0, len(symbols), SHARE)
    ]
    tables = [f"shipped_kernels_{i}" for i in range(len(shares))]
    no_data: list[dict[str, bytes]] = [{}] * len(shares)
    rest = tables, no_data, [target] * len(shares)
    if jobs > 1 and len(shares) > 1:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            objects = list(pool.map(emit_library, shares, *rest))
    else:
        objects = list(map(emit_library, shares, *rest))
    name = f"{level.name}{Path(platform.file_name('shared', 'x')).suffix}"
    path = link(
        objects,
        [SOURCE],
        platform,
        folder / name,
        defines={
            "SHIPPED_COUNT": str(len(specs)),
            "SHIPPED_SHARE": str(SHARE),
            "SHIPPED_OBJECTS(X)": "".join(f" X({i})" for i in range(len(objects))) or " ",
        },
        size=True,
        threads=False,
        compiler="zig",
        # Kernels need no library of the system, and ziglang builds the one of Windows for a minute.
        flags=["-nostdlib"] if platform.is_elf or system == "win32" else [],
    )
    path.with_suffix(".lib").unlink(missing_ok=True)  # nothing is linked with it
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Compile the kernels that wheels ship."""
    parser = argparse.ArgumentParser("python -m engine.tools.dev.ship", description=main.__doc__)
    names = [level.name for level in LEVELS]
    parser.add_argument(
        "--level",
        nargs="+",
        choices=names,
        help="by default the levels of this architecture",
    )
    parser.add_argument("--system", choices=SYSTEMS, default=sys.platform)
    parser.add_argument("--out", type=Path, default=shipped.FOLDER)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of processes")
    args = parser.parse_args(argv)
    chosen = [
        level
        for level in LEVELS
        if args.system in level.systems
        and (level.name in args.level if args.level else level.arch == name_machine())
    ]
    if not chosen:
        raise EngineError(f"--level {args.level}: none of them is shipped for {args.system}")
    ship_kernels(list_kernels(), chosen, args.system, args.out, args.jobs, StagePrinter())
    return 0


if __name__ == "__main__":
    sys.exit(main())
