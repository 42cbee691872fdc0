"""Trainings of the mlp golden."""

from __future__ import annotations

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from tests.support.places import GOLDENS

MLP = GOLDENS / "mlp"


class Training:
    """The mlp with some threads: state, module, optimizer and a batch."""

    def __init__(self, threads: int = 2) -> None:
        self.state = CheckpointState.load_checkpoint(MLP / "checkpoint")
        self.module = Module(
            MLP / "training_model.onnx", self.state, MLP / "eval_model.onnx", threads=threads
        )
        self.optimizer = Optimizer(MLP / "optimizer_model.onnx", self.module)
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((4, 64)).astype(np.float32)
        self.y = rng.integers(0, 10, 4)

    def step(self) -> float:
        """Train on the batch, and return its loss."""
        loss = float(self.module.train()(self.x, self.y))
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return loss

    def kept(self) -> bytes:
        """Parameters, gradients and optimizer state."""
        return b"".join(r.tobytes() for r in self.state.regions.values())


def run_step(_: int) -> float:
    """Return the loss of a training run of its own, as processes of a pool run it."""
    folder = GOLDENS / "mlp"
    with np.load(folder / "trace.npz") as trace:
        x, y = trace["x"][0], trace["y"][0]
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return float(Module(folder / "training_model.onnx", state, threads=2)(x, y))
