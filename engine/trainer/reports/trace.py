"""A trace: the course of a training run, step by step, in a bounded number of points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MAX_POINTS = 600
SECONDS = 0.1  # from one point to the next, at first


@dataclass(frozen=True, slots=True)
class Point:
    """Some consecutive steps.

    step: the optimizer's step, the last of them.
    seconds: since the start of the training, at their end.
    samples: that they trained on.
    loss: the mean over these samples.
    rate: samples per second.
    learning_rate: at their end.
    memory: the largest resident bytes of the process at their ends; 0: unknown.
    """

    step: int
    seconds: float
    samples: int
    loss: float
    rate: float
    learning_rate: float
    memory: int


class Trace:
    """Points of a training run; when there are `MAX_POINTS`, each two are merged.

    seconds: the desired distance of points; it doubles with each merge.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.seconds = SECONDS

    def add(self, point: Point, *, is_rest: bool = False) -> None:
        """Add the newest point.

        is_rest: it covers the rest of an epoch at its end.  It then becomes part of the last point,
            unless it has at least half as many samples: the mean loss of a few samples would look
            like a jump.
        """
        if is_rest and self.points and 2 * point.samples < self.points[-1].samples:
            point = _join_points(self.points.pop(), point)
        self.points.append(point)
        if len(self.points) >= MAX_POINTS:
            pairs = zip(self.points[0::2], self.points[1::2], strict=False)
            rest = self.points[len(self.points) // 2 * 2 :]
            self.points = [_join_points(a, b) for a, b in pairs] + rest
            self.seconds *= 2

    def make_state(self) -> dict[str, Any]:
        """Return the whole trace for JSON: a list of values for each field of a point."""
        rows = [asdict(point) for point in self.points]
        columns = {name: [_round(row[name]) for row in rows] for name in _COLUMNS}
        return {"seconds": self.seconds, "points": columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a trace from `make_state`."""
        self.seconds = state["seconds"]
        columns = (map(_parse_number, state["points"][name]) for name in _COLUMNS)
        self.points = [Point(*values) for values in zip(*columns, strict=True)]


_COLUMNS = tuple(f.name for f in fields(Point))


def _round(value: float) -> float | None:
    """Round to six digits, which is finer than a picture shows; null for NaN and infinity."""
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _parse_number(value: Any) -> Any:
    return math.nan if value is None else value


def _join_points(a: Point, b: Point) -> Point:
    samples = a.samples + b.samples
    seconds = a.samples / a.rate + b.samples / b.rate  # of training, without what was between them
    return Point(
        b.step, b.seconds, samples, (a.loss * a.samples + b.loss * b.samples) / samples,
        samples / seconds, b.learning_rate, max(a.memory, b.memory),
    )  # fmt: skip
