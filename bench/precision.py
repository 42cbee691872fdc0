"""Training steps in 16 bits beside float32, and beside PyTorch's autocast, in turns.

Three processes a row take turns of `STEPS` steps of the same model on the same batch: our steps in
each precision, and autocast's by the Python of EDGEGRAD_BENCH_PEERS, if there is one.  Times are
medians, ratios medians over the turns: above 1 our 16 bits are faster.  With `--half f16` they
are float16, and autocast is left out.  Memory is the work memory
of our plans.

precision.memory has the work memory of the plans alone, which is exact on a busy machine.

precision.auto asks of every workload what the precision "auto" takes, and what that costs: the
time of float32 over bfloat16's as predicted and as it was, and the time of the one that is chosen
over float32's, which is 1 where float32 is.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.compare import STEPS
from bench.measuring import compare_medians
from bench.processes import SCRIPTS, time_workers
from bench.programs import Training, written
from bench.rows import THREADS, Bench, Cells, Option
from bench.steps import SCRIPT, find_peers
from engine.base.plan_options import Precision
from engine.kernels.analysis.cost import predict_steps
from engine.plan.plan import Plan
from engine.system.config import switch
from engine.tools.benchmark.workloads import WORKLOADS

AUTOCAST = "torch-bf16"
COMPARED: tuple[Precision, ...] = ("f32", "bf16")
PLANNED: tuple[Precision, ...] = ("f32", "bf16", "f16")


def measure_work(folder: Path, threads: int, precision: Precision) -> float:
    """Return the megabytes of work memory of a training step of artifacts."""
    made = Training(folder, threads, precision=precision)
    made.step()
    return max(plan.compute_region_bytes("work") for plan in made.module.plans()) / 1e6


def plan_step(folder: Path, threads: int, precision: Precision) -> Plan:
    """Return the plan of a training step of artifacts."""
    made = Training(folder, threads, precision=precision)
    return made.module.plan(made.x.shape, made.y.shape)


def measure_memory(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    with written(name) as folder:
        for threads in options.threads:
            single, *halves = (
                plan_step(folder, threads, p).compute_region_bytes("work") for p in PLANNED
            )
            yield (
                threads,
                single / 1e6,
                *(n for work in halves for n in (work / 1e6, work / single)),
            )


def time_steps(
    folder: Path,
    threads: int,
    steps: int,
    turns: int,
    others: Mapping[str, Sequence[Any]],
    precisions: Sequence[Precision] = COMPARED,
) -> dict[str, list[float]]:
    """Return the seconds of steps in the precisions, and by other commands, turn by turn."""
    commands: dict[str, Sequence[Any]] = {
        p: [sys.executable, SCRIPTS / "steps.py", folder, threads, p] for p in precisions
    }
    commands.update(others)
    return time_workers(commands, turns, folder, count=steps)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    steps, python, half = STEPS.get(name, 5), switch("BENCH_PEERS"), options.half
    is_beside = half == "bf16" and bool(python and find_peers([python], [AUTOCAST]))
    with written(name) as folder:
        for threads in options.threads:
            others = dict[str, Sequence[Any]]()
            if is_beside:
                others[AUTOCAST] = [python, SCRIPT, AUTOCAST, name, folder, threads]
            times = time_steps(folder, threads, steps, options.turns, others, ("f32", half))
            took = {side: 1e3 * median(each) for side, each in times.items()}
            work = [measure_work(folder, threads, p) for p in ("f32", half)]
            peer: tuple[float | None, float | None] = (None, None)
            if is_beside:
                peer = took[AUTOCAST], compare_medians(times[AUTOCAST], times[half])
            gained = compare_medians(times["f32"], times[half])
            yield threads, took["f32"], took[half], gained, *peer, *work, work[1] / work[0]


def measure_choice(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    with written(name) as folder:
        for threads in options.threads:
            single, half = plans = [plan_step(folder, threads, p) for p in COMPARED]
            chosen = COMPARED[plans.index(plan_step(folder, threads, "auto"))]
            told = sum(predict_steps(single)) / sum(predict_steps(half))
            times = time_steps(folder, threads, STEPS.get(name, 5), options.turns, {})
            gained = compare_medians(times["f32"], times["bf16"])
            cost = compare_medians(times[chosen], times["f32"])
            yield threads, chosen, told, gained, cost


BENCHES = (
    Bench(
        "precision",
        "training steps in 16 bits beside float32 and autocast, in turns",
        {name: name for name in WORKLOADS},
        (
            "threads", "f32 ms:.2f", "half ms:.2f", "f32 / half:.2f", "autocast ms:.2f",
            "autocast / half:.2f", "f32 MB:.1f", "half MB:.1f", "MB ratio:.2f",
        ),
        measure,
        usual=("minilm", "vit", "gpt2", "resnet18"),
        options=(
            THREADS, Option("turns", 9, "turns of each"),
            Option("half", "bf16", "the type of 16 bits: bf16 or f16"),
        ),
        small="mlp --turns 1 --threads 1",
    ),
    Bench(
        "precision.memory",
        "the work memory of training steps by precision; nothing is timed",
        {name: name for name in WORKLOADS},
        (
            "threads", "f32 MB:.1f", "bf16 MB:.1f", "bf16 / f32:.3f", "f16 MB:.1f",
            "f16 / f32:.3f",
        ),
        measure_memory,
        options=(THREADS,),
        small="mlp --threads 1",
    ),
    Bench(
        "precision.auto",
        "the precision that auto takes, and what it costs beside float32",
        {name: name for name in WORKLOADS},
        (
            "threads", "auto", "f32 / bf16, predicted:.3f", "f32 / bf16, measured:.3f",
            "auto / f32, measured:.3f",
        ),
        measure_choice,
        options=(THREADS, Option("turns", 9, "turns of each")),
        small="mlp --turns 1 --threads 1",
    ),
)  # fmt: skip
