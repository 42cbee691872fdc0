"""Several ranks of one training: how long a step takes, how many bytes travel, what is the same.

    python -m bench.scaling [WORKLOAD ...]     # 1 and 2 ranks of one thread on this machine
    python -m bench.scaling --equality         # 2 and 4 ranks against one process
    python -m bench.scaling --boards           # 2 to 16 Raspberry Pis: a model, no measurement

Weak scaling keeps the samples of a rank, strong scaling those of the batch.  Needs the extra mpi.
The bytes are those that a rank sends of gradients: 2 (n - 1) / n of their size, as every good
all-reduce does (Rabenseifner 2004; Patarasu and Yuan 2009).

The model of n boards of one network takes for a step of B samples on each

    t(n) = c + s + w / k + max(0, w (1 - 1 / k) - 2 c / 3)   gradients beside the backward pass
    t(n) = c + s + w                                         gradients behind it
    w = 2 (n - 1) / n * G / R + 2 (n - 1) L k                G bytes of gradients in k buckets
    s = 2 log2(n) L q                                        q sums of a few bytes

with the rate R of a message and its latency L, those of gigabit Ethernet with TCP.  c is the time
of the step on one board, two thirds of which are the backward pass; the last bucket begins when
that is over.  A ring of n boards makes w, recursive doubling s.  q counts two sums for each batch
normalisation that trains, the weights of the shares, the loss, and the question who stops.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine import Trainer
from engine.distributed import world
from engine.graphs.offline.ranks import ALPHA, RATE, bucket_bytes
from engine.tools.workloads import WORKLOADS
from engine.tools.workloads.workload import parameters

GOLDENS = Path(__file__).resolve().parent.parent / "tests/data/goldens"
TRACED = ("mlp", "cnn", "mobilenet")  # whose steps are those of a trace of onnxruntime-training
CASES = (*TRACED, "transformer")  # the golden transformer fixes 4 samples; this is the workload
MEASURED = {"mlp": 256, "mobilenet": 4, "resnet18": 2}  # samples of a rank
# Seconds of a step of 16 images of 224x224 on a Raspberry Pi 5: the model of bench/boards.py.
BOARDS = {
    "resnet18": 1.22, "mobilenet": 0.752, "mobilenet_v3": 0.187, "vit": 1.37,
    "mobilenet_head": 0.154,
}  # fmt: skip
BACKWARD = 2 / 3  # of a step
REPEATS, WARM = 8, 2


def launch(count: int, *words: str) -> str:
    """What rank 0 of `count` ranks of this program prints."""
    beside = Path(sys.executable).parent / "mpirun"  # of the wheel
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("there is no mpirun: pip install 'edgegrad[mpi]'")
    command = [mpirun, "-n", str(count), sys.executable, "-m", "bench.scaling", *words]
    environment = {**os.environ, "EDGEGRAD_THREADS": "1"}
    return subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


# --- what a rank does


def timed(folder: str, samples: int) -> None:
    """Train on batches of so many samples; rank 0 prints the seconds of a step and bytes sent."""
    group = world()
    trainer = Trainer(folder, group=group)
    whole = dict(np.load(Path(folder) / "batch.npz"))
    batch = [array[: samples * len(array) // len(whole["x"])] for array in whole.values()]
    seconds = []
    for _ in range(WARM + REPEATS):
        begin = time.perf_counter()
        trainer.step(*batch)
        seconds.append(time.perf_counter() - begin)
    if group is None or group.rank == 0:
        found = {
            "seconds": statistics.median(seconds[WARM:]),
            "bytes": trainer.state.region_bytes("grad"),
        }
        print(json.dumps(found))


def equal(case: str, place: str) -> None:
    """Ten steps on several ranks and on one; rank 0 prints how far they are apart."""
    group = world()
    assert group is not None
    folder = GOLDENS / case if case in TRACED else Path(place)
    if case in TRACED:
        trace = dict(np.load(folder / "trace.npz"))
        batches = list(zip(trace["x"], trace["y"], trace["learning_rates"], strict=True))
    else:
        batches = [(*dict(np.load(folder / "batch.npz")).values(), 1e-3)] * 10
    several, one = (Trainer(folder, group=each, threads=1) for each in (group, None))
    losses: list[list[float]] = [[], []]
    for x, y, rate in batches:
        for trainer, found in zip((several, one), losses, strict=True):
            found.append(trainer.step(x, y))
            trainer.learning_rate = float(rate)
    a, b = (t.module.get_contiguous_parameters() for t in (several, one))
    if group.rank == 0:
        apart = np.abs(np.array(losses[0]) - losses[1]) / np.abs(losses[1])
        furthest = np.abs(a - b).max() / np.abs(b).max()
        print(json.dumps({"losses": float(apart.max()), "parameters": float(furthest)}))


# --- tables


def measure(names: Sequence[str]) -> None:
    """Print the table of weak and strong scaling."""
    print(
        "| workload | samples of a batch | 1 rank, ms | 2 ranks, ms | | MB sent per step by each |"
    )
    print("|---|---|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            size = MEASURED.get(name, 4)
            WORKLOADS[name].write(Path(place), 2 * size)
            alone, double, pair = (
                json.loads(launch(count, "--timed", place, str(samples)))
                for count, samples in ((1, size), (1, 2 * size), (2, 2 * size))
            )
            for kind, before in (("weak", alone), ("strong", double)):
                share = before["seconds"] / pair["seconds"]
                said = (
                    f"{100 * share:.0f} % of perfect"
                    if kind == "weak"
                    else f"{share:.2f} times as fast"
                )
                print(
                    f"| {name}, {kind} | {size if kind == 'weak' else 2 * size} → {2 * size} | "
                    f"{1e3 * before['seconds']:.1f} | {1e3 * pair['seconds']:.1f} | {said} | "
                    f"{pair['bytes'] / 1e6:.2f} |"
                )


def compare() -> None:
    """Print how far several ranks are from one process after ten steps."""
    print("| model | ranks | difference of losses | difference of parameters |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for case in CASES:
            if case not in TRACED:
                WORKLOADS[case].write(Path(place), 6)
            for count in (2, 4):
                found = json.loads(launch(count, "--equal", case, place))
                print(f"| {case} | {count} | {found['losses']:.1e} | {found['parameters']:.1e} |")


def step_seconds(alone: float, nbytes: float, small: int, boards: int) -> tuple[float, float]:
    """Seconds of a step on so many boards: with the sums beside the backward pass, and behind it.

    alone: seconds of a step of one board.  nbytes: of gradients.  small: the number of small sums.
    """
    if boards == 1:
        return alone, alone
    buckets = max(1, math.ceil(nbytes / bucket_bytes(int(nbytes), boards)))
    wire = 2 * (boards - 1) / boards * nbytes / RATE + 2 * (boards - 1) * ALPHA * buckets
    waits = small * 2 * math.log2(boards) * ALPHA
    last = wire / buckets
    beside = alone + waits + last + max(0.0, wire - last - BACKWARD * alone)
    return beside, alone + waits + wire


def gradients(name: str) -> tuple[int, int]:
    """The bytes of the gradients of a workload, and how many small sums a step has."""
    workload = WORKLOADS[name]
    graph = workload.build()
    trained = [
        n for n in parameters(graph) if not workload.trained or n.startswith(workload.trained)
    ]
    norms = 0 if workload.trained else sum(n.op == "BatchNormalization" for n in graph.nodes)
    return sum(graph.initializers[n].nbytes for n in trained), 2 * norms + 3


def boards() -> None:
    """Print the model of 2 to 16 boards."""
    counts = (2, 4, 8, 16)
    print(
        "| workload | s on one | MB of gradients | "
        + " | ".join(f"{n} boards" for n in counts)
        + " |"
    )
    print("|---|---|---|" + "---|" * len(counts))
    for name, alone in BOARDS.items():
        nbytes, small = gradients(name)
        cells = []
        for count in counts:
            beside, behind = (count * alone / s for s in step_seconds(alone, nbytes, small, count))
            cells.append(f"{beside:.1f} ({behind:.1f})")
        print(f"| {name} | {alone} | {nbytes / 1e6:.2f} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run the command; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--equality", action="store_true")
    parser.add_argument("--boards", action="store_true")
    parser.add_argument("--timed", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--equal", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.timed:
        timed(given.timed[0], int(given.timed[1]))
    elif given.equal:
        equal(*given.equal)
    elif given.equality:
        compare()
    elif given.boards:
        boards()
    else:
        measure(given.workloads or [*MEASURED])


if __name__ == "__main__":
    main()
