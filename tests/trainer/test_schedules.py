"""Schedules against their formulas, and against values that torch 2.13 has computed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from engine.errors import DTypeError, InputError
from engine.trainer.schedules import (
    Constant,
    Cosine,
    Linear,
    OneCycle,
    Plateau,
    Schedule,
    Step,
    schedule_of,
)
from engine.training.mode import Mode


def rates(schedule: Schedule, count: int, total: int | None, base: float = 0.1) -> list[float]:
    return [schedule.rate(step, total, base) for step in range(count)]


# The learning rate before each step of torch.optim.lr_scheduler, torch 2.13.0, base 0.1.
TORCH: list[tuple[Schedule, int, list[float]]] = [
    (  # LinearLR(optimizer, 1.0, 0.1, 8)
        Linear(end=0.1), 8,
        [0.1, 0.08875, 0.0775, 0.06625, 0.055, 0.04375, 0.0325, 0.02125, 0.01, 0.01],
    ),
    (  # CosineAnnealingLR(optimizer, 8, 0.001)
        Cosine(end=0.01), 8,
        [0.1, 0.0962320368593, 0.0855017856687, 0.0694428299021, 0.0505, 0.0315571700979,
         0.0154982143313, 0.00476796314069],
    ),
    (Step(every=3, factor=0.5), 8, [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]),  # StepLR
    (Step(at=[2, 5]), 8, [0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001, 0.001]),  # MultiStepLR
    (  # OneCycleLR(optimizer, 0.1, total_steps=10)
        OneCycle(), 10,
        [0.004, 0.052, 0.1, 0.0950484632013, 0.081174565395, 0.0611262021936, 0.0388741978064,
         0.018825834605, 0.00495193679865, 4e-07],
    ),
]  # fmt: skip

# ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0, cooldown=1): torch drops the
# rate after one epoch more than its patience.
OBSERVED = [5, 4, 4.5, 4.2, 3, 3.5, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6]
DROPPED = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125, 0.0125]


@pytest.mark.parametrize(
    ("schedule", "total", "expected"), TORCH, ids=lambda v: type(v).__name__ if v else None
)
def test_rates_are_those_of_torch(schedule: Schedule, total: int, expected: list[float]) -> None:
    assert rates(schedule, len(expected), total) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_plateau_lowers_the_rate_as_in_torch(mode: Mode) -> None:
    schedule, actual = Plateau(factor=0.5, patience=2, cooldown=1), []
    for value in OBSERVED:
        actual.append(schedule.rate(0, None, 0.1))
        schedule.observe(value if mode == "min" else -value, mode)
    assert actual == pytest.approx(DROPPED)


FORMULAS: list[tuple[Schedule, Callable[[int, int], float]]] = [
    (Constant(), lambda s, t: 1.0),
    (Linear(), lambda s, t: 1 - s / t),
    (Cosine(), lambda s, t: (1 + math.cos(math.pi * s / t)) / 2),
    (Step(every=0.25), lambda s, t: 0.1 ** (s // round(t / 4))),
    (Step(at=[0.5, 0.75]), lambda s, t: 0.1 ** ((s >= round(t / 2)) + (s >= round(0.75 * t)))),
]


@pytest.mark.parametrize("warmup", [0, 7, 0.1])
@pytest.mark.parametrize(("schedule", "formula"), FORMULAS, ids=lambda v: type(v).__name__)
def test_a_warm_up_comes_before_the_formula(
    schedule: Schedule, formula: Callable[[int, int], float], warmup: float
) -> None:
    total, base = 40, 0.3
    schedule.warmup = warmup
    count = 4 if warmup == 0.1 else int(warmup)
    actual_rates = rates(schedule, total, total, base)
    assert actual_rates[:count] == [base * (s + 1) / count for s in range(count)]
    rest = [base * formula(s, total - count) for s in range(total - count)]
    assert actual_rates[count:] == pytest.approx(rest, rel=1e-12)
    assert min(actual_rates) > 0


def test_one_cycle_and_plateau_warm_up_too() -> None:
    assert rates(OneCycle(warmup=2), 12, 12)[2:] == pytest.approx(rates(OneCycle(), 10, 10))
    plateau = Plateau(warmup=2, patience=1)
    assert rates(plateau, 3, None) == [0.05, 0.1, 0.1]


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize(
    "schedule",
    [Linear(), Cosine(), OneCycle(), OneCycle(up=0), OneCycle(up=1), Linear(warmup=5)],
    ids=lambda v: type(v).__name__,
)
def test_the_shortest_runs_have_finite_rates(schedule: Schedule, total: int) -> None:
    assert all(0 <= rate <= 0.1 for rate in rates(schedule, total + 2, total))


def test_rates_behind_the_last_step_are_those_of_the_last() -> None:
    assert Linear(end=0.5).rate(99, 10, 1.0) == 0.5
    assert Cosine(end=0.5).rate(99, 10, 1.0) == 0.5
    assert OneCycle().rate(99, 10, 1.0) == OneCycle().rate(9, 10, 1.0)


def test_steps_of_its_own_replace_those_of_the_run() -> None:
    assert rates(Linear(steps=4), 6, 100, 1.0) == [1, 0.75, 0.5, 0.25, 0, 0]
    assert rates(Linear(steps=4), 2, None, 1.0) == [1, 0.75]


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), OneCycle()])
def test_a_total_that_is_not_known_is_asked_for(schedule: Schedule) -> None:
    name = type(schedule).__name__
    with pytest.raises(InputError, match=rf"{name} must know .* give {name}\(steps=\.\.\.\)"):
        schedule.rate(0, None, 0.1)


@pytest.mark.parametrize("schedule", [Constant(warmup=0.1), Step(every=0.5), Step(at=[0.5])])
def test_shares_need_a_total(schedule: Schedule) -> None:
    with pytest.raises(InputError, match="share of the steps of the run"):
        schedule.rate(0, None, 0.1)


def test_the_state_of_a_plateau_goes_through_json() -> None:
    first = Plateau(factor=0.5, patience=2, cooldown=1)
    for value in OBSERVED[:5]:
        first.observe(value, "min")
    second = Plateau(factor=0.5, patience=2, cooldown=1)
    second.restore(json.loads(json.dumps(first.state())))
    for value in OBSERVED[5:]:
        first.observe(value, "min")
        second.observe(value, "min")
        assert first.rate(0, None, 0.1) == second.rate(0, None, 0.1)
    assert first.rate(0, None, 0.1) < 0.1


def test_a_plateau_counts_nan_as_no_better_and_has_an_end() -> None:
    schedule = Plateau(factor=0.1, patience=1, end=0.05)
    for _ in range(4):
        schedule.observe(math.nan, "min")
    assert schedule.rate(0, None, 1.0) == 0.05


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Constant(warmup=-1), "warmup=-1"),
        (lambda: Constant(warmup=1.5), r"warmup=1\.5: expected a whole number of steps"),
        (lambda: Linear(end=-0.1), r"end=-0\.1"),
        (lambda: Linear(steps=0), "steps=0"),
        (lambda: Step(), "give only one of the two"),
        (lambda: Step(every=2, at=[3]), "give only one of the two"),
        (lambda: Step(every=0), "every=0"),
        (lambda: OneCycle(up=1.5), r"up=1\.5"),
        (lambda: Plateau(factor=1), "factor=1"),
        (lambda: Plateau(patience=0), "patience=0"),
        (lambda: Cosine(end=math.nan), "end nan is not finite"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make: Callable[[], Schedule], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make()


def test_a_warm_up_is_a_number() -> None:
    with pytest.raises(DTypeError, match="warmup: expected a number"):
        Constant(warmup="ten")  # type: ignore[arg-type]  # what is refused


def test_a_function_is_a_schedule() -> None:
    schedule = schedule_of(lambda step, total, base: base / (step + 1) + (total or 0))
    assert rates(schedule, 3, None, 1.0) == [1, 1 / 2, 1 / 3]
    assert schedule.rate(0, 5, 1.0) == 6
    assert rates(schedule_of(None), 2, None) == [0.1, 0.1]
    kept = Cosine()
    assert schedule_of(kept) is kept
    with pytest.raises(InputError, match="schedule: the rate nan is not finite"):
        schedule_of(lambda step, total, base: math.nan).rate(0, None, 0.1)
    for wrong in ("cosine", Cosine, 0.1):
        with pytest.raises(DTypeError, match="expected a Schedule"):
            schedule_of(wrong)
