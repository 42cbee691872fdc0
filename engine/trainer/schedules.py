"""Schedules: the learning rate of every optimizer step.

`fit` asks a schedule for the rate of a step before the optimizer makes it.  `base` below is the
learning rate that the trainer has when `fit` begins, s the number of steps that are done, T how
many the run has in all.  Every schedule can begin with a warm-up over its first W steps,

    rate(s) = base (s + 1) / W        for s < W

so that no step is made at a rate of 0; then it goes on as if the run began at step W and had T - W
steps.  Where T cannot be known beforehand, as for data without a length, schedules that need it
take it as `steps`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.base import arguments
from engine.base.errors import DTypeError, InputError
from engine.base.representation import represent
from engine.base.signatures import (
    ABOVE_0,
    ANY,
    AT_LEAST_0,
    AT_LEAST_1,
    BELOW_1,
    SHARE,
    check_arguments,
)
from engine.trainer.history import is_better
from engine.training.mode import Mode


@check_arguments(value=ANY)
class Schedule(ABC):
    """Base class of schedules.

    warmup: the steps of the warm-up, as a whole number or, below 1, as a share of all steps.
    """

    def __init__(self, warmup: float = 0) -> None:
        self.warmup = _check_steps("warmup", warmup)

    __repr__ = represent

    def rate(self, step: int, total: int | None, base: float) -> float:
        """Return the learning rate after `step` steps, of `total` in all; None if unknown.

        The same arguments give the same rate, unless `observe` has changed the schedule.

        Raises:
            InputError: the total must be known, and is not.
        """
        total = self.total(total)
        warmup = _resolve_steps("warmup", self.warmup, total)
        if step < warmup:
            return base * (step + 1) / warmup
        return base * self.factor(step - warmup, None if total is None else total - warmup)

    def total(self, total: int | None) -> int | None:
        """Return the number of steps that the schedule is for, its warm-up included."""
        return total

    @abstractmethod
    def factor(self, step: int, total: int | None) -> float:
        """Return the factor of `base` after `step` of the `total` steps that follow the warm-up."""

    def observe(self, value: float, mode: Mode) -> None:  # noqa: B027  # most have no use for it
        """Take note of the monitored value after an epoch; mode "min" or "max" is the better
        direction.
        """

    def state(self) -> dict[str, Any]:
        """Return what `observe` has changed, as JSON types."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # as `observe`
        """Take over what `state` has returned."""


@check_arguments
class Function(Schedule):
    """The rate is what a function of (step, total, base) returns; see `Schedule.rate`."""

    def __init__(self, function: Callable[[int, int | None, float], float]) -> None:
        super().__init__()
        self.function = function

    def rate(self, step: int, total: int | None, base: float) -> float:
        return arguments.check_real("schedule: the rate", self.function(step, total, base))

    def factor(self, step: int, total: int | None) -> float:
        return self.rate(step, total, 1.0)


def schedule_of(given: Any) -> Schedule:
    """Return a schedule, made of a function if that is given; None for a constant rate.

    Raises:
        DTypeError: it has another type.
    """
    if given is None:
        return Constant()
    if isinstance(given, Schedule):
        return given
    if callable(given) and not isinstance(given, type):
        return Function(given)
    raise DTypeError(
        f"schedule={given!r}; expected a Schedule, such as Cosine(), its name, or a function of "
        "step, total, base"
    )


@check_arguments
class Constant(Schedule):
    """The rate stays `base`."""

    def factor(self, step: int, total: int | None) -> float:
        return 1.0


@check_arguments(steps=AT_LEAST_1)
class _Spanning(Schedule):
    """Base of schedules that need to know how many steps there are.

    steps: how many there are, the warm-up included; None for the whole run.  Later steps have the
        rate of the last one.
    """

    def __init__(self, warmup: float = 0, steps: int | None = None) -> None:
        super().__init__(warmup)
        self.steps = steps

    def total(self, total: int | None) -> int | None:
        known = total if self.steps is None else self.steps
        if known is None:
            raise InputError(
                f"{type(self).__name__} must know how many steps the run has, and the data has no "
                f"length: give {type(self).__name__}(steps=...)"
            )
        return known

    def factor(self, step: int, total: int | None) -> float:
        assert total is not None
        return self.curve(step, max(total, 1))

    @abstractmethod
    def curve(self, step: int, total: int) -> float:
        """Return the factor as `factor` does, of a known total."""


@check_arguments(end=AT_LEAST_0, steps=AT_LEAST_1)
class Linear(_Spanning):
    """base (1 + (end - 1) s / T): falls in a line to `end` times `base`."""

    def __init__(self, end: float = 0.0, warmup: float = 0, steps: int | None = None) -> None:
        super().__init__(warmup, steps)
        self.end = end

    def curve(self, step: int, total: int) -> float:
        return 1 + (self.end - 1) * min(step, total) / total


