"""Timing of plans by their own threads: tables of steps whose every call notes when it ran.

A `Stopwatch` is a table like a program's, in which the kernel `timed` stands in the place of every
other.  The executor walks it as it walks any table: a normal run pays nothing for it.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import EngineError
from engine.plan.context import MOVE, SPAN, TILES, TIMED, count_tile_words
from engine.plan.plan import KernelSpec
from engine.plan.words import LINE

TIMED_KERNEL = KernelSpec("timed", ("i64",))
_NANOSECONDS = 10**9


class Clock:
    """A clock of the system, as native code calls it: the monotonic one, or a thread's own.

    processor_time: count the time that the calling thread has run, instead of the time of day.

    address: the address of the function.
    number: its first argument, or -1 where it takes the place to write to alone.
    scale, seconds: units in a second of the first word that it writes, and how long a unit is.
    """

    def __init__(self, processor_time: bool = False) -> None:
        """Find the clock.

        Raises:
            EngineError: this is Windows, whose clocks of threads tick 64 times a second.
        """
        if sys.platform == "win32":
            if processor_time:
                raise EngineError(
                    "processor time of steps: Windows has no clock that is fine enough"
                )
            library: Any = ctypes.WinDLL("kernel32")
            function, self.number, self.scale = library.QueryPerformanceCounter, -1, 1
            frequency = ctypes.c_int64()
            library.QueryPerformanceFrequency(ctypes.byref(frequency))
            self.seconds = 1 / frequency.value
        else:
            function = ctypes.CDLL(None).clock_gettime
            # macOS counts microseconds by the plain one
            monotonic = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
            self.number = time.CLOCK_THREAD_CPUTIME_ID if processor_time else monotonic
            self.scale, self.seconds = _NANOSECONDS, 1 / _NANOSECONDS
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0


class Stopwatch:
    """A table of steps that times the steps of another table.

    table: the table that the executor runs instead.
    """

    def __init__(self, table: Array, threads: int, timed: int, clock: Clock) -> None:
        """Start with a table of `STEP` records and the address of the kernel `timed`."""
        steps = len(table)
        self.seconds = clock.seconds
        self._spans = np.zeros((threads, max(steps, 1)), SPAN.dtype)
        self._now = np.zeros((threads + 1) * LINE, np.int64)
        self._calls = np.zeros(steps, TIMED.dtype)
        calls = self._calls
        calls["kernel"], calls["arguments"] = table["kernel"], table["arguments"]
        calls["clock"], calls["clock_id"], calls["scale"] = clock.address, clock.number, clock.scale
        calls["now"] = self._now.ctypes.data + -self._now.ctypes.data % (8 * LINE)
        calls["spans"] = self._spans.ctypes.data + SPAN.dtype.itemsize * np.arange(steps)
        calls["stride"] = self._spans.shape[1]
        self.table = table.copy()
        self.table["kernel"] = timed
        self.table["arguments"] = calls.ctypes.data + TIMED.dtype.itemsize * np.arange(steps)
        self._write_tiles(threads)

    def _write_tiles(self, threads: int) -> None:
        """Let the calls of steps in groups be told the number of the tile, and of the thread."""
        tiled = np.flatnonzero(self.table["tiles"])
        room = count_tile_words(TIMED.size, 0, threads)
        self._tiles = np.zeros((len(tiled), room), np.int64)
        for n, words in zip(tiled, self._tiles, strict=True):
            begin = int(self.table["tiles"][n])
            self._calls["tiles"][n], self._calls["tiled"][n] = begin, 1
            head = words[: TILES.size].view(TILES.dtype)
            at = begin + 8 * TILES.members["count"].offset
            head["count"], head["numbered"] = ctypes.c_int64.from_address(at).value, 1
            head["pointers"] = head["stride"] = TIMED.size
            moves = words[TILES.size :][: MOVE.size * TIMED.size].view(MOVE.dtype)
            moves["thread"][TIMED.members["thread"].offset] = 1
            head["own"] = words.ctypes.data + 8 * (room - threads * TIMED.size)
            self.table["tiles"][n] = words.ctypes.data

    def read(self) -> tuple[Array, Array, Array]:
        """Return and clear the notes of the last run: begins, ends, busy times, in seconds.

        Each is f64[threads, steps].  Begins and ends count from the first begin.  A thread that has
        not called a step has 0 as its busy time, and begins and ends when the step before it ended.
        """
        spans = self._spans[:, : len(self.table)]
        begin, end, busy = (spans[name].astype(np.float64) for name in ("begin", "end", "busy"))
        called = spans["calls"] > 0
        first = spans["begin"][called].min(initial=np.iinfo(np.int64).max)
        begin, end = (np.where(called, (x - first) * self.seconds, 0.0) for x in (begin, end))
        last = np.maximum.accumulate(end, axis=1)
        begin, end = np.where(called, begin, last), np.where(called, end, last)
        alone = self.table["alone"] != 0  # thread 0 was all threads in turn
        begin[0, alone], busy[0, alone] = begin[:, alone].min(axis=0), busy[:, alone].sum(axis=0)
        end[0, alone], busy[1:, alone] = end[:, alone].max(axis=0), 0
        self._spans[...] = 0
        return begin, end, busy * self.seconds
