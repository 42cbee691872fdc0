"""What dry runs tell of memory and time, beside what training takes.

python -m bench.predictions [WORKLOAD ...] [--cold]

A row is a workload: the most bytes of a process that trains it, predicted and measured, and the
time of a step, predicted and measured; each with the ratio of the two.  The process is a fresh one
that finds kernels and plans in the cache, on 2 threads.  With --cold it finds neither, so that it
plans, and processes of its own compile; no time is told then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from engine.checking import Check, Subject, check
from engine.reports.amounts import size
from engine.runtime.roofline import Roofline
from engine.tools.workloads import WORKLOADS
from engine.tools.workloads.mobilenets import mobilenet_v3
from engine.tools.workloads.pre_norm import gpt2
from engine.tools.workloads.workload import Workload
from engine.training.state import CheckpointState

THREADS = 2
STEPS = 12

# Of every kind of model a small one, for tests.
SMALL = {
    "mlp": WORKLOADS["mlp"],
    "cnn": replace(WORKLOADS["cnn"], x=(8, 1, 28, 28)),
    "mobilenet_v3": replace(
        WORKLOADS["mobilenet_v3"], x=(2, 3, 64, 64), build=partial(mobilenet_v3, 64)
    ),
    "transformer": replace(WORKLOADS["transformer"], x=(2, 128, 256)),
    "gpt2": replace(
        WORKLOADS["gpt2"], x=(2, 32), build=partial(gpt2, 32, 1000, 2, 64), words=1000,
        classes=1000, labels=32,
    ),
    "lstm": replace(WORKLOADS["lstm"], x=(4, 100, 64)),
}  # fmt: skip

_TRAIN = """
import json, sys, time
import numpy as np
from engine import Trainer
from engine.reports.process import peak
with np.load(sys.argv[1] + "/batch.npz") as file:
    batch = file["x"], file["y"]
trainer = Trainer(sys.argv[1], threads=int(sys.argv[2]))
times = []
for _ in range(int(sys.argv[3])):
    start = time.perf_counter()
    trainer.step(*batch)
    times.append(time.perf_counter() - start)
print(json.dumps([peak(), sorted(times)[len(times) // 2]]))
"""


@dataclass(frozen=True)
class Measured:
    """The most bytes of a process that trained, and the median seconds of its steps."""

    peak: int
    seconds: float


def predicted(folder: Path, machine: Roofline | None = None) -> Check:
    """The dry run of a workload that was written to a folder.

    machine: as `check` takes it.
    """
    slots = CheckpointState.load_checkpoint(folder / "checkpoint").slots
    train, update, evaluation = (
        folder / f"{name}_model.onnx" for name in ("training", "optimizer", "eval")
    )
    subject = Subject.of(train, update, slots, THREADS, evaluation)
    with np.load(folder / "batch.npz") as batch:
        shapes = {"x": batch["x"].shape, "labels": batch["y"].shape}
    return check(subject, shapes, source=folder.name, machine=machine, variants=False)


def measured(folder: Path, steps: int, cache: Path | None = None) -> Measured:
    """Train a workload that was written to a folder, in a process of its own.

    cache: the cache folder, by default the usual one, which a first process fills.
    """
    words = [sys.executable, "-c", _TRAIN, str(folder), str(THREADS)]
    root = str(Path(__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": root}
    if cache is not None:
        env["EDGEGRAD_CACHE_DIR"] = str(cache)
    else:
        subprocess.run([*words, "1"], env=env, capture_output=True, check=True)
    done = subprocess.run([*words, str(steps)], env=env, capture_output=True, text=True, check=True)
    return Measured(*json.loads(done.stdout))


def row(work: Workload, machine: Roofline | None, cold: bool) -> str:
    """The row of a workload."""
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as empty:
        folder = work.write(Path(made))
        found = measured(folder, 1 if cold else STEPS, Path(empty) if cold else None)
        told = predicted(folder, machine)
    assert told.figures is not None
    wanted = told.cold if cold else told.figures.process
    assert wanted is not None, "this system does not tell the memory of a process"
    cells = [work.name, size(wanted), size(found.peak), f"{wanted / found.peak:.2f}"]
    if not cold:
        pair = told.figures.seconds, found.seconds
        cells += [*(f"{1e3 * s:.3g} ms" for s in pair), f"{pair[0] / pair[1]:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", choices=[*WORKLOADS, []])
    given = parser.parse_args()
    machine = None
    if not given.cold:
        from engine.kernels.sets import current
        from engine.runtime.roofline import measure

        machine = measure(THREADS, current().resolve)
    head = ["workload", "process, predicted", "measured", "ratio"]
    head += [] if given.cold else ["step, predicted", "measured", "ratio"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in given.names or WORKLOADS:
        print(row(WORKLOADS[name], machine, given.cold), flush=True)


if __name__ == "__main__":
    main()
