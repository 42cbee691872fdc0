"""Some training steps of artifacts; prints the losses, and what memory this process has, as JSON.

python frozen.py FOLDER STEPS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module, Optimizer


def main(folder: Path, steps: int) -> None:
    """Train on one thread."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=1)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    batch = np.load(folder / "batch.npz")
    losses = []
    for _ in range(steps):
        module.lazy_reset_grad()
        losses.append(float(module(batch["x"], batch["y"])))
        optimizer.step()
    status = Path("/proc/self/status").read_text("utf-8")
    held = {
        name: int(status.partition(f"\n{name}:")[2].split()[0]) * 1024
        for name in ("RssAnon", "RssFile", "VmHWM")
    }
    print(json.dumps({"losses": losses, "memory": held}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
