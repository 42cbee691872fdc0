"""Cost of sharing a run among threads: of meetings, and of threads that sleep when it begins.

meeting   what a shared step takes more than the same work of one thread alone
wake      what a run takes more, by the first thread's own time, because the others have to be woken
awake     until the others take part, by the time that a run after a pause takes more than one while
          they are awake; the first thread works alone until then

`WAKE` of graphs/planner/single_thread.py follows from these.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from unittest import mock

from bench.measuring import time_call, time_in_turns
from bench.programs import load
from bench.rows import Bench, Cells, Option
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner import planner
from engine.kernels.vocabulary.op import TensorType
from engine.runtime.program import BoundProgram

STEPS = 400
SMALL, LARGE = 16, 2048  # columns of a step's rows: one takes some 50 ns, the other some us
PAUSES = {"1ms": 1e-3, "10ms": 1e-2, "100ms": 1e-1}  # between two runs


def make_program(threads: int, columns: int, rows: int) -> BoundProgram:
    """Return a program of `STEPS` steps that threads share; each reads the one before."""
    names = [f"x{n}" for n in range(STEPS + 1)]
    nodes = [Node("Softmax", (a,), (b,), {"axis": -1}, name=b) for a, b in pairwise(names)]
    inputs = {names[0]: TensorType("f32", (rows, columns))}
    graph = Graph("meetings", inputs, [names[-1]], {}, nodes, {"": 17})
    with mock.patch.object(planner, "list_with_alone", lambda draft, target, threads: draft.calls):
        return load(graph, threads)


def time_after(program: BoundProgram, pause: float) -> float:
    """Return the seconds of a run after a pause."""
    time.sleep(pause)
    return time_call(program.run)


def measure(pause: float, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    for threads in options.threads:
        rows = 2 * threads
        one, shared = make_program(1, SMALL, rows), make_program(threads, SMALL, rows)
        alone, others = make_program(1, LARGE, rows), make_program(threads, LARGE, rows)
        times = time_in_turns({"one": one.run, "shared": shared.run}, options.turns)
        meetings = [(b - a) / STEPS for a, b in zip(times["one"], times["shared"], strict=True)]
        wakes, awake = [], []
        for _ in range(options.turns):
            first, second = time_after(one, pause), time_after(shared, pause)
            wakes.append(second - first)
            first, late = time_after(alone, pause), time_after(others, pause)
            every = time_call(others.run)  # the others are still awake
            awake.append((late - every) / (1 - every / first) if every < first else 0.0)
        yield threads, *(1e6 * median(seconds) for seconds in (meetings, wakes, awake))


BENCHES = (
    Bench(
        "meetings",
        "cost of sharing a run among threads: of meetings, and of waking them after a pause",
        PAUSES,
        ("threads", "meeting us:.2f", "wake us:.1f", "awake after us:.0f"),
        measure,
        options=(
            Option("threads", (2,), "numbers of threads"),
            Option("turns", 60, "turns of each"),
        ),
        small="1ms --turns 1",
    ),
)
