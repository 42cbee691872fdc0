"""One rank of a training run by several processes; rank 0 prints what came of it as JSON.

mpirun -n N python ranks.py timed FOLDER SAMPLES
mpirun -n N python ranks.py equal FOLDER
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from engine import Trainer
from engine.distributed import world

REPEATS, WARM = 8, 2


def time_training(folder: Path, samples: int) -> None:
    """Train on batches of so many samples; rank 0 prints the seconds of a step and bytes sent."""
    group = world()
    trainer = Trainer(folder, group=group)
    whole = dict(np.load(folder / "batch.npz"))
    batch = [array[: samples * len(array) // len(whole["x"])] for array in whole.values()]
    seconds = []
    for _ in range(WARM + REPEATS):
        begin = time.perf_counter()
        trainer.step(*batch)
        seconds.append(time.perf_counter() - begin)
    if group is None or group.rank == 0:
        times = {
            "seconds": statistics.median(seconds[WARM:]),
            "bytes": trainer.state.region_bytes("grad"),
        }
        print(json.dumps(times))


def equal(folder: Path) -> None:
    """Ten steps on several ranks and on one; rank 0 prints how far they are apart."""
    group = world()
    assert group is not None
    if (folder / "trace.npz").exists():
        trace = dict(np.load(folder / "trace.npz"))
        batches = list(zip(trace["x"], trace["y"], trace["learning_rates"], strict=True))
    else:
        batches = [(*dict(np.load(folder / "batch.npz")).values(), 1e-3)] * 10
    several, one = (Trainer(folder, group=each, threads=1) for each in (group, None))
    losses: list[list[float]] = [[], []]
    for x, y, rate in batches:
        for trainer, trainer_losses in zip((several, one), losses, strict=True):
            trainer_losses.append(trainer.step(x, y))
            trainer.learning_rate = float(rate)
    a, b = (t.module.get_contiguous_parameters() for t in (several, one))
    if group.rank == 0:
        apart = np.abs(np.array(losses[0]) - losses[1]) / np.abs(losses[1])
        furthest = np.abs(a - b).max() / np.abs(b).max()
        print(json.dumps({"losses": float(apart.max()), "parameters": float(furthest)}))


if __name__ == "__main__":
    if sys.argv[1] == "timed":
        time_training(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        equal(Path(sys.argv[2]))
