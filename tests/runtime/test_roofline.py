"""Limits of a machine, measured while other processes use it: by simulated clocks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.checking import Check
from engine.checking.report import Figures
from engine.runtime.roofline import AGREEING, MOST_RUNS, FastestRun, _compute_limits, find_best

UNIT = 3e-6  # seconds of one round, where nothing disturbs it


def machine(seed: int, share: float, slice_: float) -> Callable[[int], float]:
    """Simulate a machine on which others take slices; return a run of it, by its own clock.

    share: of another's slices; a run has to wait for each.
    """
    chance = random.Random(seed)  # numbers of a test, which must repeat

    def run(count: int) -> float:
        left = work = count * UNIT
        while left > 0:
            if chance.random() < share:
                work += slice_ * chance.random()
            left -= slice_
        return work

    return run


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.8])
def test_the_best_run_is_that_of_an_idle_machine(share: float, seed: int) -> None:
    """Or it says that it is not sure; never is a step said to take several times as long."""
    best = find_best(machine(seed, share, 0.01))
    assert best.each >= UNIT * (1 - 1e-9)
    assert best.each <= 1.5 * UNIT or best.unsure
    assert best.each <= 4 * UNIT
    assert share or not best.unsure


def test_waiting_at_the_start_is_no_work() -> None:
    """Each run waits 10 ms for a processor: one round seems to take that long."""
    best = find_best(lambda count: 0.01 + count * UNIT)
    assert best.each < 3 * UNIT


def test_runs_that_never_agree_are_bounded_and_unsure() -> None:
    chance, runs = random.Random(1), []  # numbers of a test, which must repeat

    def run(count: int) -> float:
        runs.append(count)
        return count * UNIT * float(1.5 ** chance.uniform(0, 20))

    assert find_best(run).unsure
    assert runs.count(max(runs[-1:])) <= MOST_RUNS + 6
    assert AGREEING < MOST_RUNS


def test_limits_that_other_measurements_confirm_are_sure() -> None:
    sure, unsure = FastestRun(1e-3, False), FastestRun(1e-3, True)
    good = [(1 << 14, 4e9, False), (1 << 20, 2e9, False)]
    assert not _compute_limits(1, 1e6, [unsure, sure], good).unsure
    assert _compute_limits(1, 1e6, [unsure, unsure], good).unsure
    assert _compute_limits(1, 1e6, [unsure, FastestRun(2e-3, False)], good).unsure
    slow = [(1 << 14, 1e9, True), (1 << 20, 2e9, False)]  # the next cache is faster: disturbed
    limits = _compute_limits(1, 1e6, [sure], slow)
    assert (limits.streams, limits.unsure) == (((1 << 14, 2e9), (1 << 20, 2e9)), False)
    assert _compute_limits(1, 1e6, [sure], [*good[:1], (1 << 20, 2e9, True)]).unsure
    assert limits.flops == 1e9


def test_a_check_says_when_it_is_unsure() -> None:
    figures = Figures({"work": 1}, None, 0.5)
    told = [
        str(Check("m", 1, "k", figures=figures, machine=(2.5e9, 5e8), unsure=unsure))
        for unsure in (False, True)
    ]
    assert all("at 2.5 GFLOP/s and 0.5 GB/s" in text for text in told)
    assert ["uncertain: the machine was busy" in text for text in told] == [False, True]
