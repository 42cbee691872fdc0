"""Measuring: time of the clock and of the processor, peak memory, medians, and ratios in turns."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeVar
from unittest import mock

from engine.errors import EngineError
from engine.kernels.binaries.load import get_addresses
from engine.runtime import roofline
from engine.runtime.roofline import Roofline

ROOT = Path(__file__).resolve().parents[1]
MIB, MB = 2**20, 10**6
SECONDS = 0.5  # that the rounds of `repeat` take
LEAST = 5  # rounds of `repeat`
P = ParamSpec("P")
T = TypeVar("T")

Clock = Callable[[], float]


def time_call(call: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Return the seconds of a call, by the time of day unless told otherwise."""
    begin = clock()
    call()
    return clock() - begin


def time_process(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call, and its seconds of processor time."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def time_rounds(
    call: Callable[[], object], count: int, warm_up: int = 1, clock: Clock = time.perf_counter
) -> list[float]:
    """Return the seconds of each of so many calls, after some that do not count."""
    return [time_call(call, clock) for _ in range(warm_up + count)][warm_up:]


def repeat(call: Callable[[], object]) -> list[float]:
    """Return the seconds of calls that take about `SECONDS` together, after one that warms up."""
    call()
    count = int(SECONDS / max(time_call(call), 1e-9))
    return time_rounds(call, min(max(count, LEAST), 10_000), warm_up=0)


def time_in_turns(
    calls: Mapping[str, Callable[[], object]],
    turns: int,
    warm_up: int = 1,
    rests: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of calls that take turns: a machine whose speed drifts slows all alike.

    Every second turn has the other order.

    rests: functions that wait, after the call of that name, until its process is at rest.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_up + turns):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            times[name].append(time_call(calls[name]))
            if rests and name in rests:
                rests[name]()
    return {name: values[warm_up:] for name, values in times.items()}


def compare_medians(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the ratios of turns."""
    return median(a / b for a, b in zip(first, second, strict=True))


# --- the machine


@cache
def measure_limits(threads: int = 1) -> Roofline:
    """Return what this machine can do at most on so many threads."""
    return roofline.measure(threads, get_addresses)


# --- processes


@dataclass(frozen=True)
class Finished:
    """Process that has ended: seconds of the clock and of the processor, and peak bytes."""

    seconds: float
    processor: float
    peak: int


# Starts a command and writes to file descriptor argv[1] its status, seconds, processor time and
# peak memory.  Linux counts what a process holds as the peak of those that it starts, and this one
# holds little: Python without packages.
_STARTER = """
import os, sys, time
os.set_inheritable(int(sys.argv[1]), False)
begin = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
took = time.perf_counter() - begin
told = os.waitstatus_to_exitcode(status), took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss
os.write(int(sys.argv[1]), " ".join(map(str, told)).encode())
"""


def run(words: Sequence[object], told: str = "", cwd: Path | None = None, **env: str) -> Finished:
    """Run a command that reads a text from standard input; what it prints is lost.

    The peak is the command's own, but at least the 10 MiB or so of the process that starts it.

    Raises:
        EngineError: its status is not 0, or it cannot be started.
    """
    command = [*map(str, words)]
    read, write = os.pipe()
    with open(read, encoding="ascii") as answer:
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _STARTER, str(write), *command],
                cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                input=told.encode(), stdout=subprocess.DEVNULL, pass_fds=[write],
            )  # fmt: skip
        finally:
            os.close(write)
        status, seconds, processor, peak = answer.read().split() or ("not started", *"000")
    if status != "0":
        raise EngineError(f"{' '.join(command)}: status {status}")
    return Finished(float(seconds), float(processor), int(peak) * 1024)


def run_for_output(words: Sequence[object], cwd: Path | None = None, **env: str) -> str:
    """Run a command; return the last line that it prints.

    Raises:
        EngineError: its status is not 0; the message has what it printed at last.
    """
    command = [*map(str, words)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def call_fresh(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function of a module, called in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(call, *args, **kwargs).result()


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of the environment, in new processes too."""
    with mock.patch.dict(os.environ, values):
        yield


# --- memory of this process


def read_memory(field: str) -> int:
    """Return a number of bytes that Linux reports for this process.

    field: a field of /proc/self/status: VmHWM, the peak; VmRSS; RssAnon, pages outside files;
        RssFile, pages of files.
    """
    text = Path("/proc/self/status").read_text("utf-8")
    return int(text.partition(f"\n{field}:")[2].split()[0]) * 1024


_WATCH = """
import select, sys
path, peak = f"/proc/{sys.argv[1]}/status", 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    text = open(path).read()
    peak = max(peak, int(text.split("RssAnon:")[1].split()[0]) * 1024)
print(peak)
"""  # until its input ends


@contextmanager
def anonymous_growth() -> Iterator[list[int]]:
    """Yield a list that has, at the end, by how many bytes the anonymous memory grew at most.

    Another process asks for it a thousand times a second.  Pages of files that are mapped do not
    count: the system takes them back when memory is short.
    """
    growth, before = list[int](), read_memory("RssAnon")
    watch = [sys.executable, "-c", _WATCH, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(watch, stdin=pipe, stdout=pipe, text=True) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdout.readline()
        try:
            yield growth
        finally:
            watcher.stdin.close()
            growth.append(max(0, int(watcher.stdout.read()) - before))
