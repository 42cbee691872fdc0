"""Training steps of artifacts; prints the most bytes of this process, the median seconds, and
how many of these bytes are from the training itself.

python peak.py FOLDER THREADS STEPS [BUDGET]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from engine import Trainer
from engine.trainer.reports.process import measure_peak


def main(folder: Path, threads: int, steps: int, budget: str | None) -> None:
    """Train, and print a list of JSON."""
    with np.load(folder / "batch.npz") as file:
        batch = file["x"], file["y"]
    before = measure_peak()
    trainer = Trainer(folder, threads=threads, memory_budget=budget)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        trainer.step(*batch)
        times.append(time.perf_counter() - start)
    print(json.dumps([peak := measure_peak(), sorted(times)[len(times) // 2], peak - before]))


if __name__ == "__main__":
    given = sys.argv[4] if len(sys.argv) > 4 else None
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), given)
