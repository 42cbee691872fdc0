"""Answers of workloads by `edgegrad.Session` beside onnxruntime's, in processes that take turns.

A row is a batch size and a number of threads: the median time of an answer of each, and the median
ratio, above 1 where ours is faster.  A turn begins when the threads of the turn before are at rest.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np

from bench.measuring import compare_medians, time_call, time_in_turns
from bench.processes import SCRIPTS, worker
from bench.programs import written
from bench.rows import THREADS, Bench, Cells, Option
from engine.quantization import quantize
from engine.tools.benchmark.workloads import WORKLOADS

USUAL = ("mlp", "cnn", "mobilenet", "mobilenet_v3", "resnet18", "vit", "minilm", "gpt2", "lstm")
INTEGERS = ("mlp", "cnn", "mobilenet", "mobilenet_v3", "resnet18", "vit", "minilm")
DYNAMIC = ("mlp", "vit", "minilm", "gpt2")  # whose products are MatMul or Gemm
# Seconds that the answers of a turn take at least.  The first ones wake the threads, and a system
# may take 60 ms to give each a core of its own.
SECONDS = 0.3
FLOAT, INT8 = "forward.onnx", "int8.onnx"
OF_INTEGERS = {
    "session": ("edgegrad", INT8),
    "onnxruntime": ("onnxruntime", INT8),
    "float": ("edgegrad", FLOAT),
}
SAMPLES = 8  # that ranges are measured on


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each batch size and number of threads."""
    sides = {"session": ("edgegrad", FLOAT), "onnxruntime": ("onnxruntime", FLOAT)}
    for batch in options.batch:
        with written(name, batch) as folder:
            yield from _compare(options, batch, folder, sides)


def measure_integers(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each batch size and number of threads, of the model in int8."""
    with written(name, SAMPLES) as folder, np.load(folder / "batch.npz") as content:
        made = quantize(folder / FLOAT, content["x"])
    for batch in options.batch:
        with written(name, batch) as folder:
            made.save(folder / INT8)
            yield from _compare(options, batch, folder, OF_INTEGERS)


def measure_dynamic(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each batch size and number of threads, of the model quantised dynamically.

    onnxruntime's quantiser makes the file, with uint8 weights, as models for browsers have them.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for batch in options.batch:
        with written(name, batch) as folder:
            quantize_dynamic(folder / FLOAT, folder / INT8, weight_type=QuantType.QUInt8)
            yield from _compare(options, batch, folder, OF_INTEGERS)


def _compare(
    options: Namespace, batch: int, folder: Path, sides: Mapping[str, tuple[str, str]]
) -> Iterator[Cells]:
    """Yield a row for each number of threads: the times, and the ratio of each to our session's.

    sides: for each side, its runtime and the file of its model.
    """
    command = [sys.executable, SCRIPTS / "answers.py"]
    for threads in options.threads:
        with ExitStack() as stack:
            workers = {
                side: stack.enter_context(
                    worker([*command, runtime, folder / file, threads], side, folder)
                )
                for side, (runtime, file) in sides.items()
            }
            for made in workers.values():
                made.run(2)  # plans, and wakes the threads
            took = min(time_call(made.run) for made in workers.values())
            count = max(5, ceil(SECONDS / took))
            runs = {side: partial(made.run, count) for side, made in workers.items()}
            rests = {side: made.await_rest for side, made in workers.items()}
            times = time_in_turns(runs, options.turns, rests=rests)
        medians = [1e3 * median(times[side]) / count for side in sides]
        others = (side for side in sides if side != "session")
        ratios = [compare_medians(times[side], times["session"]) for side in others]
        yield batch, threads, *medians, *ratios


_OPTIONS = (
    THREADS,
    Option("batch", (1, 8), "sizes of batches"),
    Option("turns", 9, "turns of each"),
)
_INTEGER_COLUMNS = (
    "batch",
    "threads",
    "ours ms:.3f",
    "onnxruntime ms:.3f",
    "our float32 ms:.3f",
    "onnxruntime / ours:.2f",
    "float32 / ours:.2f",
)
BENCHES = (
    Bench(
        "answers",
        "answers of a session beside onnxruntime's, in turns",
        {name: name for name in WORKLOADS if not name.endswith("_head")},
        ("batch", "threads", "ours ms:.3f", "onnxruntime ms:.3f", "onnxruntime / ours:.2f"),
        measure,
        usual=USUAL,
        options=_OPTIONS,
        small="mlp --turns 1 --threads 1 --batch 1",
    ),
    Bench(
        "answers.int8",
        "answers in integers beside onnxruntime's of the same file and ours in float32, in turns",
        {name: name for name in INTEGERS},
        _INTEGER_COLUMNS,
        measure_integers,
        options=_OPTIONS,
        small="mlp --turns 1 --threads 1 --batch 1",
    ),
    Bench(
        "answers.dynamic",
        "answers of models that onnxruntime has quantised dynamically, to uint8, as `answers.int8`",
        {name: name for name in DYNAMIC},
        _INTEGER_COLUMNS,
        measure_dynamic,
        options=_OPTIONS,
        small="mlp --turns 1 --threads 1 --batch 1",
    ),
)
