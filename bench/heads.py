"""Training steps of the last layer of a model, frozen in float32 and in integers, in turns.

A row is a batch size and a number of threads: the median time of a step of each, and the median
ratio, above 1 where integers are faster.  A turn begins when the threads of the turn before rest.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.measuring import call_fresh, compare_medians
from bench.memory import write_heads
from bench.processes import SCRIPTS, time_workers
from bench.rows import THREADS, Bench, Cells, Option
from engine.tools.benchmark.workloads import WORKLOADS


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each batch size and number of threads."""
    for batch in options.batch:
        with tempfile.TemporaryDirectory() as place:
            call_fresh(write_heads, name, Path(place), batch)
            for threads in options.threads:
                commands = {
                    side: [sys.executable, SCRIPTS / "steps.py", Path(place) / side, threads]
                    for side in ("float", "int8")
                }
                times = time_workers(commands, options.turns)
                took = [1e3 * median(each) for each in times.values()]
                yield batch, threads, *took, compare_medians(times["float"], times["int8"])


BENCHES = (
    Bench(
        "heads",
        "training steps of the last layer, in float32 and in integers, in turns",
        {name: name for name in WORKLOADS if name.endswith("_head")},
        ("batch", "threads", "float32 ms:.2f", "int8 ms:.2f", "float32 / int8:.2f"),
        measure,
        usual=("mobilenet_head",),
        options=(
            THREADS,
            Option("batch", (1, 8), "sizes of batches"),
            Option("turns", 9, "turns of each"),
        ),
        small="mobilenet_v3_head --batch 1 --threads 1 --turns 1",
    ),
)
