"""Measurement of workloads in a process each, in turns with other libraries."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol

import engine
from engine.base.errors import EngineError, InputError, suggest_nearest
from engine.graphs.io import onnx_io
from engine.kernels.analysis.flops import measure_work
from engine.kernels.binaries import source
from engine.profiling.scaling import Balance, predict_seconds
from engine.runtime import roofline
from engine.system import config
from engine.tools.benchmark import machine
from engine.tools.benchmark.child import BATCH
from engine.tools.benchmark.energy import Meter, find_counters
from engine.tools.benchmark.rest import await_rest
from engine.tools.benchmark.result import BenchmarkRow, Peer, Result
from engine.tools.benchmark.workloads import USUAL, WORKLOADS
from engine.tools.trimmed.plans import list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.training.artifact_set import FORWARD
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
    """Child process that trains or answers; see child.py and answering.py.

    start: seconds from its start to the end of its first step, or answer.
    memory: the most bytes that it has had resident; 0: unknown.
    """

    def __init__(self, pid: int, ask: IO[str], answers: IO[str], begin: float) -> None:
        self._pid, self._ask, self._answers = pid, ask, answers
        self._answer()
        self.start, self.memory = time.perf_counter() - begin, 0

    def _answer(self) -> dict[str, object]:
        line = self._answers.readline()
        if not line:
            raise EngineError("the measured process ended before its steps did")
        message: dict[str, object] = json.loads(line)
        return message

    def _do(self, word: str, steps: int) -> list[float]:
        print(word, steps, file=self._ask, flush=True)
        reply = self._answer()
        await_rest(self._pid)
        if word != "infer":
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

    def balance(self, threads: int) -> Balance:
        """Return the balance of a training step over so many threads."""
        print("balance", threads, file=self._ask, flush=True)
        reply: Any = self._answer()
        await_rest(self._pid)
        stretches = tuple((float(seconds), int(size)) for seconds, size in reply["stretches"])
        return Balance(threads, stretches, float(reply["memory"]))

    def answer(self, count: int) -> list[float]:
        """Answer so many times; the seconds of each."""
        return self._do("answer", count)


def open_child(folder: Path, threads: int) -> AbstractContextManager[Child]:
    """Open a process that trains the artifacts in a folder with this installation."""
    return _open_process(folder, "child", folder, threads)


@contextlib.contextmanager
def _open_process(folder: Path, module: str, *arguments: object) -> Iterator[Child]:
    """Yield a process of this installation that is measured.

    module: the module of this package to run.  folder: the folder for its errors.

    Raises:
        EngineError: it ends early; the message has the last that it said.
    """
    place = str(Path(engine.__file__).resolve().parents[1])
    paths = [place, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-m", f"engine.tools.benchmark.{module}", *map(str, arguments)]
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
            yield Child(process.pid, process.stdin, process.stdout, begin)
        except (EngineError, BrokenPipeError):
            process.kill()
            errors.seek(0)
            said = errors.read().strip().splitlines()
            status = f"status {process.wait()}"
            raise EngineError(f"the measured process ended: {(said or [status])[-1]}") from None
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
    """Measure workloads on numbers of threads; predict steps if some are more than there are cores.

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
            raise InputError(
                f"no workload {name!r}{suggest_nearest(name, WORKLOADS)}; `edgegrad bench --list` "
                "names them, and `edgegrad profile MODEL` measures a training step of any model"
            )
    kernels = source.choose_current()
    cores = config.count_cores()
    measured = [n for n in threads if n <= cores]
    limits = {n: roofline.measure(n, kernels.resolve).flops for n in measured}
    about = machine.describe(kernels.name)
    rows: list[BenchmarkRow] = []
    for name in names:
        with TemporaryDirectory(ignore_cleanup_errors=True) as place:
            progress.say(f"{name}: making its artifacts")
            folder = WORKLOADS[name].write(Path(place), batch)
            mine: list[BenchmarkRow] = []
            for count in threads:
                size = batch or WORKLOADS[name].x[0]
                row = BenchmarkRow(name, size, count, peak=limits.get(count, math.nan))
                if count in limits:
                    progress.say(f"{name}: {_count_threads(count)}")
                    try:
                        row = _measure_row(row, folder, seconds, peers)
                    except EngineError as error:
                        row = _note_failure(row, error)
                mine.append(row)
            if len(measured) < len(threads):
                try:
                    mine = list(_predict_rows(mine, folder, seconds, progress))
                except EngineError as error:
                    mine = [replace(row, failed=row.failed or str(error)) for row in mine]
            rows += mine
    return Result(about, tuple(rows))


