"""Balance of a training step over more threads than this machine has cores: a model.

Plans for so many threads run here, and each thread's own processor time is taken for each step, so
that it does not matter how many of them run at once.  Between two barriers the busiest thread
decides: `busiest / mean` is the sum of the busiest ones by the sum of the means.  `work` is the
processor time of all threads by the time of a plan for one thread: the cost of sharing.  `speed-up`
is the result for a machine with as many cores, if barriers cost nothing and memory is not a limit:
`edgegrad bench --threads` adds both (engine/profiling/scaling.py).
`serial` is the share of the work in steps that one thread does alone.

`balance.kernels` has the kernels that lose most by imbalance: their share of the loss, and on how
many threads their steps put work, at most.  Times carry this machine's noise: shares of
some microseconds are uneven by chance.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.programs import Training, written
from bench.rows import Bench, Cells, Option
from engine.profiling.scaling import REPEATS, list_stretches
from engine.profiling.times import StepTime
from engine.tools.benchmark.workloads import WORKLOADS

NAMES = ("mobilenet", "minilm", "resnet18")
THREADS = (2, 4, 8, 16)
IDLE = 0.02  # a thread that does less of the busiest one's work only looks whether it has some


@dataclass(frozen=True)
class Loss:
    """Losses of the steps of one kernel by imbalance, in seconds, and their busy threads."""

    kernel: str
    seconds: float
    threads: int


@dataclass(frozen=True)
class Balance:
    """Balance of the steps of a plan.

    work: processor time of all threads.
    busiest: the sum of the busiest thread's time between barriers.
    serial: processor time of steps that one thread does alone.
    """

    threads: int
    work: float
    busiest: float
    serial: float
    barriers: int
    losses: tuple[Loss, ...]

    @property
    def ratio(self) -> float:
        """Busiest thread by the mean; 1 is even."""
        return self.busiest * self.threads / self.work


def balance(steps: Sequence[StepTime]) -> Balance:
    """Return the balance of steps, by their busy times."""
    threads = len(steps[0].busy)
    busiest = serial = 0.0
    lost: dict[str, float] = defaultdict(float)
    most: dict[str, int] = defaultdict(int)
    parts = list(list_stretches(steps))
    for part in parts:
        busiest += float(np.sum([s.busy for s in part], axis=0).max())
        for step in part:
            busy = np.array(step.busy)
            active = int((busy > IDLE * busy.max()).sum())
            lost[step.kernel] += float(busy.max() - busy.mean())
            most[step.kernel] = max(most[step.kernel], active)
            serial += float(busy.sum()) if active <= 1 else 0.0
    order = sorted(lost, key=lambda kernel: -lost[kernel])
    return Balance(
        threads,
        sum(sum(step.busy) for step in steps),
        busiest,
        serial,
        len(parts),
        tuple(Loss(kernel, lost[kernel], most[kernel]) for kernel in order),
    )


def measure_workload(folder: Path, threads: int) -> Balance:
    """Return the balance of the training step of artifacts, whose folder has a batch."""
    made = Training(folder, threads)
    profile = made.module.profile(
        made.x, made.y, optimizer=made.optimizer, repeats=REPEATS, processor_time=True
    )
    return balance(profile.steps)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    with written(name) as folder:
        alone = measure_workload(folder, 1)
        for threads in options.threads:
            shared = measure_workload(folder, threads)
            serial = 100 * shared.serial / shared.work
            work, speed_up = shared.work / alone.work, alone.work / shared.busiest
            yield threads, shared.barriers, work, shared.ratio, serial, speed_up


def measure_kernels(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the kernels that lose most, for each number of threads."""
    with written(name) as folder:
        for threads in options.threads:
            losses = measure_workload(folder, threads).losses
            total = sum(loss.seconds for loss in losses)
            for loss in losses[: options.kernels]:
                yield threads, loss.kernel, 100 * loss.seconds / total, loss.threads


SHARED = Option("threads", THREADS, "numbers of threads, more than the machine has cores")
BENCHES = (
    Bench(
        "balance",
        "how evenly more threads than this machine has cores share a step: a model",
        {name: name for name in WORKLOADS},
        ("threads", "barriers", "work:.2f", "busiest / mean:.2f", "% serial:.1f", "speed-up:.1f"),
        measure,
        usual=NAMES,
        options=(SHARED,),
        small="mlp --threads 2",
    ),
    Bench(
        "balance.kernels",
        "the kernels that lose most by imbalance",
        {name: name for name in WORKLOADS},
        ("threads", "kernel", "% of the loss:.0f", "on threads"),
        measure_kernels,
        usual=NAMES,
        options=(SHARED, Option("kernels", 8, "how many")),
    ),
)
