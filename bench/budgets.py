"""What a budget costs: work memory and time of training steps as budgets shrink.

python -m bench.budgets [--turns N] [WORKLOAD ...]
python -m bench.budgets --planning [WORKLOAD ...]

A row for each workload and budget: the bytes of region work that the budget leaves, in percent of
what the plan without one takes; the work bytes of the plan that was taken; by how much the cost
model says that a step, update included, is longer than without a budget, and by how much it was:
the medians of turns in which all plans run one after another.  The last row is the smallest
budget that is enough.  The time of planning is that of all rungs, on one core.

With --planning nothing runs: a row has the seconds of processor time that all rungs took, and the
work bytes and predicted times of plans within 70 % and 50 % and of the smallest one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.deep import MODELS
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import BudgetError
from engine.kernels.cost import step_seconds
from engine.runtime.plan import CHECK, COUNT, RATE, Plan
from engine.runtime.program import Program
from engine.training.planning import Update

THREADS = 2
NAMES = ("mobilenet", "resnet18", "minilm", "vit")
DEEP = ("convnext", "encoder24", "resnet101", "efficientnet", "unet", "bilstm")
PLENTY = 1 << 50  # bytes: what no plan needs
PERCENT = (100, 70, 50, 35, 30)


class Trained:
    """The training step of a workload as one plan, planned within budgets."""

    def __init__(self, name: str, folder: Path) -> None:
        MODELS[name].write(folder)
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(folder / "training_model.onnx", self.state, threads=THREADS)
        self.model = self.module._train
        optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.update = Update(optimizer._model, optimizer.layout())
        batch = np.load(folder / "batch.npz")
        self.batch = dict(zip(self.model.inputs, (batch["x"], batch["y"]), strict=True))
        self.free = self.plan(PLENTY)
        begin = time.process_time()
        try:
            self.plan(1)
        except BudgetError as error:
            self.least = error.least
        self.seconds = time.process_time() - begin

    def plan(self, budget: int) -> Plan:
        """The plan within a budget of bytes for all regions."""
        self.model.memory.budget = budget
        shapes = {name: value.shape for name, value in self.batch.items()}
        return self.model.plan(shapes, update=self.update)

    def plans(self) -> dict[str, Plan]:
        """The plans of all budgets that are enough, by the work bytes these leave."""
        work = self.free.region_bytes("work")
        others = self.free.nbytes - work
        found = {}
        for percent in PERCENT:
            budget = others + work * percent // 100
            if budget >= self.least:
                found[f"{percent} %"] = self.plan(budget)
        return found | {"smallest": self.plan(self.least)}

    def program(self, plan: Plan) -> Program:
        """A plan ready to run on the batch."""
        program = self.model.load(plan)
        given = {**self.batch, RATE: 1e-4, COUNT: 1, CHECK: False}
        for name, value in program.inputs.items():
            value[...] = given.get(name, 0)
        return program


def report(name: str, turns: int) -> None:
    """Print the rows of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        one = Trained(name, Path(folder))
        plans = one.plans()
        distinct = {str(plan.regions): one.program(plan) for plan in plans.values()}
        took: dict[str, list[float]] = {key: [] for key in distinct}
        for _ in range(turns + 1):
            for key, program in distinct.items():
                begin = time.perf_counter()
                program.run(0, 0)
                took[key].append(time.perf_counter() - begin)
        base = [t for t in took[str(one.free.regions)][1:]]
        told = sum(step_seconds(one.free))
        print(f"{name}: ladder in {one.seconds:.1f} s, step {1e3 * statistics.median(base):.1f} ms")
        for title, plan in plans.items():
            work = plan.region_bytes("work")
            share = work / one.free.region_bytes("work")
            ratios = [a / b for a, b in zip(took[str(plan.regions)][1:], base, strict=True)]
            print(
                f"  {title:9} work {work / 1e6:7.1f} MB ({share:4.0%})"
                f"  predicted {sum(step_seconds(plan)) / told - 1:+6.1%}"
                f"  measured {statistics.median(ratios) - 1:+6.1%}"
            )


def planned(name: str) -> None:
    """Print what planning a workload within budgets takes and gives."""
    with tempfile.TemporaryDirectory() as folder:
        one = Trained(name, Path(folder))
        work, told = one.free.region_bytes("work"), sum(step_seconds(one.free))
        print(f"{name:14}{len(one.free.steps):6} steps  ladder {one.seconds:6.1f} s of CPU", end="")
        for title, plan in one.plans().items():
            if title in ("70 %", "50 %", "smallest"):
                share, longer = plan.region_bytes("work") / work, sum(step_seconds(plan)) / told - 1
                print(f"  {title}: {share:.1%} in {longer:+.1%}", end="")
        print(flush=True)


def main() -> None:
    """Print the rows of all workloads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--planning", action="store_true")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    for name in options.workloads or (DEEP if options.planning else NAMES):
        if options.planning:
            planned(name)
        else:
            report(name, options.turns)


if __name__ == "__main__":
    main()
