"""Steps that thread 0 runs alone: which they are, what they compute, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import SGD, AdamW
from engine.errors import LabelError, PlanError
from engine.graphs.planner import planner, single_thread
from engine.kernels.analysis.cost import BEGIN
from engine.plan import plan_file
from engine.plan.plan import FAULT, Plan
from engine.plan.verify import verify
from engine.runtime.program import BoundProgram
from engine.runtime.team import get_team
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import load, needs_cc
from tests.support.golden_plans import TARGET, make_golden_plan
from tests.support.places import GOLDENS
from tests.support.plans import with_step
from tests.support.sleepers import asleep
from tests.support.tied_words import IDS, TIED, WORDS, read_content
from tests.support.tiny import LABELS, NORMED, X, make_trainer

pytestmark = pytest.mark.alone

PICTURES = np.random.default_rng(1).standard_normal((64, 1, 14, 14)).astype(np.float32)
DIGITS = np.random.default_rng(1).integers(0, 10, 64)


@pytest.fixture
def plan() -> Plan:
    """A plan with steps of both kinds."""
    made = make_golden_plan("cnn", 64, 2)
    assert {step.alone for step in made.steps} == {True, False}
    return made


def find_program(trainer: Trainer) -> BoundProgram:
    """Return the program of the only plan of a trainer."""
    (program,) = trainer.module.session.memory.programs.values()
    return program


# --- the choice


def count_seconds(is_alone: tuple[bool, ...], one: list[float], many: list[float]) -> float:
    """Return what some calls take together, with the meetings of threads before them."""
    total, before = 0.0, True
    for mine, single, shared in zip(is_alone, one, many, strict=True):
        total += (single if mine else shared) + (0 if mine and before else BEGIN)
        before = mine
    return total


@pytest.mark.parametrize("seed", range(6))
def test_no_other_choice_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = [float(took) * BEGIN for took in rng.choice([0.2, 1.0, 3.0, 8.0, 40.0], 9)]
    many = [took / 2 for took in one]
    chosen = tuple(single_thread._choose(one, many))
    ways = itertools.product([True, False], repeat=len(one))
    least = min(count_seconds(way, one, many) for way in ways)
    if sum(one) <= least + single_thread.WAKE:
        assert all(chosen)
    else:
        assert count_seconds(chosen, one, many) == pytest.approx(least, rel=1e-12)


def test_a_call_that_has_tiles_is_shared() -> None:
    assert single_thread._choose([float("inf"), 1e-9], [1e-9, 1e-9]) == [False, True]


def test_a_small_plan_wakes_nobody() -> None:
    trainer = make_trainer(NORMED, threads=2)
    trainer.step(X, LABELS)
    program = find_program(trainer)
    assert all(step.alone for step in program.plan.steps)
    team = get_team(2, program._resolve)
    phase = int(team._words["phase"])
    trainer.step(X, LABELS)
    assert int(team._words["phase"]) == phase


def test_plans_of_one_thread_say_nothing_of_it() -> None:
    assert not any(step.alone for step in make_golden_plan("mlp", 8, 1).steps)


# --- what is computed


@pytest.mark.parametrize("optimizer", [SGD(0.1), AdamW(0.05, clip_grad=0.1)], ids=["sgd", "clip"])
def test_results_are_those_of_shared_steps(
    optimizer: SGD | AdamW, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_trainer(TIED, optimizer=optimizer, threads=3)
    losses = [one.step(IDS, WORDS) for _ in range(3)]
    monkeypatch.setattr(planner, "list_with_alone", lambda draft, target, threads: draft.calls)
    two = make_trainer(TIED, optimizer=optimizer, threads=3)
    assert [two.step(IDS, WORDS) for _ in range(3)] == losses
    assert read_content(one) == read_content(two)


@pytest.mark.parametrize("bad", ["label", "index"])
def test_bad_data_change_nothing(bad: str) -> None:
    """No two steps wait for each other, but a run still ends where it meets bad data."""
    trainer = make_trainer(TIED, optimizer=AdamW(0.05), threads=2)
    trainer.step(IDS, WORDS)
    assert all(step.alone for step in find_program(trainer).plan.steps)
    before = read_content(trainer)
    ids, words = IDS.copy(), WORDS.copy()
    (ids if bad == "index" else words)[2] = 9
    with pytest.raises(LabelError, match=f"{bad} 9 at position"):
        trainer.step(ids, words)
    assert read_content(trainer) == before


@pytest.fixture
def shared() -> Trainer:
    """A trainer whose steps two threads share."""
    trainer = Trainer(GOLDENS / "cnn", threads=2)
    trainer.step(PICTURES, DIGITS)
    assert not all(step.alone for step in find_program(trainer).plan.steps)
    return trainer


def test_a_run_does_not_wait_for_threads_that_sleep(shared: Trainer) -> None:
    team = get_team(2, find_program(shared)._resolve)
    with asleep(team):
        losses = [shared.step(PICTURES, DIGITS) for _ in range(3)]
    other = Trainer(GOLDENS / "cnn", threads=2)
    other.step(PICTURES, DIGITS)
    assert [other.step(PICTURES, DIGITS) for _ in range(3)] == losses
    assert read_content(other) == read_content(shared)


@pytest.mark.parametrize("threads", [2, 5])
def test_a_run_does_not_wait_for_threads_that_fall_asleep(threads: int) -> None:
    """Threads sleep as soon as they wait, in the middle of a run, too."""
    trainer, other = (Trainer(GOLDENS / "cnn", threads=threads) for _ in range(2))
    losses = [other.step(PICTURES, DIGITS) for _ in range(30)]
    team = get_team(threads, find_program(other)._resolve)
    words, spins = team._words, int(team._words["spins"])
    words["spins"] = 1
    try:
        done = [trainer.step(PICTURES, DIGITS) for _ in range(10)]
        with asleep(team):
            done += [trainer.step(PICTURES, DIGITS) for _ in range(10)]
        done += [trainer.step(PICTURES, DIGITS) for _ in range(10)]
    finally:
        words["spins"] = spins
    assert done == losses
    assert read_content(other) == read_content(trainer)
    assert int(words["phase"]) % 2 == 0
    assert words["arrivals"] == 0


def test_bad_data_change_nothing_while_the_others_sleep(shared: Trainer) -> None:
    before, digits = read_content(shared), DIGITS.copy()
    digits[5] = 10
    team = get_team(2, find_program(shared)._resolve)
    with asleep(team), pytest.raises(LabelError, match="label 10 at position 5"):
        shared.step(PICTURES, digits)
    assert read_content(shared) == before


def test_a_run_can_end_after_a_step_that_finds_bad_data() -> None:
    made = make_golden_plan("mlp", 8, 2)
    names = [b.name for b in made.buffers]
    for step, following in itertools.pairwise(made.steps):
        finds = any(a.buffer >= 0 and names[a.buffer] == FAULT for a in step.args)
        assert following.barrier == (step.alone and finds)


def test_a_profile_gives_the_time_to_thread_0() -> None:
    trainer = make_trainer(NORMED, threads=2)
    trainer.step(X, LABELS)
    program = find_program(trainer)
    watch = program.make_stopwatch()
    program.run(watch=watch)
    begin, end, busy = watch.read()
    assert (busy[0] > 0).all()
    assert not busy[1].any()
    assert (begin[0, 1:] >= end[0, :-1]).all()


@needs_cc
def test_a_trimmed_build_runs_them(tmp_path: Path) -> None:
    build(GOLDENS / "mlp", tmp_path, Options("mnist", resolve("native"), PlanRequest((8, 256), 2)))
    built, trainer = load(tmp_path).Trainer(), Trainer(GOLDENS / "mlp", threads=2)
    rng = np.random.default_rng(0)
    for batch in (8, 256, 8):
        x = rng.standard_normal((batch, 64)).astype(np.float32)
        labels = rng.integers(0, 10, batch)
        assert float(built.step(x, labels)) == float(trainer.step(x, labels))


def test_files_keep_them(plan: Plan) -> None:
    (again,) = plan_file.from_bytes(plan_file.to_bytes([plan], TARGET.name), TARGET.name)
    assert [s.alone for s in again.steps] == [s.alone for s in plan.steps]
    assert str(again) == str(plan)


# --- what is refused


def test_threads_meet_where_shared_steps_follow(plan: Plan) -> None:
    n = next(
        n
        for n, (before, step) in enumerate(itertools.pairwise(plan.steps), 1)
        if step.barrier and before.alone != step.alone
    )
    with pytest.raises(PlanError, match="since the last barrier"):
        verify(with_step(plan, n, barrier=False))


def test_a_shared_step_does_not_pass_as_one_that_is_alone(plan: Plan) -> None:
    n = next(
        n
        for n, (before, step) in enumerate(itertools.pairwise(plan.steps), 1)
        if before.alone and step.alone and not step.barrier
    )
    with pytest.raises(PlanError, match="since the last barrier"):
        verify(with_step(plan, n, alone=False))


def test_what_is_never_alone_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="it runs alone in a group, or in a plan of one thread"):
        verify(with_step(replace(plan, threads=1), 0, alone=True))
