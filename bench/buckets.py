"""Buckets of gradients: a step of one rank as its network is faster or slower.

The other ranks are not there: a sum takes the time that a ring of ranks needs for it on a link of
some rate, one bucket after another, while this rank computes; small sums that it waits for pass
them by.  So the figures tell what overlapping hides, on an idle machine, and nothing of MPI.  A row
for each link and size of buckets: the median step in ms, the buckets, and the part of the sums'
time that the step does not wait for.  Rows "local" leave the statistics of batch normalisations to
each rank.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from bench.measuring import time_in_turns
from bench.programs import written
from bench.rows import Bench, Cells, Option
from engine.api import CheckpointState, Module, Optimizer
from engine.graphs.offline import rank_graphs as ranked
from engine.plan.collective import list_collectives
from engine.tools.benchmark.workloads import WORKLOADS
from engine.training.joined import JoinedStep
from engine.training.membership import Membership

THREADS = 2
NAMES = ("cnn", "mobilenet")
LINKS = {"1 Gbit/s": (ranked.ALPHA, ranked.RATE), "100 Mbit/s": (ranked.ALPHA, ranked.RATE / 10)}
SIZES = {"one bucket": 1 << 40, "4 MB": 4 << 20, "1 MB": 1 << 20, "256 kB": 1 << 18}


class Link:
    """Group whose sums change nothing and take the time of a ring.

    seconds: the seconds of all sums so far.  waited: the part of it that this rank has waited.
    """

    rank = 0

    def __init__(self, size: int, alpha: float, rate: float) -> None:
        self.size, self._alpha, self._rate = size, alpha, rate
        self.seconds = self.waited = self._free = 0.0

    def _measure_sum(self, array: np.ndarray[Any, Any]) -> float:
        """Return the seconds of a sum."""
        took = 2 * (self.size - 1) * (self._alpha + array.nbytes / self.size / self._rate)
        self.seconds += took
        return took

    def start_sum(self, array: np.ndarray[Any, Any]) -> Sum:
        self._free = max(self._free, time.perf_counter()) + self._measure_sum(array)
        return Sum(self, self._free)

    def sum(self, array: np.ndarray[Any, Any]) -> None:
        Sum(self, time.perf_counter() + self._measure_sum(array)).wait()


class Sum:
    """Sum on a link, complete at a time of the clock."""

    def __init__(self, link: Link, there: float) -> None:
        self._link, self._there = link, there

    def wait(self) -> None:
        begin = time.perf_counter()
        time.sleep(max(self._there - begin, 0))
        self._link.waited += time.perf_counter() - begin


class Rank:
    """Rank that trains a workload over a link, with buckets of about a number of bytes."""

    def __init__(self, name: str, folder: Path, link: Link, bucket: int, statistics: bool) -> None:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        ranks: Any = Membership(link, statistics=statistics)  # type: ignore[arg-type]  # sums alone
        module = Module(folder / "training_model.onnx", state, threads=THREADS, ranks=ranks)
        module.session.training.records = None  # which do not know of other sizes of buckets
        self._step = JoinedStep(module, Optimizer(folder / "optimizer_model.onnx", module))
        batch = np.load(folder / "batch.npz")
        self._arrays, self.link = (batch["x"], batch["y"]), link
        with mock.patch.multiple(ranked, LEAST=bucket, MOST=bucket):
            self.run()
        plan = module.plans()[0]
        self.buckets = sum(each.kind == "start" for each in list_collectives(plan))

    def run(self) -> None:
        """Take a step."""
        self._step.run(self._arrays, check_finite=False)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each link and size of buckets; all take turns."""
    with written(name) as folder:
        ranks = {
            (link, f"{size}{'' if joint else ', local'}"): Rank(
                name, folder, Link(options.ranks, *LINKS[link]), bucket, joint
            )
            for link in options.link
            for size, bucket in SIZES.items()
            for joint in ((True, False) if size == "1 MB" else (True,))
        }
        for rank in ranks.values():
            rank.link.seconds = rank.link.waited = 0.0
        calls = {f"{link} {size}": rank.run for (link, size), rank in ranks.items()}
        times = time_in_turns(calls, options.turns, warm_up=0)
    for ((link, size), rank), timings in zip(ranks.items(), times.values(), strict=True):
        sums = 1e3 * rank.link.seconds / options.turns
        hidden = 100 * (1 - min(rank.link.waited / rank.link.seconds, 1))
        yield link, size, rank.buckets, 1e3 * median(timings), sums, hidden


BENCHES = (
    Bench(
        "buckets",
        "a step of one rank as its network is faster or slower, simulated",
        {name: name for name in WORKLOADS},
        ("link", "buckets of", "buckets", "step, ms:.1f", "sums, ms:.1f", "% hidden:.0f"),
        measure,
        usual=NAMES,
        options=(
            Option("turns", 12, "steps of each row"),
            Option("ranks", 4, "how many there are"),
            Option("link", tuple(LINKS), "rates of the network"),
        ),
    ),
)
