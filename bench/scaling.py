"""Several ranks of one training: time of a step, bytes sent, equality of results.

scaling           1 and 2 ranks of one thread on this machine
scaling.equality  2 and 4 ranks against one process
scaling.boards    2 to 16 Raspberry Pis: a model, no measurement

Weak scaling keeps the samples of a rank, strong scaling the samples of the batch.  Needs the extra
mpi.  The bytes are the gradients that a rank sends: 2 (n - 1) / n of their size, as every good
all-reduce does (Rabenseifner 2004; Patarasu and Yuan 2009).

The model of n boards of one network takes for a step of B samples on each

    t(n) = c + s + w / k + max(0, w (1 - 1 / k) - 2 c / 3)   gradients beside the backward pass
    t(n) = c + s + w                                         gradients after it
    w = 2 (n - 1) / n * G / R + 2 (n - 1) L k                G bytes of gradients in k buckets
    s = 2 log2(n) L q                                        q sums of a few bytes

with the rate R of a message and its latency L, of gigabit Ethernet with TCP.  c is the time of the
step on one board, two thirds of it for the backward pass; the last bucket begins when that is
over.  A ring of n boards makes w, recursive doubling s.  q counts two sums for each batch trained
normalisation, the weights of the shares, the loss, and the decision to stop.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.measuring import ROOT, run_for_output
from bench.processes import SCRIPTS
from bench.programs import written
from bench.rows import Bench, Cells
from engine.errors import InputError
from engine.graphs.offline.rank_graphs import ALPHA, RATE, choose_bucket_bytes
from engine.tools.benchmark.workload import select_parameters
from engine.tools.benchmark.workloads import WORKLOADS

GOLDENS = ROOT / "tests/data/goldens"
TRACED = ("mlp", "cnn", "mobilenet")  # whose steps are from a trace of onnxruntime-training
CASES = (*TRACED, "transformer")  # the golden transformer fixes 4 samples; this is the workload
MEASURED = {"mlp": 256, "mobilenet": 4, "resnet18": 2}  # samples of a rank
# Seconds of a step of 16 images of 224x224 on a Raspberry Pi 5, by bench/boards.py.
BOARDS = {
    "resnet18": 1.22, "mobilenet": 0.752, "mobilenet_v3": 0.187, "vit": 1.37,
    "mobilenet_head": 0.154,
}  # fmt: skip
BACKWARD = 2 / 3  # of a step
COUNTS = (2, 4, 8, 16)  # of boards


def launch(count: int, *words: object) -> dict[str, float]:
    """Return what rank 0 of `count` ranks prints.

    Raises:
        InputError: there is no mpirun.
    """
    beside = Path(sys.executable).parent / "mpirun"  # of the wheel
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise InputError("there is no mpirun: pip install 'edgegrad[mpi]'")
    command = [mpirun, "-n", count, sys.executable, SCRIPTS / "ranks.py", *words]
    reply: dict[str, float] = json.loads(run_for_output(command, EDGEGRAD_THREADS="1"))
    return reply


# --- tables


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row of weak scaling, and one of strong scaling."""
    size = MEASURED.get(name, 4)
    with written(name, 2 * size) as place:
        alone, double, pair = (
            launch(count, "timed", place, samples)
            for count, samples in ((1, size), (1, 2 * size), (2, 2 * size))
        )
    for kind, samples, before in (("weak", size, alone), ("strong", 2 * size, double)):
        share = before["seconds"] / pair["seconds"]
        took = (1e3 * each["seconds"] for each in (before, pair))
        yield kind, f"{samples} → {2 * size}", *took, share, pair["bytes"] / 1e6


def measure_equality(case: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of ranks: how far they are from one process after ten steps."""
    with ExitStack() as stack:
        traced = GOLDENS / case
        folder = traced if case in TRACED else stack.enter_context(written(case, 6))
        for count in (2, 4):
            reply = launch(count, "equal", folder)
            yield count, reply["losses"], reply["parameters"]


def estimate_step(alone: float, nbytes: float, small: int, boards: int) -> tuple[float, float]:
    """Return the seconds of a step on `boards` boards, with the sums during the backward pass, and
    after it.

    alone: seconds of a step of one board.  nbytes: of gradients.  small: the number of small sums.
    """
    if boards == 1:
        return alone, alone
    buckets = max(1, math.ceil(nbytes / choose_bucket_bytes(int(nbytes), boards)))
    wire = 2 * (boards - 1) / boards * nbytes / RATE + 2 * (boards - 1) * ALPHA * buckets
    waits = small * 2 * math.log2(boards) * ALPHA
    last = wire / buckets
    beside = alone + waits + last + max(0.0, wire - last - BACKWARD * alone)
    return beside, alone + waits + wire


def count_gradients(name: str) -> tuple[int, int]:
    """Return the bytes of the gradients of a workload, and how many small sums a step has."""
    workload = WORKLOADS[name]
    graph = workload.build()
    trained = select_parameters(graph, workload.trained)
    norms = 0 if workload.trained else sum(n.op == "BatchNormalization" for n in graph.nodes)
    return sum(graph.initializers[n].nbytes for n in trained), 2 * norms + 3


def measure_boards(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the model of 2 to 16 boards."""
    alone, (nbytes, small) = BOARDS[name], count_gradients(name)
    cells = []
    for count in COUNTS:
        beside, behind = (count * alone / s for s in estimate_step(alone, nbytes, small, count))
        cells.append(f"{beside:.1f} ({behind:.1f})")
    yield alone, nbytes / 1e6, *cells


BENCHES = (
    Bench(
        "scaling",
        "steps of 1 and 2 ranks: weak and strong scaling",
        {name: name for name in WORKLOADS},
        ("scaling", "samples of a batch", "1 rank, ms:.1f", "2 ranks, ms:.1f", "times:.2f",
         "MB sent per step by each:.2f"),
        measure,
        usual=tuple(MEASURED),
    ),
    Bench(
        "scaling.equality",
        "how far 2 and 4 ranks are from one process after ten steps",
        {name: name for name in CASES},
        ("ranks", "difference of losses:.1e", "difference of parameters:.1e"),
        measure_equality,
    ),
    Bench(
        "scaling.boards",
        "how many times as fast 2 to 16 Raspberry Pis are: a model, no measurement",
        {name: name for name in BOARDS},
        ("s on one", "MB of gradients:.2f", *(f"{count} boards" for count in COUNTS)),
        measure_boards,
        small="mobilenet_head",
    ),
)  # fmt: skip
