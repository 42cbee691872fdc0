"""From nothing to the first finished training step, as a user's program would get there.

python first_step.py ARTIFACTS      a folder with artifacts and batch.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module, Optimizer

folder = Path(sys.argv[1])
batch = np.load(folder / "batch.npz")
state = CheckpointState.load_checkpoint(folder / "checkpoint")
module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
optimizer = Optimizer(folder / "optimizer_model.onnx", module)
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    module(batch["x"], batch["y"])
    optimizer.step()
