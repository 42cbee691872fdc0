"""Efficiency of kernels relative to the machine: the table in kernels/analysis/efficiency.txt.

A training step of each workload is profiled on 2 threads, in every precision.

efficiency           for each kernel template how often it ran, the milliseconds, and the limit of
                     kernels/analysis/cost.py over the time; `usual` is of all usual workloads,
                     and `--page` writes the table, which plans then use
efficiency.workload  the time of a step as the table now says it, by this machine and by the nominal
                     one, and as it was
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product, starmap
from pathlib import Path

from bench.programs import Training, written
from bench.rows import Bench, Cells
from engine.base.plan_options import PRECISIONS, Precision
from engine.errors import InputError
from engine.kernels.analysis.cost import begin, predict_limits, predict_steps
from engine.kernels.analysis.flops import list_tasks
from engine.plan.plan import Plan
from engine.profiling import Profile
from engine.tools.benchmark.workloads import WORKLOADS

THREADS, REPEATS = 2, 10
LEAST = 0.01  # the least part that the table holds
NAMES = ("mobilenet", "resnet18", "minilm", "vit")


def profile_workload(name: str, precision: Precision) -> tuple[Plan, Profile]:
    """Return the plan of a workload's training step, and a profile of it."""
    with written(name) as folder:
        made = Training(folder, THREADS, precision=precision)
        plan = made.module.plan(made.x.shape, made.y.shape)
        return plan, made.module.profile(made.x, made.y, repeats=REPEATS)


def measure(names: Sequence[str], _: Namespace) -> Iterator[Cells]:
    """Yield a row a kernel template, the one that takes longest first."""
    counts: dict[str, int] = defaultdict(int)
    least: dict[str, float] = defaultdict(float)
    taken: dict[str, float] = defaultdict(float)
    for plan, profile in starmap(profile_workload, product(names, PRECISIONS)):
        calls = list_tasks(plan)
        bounds = list(predict_limits([*calls, *calls], plan.threads, profile.roofline))[
            len(calls) :
        ]
        for task, bound, step in zip(calls, bounds, profile.steps, strict=True):
            template = task.spec.template
            counts[template] += 1
            least[template] += bound
            taken[template] += max(step.seconds - begin(task, plan.threads), 0.0)
    for template in sorted(taken, key=lambda t: -taken[t]):
        part = least[template] / taken[template] if taken[template] else 1.0
        yield template, counts[template], 1e3 * taken[template], part


def write_table(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Write the table that the cost model reads: what the usual workloads together reach.

    Raises:
        InputError: other subjects were measured.
    """
    if found.keys() != {"usual"}:
        raise InputError(f"--page needs the subject usual alone, got {', '.join(found)}")
    parts = sorted((str(row[0]), float(str(row[3]))) for row in found["usual"])
    lines = [f"{template} {max(part, LEAST):.2f}\n" for template, part in parts]
    path.write_text("".join(lines), "utf-8")


def measure_workload(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row a precision of a workload."""
    for precision in PRECISIONS:
        plan, profile = profile_workload(name, precision)
        told = sum(predict_steps(plan, profile.roofline)), sum(predict_steps(plan))
        taken = sum(step.seconds for step in profile.steps)
        yield precision, *(1e3 * s for s in told), 1e3 * taken


BENCHES = (
    Bench(
        "efficiency",
        "what part of a machine's limits each kernel template reaches",
        {"usual": NAMES} | {name: (name,) for name in WORKLOADS},
        ("template", "steps", "ms:.2f", "limit / time:.2f"),
        measure,
        usual=("usual",),
        small="mlp",
        page=write_table,
        document="kernels/analysis/efficiency.txt",
    ),
    Bench(
        "efficiency.workload",
        "the time of a step as kernels/analysis/cost.py predicts it, and as it was",
        {name: name for name in WORKLOADS},
        ("precision", "predicted ms:.2f", "by the nominal machine:.2f", "measured ms:.2f"),
        measure_workload,
        usual=NAMES,
        small="mlp",
    ),
)
