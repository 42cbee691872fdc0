"""Trimmed builds of workloads for this machine: the cost of making one, and its steps.

built         training steps of a build against the engine's, in turns in one process, on the same
              data: forward, backward and optimizer step
built.making  time and peak memory of whole processes that make a build, with all kernels cached;
              peak memory of the largest process, linkers included
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.measuring import MB, MIB, compare_medians, run, time_in_turns
from bench.programs import Training, written
from bench.rows import Bench, Cells, Option
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    batch = WORKLOADS[name].batch()
    with written(name) as folder, tempfile.TemporaryDirectory() as place:
        for threads in options.threads:
            out = Path(place, str(threads))
            build(
                folder,
                out,
                Options("net", resolve("native"), PlanRequest([len(batch[0])], threads)),
            )
            spec: Any = importlib.util.spec_from_file_location("net", out / "net.py")
            net = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(net)
            trainer = net.Trainer(folder / "checkpoint")
            calls: dict[str, Callable[[], object]] = {
                "engine": Training(folder, threads).step,
                "build": partial(trainer.step, *batch),
            }
            timings = time_in_turns(calls, options.turns, warm_up=2)
            engine, built = timings["engine"], timings["build"]
            yield (
                threads, 1e3 * median(engine), 1e3 * median(built), 1e3 * min(engine),
                1e3 * min(built), compare_medians(built, engine),
            )  # fmt: skip


def measure_making(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    with written(name) as folder, tempfile.TemporaryDirectory() as place:
        words = ["build", folder, "--batch", options.batch, "--name", "net", "--out", place]
        command = [sys.executable, "-m", "engine.tools.cli", *words]
        run(command)  # fills the kernel cache
        took = run(command)
        size = (folder / "checkpoint").stat().st_size
        made = sum(f.stat().st_size for f in Path(place).rglob("*") if f.is_file())
    yield took.seconds, took.processor, took.peak / MIB, size / MB, made / MB


BENCHES = (
    Bench(
        "built",
        "steps of a trimmed build against the engine's, in turns",
        {name: name for name in WORKLOADS},
        ("threads", "engine ms:.1f", "build ms:.1f", "least engine ms:.1f", "least build ms:.1f",
         "build / engine:.3f"),
        measure,
        usual=("mobilenet",),
        options=(Option("threads", (1,), "numbers"), Option("turns", 40, "steps of each")),
    ),
    Bench(
        "built.making",
        "time and memory of making a trimmed build",
        {name: name for name in WORKLOADS},
        ("s:.1f", "processor s:.1f", "peak MiB:.0f", "checkpoint MB:.1f", "build MB:.1f"),
        measure_making,
        usual=("mobilenet", "minilm"),
        options=(Option("batch", 8, "samples of a step"),),
    ),
)  # fmt: skip
