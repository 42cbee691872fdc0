"""Processes that run mutations, within bounds of time and memory.

A mutation that ends its process, or does not end, costs that process alone: another one takes
what is left.  The process says which mutation it begins with before it does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import Any

import engine
from engine.errors import EngineError, InternalError, PlanError
from engine.training import plan_cache
from tests.fuzz.kind import Kind

CPU_SECONDS = 30.0  # that one mutation may take of the processor, in all threads
WALL_SECONDS = 600.0  # after which a process that does not answer is ended: the machine may be busy
ADDRESSES = 4 << 30  # bytes of address space that a process may take beyond what it begins with
RESIDENT = 1 << 30  # bytes of memory that one mutation may add
CHUNK = 50  # mutations that a process takes at a time

Task = tuple[str, int]  # the name of a kind, and a seed


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a mutation.

    outcome: "planned", "ran", "refused: ModelError", "defect: ..."; equal for similar results.
    detail: of a defect, its traceback.
    """

    task: Task
    outcome: str
    detail: str = ""

    @property
    def is_defect(self) -> bool:
        """Return True if something is wrong with the package."""
        return self.outcome.startswith("defect")


class TooSlowError(BaseException):
    """A mutation took more time than it may.  No handler for `Exception` takes it for an error."""


def attempt(kind: Kind, seed: int, only: frozenset[int] | None = None) -> Result:
    """Run one mutation in this process."""
    subject, _ = kind.made(seed, only)
    task = (kind.name, seed)
    try:
        return Result(task, kind.use(subject, seed))
    except InternalError as error:
        cause = error.__cause__ or error
        text = "".join(traceback.format_exception(error))
        return Result(task, f"defect: {_place(cause)}", text)
    except EngineError as error:
        how = "defect" if isinstance(error, PlanError) and not kind.plans else "refused"
        return Result(task, f"{how}: {type(error).__name__}", str(error))
    except (Exception, TooSlowError) as error:
        text = "".join(traceback.format_exception(error))
        return Result(task, f"defect: {_place(error)}", text)


def _place(error: BaseException) -> str:
    """An exception and the line of the package that it came from."""
    root, actual_text = os.path.dirname(os.path.dirname(os.path.abspath(engine.__file__))), "?"
    for frame in traceback.extract_tb(error.__traceback__):
        name = os.path.realpath(frame.filename)
        if name.startswith(root) and "/tests/" not in name:
            actual_text = f"{os.path.relpath(name, root)}:{frame.name}"
    return f"{type(error).__name__} in {actual_text}"


# --- in a process


def bounded() -> None:
    """Give this process its bounds, and let it keep nothing on disk but code."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, used + ADDRESSES))
    signal.signal(signal.SIGPROF, _too_slow)
    plan_cache.find_folder = lambda: None  # plans of mutations are for nobody


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {CPU_SECONDS:.0f} s")


def timed(kind: Kind, seed: int, only: frozenset[int] | None = None) -> Result:
    """Run one mutation within its bounds; see `bounded`."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        actual_attempt = attempt(kind, seed, only)
    except TooSlowError:  # between the attempt and here
        actual_attempt = Result((kind.name, seed), "defect: TooSlowError", "")
    finally:
        with contextlib.suppress(TooSlowError):
            signal.setitimer(signal.ITIMER_PROF, 0)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if more > RESIDENT and not actual_attempt.is_defect:
        return Result(
            actual_attempt.task, "defect: memory", f"{more} bytes; {actual_attempt.outcome}"
        )
    return actual_attempt


def _work(pipe: Any, kinds: Sequence[Kind], log: str) -> None:
    """Run the tasks that come through a pipe; each is announced, then answered."""
    bounded()
    known = {kind.name: kind for kind in kinds}
    with open(log, "w") as file:
        faulthandler.enable(file)
        sys.stdout = sys.stderr = file
        with contextlib.suppress(EOFError):
            while True:
                for name, seed in pipe.recv():
                    pipe.send((name, seed))
                    actual_timed = timed(known[name], seed)
                    pipe.send(actual_timed)
                    if actual_timed.outcome == "defect: memory":
                        return  # its peak would hide the peaks of others
                pipe.send(None)


# --- the processes


@dataclass
class _Worker:
    process: Any
    pipe: Any
    log: Path
    tasks: list[Task] = field(default_factory=list)
    current: Task | None = None
    since: float = 0.0


def run(kinds: Sequence[Kind], tasks: Sequence[Task], jobs: int, folder: Path) -> Iterator[Result]:
    """Run all tasks in `jobs` processes; results come in the order in which they are there.

    folder: for what the processes print, and where they are when they crash.
    """
    context = multiprocessing.get_context("fork")  # what `prepare` made is there at once
    waiting, workers = list(reversed(tasks)), list[_Worker]()
    count = 0

    def start() -> None:
        nonlocal count
        count += 1
        ours, theirs = context.Pipe()
        log = folder / f"worker-{count}.log"
        process = context.Process(target=_work, args=(theirs, kinds, str(log)), daemon=True)
        process.start()
        theirs.close()
        workers.append(_Worker(process, ours, log))
        give(workers[-1])

    def give(worker: _Worker) -> None:
        worker.tasks = [waiting.pop() for _ in range(min(CHUNK, len(waiting)))]
        worker.current, worker.since = None, time.monotonic()
        if worker.tasks:
            worker.pipe.send(worker.tasks)

    def end(worker: _Worker) -> None:
        workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        waiting.extend(reversed(worker.tasks))
        if waiting:
            start()

    try:
        for _ in range(min(jobs, -(-len(tasks) // CHUNK))):
            start()
        while waiting or any(worker.tasks for worker in workers):
            ready = connection.wait([worker.pipe for worker in workers], timeout=1)
            for worker in list(workers):
                if worker.pipe in ready:
                    try:
                        message = worker.pipe.recv()
                    except (EOFError, ConnectionResetError):
                        worker.process.join()
                        if worker.current is not None:
                            yield _crashed(worker, f"exit {worker.process.exitcode}")
                        end(worker)
                        continue
                    worker.since = time.monotonic()
                    if message is None:
                        give(worker)
                    elif isinstance(message, Result):
                        worker.current = None
                        worker.tasks.remove(message.task)
                        yield message
                    else:
                        worker.current = message
                elif worker.current and time.monotonic() - worker.since > WALL_SECONDS:
                    yield _crashed(worker, "hang")
                    end(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _crashed(worker: _Worker, how: str) -> Result:
    """The result of a task that ended its process, or did not end."""
    task = worker.current
    assert task is not None
    worker.tasks.remove(task)
    text = worker.log.read_text(errors="replace")[-4000:] if worker.log.exists() else ""
    return Result(task, f"defect: {how}", text)
