"""Memory of a whole training process, in addition to the regions of its plans.

The memory of Python, numpy and this package is measured in a separate process that only imports
them and the kernels.  The rest is counted: regions and batches by their bytes, programs by their
steps and arguments.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from engine.base.element_types import ITEMSIZE
from engine.plan.lending import list_lent_inputs
from engine.plan.plan import Plan

# Program that prints the peak of resident bytes of a process that is ready to train.  Its arguments
# are the names of the kernels, whose modules are imported when they are looked up,
# and `--planning` if it makes plans.
_START = """
import sys
import engine.trainer.trainer
from engine.trainer.reports.process import measure_peak
from engine.kernels.binaries import source
from engine.kernels.ops.registry import list_templates
for name in sys.argv[1:]:
    list_templates().get(name)
for kernels in source.list_usable()[:1]:
    kernels.load()
    if kernels.compiles:
        import engine.kernels.binaries.load
if "--planning" in sys.argv:
    import engine.graphs.planner.planner
    import engine.graphs.offline.optimizers
    import engine.graphs.io.onnx_io
print(measure_peak())
"""
_PATIENCE = 60.0  # seconds

# Bytes of this process for a step of a plan, an argument of a step, a buffer: the tables of the
# program, and the remains of the plan's objects after binding.  A straight line through the
# workloads of `python -m bench predictions`.
_STEP, _ARGUMENT, _BUFFER = 2000, 300, 700
_KERNEL = 12 << 10  # of a kernel: its object, on average over the workloads
_THREAD = 128 << 10  # of a thread: the touched part of its stack
_PLANNED = 5000  # bytes of a step that planning leaves in memory, if plans are not kept


@functools.cache
def measure_base(kernels: tuple[str, ...] = (), *, planning: bool = False) -> int | None:
    """Return the bytes of a process that is ready to train and holds no model.

    kernels: the names of the kernels that it knows.
    planning: whether it makes plans or finds them in the cache.

    Returns None if they cannot be measured: the system does not report the memory of processes, or
    no Python can be started.
    """
    words = [sys.executable, "-c", _START, *kernels, *(["--planning"] if planning else [])]
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


def count_region_bytes(plans: Sequence[Plan], mapped: int = 0) -> dict[str, int]:
    """Return the bytes of every region that a process holds for plans that run one after another.

    They share all regions except io, and what they make once.

    mapped: bytes of region frozen that stay in their file, and are not counted.
    """
    sizes: dict[str, int] = {}
    for plan in plans:
        for name, size in plan.regions:
            known = sizes.get(name, 0)
            sizes[name] = known + size if name in ("io", "const", "made") else max(known, size)
    sizes["frozen"] = max(sizes.get("frozen", 0) - mapped, 0)
    return {name: size for name, size in sizes.items() if size}


def list_parts(
    plans: Sequence[Plan],
    batch: int,
    files: int,
    read: int,
    *,
    planning: bool = False,
    mapped: int = 0,
) -> Mapping[str, int] | None:
    """Return the memory of a process at its peak, in bytes, by holder.

    batch: bytes of the arrays of a batch, which its caller holds in the order of C.
    files: bytes of the model files that it holds, without the large constants in them.
    read: bytes of all model files, which lie in memory beside the regions of parameters and
        constants while those are filled; if that is more than a step takes, it is the peak.
    planning: whether it makes the plans or finds them in the cache.
    mapped: see `count_region_bytes`; mapped bytes are resident, but the system may drop them.

    Returns None if `measure_base` does.
    """
    known = sorted({spec.template for plan in plans for spec in plan.specs})
    begin = measure_base(tuple(known), planning=planning)
    if begin is None:
        return None
    steps = sum(len(plan.steps) for plan in plans)
    arguments = sum(len(step.args) for plan in plans for step in plan.steps)
    buffers = sum(len(plan.buffers) for plan in plans)
    kernels = {kernel.symbol for plan in plans for kernel in plan.kernels}
    threads = max(plan.threads for plan in plans)
    sizes = count_region_bytes(plans, mapped)
    # Steps read these where the caller has them; nothing touches their place in the region.
    lent = sum(
        plan.buffers[port.buffer].nbytes for plan in plans for port in list_lent_inputs(plan)
    )
    sizes["io"] = sizes.get("io", 0) - lent
    held = {f"region {name}": size for name, size in sizes.items()}
    holders = {
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
    more = begin + filled + batch + read - mapped - sum(holders.values())
    return holders | ({"model files while they are read": more} if more > 0 else {})


def count_batch_bytes(dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the bytes of the arrays of a batch."""
    total = 0
    for name, shape in shapes.items():
        count = ITEMSIZE[dtypes[name]]
        for d in shape:
            count *= d
        total += count
    return total
