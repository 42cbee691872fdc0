"""Buckets of gradients: a step of one rank as its network is faster or slower.

python -m bench.buckets [--turns N] [--ranks N] [--link LINK] [WORKLOAD ...]

The other ranks are not there: a sum takes the time that a ring of ranks needs for it on a link of
some rate, one bucket after another, while this rank computes; small sums that it waits for pass
them by.  So the figures tell what overlapping hides, on an idle machine, and nothing of MPI.  A row
for each link and size of buckets: the median step in ms, the buckets, and the part of the sums'
time that the step does not wait for.  Rows "local" leave the statistics of batch normalisations to
each rank.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from engine.graphs.offline import ranks as ranked
from engine.runtime.collective import collectives
from engine.tools.workloads import WORKLOADS
from engine.training.joined import JoinedStep
from engine.training.ranks import Ranks

THREADS = 2
NAMES = ("cnn", "mobilenet")
LINKS = {"1 Gbit/s": (ranked.ALPHA, ranked.RATE), "100 Mbit/s": (ranked.ALPHA, ranked.RATE / 10)}
SIZES = {"one bucket": 1 << 40, "4 MB": 4 << 20, "1 MB": 1 << 20, "256 kB": 1 << 18}


class Link:
    """A group whose sums change nothing and take the time of a ring.

    seconds: of all sums so far.  waited: of it, what this rank has waited for.
    """

    rank = 0

    def __init__(self, size: int, alpha: float, rate: float) -> None:
        self.size, self._alpha, self._rate = size, alpha, rate
        self.seconds = self.waited = self._free = 0.0

    def _took(self, array: np.ndarray[Any, Any]) -> float:
        """The seconds of a sum."""
        took = 2 * (self.size - 1) * (self._alpha + array.nbytes / self.size / self._rate)
        self.seconds += took
        return took

    def start_sum(self, array: np.ndarray[Any, Any]) -> Sum:
        self._free = max(self._free, time.perf_counter()) + self._took(array)
        return Sum(self, self._free)

    def sum(self, array: np.ndarray[Any, Any]) -> None:
        Sum(self, time.perf_counter() + self._took(array)).wait()


class Sum:
    """A sum on a link, which is there at a time of the clock."""

    def __init__(self, link: Link, there: float) -> None:
        self._link, self._there = link, there

    def wait(self) -> None:
        begin = time.perf_counter()
        time.sleep(max(self._there - begin, 0))
        self._link.waited += time.perf_counter() - begin


class Rank:
    """One rank that trains a workload over a link, with buckets of about a number of bytes."""

    def __init__(self, name: str, folder: Path, link: Link, bucket: int, statistics: bool) -> None:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        ranks: Any = Ranks(link, statistics=statistics)  # type: ignore[arg-type]  # sums alone
        module = Module(folder / "training_model.onnx", state, threads=THREADS, ranks=ranks)
        module._train.records = None  # which do not know of other sizes of buckets
        self._step = JoinedStep(module, Optimizer(folder / "optimizer_model.onnx", module))
        batch = np.load(folder / "batch.npz")
        self._arrays, self.link = (batch["x"], batch["y"]), link
        with mock.patch.multiple(ranked, LEAST=bucket, MOST=bucket):
            self.run()
        plan = module.plans()[0]
        self.buckets = sum(each.kind == "start" for each in collectives(plan))
        self.times: list[float] = []

    def run(self) -> float:
        """Seconds of a step."""
        begin = time.perf_counter()
        self._step.run(self._arrays, check_finite=False)
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=NAMES, metavar="WORKLOAD")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--link", choices=LINKS, help="default: all")
    args = parser.parse_args()
    print("| workload | link | buckets of | buckets | step, ms | sums, ms | hidden |")
    print("|---|---|---|---:|---:|---:|---:|")
    for name in args.workloads:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            WORKLOADS[name].write(folder)
            rows = [
                (link, f"{size}{'' if joint else ', local'}", bucket, joint)
                for link in ([args.link] if args.link else LINKS)
                for size, bucket in SIZES.items()
                for joint in ((True, False) if size == "1 MB" else (True,))
            ]
            found = [
                Rank(name, folder, Link(args.ranks, *LINKS[link]), bucket, joint)
                for link, _, bucket, joint in rows
            ]
            for rank in found:
                rank.link.seconds = rank.link.waited = 0.0
            for _ in range(args.turns):
                for rank in found:
                    rank.times.append(rank.run())
        for (link, size, _, _), rank in zip(rows, found, strict=True):
            step = 1e3 * statistics.median(rank.times)
            sums = 1e3 * rank.link.seconds / args.turns
            hidden = 100 * (1 - min(rank.link.waited / rank.link.seconds, 1))
            print(
                f"| {name} | {link} | {size} | {rank.buckets} | {step:.1f} | {sums:.1f} "
                f"| {hidden:.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
