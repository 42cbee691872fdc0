"""Training steps of a folder of artifacts, by the engine that is on the path.

    python steps.py FOLDER THREADS [PRECISION]

Every line on standard input is a number of steps, and is answered by `done`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from engine.api import CheckpointState, Module, Optimizer


def main(folder: Path, threads: int, precision: Any = "f32") -> None:
    """Serve steps until standard input ends."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    model = folder / "training_model.onnx"
    # Checkouts that know no precision compare by this script, too.
    options = {} if precision == "f32" else {"precision": precision}
    module = Module(model, state, threads=threads, **options)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    batch = np.load(folder / "batch.npz")
    x, y = batch["x"], batch["y"]
    for line in sys.stdin:
        for _ in range(int(line)):
            module(x, y)
            optimizer.step()
            module.lazy_reset_grad()
        print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
