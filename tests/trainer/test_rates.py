"""Rates of training leave out planning and compiling, wherever they are printed."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest

from engine.system import preparation
from engine.system.preparation import preparing, read_clock
from engine.trainer.fit import Callback, Fit
from engine.trainer.reports import progress as progress_module
from engine.trainer.reports.progress import Progress
from engine.trainer.reports.window import Window
from engine.training.model import Model
from tests.support.fits import make_fit, tell
from tests.support.tiny import BATCH, LABELS, X, make_trainer


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(preparation, "time", made)
    monkeypatch.setattr(preparation, "_own", preparation._Preparation())
    return made


def test_the_clock_stands_still_while_a_program_is_prepared(clock: Clock) -> None:
    clock.now += 1
    with preparing():
        clock.now += 5
        assert read_clock() == 101
        with preparing():
            clock.now += 5
        assert read_clock() == 101
    with contextlib.suppress(ValueError), preparing():
        clock.now += 3
        raise ValueError
    clock.now += 2
    assert read_clock() == 103


def test_an_epoch_that_plans_and_compiles_has_the_rate_of_its_steps(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan: Any = Model._make_plan

    def plan_slowly(*arguments: Any) -> Any:
        clock.now += 60
        return plan(*arguments)

    class Steps(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            clock.now += 2

    monkeypatch.setattr(Model, "_make_plan", plan_slowly)
    history = make_trainer().fit(
        (X, LABELS), epochs=2, batch_size=BATCH, progress=False, callbacks=[Steps()]
    )
    assert history["samples_per_second"] == [len(X) / (2 * -(-len(X) // BATCH))] * 2
    assert clock.now > 160, "nothing was planned"


def test_windows_and_bars_leave_preparation_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, out = Window(1.0), io.StringIO()
    bar = Progress(out)
    shown: list[str] = []
    monkeypatch.setattr(bar, "_make", lambda *words: _Bar(shown))
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    fit = make_fit()
    window.begin(fit)
    for _ in range(2):
        with preparing():
            clock.now += 60
        clock.now += 4
        fit.batch, fit.samples = fit.batch + 1, fit.samples + 32
        fit.logs = {"loss": np.float64(1.0)}
        tell([bar], "on_batch_end", fit)
    view = window.look(fit)
    assert view is not None
    assert view.rate == 8.0
    assert ", 8.00 samples/s" in shown[-1]


class _Bar:
    def __init__(self, shown: list[str]) -> None:
        self.shown, self.n = shown, 1

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.shown.append(text)

    def update(self, count: int) -> None:
        self.n += count
