"""The memory of a whole process that trains: what there is beside the regions of its plans.

What Python, numpy and this package take is measured, in a process of its own that imports them and
the kernels and does nothing.  The rest is counted: regions and batches by their bytes, programs by
their steps and arguments.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from engine.base.element_types import ITEMSIZE
from engine.plan.plan import Plan

# What a process is asked for: the most bytes that it had resident once it could train.
_START = """
import sys
import engine.trainer.trainer
from engine.trainer.reports.process import peak
from engine.kernels.binaries import source
from engine.kernels.ops.registry import templates
templates()
for kernels in source.usable()[:1]:
    kernels.load()
    if kernels.compiles:
        import engine.kernels.binaries.load
if sys.argv[1:]:
    import engine.graphs.planner.pipeline
    import engine.graphs.offline.optimizers
    import engine.graphs.io.onnx_io
print(peak())
"""
_PATIENCE = 60.0  # seconds

# Bytes of this process for a step of a plan, an argument of a step, a buffer: the tables of the
# program, and what is left of the objects that the plan was while it was bound.  A straight line
# through the workloads of `python -m bench predictions`.
_STEP, _ARGUMENT, _BUFFER = 2000, 300, 700
_KERNEL = 12 << 10  # of a kernel: its object, on the mean of those that the workloads use
_THREAD = 128 << 10  # of a thread: its stack, as far as it is touched
_PLANNED = 5000  # bytes that planning leaves behind for a step, where plans are not kept


@functools.cache
def base(*, planning: bool = False) -> int | None:
    """Bytes of a process that is ready to train and holds no model.

    planning: it is to make plans; else it finds them kept.

    Returns None where they cannot be measured: the system does not tell the memory of processes, or
    no Python can be started.
    """
    words = [sys.executable, "-c", _START, *(["planning"] if planning else [])]
    if not sys.executable:
        return None
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=_PATIENCE)
        return int(done.stdout) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def regions(plans: Sequence[Plan], mapped: int = 0) -> dict[str, int]:
    """Bytes of every region that a process holds for plans which run one after another.

    All share the regions but io, of which each has its own.

    mapped: bytes of region frozen that stay in their file, and are not counted.
    """
    found: dict[str, int] = {}
    for plan in plans:
        for name, size in plan.regions:
            known = found.get(name, 0)
            found[name] = known + size if name in ("io", "const") else max(known, size)
    found["frozen"] = max(found.get("frozen", 0) - mapped, 0)
    return {name: size for name, size in found.items() if size}


def parts(
    plans: Sequence[Plan],
    batch: int,
    files: int,
    read: int,
    *,
    planning: bool = False,
    mapped: int = 0,
) -> Mapping[str, int] | None:
    """What the memory of a process is made of at its peak, in bytes, by what holds them.

    batch: bytes of the arrays of a batch, which its caller holds.
    files: bytes of the model files that it holds, without the large constants in them.
    read: bytes of all model files, which lie in memory beside the regions of parameters and
        constants while those are filled; where that is more than a step takes, it is the peak.
    planning: it makes the plans; else it finds them kept.
    mapped: as `regions` takes it; what is mapped is resident, but the system may drop it.

    Returns None where `base` does.
    """
    begin = base(planning=planning)
    if begin is None:
        return None
    steps = sum(len(plan.steps) for plan in plans)
    arguments = sum(len(step.args) for plan in plans for step in plan.steps)
    buffers = sum(len(plan.buffers) for plan in plans)
    kernels = {kernel.symbol for plan in plans for kernel in plan.kernels}
    threads = max(plan.threads for plan in plans)
    held = {f"region {name}": size for name, size in regions(plans, mapped).items()}
    found = {
        "Python, numpy, edgegrad": begin,
        **held,
        **({"constants that stay in their file": mapped} if mapped else {}),
        "the caller's batch": batch,
        "model files": files,
        "code of kernels": len(kernels) * _KERNEL,
        "programs": steps * _STEP + arguments * _ARGUMENT + buffers * _BUFFER,
        "threads": threads * _THREAD,
        **({"planning": steps * _PLANNED} if planning else {}),
    }
    filled = sum(held.get(f"region {name}", 0) for name in ("param", "frozen"))
    more = begin + filled + batch + read - mapped - sum(found.values())
    return found | ({"model files while they are read": more} if more > 0 else {})


def batch_bytes(dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The bytes of the arrays of a batch."""
    total = 0
    for name, shape in shapes.items():
        count = ITEMSIZE[dtypes[name]]
        for d in shape:
            count *= d
        total += count
    return total
