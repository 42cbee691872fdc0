"""A window: the part of a training between two looks at it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.system.preparation import read_clock

if TYPE_CHECKING:
    from engine.trainer.fit import Fit


@dataclass(frozen=True, slots=True)
class View:
    """The training done in a window.

    step: the optimizer's step, the last one.
    samples: trained on.
    loss: the mean over them.
    rate: samples per second, without planning and compiling.
    """

    step: int
    samples: int
    loss: float
    rate: float


class Window:
    """A timer that looks at a training every few seconds, for the cost of reading a clock.

    The mean loss of a window follows from the running means of its epoch at both ends.

    seconds: the shortest time between looks; 0: every step.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due = 0.0
        self._last = 0.0
        self._samples = 0
        self._counted = 0  # of these, whose loss was finite
        self._total = 0.0  # of the losses of the epoch's samples

    def begin(self, fit: Fit) -> None:
        """Start with the batches of an epoch, or restart after something else."""
        self._last = read_clock()
        self._samples = fit.samples
        self._counted, self._total = _sum_losses(fit)

    def postpone(self) -> None:
        """Postpone the next look until the usual time after the start has passed."""
        self._due = self._last + self.seconds

    def look(self, fit: Fit) -> View | None:
        """Return the work since the last look, if that is long enough ago."""
        now = read_clock()
        return self._view(fit, now) if now >= self._due else None

    def take_rest(self, fit: Fit) -> View | None:
        """Return the work since the last look, however recent; None if nothing."""
        return self._view(fit, read_clock())

    def _view(self, fit: Fit, now: float) -> View | None:
        samples = fit.samples - self._samples
        if samples <= 0:
            return None
        counted, total = _sum_losses(fit)
        view = View(
            fit.step,
            samples,
            (total - self._total) / (counted - self._counted or math.nan),
            samples / max(now - self._last, 1e-9),
        )
        self._due = now + self.seconds
        self._last, self._samples = now, fit.samples
        self._counted, self._total = counted, total
        return view


def _sum_losses(fit: Fit) -> tuple[int, float]:
    """Return the number of samples in the epoch whose loss counts, and the sum of these losses."""
    counted = fit.samples - fit.lossless
    return counted, fit.logs["loss"] * counted if counted else 0.0
