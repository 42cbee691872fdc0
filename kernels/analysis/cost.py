"""Model of the time that a call of a kernel takes, from its work and what a machine can do.

A call takes as long as its operations or its bytes, whichever takes longer, over the efficiency of
its kernel, and a moment more for which threads meet and begin.  Operations are multiply-adds of
products and the vector instructions of formulas.  Bytes come from the cache that holds all that was
touched since they last were; the cache reads what a call overwrites before it is written, so it
counts twice.

Planning never measures: it assumes the machine of `get_nominal`, so that a plan is the same
wherever it is made.  Reports of times for people ask `engine.runtime.roofline.measure` instead.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52
(2009); distances of reuse as in Mattson et al., "Evaluation techniques for storage hierarchies",
IBM Systems Journal 9 (1970).
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

from engine.base.element_types import ITEMSIZE
from engine.kernels.analysis.flops import (
    Task,
    Use,
    count_factor_bytes,
    count_operations,
    count_touched,
    find_factors,
    follow_groups,
    list_tasks,
)
from engine.kernels.vocabulary.row_program import Program
from engine.plan.plan import KernelSpec, Plan
from engine.runtime.roofline import Roofline

BEGIN = 1.0e-6  # seconds that a call takes beside its work
TILE = 0.15e-6  # seconds that a thread takes to begin a call of a group for its next tile
# What products of f16 take with the sums of float32 that runs of them are added to, over what they
# would take without: `python -m bench cores.factors`.
RUNS = 1.1

# Vector instructions that a kernel takes to read or write a number of 16 bits: it is widened or
# rounded, or woven into pairs of factors.  So half the bytes gain less where caches hold them.
CONVERSION = 2.0

TASKS = 1 << 13  # whose arithmetic is cached; plans of one draft share most of theirs
OTHERS = 0.5  # efficiency of kernels that efficiency.txt does not have
EFFICIENCY = Path(__file__).with_name("efficiency.txt")


@functools.cache
def read_efficiencies() -> Mapping[str, float]:
    """Return the part of a machine's limits that kernels reach, by `name_row`, of efficiency.txt.

    `python -m bench efficiency --page` writes the file: what the usual workloads reach on 2 threads
    of a Zen 4 server part with AVX-512.  `efficiency.walks --page` writes the kernels that walk
    over time, on a Zen 5.  Above 1: convolutions by Winograd's transforms do fewer operations than
    are counted, and walks may find gates in faster caches than the limit counts on.
    """
    lines = EFFICIENCY.read_text("utf-8").splitlines()
    return {name: float(part) for name, part in map(str.split, lines)}


def name_row(spec: KernelSpec) -> str:
    """Return the row of a kernel in efficiency.txt: its template, and the type of 16 bits or fewer
    that it multiplies.
    """
    factors = find_factors(spec)
    is_narrow = bool(factors) and ITEMSIZE[factors] < ITEMSIZE["f32"]
    return f"{spec.template}.{factors}" if is_narrow else spec.template


def find_efficiency(spec: KernelSpec) -> float:
    """Return the part of a machine's limits that a kernel reaches; by its template alone if the
    table does not have its factors.
    """
    reached = read_efficiencies()
    return reached.get(name_row(spec), reached.get(spec.template, OTHERS))


def get_nominal(threads: int) -> Roofline:
    """Return the machine that plans assume for this many threads: the one that benchmarks run on.

    All of its limits scale with the threads, so their number changes no ratio of two times.
    """
    return Roofline(
        threads,
        117e9 * threads,
        tuple((size * threads, speed * threads) for size, speed in _STREAMS),
    )


_STREAMS = (  # bytes, bytes a second of one thread
    (1 << 15, 262e9), (1 << 20, 170e9), (1 << 23, 129e9), (1 << 24, 73e9), (1 << 25, 38e9),
)  # fmt: skip


def predict_steps(plan: Plan, machine: Roofline | None = None) -> list[float]:
    """Predict the seconds of every step of a plan that runs again and again.

    machine: what it runs on; None for the nominal one.
    """
    return predict_seconds(list_tasks(plan), plan.threads, machine, again=True)


def predict_seconds(
    calls: Sequence[Task], threads: int, machine: Roofline | None = None, again: bool = False
) -> list[float]:
    """Predict the seconds of calls that run one after another; no buffer is in a cache at first.

    machine: what they run on; None for the nominal one.
    again: whether all have run before, so that what they touched last is still in the caches.
    """
    times = []
    limits_of = predict_limits(
        calls, threads, get_nominal(threads) if machine is None else machine, again
    )
    for task, limit in zip(calls, limits_of, strict=True):
        times.append(begin(task, threads) + limit / find_efficiency(task.spec))
    return times


def begin(task: Task, threads: int) -> float:
    """Return the seconds that a call takes in addition to its work."""
    return TILE * -(-task.tiles // threads) if task.tiles else BEGIN


def predict_limits(
    calls: Sequence[Task], threads: int, machine: Roofline, again: bool = False
) -> Iterator[float]:
    """Predict the least seconds of each call: for its operations or its bytes, the longer one.

    again: as of `predict_seconds`.
    """
    clock = _Clock(machine, threads)
    counted = [_count(task) for task in calls]
    if again:
        for used in counted:
            clock.touch(used)
    for (task, written), used in zip(follow_groups(calls), counted, strict=True):
        yield max(_time_arithmetic(task, machine), clock.move(task, used, written))


def _count(task: Task) -> dict[Hashable, tuple[Use, int]]:
    """Count how many bytes a call touches of each buffer that it uses."""
    used = {u.name: u for u in task.uses if u.name is not None and u.mode != "s"}
    sizes = count_touched(task, used)
    return {name: (use, sizes[name]) for name, use in used.items()}


class _Clock:
    """Count of the bytes moved so far, and of when each buffer was last touched."""

    def __init__(self, machine: Roofline, threads: int) -> None:
        self._threads = threads
        self._memory = machine.memory
        self._sizes = [nbytes for nbytes, _ in machine.streams]
        self._speeds = [*(speed for _, speed in machine.streams), machine.memory]
        self._now = 0
        self._last: dict[Hashable, int] = {}

    def touch(self, used: Mapping[Hashable, tuple[Use, int]]) -> None:
        """Move what a call uses, without asking how long it takes."""
        self._now += sum([nbytes for _, nbytes in used.values()])
        self._last.update(dict.fromkeys(used, self._now))

    def _find_bandwidth(self, nbytes: int) -> float:
        """Return the bandwidth of the memory that holds so many bytes."""
        return self._speeds[bisect_left(self._sizes, nbytes)]

    def move(
        self,
        task: Task,
        used: Mapping[Hashable, tuple[Use, int]],
        written: Container[Hashable],
    ) -> float:
        """Move what a call uses, as counted; return the seconds that this takes.

        written: the buffers that calls before it in its group have written.
        """
        before = self._now
        self._now += sum([nbytes for _, nbytes in used.values()])
        bandwidth = self._find_bandwidth
        spent = 0.0
        for name, (use, nbytes) in used.items():
            if use.thread:
                nbytes, speed = use.thread * task.tiles, bandwidth(nbytes)
            elif task.tiles and use.mode == "r" and name in written:
                speed = bandwidth(-(-nbytes // task.tiles) * self._threads)
            elif use.mode != "w" and name in self._last:
                speed = bandwidth(self._now - min(self._last[name], before))
            else:
                speed = self._memory
            spent += (1 if use.mode == "r" else 2) * nbytes / speed
            self._last[name] = self._now
        return spent


@functools.lru_cache(TASKS)
def _time_arithmetic(task: Task, machine: Roofline) -> float:
    """Return the seconds that the operations of a call take at the machine's peak."""
    done = count_operations(task)
    instructions = _count_instructions(task.spec)
    if instructions:
        done += instructions * max((_count_elements(u, task.tiles) for u in task.uses), default=0)
    sums = RUNS if find_factors(task.spec) == "f16" else 1
    operations = done * sums * count_factor_bytes(task.spec) / 4
    halves = sum([_count_elements(u, task.tiles) for u in task.uses if u.nbytes == 2 * u.elements])
    return 2 * (operations + CONVERSION * halves) / machine.flops


def _count_elements(use: Use, tiles: int) -> int:
    """Count the elements of a buffer that a call works on; of a thread's tile, in all tiles."""
    if not use.thread or not use.nbytes:
        return use.elements
    return use.elements * use.thread * tiles // use.nbytes


@functools.lru_cache(1 << 12)
def _count_instructions(spec: KernelSpec) -> int:
    """Count the vector instructions per element of a kernel's formulas."""
    T = str(spec.params[0]) if spec.params and spec.params[0] in ITEMSIZE else ""
    texts = [p for p in spec.params if isinstance(p, str) and "->" in p]
    return sum(Program.of(text, T).formulas.estimate_cost() for text in texts)
