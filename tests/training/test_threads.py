"""Trainings in several threads and processes, interrupted, and forgotten."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from engine.errors import (
    EngineError,
    LabelError,
    StateError,
)
from engine.kernels.binaries import load
from engine.runtime.team import Team
from tests.support.mlp import Training
from tests.support.places import ROOT
from tests.support.thread_calls import run_in_threads


def test_one_module_from_several_threads() -> None:
    module = Training().module.eval()
    x, y = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32), np.arange(64) % 10
    sizes = (1, 3, 64)
    expected, wrong = {n: module(x[:n], y[:n]) for n in sizes}, []
    again = Training().module.eval()  # plans are made while others run

    def work() -> None:
        for i in range(60):
            n = sizes[i % 3]
            if again(x[:n], y[:n]) != expected[n]:
                wrong.append(n)

    run_in_threads([work] * 4)
    assert not wrong


def test_errors_in_one_thread_do_not_reach_another() -> None:
    alone, beside, failing = Training(), Training(), Training()
    caught = []

    def train(t: Training) -> None:
        for _ in range(50):
            t.module(t.x, t.y)
            t.optimizer.step()
            t.module.lazy_reset_grad()

    def fail() -> None:
        for _ in range(100):
            try:
                failing.module(failing.x, failing.y + 99)
            except LabelError as error:
                caught.append(error)

    train(alone)
    run_in_threads([lambda: train(beside), fail])
    assert len(caught) == 100
    assert beside.kept() == alone.kept()


def test_an_interrupt_leaves_a_module_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    training, run = Training(), Team.run

    def interrupted(self: Team, *args: Any) -> None:
        run(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Team, "run", interrupted)
        for call in (lambda: training.module(training.x, training.y), training.optimizer.step):
            with pytest.raises(KeyboardInterrupt):
                call()
    assert np.isfinite(training.module.eval()(training.x, training.y))
    training.module.train()(training.x, training.y)
    training.optimizer.step()
    assert training.optimizer._group.step == 2


def test_threads_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "edgegrad-2":
            raise RuntimeError("can't start new thread")
        start(self)

    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(
            EngineError, match=r"threads=4: the system started only 2 \(can't start"
        ):
            Team(4, load.get_addresses)
    assert threading.active_count() == before


def test_a_stopped_team_does_not_hang() -> None:
    team = Team(2, load.get_addresses)
    team.stop()
    with pytest.raises(StateError, match="the worker threads were stopped"):
        team.run(0, 0, 0, 2)


IN_CHILD = """
import os, sys, threading
sys.path[:0] = sys.argv[1:2]
from tests.support.mlp import Training
mine, same = Training(), Training()
for t in (mine, same):  # a fork while another thread plans or compiles is not promised to work
    t.module(t.x, t.y)
    t.optimizer.step()
def train():
    while True:
        same.module(same.x, same.y)
        same.optimizer.step()
threading.Thread(target=train, daemon=True).start()
for t in (mine, same) * 3:
    child = os.fork()
    if child == 0:
        t.module(t.x, t.y)
        t.optimizer.step()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""


def test_children_and_the_end_of_a_process_that_trains() -> None:
    """Forked while threads train, then ended while they do: nothing hangs."""
    root = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", IN_CHILD, root], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_nothing_is_kept_but_what_is_used() -> None:
    threads, gone, arrays = threading.active_count(), [], []
    for _ in range(50):
        t = Training()
        t.module(t.x, t.y)
        t.optimizer.step()
        arrays.append((t.module(t.x, t.y), t.state.parameters["0.weight"].data,
                       t.state.parameters["0.weight"].grad))  # fmt: skip
        gone += [weakref.ref(o) for o in (t.module, t.state, t.optimizer, t.module.session.memory)]
        del t
    gc.collect()
    assert not [r for r in gone if r() is not None]
    assert threading.active_count() == threads
    rubbish = [np.full(50_000, 7, np.float32) for _ in range(50)]
    for actual in arrays:  # views outlive their state
        assert all(np.array_equal(a, b) for a, b in zip(actual, arrays[0], strict=True))
    del rubbish
