"""Cost of compiling: processor time by phase, and how long the caller waits.

A row is a model, whose kernels for training and its optimizer are compiled in new processes.  In
seconds of processor time, of one process that compiles them all: its `start` until the compiler is
imported, `front end`, `passes` of LLVM, `emission` of machine code.  In seconds: `1 core` and `all
cores`, how long a process with an empty cache waits for all objects on so many, the start of what
compiles for it included.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence

from bench.measuring import call_fresh, run_for_output
from bench.programs import written
from bench.rows import Bench, Cells
from engine.kernels.binaries import load, workers
from engine.kernels.compiler import emit, lower
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import KernelSpec
from engine.runtime.team import LAUNCH, WORKER
from engine.system.config import PREFIX, count_cores
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev import zoo


def list_kernels(name: str) -> list[KernelSpec]:
    """Return the kernels that a workload trains with."""
    with written(name) as folder:
        plans = [p for p in zoo.of_folder(folder, WORKLOADS[name].x[0]) if p.threads > 1]
    trained = [p for p in plans if p.name in ("training_model", "optimizer_model")]
    return list(dict.fromkeys([LAUNCH, WORKER, *(s for p in trained for s in p.specs)]))


def measure_phases(specs: Sequence[KernelSpec]) -> list[float]:
    """Return the processor time of each phase for all kernels."""
    target, known = detect_host(), list_templates()
    spent = [0.0, 0.0, 0.0]
    for spec in specs:
        at = [time.process_time()]
        texts = lower.lower(known[spec.template], spec.params, spec.symbol, target)
        at.append(time.process_time())
        bitcode = emit.optimize(texts, spec.symbol, target)
        at.append(time.process_time())
        emit.emit_object(bitcode, target)
        at.append(time.process_time())
        for i in range(3):
            spent[i] += at[i + 1] - at[i]
    return spent


def measure_start() -> float:
    """Return the processor time of a process until it can compile."""
    code = f"import time, {workers.SERVER}; print(time.process_time())"
    return float(run_for_output([sys.executable, "-c", code]))


def wait(specs: Sequence[KernelSpec], cores: int) -> float:
    """Return the seconds until all objects are complete, in a process that may use `cores`
    cores.
    """
    vars(workers)["count_cores"] = lambda: cores
    with tempfile.TemporaryDirectory() as folder:
        os.environ[PREFIX + "CACHE_DIR"] = folder
        start = time.perf_counter()
        load.get_codes(specs, detect_host(), load.OBJECT)
        return time.perf_counter() - start


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    specs = list_kernels(name)
    waited = [call_fresh(wait, specs, cores) for cores in (1, count_cores())]
    yield len(specs), measure_start(), *call_fresh(measure_phases, specs), *waited


BENCHES = (
    Bench(
        "compiling",
        "what compiling a model's kernels costs: processor time by phase, and the wait",
        {name: name for name in WORKLOADS},
        ("kernels", "start:.2f", "front end:.2f", "passes:.2f", "emission:.2f", "1 core:.2f",
         "all cores:.2f"),
        measure,
        usual=("mlp", "cnn", "mobilenet"),
    ),
)  # fmt: skip
