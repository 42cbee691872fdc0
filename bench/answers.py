"""Answers of workloads by `edgegrad.Session` beside onnxruntime's, in processes that take turns.

A row is a batch size and a number of threads: the median time of an answer of each, and the median
ratio, above 1 where ours is faster.  A turn begins when the threads of the turn before are at rest.

`answers.calls` has a row for a batch size: `over`, the time of an answer by one thread outside its
plan, as a call checks, copies and hands out arrays; and how many times as long one thread takes as
two.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from bench.measuring import LEAST, call_fresh, compare_medians, time_call
from bench.processes import SCRIPTS, SECONDS, time_workers
from bench.programs import written
from bench.rows import THREADS, Bench, Cells, Option
from engine.inference import Session
from engine.quantization import quantize
from engine.runtime.team import Team
from engine.tools.benchmark.workloads import WORKLOADS

USUAL = ("mlp", "cnn", "mobilenet", "mobilenet_v3", "resnet18", "vit", "minilm", "gpt2", "lstm")
INTEGERS = ("mlp", "cnn", "mobilenet", "mobilenet_v3", "resnet18", "vit", "minilm")
DYNAMIC = ("mlp", "vit", "minilm", "gpt2", "lstm")  # that have MatMul, Gemm or LSTM
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
    script = SCRIPTS / "answers.py"
    for threads in options.threads:
        commands = {
            side: [sys.executable, script, runtime, folder / file, threads]
            for side, (runtime, file) in sides.items()
        }
        times = time_workers(commands, options.turns, folder)
        medians = [1e3 * median(times[side]) for side in sides]
        others = (side for side in sides if side != "session")
        ratios = [compare_medians(times[side], times["session"]) for side in others]
        yield batch, threads, *medians, *ratios


def measure_calls(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each batch size."""
    command = [sys.executable, SCRIPTS / "answers.py", "edgegrad"]
    for batch in options.batch:
        with written(name, batch) as folder:
            over = call_fresh(_measure_over, folder)
            commands = {f"{n}": [*command, folder / FLOAT, n] for n in (1, 2)}
            times = time_workers(commands, options.turns, folder)
        medians = [1e3 * median(each) for each in times.values()]
        yield batch, 1e6 * over, *medians, compare_medians(times["1"], times["2"])


def _measure_over(folder: Path) -> float:
    """Return the median seconds of an answer by one thread besides those in its plan."""
    session = Session(folder / FLOAT, threads=1)
    with np.load(folder / "batch.npz") as content:
        feed = {session.get_inputs()[0].name: content["x"]}
    run, inside = Team.run, [0.0]

    def time_plan(*args: Any) -> None:
        begin = time.perf_counter()
        run(*args)
        inside[0] += time.perf_counter() - begin

    session.run(None, feed)
    over = list[float]()
    with mock.patch.object(Team, "run", time_plan):
        end = time.perf_counter() + SECONDS
        while len(over) < LEAST or time.perf_counter() < end:
            inside[0] = 0.0
            took = time_call(lambda: session.run(None, feed))
            over.append(took - inside[0])
    return median(over)


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
        "answers.calls",
        "the time of an answer outside its plan, and answers on two threads beside one, in turns",
        {name: name for name in WORKLOADS if not name.endswith("_head")},
        ("batch", "over us:.1f", "1 thread ms:.3f", "2 threads ms:.3f", "1 / 2:.2f"),
        measure_calls,
        usual=USUAL,
        options=_OPTIONS[1:],
        small="mlp --turns 1 --batch 1",
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
