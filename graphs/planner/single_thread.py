"""Single-threaded calls: calls that are too small to share run on thread 0.

Sharing a call takes a barrier, which costs as much as a small product, and the first barrier of a
run also wakes the threads.  The cost model alone decides which calls are shared.

    Before   | gemm   | map   | gemm   | softmax        # a barrier each
    After    | gemm   alone map   alone gemm   alone softmax
"""

from __future__ import annotations

import math
from dataclasses import replace

from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.lifetimes import list_spans
from engine.graphs.planner.recompute import make_tasks
from engine.kernels.analysis.cost import BEGIN, begin, get_nominal, predict_seconds
from engine.kernels.machine.target import Target

CALL = 0.1e-6  # seconds that one thread takes to begin a call
# Seconds that other threads must save in a run to be worth waking: they sleep if a program does
# other work between two runs.  `python -m bench meetings` measures 2.4 to 8.3 us for waking, and
# 0.25 us for a barrier, on 2 cores of an Emerald Rapids server.  `BEGIN` also includes the cache
# lines that move from core to core after a barrier.
WAKE = 5e-6
WIDEST = 64  # bytes of a vector of the machine that the cost model assumes


def list_with_alone(draft: Draft, target: Target, threads: int) -> list[DraftCall]:
    """Return the calls of a draft, in order and in groups, those that run alone marked so."""
    calls = draft.calls
    if threads == 1 or not calls:
        return calls
    spans = list(list_spans(calls))
    alone, shared = _list_seconds(draft, spans, target, threads)
    is_alone = _choose(alone, shared)
    return [
        call if call.alone == chosen else replace(call, alone=chosen)
        for (first, last), chosen in zip(spans, is_alone, strict=True)
        for call in calls[first : last + 1]
    ]


def _list_seconds(
    draft: Draft, spans: list[tuple[int, int]], target: Target, threads: int
) -> tuple[list[float], list[float]]:
    """Return how long each group takes one thread, and how long all of them, without meetings.

    Groups of several calls are never small.
    """
    machine = get_nominal(1)
    machine = replace(machine, flops=machine.flops * target.vector / WIDEST)
    tasks = make_tasks(draft, draft.calls)
    each = predict_seconds(tasks, 1, machine, again=True)
    work = [took - begin(task, 1) for task, took in zip(tasks, each, strict=True)]
    alone, shared = [], []
    for first, last in spans:
        total = sum(work[first : last + 1])
        alone.append(math.inf if draft.calls[first].cut else CALL + total)
        shared.append(CALL + total / threads)
    return alone, shared


def _choose(alone: list[float], shared: list[float]) -> list[bool]:
    """Return which of some calls, one after another, are to run alone, so that all end first.

    Threads meet before each call, but not between two that run alone; and at the end.
    """
    best = [0.0, math.inf]  # the least seconds so far, if the last call was alone, or shared
    came: list[tuple[int, int]] = []  # what the call before was then
    for one, many in zip(alone, shared, strict=True):
        by_one = [best[0] + one, best[1] + BEGIN + one]
        by_many = [best[0] + BEGIN + many, best[1] + BEGIN + many]
        came.append((by_one.index(min(by_one)), by_many.index(min(by_many))))
        best = [min(by_one), min(by_many)]
    if sum(alone) <= min(best) + WAKE:
        return [True] * len(alone)
    at, chosen = best.index(min(best)), []
    for before in reversed(came):
        chosen.append(at == 0)
        at = before[at]
    return chosen[::-1]
