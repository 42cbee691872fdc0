"""Train a golden model for a few steps, and print the results as a line of JSON.

    python train_steps.py FOLDER [LEVEL]

FOLDER has artifacts, and trace.npz with batches.  Needs NumPy and an installed wheel of edgegrad.
With a LEVEL kernels are compiled here for that level, instead of the shipped ones.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from engine.kernels.binaries import source
from engine.kernels.machine.levels import LEVELS

STEPS, THREADS = 3, 2
HEAVY = {"flatbuffers", "llvmlite", "numba", "onnx", "tqdm"}


def main(folder: Path, level: str) -> None:
    if level:
        (chosen,) = (v for v in LEVELS if v.name == level)
        compiled = source.KernelSet("compiled here", chosen.make_target())
        source.choose_current = lambda *prepared: compiled
    batches = np.load(folder / "trace.npz")
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=THREADS
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    losses = []
    for step in range(STEPS):
        losses.append(float(module(batches["x"][step], batches["y"][step])))
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()
    losses.append(float(module(batches["x"][0], batches["y"][0])))
    trained = np.asarray(module.get_contiguous_parameters())
    kernels = module.plan(batches["x"][0].shape, batches["y"][0].shape).target
    CheckpointState.save_checkpoint(state, folder / "trained", include_optimizer_state=True)
    print(
        json.dumps(
            {
                "losses": losses,
                "parameters": hashlib.sha256(trained.tobytes()).hexdigest(),
                "saved": hashlib.sha256((folder / "trained").read_bytes()).hexdigest(),
                "kernels": kernels,
                "imported": sorted(HEAVY & set(sys.modules)),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), "".join(sys.argv[2:]))
