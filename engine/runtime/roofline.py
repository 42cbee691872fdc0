"""What this machine can do at most: multiply-adds a second, and bytes a second from each cache.

Both are measured by kernels (kernels/loops/measuring.py), on as many threads as are asked for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from engine.runtime.arena import Bytes, allocate
from engine.runtime.context import STATUS, STEP
from engine.runtime.plan import KernelSpec
from engine.runtime.program import Resolver, team
from engine.runtime.words import LINE

PEAK, STREAM = KernelSpec("peak", ("f32",)), KernelSpec("stream", ("f32",))
SIZES = tuple(1 << k for k in range(14, 27))  # bytes that are streamed through: 16 KiB to 64 MiB
ACCESSES = 3  # of an element pair of `stream`: two reads and a write of 4 bytes each
SECONDS = 0.004  # that one measured run takes, about
RUNS = 5  # of which the fastest counts


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of a machine on a number of threads.

    flops: float32 operations a second, two a multiply-add.
    streams: bytes and, of so many that are read and written again and again, bytes a second; the
        smallest first.  Of more bytes than fit into a cache, it is the speed of the next.
    """

    threads: int
    flops: float
    streams: tuple[tuple[int, float], ...]

    @property
    def memory(self) -> float:
        """Bytes a second of what fits into no cache."""
        return self.streams[-1][1]

    def bandwidth(self, nbytes: int) -> float:
        """Bytes a second of a step that touches `nbytes` bytes, at most."""
        return next((speed for size, speed in self.streams if nbytes <= size), self.memory)

    def seconds(self, flops: int, itemsize: int, moves: Iterable[tuple[int, int]]) -> float:
        """The least time of a step: of its operations or of its bytes, whichever takes longer.

        itemsize: of the elements that it computes with; a vector has half as many of 8 bytes.
        moves: bytes that it reads and writes, and of how much different memory they are.
        """
        memory = sum(nbytes / self.bandwidth(footprint) for nbytes, footprint in moves)
        return max(flops * max(itemsize, 4) / 4 / self.flops, memory)


@functools.cache
def measure(threads: int, resolve: Resolver) -> Roofline:
    """Measure the limits; takes about two seconds, once a process.

    Raises:
        EngineError: the kernels for it are neither shipped nor can be compiled.
    """
    code = resolve((PEAK, STREAM))
    lines = allocate(2 * threads * 8 * LINE)
    factors = lines[: lines.nbytes // 2].view(np.float32)
    done = lines[lines.nbytes // 2 :].view(np.int64)

    def peak(rounds: int) -> float:
        factors[...] = 0.5  # sums of halves stay finite
        words = (factors.ctypes.data, done.ctypes.data, rounds)
        return _run(code[PEAK.symbol], words, threads, resolve)

    rounds = _enough(peak)
    memory = allocate(SIZES[-1], what="what streams are measured with")
    seconds, speeds = [peak(rounds)], []
    for size in SIZES:  # by turns: the speed of a machine drifts, and another process may disturb
        seconds += [peak(rounds) for _ in range(RUNS)]
        speeds.append(_stream(code[STREAM.symbol], memory, size, threads, resolve))
    flops = float(done[::LINE].sum()) / min(seconds)
    # No cache is slower than the next one: what says so was disturbed.
    speeds = [max(speeds[i:]) for i in range(len(speeds))]
    return Roofline(threads, flops, tuple(zip(SIZES, speeds, strict=True)))


def _stream(kernel: int, memory: Bytes, size: int, threads: int, resolve: Resolver) -> float:
    """Bytes a second that go through `size` bytes of memory."""
    n = size // 8  # elements of either array
    at = memory.ctypes.data
    n -= n % 16

    def run(times: int) -> float:
        return _run(kernel, (at, at + 4 * n, n, times), threads, resolve)

    times = _enough(run)
    best = min(run(times) for _ in range(RUNS))
    return ACCESSES * 4 * n * times / best


def _enough(run: Callable[[int], float]) -> int:
    """How many times something is to be done so that it takes about `SECONDS`."""
    count = 1
    while (seconds := min(run(count) for _ in range(3))) < SECONDS and count < 1 << 40:
        count = max(2 * count, int(count * min(SECONDS / max(seconds, 1e-9), 100)))
    return count


def _run(kernel: int, words: tuple[int, ...], threads: int, resolve: Resolver) -> float:
    """The seconds that a call of a kernel takes on all threads."""
    arguments = np.array(words, np.int64)
    table, status = np.zeros(1, STEP.dtype), np.zeros(STATUS.size, np.int64)
    table["kernel"], table["arguments"] = kernel, arguments.ctypes.data
    start = time.perf_counter()
    team(threads, resolve).run(table.ctypes.data, 1, status.ctypes.data)
    return time.perf_counter() - start
