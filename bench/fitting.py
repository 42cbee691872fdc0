"""Overhead of `Trainer.fit` beyond its steps, on the MLP at batch 64.

A bare loop of `trainer.step` over the same batches and a `fit` take turns; the ratio of each pair
is of processor time of one thread.  Where other load makes that too coarse, the second figure is
finer: the same two loops with steps that do nothing, whose difference is what `fit` adds to a
batch, as a share of a step.  `fit` runs as it does by default, with its reports, without a
validation or a folder.  Its fixed cost, of a run of one batch, is a row of its own.  The learning
rate is 0, so that all steps are alike.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from statistics import median
from typing import Any

from bench.measuring import time_call, time_rounds
from bench.programs import written
from bench.rows import Bench, Cells, Option
from engine import Trainer
from engine.data import Batches
from engine.data.samples import Batch, count_samples
from engine.tools.benchmark.workloads import WORKLOADS


class Fixed(Batches):
    """Batch, several times over."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch, self.count = batch, count
        self.batch_size = count_samples(batch)
        self.samples = count * self.batch_size

    def __len__(self) -> int:
        return self.count

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        return repeat(self.batch, self.count - start)


class Idle(Trainer):
    """Trainer whose steps do nothing."""

    def accumulate(self, *batch: Any) -> float:
        return 0.5

    def update(self) -> None:
        pass


def measure_pairs(
    trainer: Trainer, batch: Batch, batches: int, turns: int
) -> list[tuple[float, float]]:
    """Return the times of a bare loop and of a `fit`, in turns."""
    data = Fixed(batch, batches)

    def run_bare() -> None:
        for each in data.epoch():
            trainer.accumulate(*each)
            trainer.update()

    run_bare()
    trainer.fit(data)
    calls = run_bare, lambda: trainer.fit(data)
    clock = time.process_time
    return [(time_call(calls[0], clock), time_call(calls[1], clock)) for _ in range(turns)]


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    batch, batches = WORKLOADS[name].batch(), options.batches
    with written(name) as folder:
        trainer, idle = (kind(folder, threads=1, learning_rate=0.0) for kind in (Trainer, Idle))
        real = measure_pairs(trainer, batch, batches, options.rounds)
        empty = measure_pairs(idle, batch, 20 * batches, options.rounds)
        one = partial(trainer.fit, Fixed(batch, 1))
        fixed = min(time_rounds(one, options.rounds, 0, time.process_time))
    step = min(bare for bare, _ in real) / batches
    added = (min(f for _, f in empty) - min(b for b, _ in empty)) / (20 * batches)
    times = median(fitted / bare for bare, fitted in real)
    yield 1e3 * step, times, 1e6 * added, 100 * added / step, 1e3 * fixed


BENCHES = (
    Bench(
        "fitting",
        "what `Trainer.fit` costs beyond the steps it makes, on one thread",
        {name: name for name in WORKLOADS},
        ("step ms:.3f", "fit / bare loop:.3f", "us added to a batch:.2f", "% of a step:.2f",
         "ms of a fit of one batch:.2f"),
        measure,
        usual=("mlp",),
        options=(Option("rounds", 15, "turns"), Option("batches", 1000, "steps of a turn")),
        small="mlp --rounds 1 --batches 2",
    ),
)  # fmt: skip
