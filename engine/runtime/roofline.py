"""Peak rates of this machine: multiply-adds per second, and bytes per second from each cache.

Both are measured by kernels (kernels/loops/measuring.py), on as many threads as are asked for.

Other processes make single runs longer, never shorter.  Therefore the fastest of several short runs
counts, and runs go on until a few of them agree on it.  Where none do, the machine was busy all the
time, and the limits are `unsure`: it can do more, and a step may take less than they say.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.plan.context import STATUS, STEP
from engine.plan.plan import KernelSpec
from engine.plan.words import LINE
from engine.runtime.arena import allocate
from engine.runtime.team import Resolver, get_team

PEAK, STREAM = KernelSpec("peak", ("f32",)), KernelSpec("stream", ("f32",))
SIZES = tuple(1 << k for k in range(14, 27))  # bytes that are streamed through: 16 KiB to 64 MiB
ACCESSES = 3  # of an element pair of `measure_stream`: two reads and a write of 4 bytes each
SECONDS = 0.004  # that one measured run takes, about
SLOW = 1.25  # times the speed of memory: no cache is as slow
AGREEING = 4  # runs that must come close to the fastest, which then counts
CLOSE = 1.15  # times the fastest: what counts as close
MOST_RUNS = 24  # of one measurement, on a machine that is busy
PATIENCE = 6.0  # seconds after which no measurement waits for its runs to agree


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of a machine on a number of threads.

    flops: float32 operations a second, two a multiply-add.
    streams: bytes and, of so many that are read and written again and again, bytes a second; the
        smallest first.  Of more bytes than fit into a cache, it is the speed of the next.
    unsure: whether the machine was so busy that it can do more than was measured.
    """

    threads: int
    flops: float
    streams: tuple[tuple[int, float], ...]
    unsure: bool = False

    @property
    def memory(self) -> float:
        """Bytes a second of what fits into no cache."""
        return self.streams[-1][1]

    def find_bandwidth(self, nbytes: int) -> float:
        """Return the most bytes a second for a step that touches `nbytes` bytes."""
        return next((speed for size, speed in self.streams if nbytes <= size), self.memory)

    def count_uncached_bytes(self, moves: Iterable[tuple[int, int]]) -> int:
        """Return how many of the bytes that a step moves no cache holds.

        moves: as of `compute_seconds`.
        """
        slow = SLOW * self.memory
        return sum(nbytes for nbytes, size in moves if self.find_bandwidth(size) <= slow)

    def compute_seconds(self, flops: int, itemsize: int, moves: Iterable[tuple[int, int]]) -> float:
        """Return the least time of a step: of its operations or of its bytes, whichever takes
        longer.

        itemsize: bytes of a number that it multiplies; a vector has half as many of 8 bytes, and
            twice as many of 2.
        moves: bytes that it reads and writes, and of how much different memory they are.
        """
        memory = sum(nbytes / self.find_bandwidth(footprint) for nbytes, footprint in moves)
        return max(flops * itemsize / 4 / self.flops, memory)


@dataclass(frozen=True, slots=True)
class FastestRun:
    """The fastest of several runs that do the same.

    each: seconds for one of what a run does many times.
    unsure: whether too few runs came close to it.
    """

    each: float
    unsure: bool


@functools.cache
def measure(threads: int, resolve: Resolver) -> Roofline:
    """Measure the limits; takes about two seconds, once a process, and more on a busy machine.

    Raises:
        EngineError: the kernels for it are neither shipped nor can be compiled.
    """
    code = resolve((PEAK, STREAM))
    lines = allocate(2 * threads * 8 * LINE)
    factors = lines[: lines.nbytes // 2].view(np.float32)
    done = lines[lines.nbytes // 2 :].view(np.int64)
    operations = 0.0  # of one round on all threads

    def measure_peak(rounds: int) -> float:
        nonlocal operations
        factors[...] = 0.5  # sums of halves stay finite
        words = (factors.ctypes.data, done.ctypes.data, rounds)
        seconds = _run(code[PEAK.symbol], words, threads, resolve)
        operations = float(done[::LINE].sum()) / rounds
        return seconds

    begin = time.perf_counter()

    def run_once(run: Callable[[int], float]) -> FastestRun:
        return find_best(run, MOST_RUNS if time.perf_counter() - begin < PATIENCE else AGREEING)

    memory = allocate(SIZES[-1], what="what streams are measured with")
    at = memory.ctypes.data
    peaks, streams = [run_once(measure_peak)], []
    for size in SIZES:  # by turns: the speed of a machine drifts, and another process may disturb
        n = size // 8 // 16 * 16  # elements of either array

        def measure_stream(times: int, n: int = n) -> float:
            return _run(code[STREAM.symbol], (at, at + 4 * n, n, times), threads, resolve)

        timed = run_once(measure_stream)
        streams.append((size, ACCESSES * 4 * n / timed.each, timed.unsure))
        peaks.append(run_once(measure_peak))
    return _compute_limits(threads, operations, peaks, streams)


def _compute_limits(
    threads: int,
    operations: float,
    peaks: Sequence[FastestRun],
    streams: Sequence[tuple[int, float, bool]],
) -> Roofline:
    """Return the limits by all measurements.

    operations: the number in a round.  streams: bytes, bytes a second, and whether that is unsure.
    """
    fastest = min(peak.each for peak in peaks)
    sure = [peak for peak in peaks if not peak.unsure and peak.each <= CLOSE * fastest]
    # No cache is slower than the next one: what says so was disturbed.
    speeds = [max(speed for _, speed, _ in streams[i:]) for i in range(len(streams))]
    is_bad = [
        unsure and speed >= most for (_, speed, unsure), most in zip(streams, speeds, strict=True)
    ]
    sizes = (size for size, _, _ in streams)
    unsure = not sure or any(is_bad)
    return Roofline(threads, operations / fastest, tuple(zip(sizes, speeds, strict=True)), unsure)


def find_best(run: Callable[[int], float], most: int = MOST_RUNS) -> FastestRun:
    """Run something until a few runs agree on how fast it is.

    run: does it a number of times, and returns the seconds that all of these took.
    most: runs that are made for that.

    A run is long enough when twice as many take longer: a shorter one mostly waits for a
    processor, and longer so on a busy machine.
    """
    count, few = 1, min(run(1) for _ in range(3))
    while count < 1 << 40:
        factor = max(2, int(min(SECONDS / max(few, 1e-9), 100)))
        many = min(run(factor * count) for _ in range(3))
        if few >= SECONDS and many > 0.75 * factor * few:
            break
        count, few = factor * count, many
    times = [few]
    while len(times) < most and _count_agreeing(times) < AGREEING:
        times.append(run(count))
    return FastestRun(min(times) / count, _count_agreeing(times) < AGREEING)


def _count_agreeing(times: Sequence[float]) -> int:
    """Return how many runs came close to the fastest."""
    return sum(seconds <= CLOSE * min(times) for seconds in times)


def _run(kernel: int, words: tuple[int, ...], threads: int, resolve: Resolver) -> float:
    """Return the seconds that a call of a kernel takes on all threads."""
    arguments = np.array(words, np.int64)
    table, status = np.zeros(1, STEP.dtype), np.zeros(STATUS.size, np.int64)
    table["kernel"], table["arguments"] = kernel, arguments.ctypes.data
    start = time.perf_counter()
    get_team(threads, resolve).run(table.ctypes.data, 1, status.ctypes.data, threads)
    return time.perf_counter() - start
