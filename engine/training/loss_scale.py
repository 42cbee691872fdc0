"""The factor of the loss in backward passes, and how it follows what float16 can hold.

As in PyTorch's GradScaler: a step whose gradients are not finite is skipped and halves the factor;
so many good steps in a row double it.  As in onnxruntime it stays from 1 to 2^24.  Powers of two
change no bit of a gradient that float16 holds either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.base import arguments
from engine.base.errors import InputError

if TYPE_CHECKING:
    from engine.base.plan_options import Precision

DYNAMIC = "dynamic"
INITIAL, GROWTH_INTERVAL = 65536.0, 2000
LEAST, MOST = 1.0, 2.0**24
FACTOR = 2.0  # of growth; its inverse of backing off


def check_loss_scale(what: str, value: Any) -> float | str | None:
    """Return a loss scale: a number, `DYNAMIC`, or None, which leaves it to the precision.

    Raises:
        InputError: it is another text, or a number out of range.
        DTypeError: it is neither.
    """
    if value is None or value == DYNAMIC:
        return None if value is None else DYNAMIC
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise InputError(
                f"{what}={value!r}: expected {DYNAMIC!r}, or a number from {LEAST:g} to {MOST:,.0f}"
            ) from None
    number = arguments.check_number(what, value)
    if not LEAST <= number <= MOST:
        raise InputError(
            f"{what}={number:g}: expected {DYNAMIC!r}, or a number from {LEAST:g} to {MOST:,.0f}"
        )
    return number


@dataclass(frozen=True, slots=True)
class LossScale:
    """The choice of the factor of the loss in steps.

    initial: the factor of the first step.
    interval: how many good steps in a row double it; 0: it stays.
    """

    initial: float = INITIAL
    interval: int = GROWTH_INTERVAL

    @classmethod
    def choose(
        cls,
        precision: Precision,
        asked: float | str | None = None,
        interval: int = GROWTH_INTERVAL,
    ) -> LossScale | None:
        """Return the scaling asked for; by default dynamic for float16 and none otherwise."""
        if asked == DYNAMIC or (asked is None and precision == "f16"):
            return cls(interval=interval)
        return None if asked is None or asked == 1 else cls(float(asked), 0)

    def find_factor(self, known: float | None) -> float:
        """Return the factor of the next step; known: a dynamic one of steps before."""
        return known if self.interval and known is not None else self.initial

    def count(self, known: float | None, good_steps: int, *, was_done: bool) -> tuple[float, int]:
        """Return a dynamic factor, and the good steps since it changed, after one more step.

        was_done: whether the step was not skipped.
        """
        factor = self.find_factor(known)
        if not was_done:
            return max(factor / FACTOR, LEAST), 0
        if good_steps + 1 < self.interval:
            return factor, good_steps + 1
        return min(factor * FACTOR, MOST), 0


def explain_kept(scaling: LossScale | None, kept: float | None) -> str:
    """Return how steps differ in their loss scale from those before a checkpoint; "" if they go on.

    kept: the dynamic factor in the checkpoint; None if it has none.
    """
    if scaling is None:
        return "" if kept is None else f"the checkpoint's loss scale, {kept:,g}, is kept, not used"
    if not scaling.interval:
        used = f"the loss scale is {scaling.initial:,g}"
        return "" if kept is None else f"{used}; the checkpoint's, {kept:,g}, is kept, not used"
    if kept is not None:
        return ""
    return f"the checkpoint has no loss scale: it starts at {scaling.initial:,g}"
