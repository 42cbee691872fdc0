"""Work that kept plans spare: graphs read and plans made, counted; training of the mlp golden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import Planner
from engine.training import plan_cache
from tests.support.places import GOLDENS

MLP = GOLDENS / "mlp"
TRACE = np.load(MLP / "trace.npz")


class Work:
    """Counts what planning does, and keeps records in a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.read, self.planned, self.folder = 0, 0, folder
        monkeypatch.setattr(plan_cache, "find_folder", lambda: self.folder)
        load, plan = onnx_io.load, Planner.plan

        def count_load(*args: Any, **rest: Any) -> Any:
            self.read += 1
            return load(*args, **rest)

        def count_plan(planner: Planner, shapes: Any) -> Any:
            self.planned += 1
            return plan(planner, shapes)

        monkeypatch.setattr(onnx_io, "load", count_load)
        monkeypatch.setattr(Planner, "plan", count_plan)

    def of(self, call: Callable[[], Any]) -> tuple[int, int]:
        """Return how many graphs a call reads, and how many plans it makes."""
        before = self.read, self.planned
        call()
        return self.read - before[0], self.planned - before[1]

    def list_records(self) -> list[Path]:
        return sorted(self.folder.iterdir())


def train(folder: Path = MLP, threads: int = 1, rows: slice | None = None) -> np.ndarray:
    """The parameters after a step from a checkpoint, and an evaluation."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=threads
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    module(*(TRACE[name][0][rows or slice(None)] for name in ("x", "y")))
    optimizer.step()
    module.eval()(*(TRACE[name][0][rows or slice(None)] for name in ("x", "y")))
    return np.asarray(module.get_contiguous_parameters())


ALL = (3, 3)  # training, eval and optimizer model
NONE = (0, 0)
