"""Axes: the scale of a chart, its ticks and their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "share", "bytes", "seconds", "count"]

LOG_SPAN = 50  # the largest over the smallest value, from which on an axis is logarithmic


@dataclass(frozen=True, slots=True)
class AxisScale:
    """A map from values to places: `low` lies at `begin`, `high` at `end`.

    ticks: the labelled values.  is_log: equal distances are equal factors.
    """

    low: float
    high: float
    begin: float
    end: float
    ticks: tuple[float, ...]
    is_log: bool = False
    kind: Kind = "number"

    def place(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def label_tick(self, tick: float) -> str:
        """Return the label of a tick."""
        if self.is_log:
            return f"{tick:g}"
        unit, suffix = self._choose_unit()
        steps = [b - a for a, b in zip(self.ticks, self.ticks[1:], strict=False)]
        step = min(steps, default=unit)
        if step < 1e-4 * unit and self.kind == "number":
            exponent = math.floor(math.log10(max(map(abs, self.ticks))))
            unit, suffix = 10.0**exponent, f"e{exponent}"
        digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
        return f"{tick / unit:,.{digits}f}{suffix}" if tick or suffix[:1] == " " else "0"

    def _choose_unit(self) -> tuple[float, str]:
        """Return the unit of the ticks, and the suffix of their labels."""
        if self.kind == "share":
            return 0.01, " %"
        if self.kind == "seconds":
            unit = _choose_time_unit(self.high)
            return unit, {1e-3: " ms", 1.0: " s", 60.0: " min", 3600.0: " h"}[unit]
        largest = max(abs(self.low), abs(self.high))
        if self.kind == "bytes":
            units = ((1e12, 1e12, " TB"), (1e9, 1e9, " GB"), (1e6, 1e6, " MB"), (1e3, 1e3, " kB"))
            rest = " B"
        else:
            units = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
            rest = ""
        return next(((unit, name) for least, unit, name in units if largest >= least), (1.0, rest))


def make_axis(
    values: Iterable[float],
    begin: float,
    end: float,
    *,
    kind: Kind = "number",
    count: int = 5,
    may_be_log: bool = False,
    from_zero: bool = False,
    is_tight: bool = False,
) -> AxisScale:
    """Return an axis that contains all finite values.

    count: approximate number of ticks.  may_be_log: if the values span factors, for kind number
        only.  from_zero: include 0.  is_tight: end where the values end, not at a tick.
    """
    known = [float(v) for v in values if math.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if may_be_log and low > 0 and high / low > LOG_SPAN:
        ticks = _list_powers(low, high)
        return AxisScale(min(low, ticks[0]), max(high, ticks[-1]), begin, end, ticks, True, kind)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= max(abs(high) * 1e-9, 1e-300):
        pad = 0.5 if kind == "count" else abs(high) * 0.5 or 1.0
        low, high = low - pad, high + pad
    unit = _choose_time_unit(high) if kind == "seconds" else 1.0
    least = 1.0 if kind in ("count", "bytes") else 0.0
    ticks = tuple(
        t * unit for t in _list_multiples(low / unit, high / unit, count, least, is_tight)
    )
    if not is_tight:
        low, high = min(low, ticks[0]), max(high, ticks[-1])
    return AxisScale(low, high, begin, end, ticks, False, kind)


def _list_multiples(
    low: float, high: float, count: int, least: float, is_tight: bool
) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten, at least `least` apart.

    With a tight range, all lie inside it; otherwise the outer two enclose it.
    """
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    step = max(step, least)
    if is_tight:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    else:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _list_powers(low: float, high: float) -> tuple[float, ...]:
    """Return powers of ten around the range; if they are few, also twice and five times each."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if last - first > 6:
        stride = -(-(last - first) // 6)
        return tuple(10.0**e for e in range(first, last + stride, stride))
    factors: Sequence[float] = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in factors]
    below = max((t for t in ticks if t <= low * (1 + 1e-9)), default=ticks[0])
    above = min((t for t in ticks if t >= high * (1 - 1e-9)), default=ticks[-1])
    return tuple(t for t in ticks if below <= t <= above)


def _choose_time_unit(high: float) -> float:
    return next((u for least, u in ((7200, 3600.0), (120, 60.0), (1, 1.0)) if high >= least), 1e-3)