def _count_threads(count: int) -> str:
    """Return a number of threads in words."""
    return f"{count} thread{'s' if count > 1 else ''}"


def _predict_rows(
    rows: Sequence[BenchmarkRow], folder: Path, seconds: float, progress: StagePrinter
) -> Iterator[BenchmarkRow]:
    """Yield the rows of a workload with the predicted seconds of a step."""
    with open_child(folder, 1) as child:
        progress.say(f"{rows[0].workload}: a step of one thread")
        (turns,) = take_turns([child], seconds / 4)
        step, alone = statistics.median(each for turn in turns for each in turn), child.balance(1)
        for row in rows:
            progress.say(f"{row.workload}: predicting {_count_threads(row.threads)}")
            predicted = predict_seconds(alone, step, child.balance(row.threads))
            yield replace(row, predicted=predicted)


def measure_answers(
    names: Sequence[str],
    threads: Sequence[int] = (1,),
    seconds: float = SECONDS,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: StagePrinter = SILENT,
) -> Result:
    """Measure answers of models on numbers of threads, in turns with onnxruntime's if it is here.

    names: the names of workloads, or paths of ONNX files.
    batch: the samples of an answer; None: the model's number, or 1.
    shapes: the shapes of inputs that the batch size does not determine.

    Raises:
        InputError: there is no such workload or file.
        EngineError: a model cannot be read; or nothing can compile or run here.
    """
    for name in names:
        if name not in WORKLOADS and not Path(name).exists():
            raise InputError(f"no workload or file {name!r}{suggest_nearest(name, WORKLOADS)}")
    kernels = source.choose_current()
    limits = {n: roofline.measure(n, kernels.resolve).flops for n in threads}
    rows = []
    for name in names:
        with TemporaryDirectory(ignore_cleanup_errors=True) as place:
            progress.say(f"{name}: making its inputs")
            subject = _make_subject(name, Path(place), batch, shapes or {})
            for count in threads:
                progress.say(f"{name}: {_count_threads(count)}")
                empty = BenchmarkRow(Path(name).stem, subject.samples, count, peak=limits[count])
                try:
                    rows.append(_measure_answer(empty, subject, seconds))
                except EngineError as error:
                    rows.append(_note_failure(empty, error))
    return Result(machine.describe(kernels.name), tuple(rows), "answer")


@dataclass(frozen=True, slots=True)
class _Subject:
    """Model whose answers are measured, and inputs for it.

    folder: for files. samples: of an answer. flops: of its products.
    """

    folder: Path
    model: Path
    feed: Path
    samples: int
    flops: int

    def open(self, side: str, threads: int) -> AbstractContextManager[Child]:
        """Open a process that answers."""
        return _open_process(self.folder, "answering", side, self.model, self.feed, threads)


def _make_subject(
    name: str, folder: Path, batch: int | None, shapes: Mapping[str, tuple[int, ...]]
) -> _Subject:
    """Return a workload or a file as a subject, with invented inputs."""
    import numpy as np

    from engine.tools.benchmark.invented import invent_values
    from engine.training.inference import follow, open_model

    path = Path(name).resolve()
    if not path.exists():
        path = folder / FORWARD
        onnx_io.save(WORKLOADS[name].build(), path)
    model = open_model(path, 1)
    session = follow(lambda: (model, None))
    feed = invent_values(model, batch, shapes, lambda inputs: session.run([], inputs), samples=1)
    np.savez(folder / "feed.npz", *(feed[name] for name in model.inputs))
    plan = next(iter(model.memory.programs.values())).plan
    flops = sum(step.flops for step in measure_work(plan)[plan.once :])
    samples = next((len(array) for array in feed.values() if array.ndim), 1)
    return _Subject(folder, path, folder / "feed.npz", samples, flops)


