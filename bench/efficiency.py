"""Efficiency of kernels relative to the machine: the table in kernels/analysis/efficiency.txt.

A training step of each workload is profiled on 2 threads, in every precision.  A line of the table
is of the machine that measured it; each is a share of the limits of that machine.

efficiency           for each kernel template, and the type of 16 bits or fewer that it multiplies,
                     how often it ran, the milliseconds, and the limit of
                     kernels/analysis/cost.py over the time; `usual` is of all usual workloads,
                     and `--page` writes the table, which plans then use
efficiency.workload  the time of a step as the table now says it, by this machine and by the nominal
                     one, and as it was
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, starmap
from pathlib import Path

from bench.programs import Training, load, written
from bench.rows import Bench, Cells
from engine.base.plan_options import PRECISIONS, Precision
from engine.errors import InputError
from engine.kernels.analysis.cost import begin, name_row, predict_limits, predict_steps
from engine.kernels.analysis.flops import list_tasks
from engine.kernels.binaries.load import get_addresses
from engine.kernels.ops.recurrent import recurrent
from engine.plan.plan import Plan
from engine.profiling import Profile
from engine.profiling.measure import ProfiledProgram, measure_profile
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.recurrent import case

THREADS, REPEATS = 2, 10
LEAST = 0.01  # the least part that the table holds
NAMES = ("mobilenet", "resnet18", "minilm", "vit")
STEPS, HIDDEN = 100, 256  # of a recurrence
# The operator, the samples of a batch, attributes.  Threads share the units of one sample.
WALKS: Mapping[str, tuple[str, int, dict[str, int]]] = {
    "LSTM": ("LSTM", 32, {}),
    "LSTM-1": ("LSTM", 1, {}),
    "GRU": ("GRU", 32, {}),
    "GRU-after": ("GRU", 32, {"linear_before_reset": 1}),
    "RNN": ("RNN", 32, {}),
}


def profile_workload(name: str, precision: Precision) -> tuple[Plan, Profile]:
    """Return the plan of a workload's training step, and a profile of it."""
    with written(name) as folder:
        made = Training(folder, THREADS, precision=precision)
        plan = made.module.plan(made.x.shape, made.y.shape)
        return plan, made.module.profile(made.x, made.y, repeats=REPEATS)


def profile_walk(name: str, precision: Precision) -> tuple[Plan, Profile]:
    """Return the plan of a recurrence's output and gradients, and a profile of it."""
    kind, batch, attrs = WALKS[name]
    given = "bhc" if kind == "LSTM" else "bh"
    one = OneNode(case(kind, STEPS, batch, HIDDEN, HIDDEN, given, attrs=attrs, kept=(0,)))
    program = load(backward_of(one)[0], THREADS, one.inputs, precision)
    part = ProfiledProgram(name, program, lambda _: (0, None))
    return program.plan, measure_profile(name, [part], REPEATS, get_addresses)


def measure(names: Sequence[str], _: Namespace) -> Iterator[Cells]:
    """Yield a row a kernel template, the one that takes longest first."""
    return list_rows(starmap(profile_workload, product(names, PRECISIONS)))


def measure_walks(names: Sequence[str], _: Namespace) -> Iterator[Cells]:
    """Yield a row a template of a walk over time, the one that takes longest first."""
    walks = {template.name for template in recurrent.KERNELS if template.multiply_adds}
    rows = list_rows(starmap(profile_walk, product(names, PRECISIONS)))
    return (row for row in rows if str(row[0]).split(".")[0] in walks)


def list_rows(profiles: Iterable[tuple[Plan, Profile]]) -> Iterator[Cells]:
    """Yield the row of each kernel template, with its factors, of profiled plans."""
    counts: dict[str, int] = defaultdict(int)
    least: dict[str, float] = defaultdict(float)
    taken: dict[str, float] = defaultdict(float)
    for plan, profile in profiles:
        calls = list_tasks(plan)
        bounds = list(predict_limits([*calls, *calls], plan.threads, profile.roofline))[
            len(calls) :
        ]
        for task, bound, step in zip(calls, bounds, profile.steps, strict=True):
            name = name_row(task.spec)
            counts[name] += 1
            least[name] += bound
            taken[name] += max(step.seconds - begin(task, plan.threads), 0.0)
    for name in sorted(taken, key=lambda n: -taken[n]):
        part = least[name] / taken[name] if taken[name] else 1.0
        yield name, counts[name], 1e3 * taken[name], part


def write_table(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Write what was found into the table that the cost model reads; other lines stay.

    Raises:
        InputError: other subjects than the usual one were measured.
    """
    if found.keys() != {"usual"}:
        raise InputError(f"--page needs the subject usual alone, got {', '.join(found)}")
    lines = dict(line.split() for line in path.read_text("utf-8").splitlines())
    lines |= {str(row[0]): f"{max(float(str(row[3])), LEAST):.2f}" for row in found["usual"]}
    path.write_text("".join(f"{name} {lines[name]}\n" for name in sorted(lines)), "utf-8")


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
        "efficiency.walks",
        "what part of a machine's limits kernels that walk over time reach",
        {"usual": tuple(WALKS)} | {name: (name,) for name in WALKS},
        ("template", "steps", "ms:.2f", "limit / time:.2f"),
        measure_walks,
        usual=("usual",),
        small="RNN",
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
