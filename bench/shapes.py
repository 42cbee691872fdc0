"""What a new input shape costs: time to its first step, and memory of the process.

    python -m bench.shapes [WORKLOAD ...]

Each row is a process of its own that trains one model on fifty input shapes, the largest first:
the transformer at lengths 129 down to 80, MobileNetV2 (64x64) at batches of 50 down to 1.  It gives
the median processor time of a first step at a shape less that of a second one, how many kernels the
later shapes needed besides those of the first, and the resident memory after the first shape, after
all of them, and after all of them once more.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module
from engine.tools.workloads.mobilenets import mobilenet
from engine.tools.workloads.post_norm import transformer
from engine.tools.workloads.workload import write_artifacts

COUNT = 50


def _transformer() -> Iterator[tuple[int, ...]]:
    return ((2, 80 + n, 256) for n in reversed(range(COUNT)))


def _mobilenet() -> Iterator[tuple[int, ...]]:
    return ((n + 1, 3, 64, 64) for n in reversed(range(COUNT)))


SHAPES = {"transformer": _transformer, "mobilenet": _mobilenet}


def resident() -> float:
    """Resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1024**2


def measure(name: str) -> str:
    """The row of a workload; compiles what is not cached yet."""
    graph = transformer() if name == "transformer" else mobilenet(64)
    if name == "transformer":
        graph.inputs["x"] = graph.inputs["x"].but(("batch", "length", 256))
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal(shape).astype(np.float32), rng.integers(0, 10, shape[0]))
        for shape in SHAPES[name]()
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_artifacts(graph, Path(folder))
        state = CheckpointState.load_checkpoint(Path(folder) / "checkpoint")
        module = Module(Path(folder) / "training_model.onnx", state, threads=1)
        module(*batches[0])
        known = {k for p in module._memory.programs.values() for k in p.plan.kernels}
        memory = [resident()]
        extra = []
        for batch in batches[1:]:
            times = []
            for _ in range(2):
                start = time.process_time()
                module(*batch)
                times.append(time.process_time() - start)
            extra.append(times[0] - times[1])
        memory.append(resident())
        for batch in batches:
            module(*batch)
        memory.append(resident())
    plans = list(module._memory.programs.values())
    new = {k for p in plans for k in p.plan.kernels} - known
    first, *later = (f"{m:.0f}" for m in memory)
    size = sum(p.nbytes for p in plans) / len(plans) / 1024
    return (
        f"{name:12} {1e3 * statistics.median(extra):6.1f} ms a new shape, {len(new)} new kernels   "
        f"{first} MiB after one, {later[0]} after {COUNT}, {later[1]} after {COUNT} again; "
        f"{len(plans)} plans of {size:.0f} KiB"
    )


def main(chosen: list[str]) -> None:
    """Print a row for each workload; a first run of each fills the cache of kernels."""
    if chosen[:1] == ["--one"]:
        print(measure(chosen[1]))
        return
    for name in chosen or SHAPES:
        command = [sys.executable, "-m", "bench.shapes", "--one", name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
