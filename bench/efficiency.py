"""What part of a machine's limits the kernels reach: the table of kernels/cost.py.

python -m bench.efficiency [WORKLOAD ...]

Profiles a training step of each workload, and prints for each kernel template how often it ran,
the milliseconds, and the limit of kernels/cost.py over the time; then, for each workload, the time
of a step as the table now says it, and as it was.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module
from engine.kernels.cost import begin, limits, step_seconds
from engine.kernels.work import tasks
from engine.profiling import Profile
from engine.runtime.plan import Plan
from engine.tools.workloads import WORKLOADS

THREADS, REPEATS = 2, 10
NAMES = ("mobilenet", "resnet18", "minilm", "vit")


def profiled(name: str) -> tuple[Plan, Profile]:
    """The plan of a workload's training step, and a profile of it."""
    with tempfile.TemporaryDirectory() as made:
        folder = WORKLOADS[name].write(Path(made))
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, threads=THREADS)
        batch = np.load(folder / "batch.npz")
        x, y = batch["x"], batch["y"]
        return module.plan(x.shape, y.shape), module.profile(x, y, repeats=REPEATS)


def main() -> None:
    """Print a row a kernel template, then a row a workload."""
    counts: dict[str, int] = defaultdict(int)
    least: dict[str, float] = defaultdict(float)
    taken: dict[str, float] = defaultdict(float)
    rows = []
    for name in sys.argv[1:] or NAMES:
        plan, profile = profiled(name)
        calls = tasks(plan)
        bounds = list(limits([*calls, *calls], plan.threads, profile.roofline))[len(calls) :]
        for task, bound, step in zip(calls, bounds, profile.steps, strict=True):
            template = task.spec.template
            counts[template] += 1
            least[template] += bound
            taken[template] += max(step.seconds - begin(task, plan.threads), 0.0)
        measured = sum(step.seconds for step in profile.steps)
        told = sum(step_seconds(plan, profile.roofline))
        usual = sum(step_seconds(plan))
        rows.append(
            f"{name:12} {1e3 * told:8.2f} ms predicted  {1e3 * usual:8.2f} by the nominal machine  "
            f"{1e3 * measured:8.2f} measured"
        )
    for template in sorted(taken, key=lambda t: -taken[t]):
        part = least[template] / taken[template] if taken[template] else 1.0
        print(
            f"{template:24} {counts[template]:5} steps  {1e3 * taken[template]:8.2f} ms  {part:.2f}"
        )
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
