"""The engine and a trimmed build, which train side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from engine.base.plan_options import Precision
from tests.support.builds import load
from tests.support.builds import make_build as built
from tests.support.places import GOLDENS


class Both:
    """The engine and a build of the same golden, from the same checkpoint."""

    def __init__(
        self,
        case: str,
        threads: int = 1,
        folder: Path | None = None,
        made: Path | None = None,
        precision: Precision = "f32",
        copies: int = 1,
    ) -> None:
        self.trace = np.load(GOLDENS / case / "trace.npz")
        self.copies = copies  # of each sample in a batch: small values stay float32
        folder = folder or GOLDENS / case
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(
            folder / "training_model.onnx",
            self.state,
            folder / "eval_model.onnx",
            threads=threads,
            precision=precision,
        )
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.face = load(made or built(case, threads))
        self.trainer = self.face.Trainer(folder / "checkpoint")

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = (np.repeat(self.trace[name][k], self.copies, axis=0) for name in "xy")
        return x, y

    def step(self, k: int) -> tuple[Any, Any]:
        rate = float(self.trace["learning_rates"][k])
        for optimizer in (self.optimizer, self.trainer.optimizer):
            optimizer.set_learning_rate(rate)
        expected = self.module.train()(*self.batch(k))
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return self.trainer.step(*self.batch(k)), expected

    def assert_equal(self) -> None:
        for name, p in self.state.parameters:
            mine = self.trainer.state.parameters[name]
            np.testing.assert_array_equal(mine.data, p.data, err_msg=name)
            np.testing.assert_array_equal(mine.grad, p.grad, err_msg=name)
