"""Measurement of workloads in a process each, in turns with other libraries."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Protocol

import engine
from engine.base.errors import EngineError, InputError, suggest_nearest
from engine.kernels.analysis.flops import measure_work
from engine.kernels.binaries import source
from engine.runtime import roofline
from engine.tools.benchmark import machine
from engine.tools.benchmark.result import BenchmarkRow, Peer, Result
from engine.tools.benchmark.workloads import USUAL, WORKLOADS
from engine.tools.trimmed.plans import list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.training.module import Module
from engine.training.state import CheckpointState

SECONDS = 6.0  # that one row takes for its steps, and again for each peer
TURNS = 12  # in which the steps of a row are taken
LEAST = 3  # steps of a row
WARM_UP = 2  # steps before those that count


class Runner(Protocol):
    """Protocol for training a workload."""

    def train(self, steps: int) -> list[float]:
        """Take so many steps; the seconds of each, or of all divided among them."""


Peers = Sequence[tuple[str, Callable[[str, Path, int], AbstractContextManager[Runner]]]]


class Child:
    """Child process that trains; see child.py.

    start: seconds from its start to the end of its first step.
    memory: the most bytes that it has had resident; 0: unknown.
    """

    def __init__(self, ask: IO[str], answers: IO[str], begin: float) -> None:
        self._ask, self._answers = ask, answers
        self._answer()
        self.start, self.memory = time.perf_counter() - begin, 0

    def _answer(self) -> dict[str, object]:
        line = self._answers.readline()
        if not line:
            raise EngineError("the process that trains ended before its steps did")
        message: dict[str, object] = json.loads(line)
        return message

    def _do(self, word: str, steps: int) -> list[float]:
        print(word, steps, file=self._ask, flush=True)
        reply = self._answer()
        if word == "train":
            self.memory = int(str(reply["memory"]))
        seconds = reply["seconds"]
        assert isinstance(seconds, list)
        return [float(each) for each in seconds]

    def train(self, steps: int) -> list[float]:
        """Take so many training steps; the seconds of each."""
        return self._do("train", steps)

    def infer(self, steps: int) -> list[float]:
        """Compute the loss so many times; the seconds of each."""
        return self._do("infer", steps)


@contextlib.contextmanager
def child(folder: Path, threads: int) -> Iterator[Child]:
    """Yield a process that trains the artifacts in a folder with this installation.

    Raises:
        EngineError: it ends early; the message has the last that it said.
    """
    place = str(Path(engine.__file__).resolve().parents[1])
    paths = [place, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-m", "engine.tools.benchmark.child", str(folder), str(threads)]
    begin = time.perf_counter()
    with (
        open(folder / "errors.txt", "w+", encoding="utf-8") as errors,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=env, cwd=folder,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Child(process.stdin, process.stdout, begin)
        except (EngineError, BrokenPipeError):
            process.kill()
            errors.seek(0)
            said = errors.read().strip().splitlines()
            status = f"status {process.wait()}"
            raise EngineError(f"the process that trains ended: {(said or [status])[-1]}") from None
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def measure(
    names: Sequence[str] = USUAL,
    threads: Sequence[int] = (1,),
    seconds: float = SECONDS,
    batch: int = 0,
    peers: Peers = (),
    progress: StagePrinter = SILENT,
) -> Result:
    """Measure workloads on numbers of threads.

    seconds: the approximate time for the steps of a row, which has at least `LEAST` steps.
    batch: the samples of a step; 0: the workload's number.
    peers: other libraries by name, each a function of a workload, a folder with its artifacts and a
        number of threads that opens a runner.

    Raises:
        InputError: there is no such workload.
        EngineError: nothing can compile or run here.
    """
    for name in names:
        if name not in WORKLOADS:
            raise InputError(f"no workload {name!r}{suggest_nearest(name, WORKLOADS)}")
    kernels = source.choose_current()
    limits = {n: roofline.measure(n, kernels.resolve).flops for n in threads}
    about = machine.describe(kernels.name)
    rows = []
    for name in names:
        with TemporaryDirectory(ignore_cleanup_errors=True) as place:
            progress.say(f"{name}: making its artifacts")
            folder = WORKLOADS[name].write(Path(place), batch)
            for count in threads:
                progress.say(f"{name}: {count} thread{'s' if count > 1 else ''}")
                empty = BenchmarkRow(name, batch or WORKLOADS[name].x[0], count, peak=limits[count])
                try:
                    rows.append(_measure_row(empty, folder, seconds, peers))
                except EngineError as error:
                    rows.append(_note_failure(empty, error))
    return Result(about, tuple(rows))


def _note_failure(row: BenchmarkRow, error: EngineError) -> BenchmarkRow:
    return BenchmarkRow(row.workload, row.batch, row.threads, peak=row.peak, failed=str(error))


def _measure_row(row: BenchmarkRow, folder: Path, seconds: float, peers: Peers) -> BenchmarkRow:
    """Measure one row; `row` says what and on how many threads."""
    with child(folder, row.threads):  # makes and keeps plans and kernels
        pass
    others: dict[str, Runner] = {}
    failed = []
    with ExitStack() as stack:
        for name, open_ in peers:
            try:
                runner = stack.enter_context(open_(row.workload, folder, row.threads))
                runner.train(1)
                others[name] = runner
            except EngineError as error:
                failed.append(f"{name}: {error}")
        mine = stack.enter_context(child(folder, row.threads))
        turns = take_turns([mine, *others.values()], seconds)
        memory = mine.memory
        (passes,) = take_turns([_Inference(mine)], seconds / 4)
    steps = [each for turn in turns[0] for each in turn]
    values = {
        name: Peer(_find_typical(theirs), _find_typical(theirs) / _find_typical(turns[0]))
        for name, theirs in zip(others, turns[1:], strict=True)
    }
    return BenchmarkRow(
        row.workload,
        row.batch,
        row.threads,
        statistics.median(steps),
        len(steps),
        spread(steps),
        statistics.median(each for turn in passes for each in turn),
        count_operations(folder, row.threads),
        row.peak,
        memory,
        mine.start,
        values,
        "; ".join(failed),
    )


class _Inference:
    """Forward passes of a child instead of its steps."""

    def __init__(self, of: Child) -> None:
        self.train = of.infer


def take_turns(runners: Sequence[Runner], seconds: float) -> list[list[list[float]]]:
    """Return the times of steps of each runner, by turns, so that all share a machine's drift.

    seconds: that the steps of each may take, about.
    """
    counts = []
    for runner in runners:
        took = min(runner.train(WARM_UP))
        whole = max(LEAST, min(TURNS * 1000, int(seconds / max(took, 1e-9))))
        counts.append(math.ceil(whole / TURNS))
    turns = TURNS if max(counts) > 1 else max(LEAST, _count_turns(runners, seconds))
    times: list[list[list[float]]] = [[] for _ in runners]
    for _ in range(turns):
        for i, runner in enumerate(runners):
            times[i].append(runner.train(counts[i]))
    return times


def _count_turns(runners: Sequence[Runner], seconds: float) -> int:
    """Return how many turns of a step each fit in the time of the slowest."""
    return min(TURNS, int(seconds / max(max(runner.train(1)) for runner in runners)))


def _find_typical(turns: Sequence[Sequence[float]]) -> float:
    """Return the median of the turns, each the mean of its steps."""
    return statistics.median(statistics.fmean(turn) for turn in turns)


def spread(values: Sequence[float]) -> float:
    """Return the distance of the quartiles over the median; 0 of one value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def count_operations(folder: Path, threads: int) -> int:
    """Return the floating-point operations of the products of a training step, by its plan."""
    import numpy as np

    paths = list_artifacts(folder)
    state = CheckpointState.load_checkpoint(paths["checkpoint"])
    module = Module(paths["train"], state, threads=threads)
    batch = np.load(folder / "batch.npz")
    return sum(step.flops for step in measure_work(module.plan(batch["x"].shape, batch["y"].shape)))