def _measure_answer(row: BenchmarkRow, subject: _Subject, seconds: float) -> BenchmarkRow:
    """Measure one row of answers; `row` says on how many threads."""
    others: dict[str, Child] = {}
    failed = ""
    with subject.open("edgegrad", row.threads):  # makes and keeps plans and kernels
        pass
    with ExitStack() as stack:
        if importlib.util.find_spec("onnxruntime"):
            opened = subject.open("onnxruntime", row.threads)
            try:
                others["onnxruntime"] = stack.enter_context(opened)
            except EngineError as error:
                failed = f"onnxruntime: {error}"
        mine = stack.enter_context(subject.open("edgegrad", row.threads))
        meters = _attach_meters([_Answers(mine), *map(_Answers, others.values())])
        turns = take_turns(meters, seconds)
        memory = mine.memory
    took = [each for turn in turns[0] for each in turn]
    typical = _find_typical(turns[0])
    return replace(
        row,
        step=statistics.median(took),
        count=len(took),
        spread=spread(took),
        flops=subject.flops,
        memory=memory,
        start=mine.start,
        peers={
            name: Peer(_find_typical(theirs), _find_typical(theirs) / typical, joules=meter.joules)
            for name, theirs, meter in zip(others, turns[1:], meters[1:], strict=True)
        },
        failed=failed,
        joules=meters[0].joules,
    )


def _note_failure(row: BenchmarkRow, error: EngineError) -> BenchmarkRow:
    return BenchmarkRow(row.workload, row.batch, row.threads, peak=row.peak, failed=str(error))


def _measure_row(row: BenchmarkRow, folder: Path, seconds: float, peers: Peers) -> BenchmarkRow:
    """Measure one row; `row` says what and on how many threads."""
    with open_child(folder, row.threads):  # makes and keeps plans and kernels
        pass
    others: dict[str, Runner] = {}
    starts: dict[str, float] = {}
    failed = []
    with ExitStack() as stack:
        for name, open_ in peers:
            try:
                begin = time.perf_counter()
                runner = stack.enter_context(open_(row.workload, folder, row.threads))
                runner.train(1)
                starts[name] = time.perf_counter() - begin
                others[name] = runner
            except EngineError as error:
                failed.append(f"{name}: {error}")
        mine = stack.enter_context(open_child(folder, row.threads))
        meters = _attach_meters([mine, *others.values()])
        turns = take_turns(meters, seconds)
        memory = mine.memory
        (passes,) = take_turns([_Inference(mine)], seconds / 4)
    steps = [each for turn in turns[0] for each in turn]
    values = {
        name: Peer(
            _find_typical(theirs),
            _find_typical(theirs) / _find_typical(turns[0]),
            starts[name],
            meter.joules,
        )
        for name, theirs, meter in zip(others, turns[1:], meters[1:], strict=True)
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
        joules=meters[0].joules,
    )


def _attach_meters(runners: Sequence[Runner]) -> list[Meter]:
    """Return the runners, each with a meter of the energy of its steps."""
    counters = find_counters()
    return [Meter(runner.train, counters) for runner in runners]


class _Inference:
    """Forward passes of a child instead of its steps."""

    def __init__(self, of: Child) -> None:
        self.train = of.infer


class _Answers:
    """Answers of a child instead of its steps."""

    def __init__(self, of: Child) -> None:
        self.train = of.answer


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
    batch = np.load(folder / BATCH)
    return sum(step.flops for step in measure_work(module.plan(batch["x"].shape, batch["y"].shape)))
