"""Some training steps of artifacts, and the memory of the process that runs them.

python -m bench.frozen_steps FOLDER
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module, Optimizer

STEPS = 3


def memory() -> dict[str, float]:
    """MiB of this process: anonymous, of files, and the peak of both."""
    text = Path("/proc/self/status").read_text()
    found = {k: int(v) / 1024 for k, v in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    return {"anonymous": found["RssAnon"], "file": found["RssFile"], "peak": found["VmHWM"]}


def train(folder: Path) -> None:
    """Train some steps, and print the memory of this process."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=1)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    batch = np.load(folder / "batch.npz")
    losses = []
    for _ in range(STEPS):
        module.lazy_reset_grad()
        losses.append(float(module(batch["x"], batch["y"])))
        optimizer.step()
    (plan,) = [p for p in module.plans() if p.name == "training_model"]
    regions = {n: round(size / 2**20, 1) for n, size in plan.regions}
    text = "  ".join(f"{name} {size:.0f}" for name, size in memory().items())
    print(f"{text} MiB  losses {losses[0]:.4f} {losses[-1]:.4f}  plan {regions}")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
