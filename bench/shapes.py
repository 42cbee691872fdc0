"""Cost of a new input shape: time to its first step, and memory of the process.

Each row is a process of its own that trains one model on fifty input shapes, the largest first: the
transformer at lengths 129 down to 80, MobileNetV2 (64x64) at batches of 50 down to 1.  It gives the
median processor time of a first step at a shape less the time of a second one, how many more
kernels the later shapes needed, and the resident memory after the first shape, after all of them,
and after all of them once more.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench.measuring import MIB, call_fresh, read_memory, time_rounds
from bench.rows import Bench, Cells
from engine.api import CheckpointState, Module
from engine.models.mobilenets import build_mobilenet_v2
from engine.models.post_norm import build_transformer
from engine.tools.benchmark.workload import write_artifacts

COUNT = 50


def _list_transformer_shapes() -> Iterator[tuple[int, ...]]:
    return ((2, 80 + n, 256) for n in reversed(range(COUNT)))


def _list_mobilenet_shapes() -> Iterator[tuple[int, ...]]:
    return ((n + 1, 3, 64, 64) for n in reversed(range(COUNT)))


SHAPES = {"transformer": _list_transformer_shapes, "mobilenet": _list_mobilenet_shapes}


def measure_workload(name: str) -> Cells:
    """Return the row of a workload; compiles what is not cached yet."""
    graph = build_transformer() if name == "transformer" else build_mobilenet_v2((3, 64, 64))
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
        known = {k for p in module.session.memory.programs.values() for k in p.plan.kernels}
        held = [read_memory("VmRSS") / MIB]
        extra = []
        for batch in batches[1:]:
            first, second = time_rounds(partial(module, *batch), 2, 0, time.process_time)
            extra.append(first - second)
        held.append(read_memory("VmRSS") / MIB)
        for batch in batches:
            module(*batch)
        held.append(read_memory("VmRSS") / MIB)
    plans = list(module.session.memory.programs.values())
    new = {k for p in plans for k in p.plan.kernels} - known
    size = sum(p.nbytes for p in plans) / len(plans) / 1024
    return 1e3 * statistics.median(extra), len(new), *held, len(plans), size


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload; a first process fills the cache of kernels."""
    call_fresh(measure_workload, name)
    yield call_fresh(measure_workload, name)


BENCHES = (
    Bench(
        "shapes",
        f"what a new input shape costs, of {COUNT}: time to its first step, and memory",
        {name: name for name in SHAPES},
        ("ms a shape:.1f", "new kernels", "MiB after one:.0f", "after all:.0f", "once more:.0f",
         "plans", "KiB a plan:.0f"),
        measure,
    ),
)  # fmt: skip
