"""Programs for benches: plans of graphs bound to memory, and training steps of workloads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from engine.base.plan_options import PlanOptions, Precision
from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.flops import measure_work
from engine.kernels.binaries.load import get_addresses
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.tools.benchmark.workloads import WORKLOADS


def bind(plan: Plan) -> BoundProgram:
    """Return a plan bound to memory of its own."""
    return BoundProgram(plan, get_addresses, {"work": allocate(plan.compute_region_bytes("work"))})


def load(
    graph: Graph,
    threads: int = 1,
    inputs: Mapping[str, np.ndarray] | None = None,
    precision: Precision = "f32",
) -> BoundProgram:
    """Plan a graph and bind it, with its inputs in place: those given, or random ones."""
    shapes = {name: array.shape for name, array in (inputs or {}).items()}
    options = PlanOptions(precision=precision)
    program = bind(make_plan(graph, shapes, target=detect_host(), threads=threads, options=options))
    rng = np.random.default_rng(0)
    for name, array in program.inputs.items():
        if inputs is not None:
            array[...] = inputs[name]
        elif array.dtype == np.uint8:
            array[...] = rng.integers(0, 256, array.shape)
        elif array.dtype == np.float32:
            array[...] = rng.standard_normal(array.shape)
    return program


def count_operations(program: BoundProgram) -> int:
    """Return the floating-point operations of a run."""
    return sum(step.flops for step in measure_work(program.plan))


@contextmanager
def written(name: str, batch: int = 0) -> Iterator[Path]:
    """Yield a folder with the artifacts of a workload and a batch, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        yield WORKLOADS[name].write(Path(folder), batch)


class Training:
    """Training steps of a folder of artifacts: forward, backward and update."""

    def __init__(
        self,
        folder: Path,
        threads: int,
        *,
        evaluates: bool = False,
        precision: Precision = "f32",
    ) -> None:
        evaluation = folder / "eval_model.onnx" if evaluates else None
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(
            folder / "training_model.onnx",
            self.state,
            evaluation,
            threads=threads,
            precision=precision,
        )
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        with np.load(folder / "batch.npz") as batch:
            self.x, self.y = batch["x"], batch["y"]

    def step(self) -> float:
        """Take a step; return the loss."""
        loss = self.module(self.x, self.y)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return float(np.reshape(loss, ()))
