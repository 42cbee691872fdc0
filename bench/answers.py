"""Answers of workloads by `edgegrad.Session` beside onnxruntime's, in processes that take turns.

A row is a batch size and a number of threads: the median time of an answer of each, and the median
ratio, above 1 where ours is faster.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median

from bench.measuring import compare_medians, time_in_turns
from bench.processes import SCRIPTS, worker
from bench.programs import written
from bench.rows import THREADS, Bench, Cells, Option
from engine.tools.benchmark.workloads import WORKLOADS

SIDES = ("session", "onnxruntime")
USUAL = ("mlp", "cnn", "mobilenet", "mobilenet_v3", "resnet18", "vit", "minilm", "gpt2", "lstm")
ANSWERS = {"mlp": 500, "cnn": 100, "lstm": 10}  # of a turn


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each batch size and number of threads."""
    count, command = ANSWERS.get(name, 5), [sys.executable, SCRIPTS / "answers.py"]
    for batch in options.batch:
        with written(name, batch) as folder:
            for threads in options.threads:
                with ExitStack() as stack:
                    runs = {}
                    for side in SIDES:
                        made = worker([*command, side, folder, threads], side, folder)
                        runs[side] = partial(stack.enter_context(made).run, count)
                    times = time_in_turns(runs, options.turns, warm_up=2)
                took = [1e3 * median(times[side]) / count for side in SIDES]
                ratio = compare_medians(times["onnxruntime"], times["session"])
                yield batch, threads, *took, ratio


BENCHES = (
    Bench(
        "answers",
        "answers of a session beside onnxruntime's, in turns",
        {name: name for name in WORKLOADS if not name.endswith("_head")},
        ("batch", "threads", "ours ms:.3f", "onnxruntime ms:.3f", "onnxruntime / ours:.2f"),
        measure,
        usual=USUAL,
        options=(
            THREADS,
            Option("batch", (1, 8), "sizes of batches"),
            Option("turns", 9, "turns of each"),
        ),
        small="mlp --turns 1 --threads 1 --batch 1",
    ),
)