@check_arguments(end=AT_LEAST_0, steps=AT_LEAST_1)
class Cosine(_Spanning):
    """base (end + (1 - end) (1 + cos(π s / T)) / 2): falls as half a cosine to `end` times `base`.

    Source: Loshchilov and Hutter, SGDR, arXiv 1608.03983, without restarts.
    """

    def __init__(self, end: float = 0.0, warmup: float = 0, steps: int | None = None) -> None:
        super().__init__(warmup, steps)
        self.end = end

    def curve(self, step: int, total: int) -> float:
        share = min(step, total) / total
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * share)) / 2


@check_arguments(every=ABOVE_0, factor=AT_LEAST_0)
class Step(Schedule):
    """base factor^k, where k counts the drops so far.

    every: the steps between two drops: a whole number, or below 1 a share of all steps.
    at: instead of `every`, the steps of the drops, each as a whole number or a share.
    """

    def __init__(
        self,
        every: float | None = None,
        factor: float = 0.1,
        at: Sequence[float] = (),
        warmup: float = 0,
    ) -> None:
        super().__init__(warmup)
        if (every is None) == (not at):
            raise InputError(f"Step: every={every}, at={list(at)}: give only one of the two")
        self.every = None if every is None else _check_steps("every", every)
        self.at = [_check_steps("at", a) for a in at]
        self.drop = factor

    def factor(self, step: int, total: int | None) -> float:
        if self.every is None:
            count = sum(step >= _resolve_steps("at", a, total) for a in self.at)
        else:
            count = step // max(_resolve_steps("every", self.every, total), 1)
        return float(self.drop**count)


@check_arguments(start=AT_LEAST_0, end=AT_LEAST_0, up=SHARE, steps=AT_LEAST_1)
class OneCycle(_Spanning):
    """Rises from `start` to 1 times `base` over a share `up` of the steps, then falls to `end`.

    Both ways are half a cosine.  With u = up T - 1, as in torch.optim.lr_scheduler.OneCycleLR:

        s <= u   start + (1 - start) (1 - cos(π s / u)) / 2
        s > u    end + (1 - end) (1 + cos(π (s - u) / (T - 1 - u))) / 2

    Source: Smith and Topin, Super-Convergence, arXiv 1708.07120.
    """

    def __init__(
        self,
        start: float = 1 / 25,
        end: float = 1 / 25e4,
        up: float = 0.3,
        warmup: float = 0,
        steps: int | None = None,
    ) -> None:
        super().__init__(warmup, steps)
        self.start, self.end, self.up = start, end, up

    def curve(self, step: int, total: int) -> float:
        step, peak = min(step, total - 1), max(self.up * total - 1, 0.0)
        if step <= peak:
            share = step / peak if peak else 1.0
            return self.start + (1 - self.start) * (1 - math.cos(math.pi * share)) / 2
        share = (step - peak) / (total - 1 - peak)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * share)) / 2


@check_arguments(
    value=ANY, factor=BELOW_1, patience=AT_LEAST_1, min_delta=AT_LEAST_0, cooldown=AT_LEAST_0,
    end=AT_LEAST_0,
)  # fmt: skip
class Plateau(Schedule):
    """The rate is multiplied by `factor` when the monitored value has not improved.

    patience: after how many epochs in a row without improvement.
    min_delta: the least change that counts as an improvement.
    cooldown: how many epochs after a drop are not counted.
    end: the rate never falls below `end` times `base`.
    """

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 5,
        min_delta: float = 0.0,
        cooldown: int = 0,
        end: float = 0.0,
        warmup: float = 0,
    ) -> None:
        super().__init__(warmup)
        self.drop, self.end = factor, end
        self.patience, self.cooldown, self.min_delta = patience, cooldown, min_delta
        self.best: float | None = None
        self.waited = self.resting = 0
        self.current = 1.0  # what `base` is multiplied by now

    def factor(self, step: int, total: int | None) -> float:
        return self.current

    def observe(self, value: float, mode: Mode) -> None:
        if is_better(value, self.best, mode, self.min_delta):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if self.resting:
            self.resting, self.waited = self.resting - 1, 0
        if self.waited >= self.patience:
            self.current = max(self.current * self.drop, self.end)
            self.resting, self.waited = self.cooldown, 0

    def state(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "waited": self.waited,
            "resting": self.resting,
            "current": self.current,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best, self.current = state["best"], state["current"]
        self.waited, self.resting = state["waited"], state["resting"]


def _check_steps(what: str, value: float) -> float:
    """Return a number of steps: a whole number from 0 on, or a share of all steps below 1."""
    steps = arguments.check_real(what, value)
    if steps < 0 or (steps >= 1 and steps != int(steps)):
        raise InputError(f"{what}={value}: expected a whole number of steps, or a share below 1")
    return steps


def _resolve_steps(what: str, steps: float, total: int | None) -> int:
    """Return a number of steps that may be a share of the total."""
    if steps == int(steps):
        return int(steps)
    if total is None:
        raise InputError(
            f"{what}={steps} is a share of the steps of the run, and the data have no length: give "
            "a whole number of steps"
        )
    return round(steps * total)
