"""Process of the benchmark, which trains artifacts and answers on standard output.

    python -m engine.tools.benchmark.child FOLDER THREADS

The folder has artifacts and batch.npz.  A first step is done at once and answered.  Every further
line on standard input is `train N`, `infer N`, or `balance N` for the balance of the step over N
threads; the answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from engine.profiling.scaling import REPEATS, measure_balance
from engine.training.artifact_set import CHECKPOINT, NAMES

BATCH = "batch.npz"  # beside the artifacts: arrays x and y


def measure_peak_memory() -> int:
    """Return the most bytes that this process has had resident; 0 where the system does not tell.

    Source: ru_maxrss of getrusage(2), in KiB but on macOS.
    """
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def serve(folder: Path, threads: int, answer: Callable[[dict[str, Any]], None]) -> None:
    """Do what the lines of standard input ask for, until they end."""
    state = CheckpointState.load_checkpoint(folder / CHECKPOINT)
    training, evaluation, optimizer_model = (folder / name for name in NAMES)
    module = Module(training, state, evaluation, threads=threads)
    optimizer = Optimizer(optimizer_model, module)
    batch = np.load(folder / BATCH)
    x, y = batch["x"], batch["y"]

    def balance(count: int) -> dict[str, Any]:
        made = Module(training, state, threads=count)
        update = Optimizer(optimizer_model, made)
        profile = made.profile(x, y, optimizer=update, repeats=REPEATS, processor_time=True)
        return asdict(measure_balance(profile))

    def train() -> None:
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()

    def infer() -> None:
        module(x, y)

    train()
    answer({"threads": module.threads})
    for line in sys.stdin:
        word, _, count = line.partition(" ")
        if word == "balance":
            answer(balance(int(count)))
            continue
        module.train(word == "train")
        step, seconds = train if word == "train" else infer, []
        for _ in range(int(count)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        answer({"seconds": seconds, "memory": measure_peak_memory()})


def main() -> None:
    """Serve; what libraries print must not look like an answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        lambda found: print(json.dumps(found), file=answers, flush=True),
    )


if __name__ == "__main__":
    main()
