"""Search for a learning rate: steps at rates that rise from one to the next, and their losses.

The rate of step s of n is

    rate(s) = lowest (highest / lowest)^(s / (n - 1))

The losses are smoothed as m(s) = 0.95 m(s - 1) + 0.05 loss(s), divided by 1 - 0.95^(s + 1).  The
search ends early where the smoothed loss is above four times its lowest value.  The suggestion is
the rate at which the smoothed loss falls fastest per factor of the rate.

Source: Smith, Cyclical Learning Rates, arXiv 1506.01186.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, StateError
from engine.trainer.inputs import split_batch
from engine.trainer.learner import TrainingModels

if TYPE_CHECKING:
    from engine.data import Batches
    from engine.drawing.plot import Plot

_SMOOTH = 0.95
_TOO_HIGH = 4.0  # the smoothed loss over its lowest value, at which the search ends
_SKIPPED = 10  # steps at the beginning whose smoothed losses are of too few


@dataclass(frozen=True, slots=True)
class RateSearch:
    """The losses of steps at rising learning rates.

    rates: the rates of the steps that were done.
    losses: the losses of these steps, before their updates.
    smoothed: the losses without most of the differences between batches.
    suggestion: the rate at which the smoothed loss falls fastest; None if it falls nowhere.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    suggestion: float | None

    def plot(self) -> Plot:
        """Draw the losses over the rates; a line marks the suggestion."""
        from engine.drawing.charts import Line, draw_lines
        from engine.drawing.plot import Plot

        lines = [
            Line("loss", self.rates, self.losses, 1),
            Line("smoothed", self.rates, self.smoothed, 0),
        ]
        chart = draw_lines(
            "loss", "learning rate", lines, may_be_log=True, x_kind="number", x_may_be_log=True,
            best=self.suggestion,
        )  # fmt: skip
        return Plot([] if chart is None else [chart], 1)

    def _repr_html_(self) -> str:
        return self.plot().svg

    def __repr__(self) -> str:
        told = "no rate at which the loss falls"
        if self.suggestion is not None:
            told = f"learning rate {self.suggestion:.3g}"
        count = len(self.rates)
        return f"{told} ({count} steps from {self.rates[0]:.3g} to {self.rates[-1]:.3g})"


def search(
    learner: TrainingModels,
    learn: Callable[[list[Array]], float],
    source: Batches,
    lowest: float,
    highest: float,
    steps: int,
) -> RateSearch:
    """See `Trainer.find_learning_rate`; learn: does a step with inputs, and returns its loss."""
    if lowest >= highest:
        raise InputError(f"lowest={lowest}, highest={highest}: expected lowest < highest")
    rates, losses, smoothed = list[float](), list[float](), list[float]()
    mean = 0.0
    with _unchanged(learner):
        batches = _repeat(source)
        for step in range(steps):
            rate = lowest * (highest / lowest) ** (step / (steps - 1))
            learner.learning_rate = rate
            loss = learn(learner.check_arrays(split_batch(next(batches))))
            if not math.isfinite(loss):
                break
            mean = _SMOOTH * mean + (1 - _SMOOTH) * loss
            rates.append(rate)
            losses.append(loss)
            smoothed.append(mean / (1 - _SMOOTH ** (step + 1)))
            if step > _SKIPPED and smoothed[-1] > _TOO_HIGH * min(smoothed):
                break
    if not rates:
        raise InputError(f"the loss of the first batch is not finite at the rate {lowest}")
    return RateSearch(rates, losses, smoothed, _find_steepest(rates, smoothed))


def _find_steepest(rates: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """Return the rate at which the smoothed loss falls fastest; None if it falls nowhere."""
    first = min(_SKIPPED, len(rates) // 4)
    if len(rates) - first < 3:
        return None
    slopes = np.gradient(np.array(smoothed[first:]), np.log(rates[first:]))
    at = int(np.argmin(slopes))
    return rates[first + at] if slopes[at] < 0 else None


def _repeat(source: Batches) -> Iterator[Any]:
    """Yield the batches of one epoch after another.

    Raises:
        InputError: an epoch has none.
    """
    number = 0
    while True:
        is_empty = True
        for batch in source.epoch(number):
            is_empty = False
            yield batch
        if is_empty:
            raise InputError("the data to search with yield no batches")
        number += 1


@contextmanager
def _unchanged(learner: TrainingModels) -> Iterator[None]:
    """Put everything that steps change back on leaving.

    Raises:
        StateError: there is no optimizer, or accumulated batches wait for an update.
    """
    state, optimizer = learner.state, learner.require_optimizer()
    if learner.pending:
        raise StateError(
            f"{learner.pending} accumulated batches wait for update() or drop_gradients()"
        )
    optimizer.layout()
    scale = state.loss_scale, state.good_steps
    rate, draws, skipped, groups = (
        optimizer.get_learning_rate(),
        state.draws,
        state.skipped,
        list(state.groups),
    )
    with state.unchanged():
        try:
            yield
        finally:
            state.settle()
            learner.session.forget_statistics()
            state.groups, state.draws, state.skipped = groups, draws, skipped
            optimizer.count(was_done=True)
            state.loss_scale, state.good_steps = scale
            optimizer.set_learning_rate(rate)
            learner.drop_gradients()
