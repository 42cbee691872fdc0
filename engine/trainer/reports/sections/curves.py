"""Curves: loss, metrics, learning rate and speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from engine.drawing import amounts
from engine.drawing.axes import Kind
from engine.drawing.charts import Line, line_chart
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section

_APART = {"epoch", "loss", "lr", "seconds", "samples_per_second", "memory"}


def render(record: Record) -> str:
    """Return charts: loss by epoch and step, metrics by epoch, learning rate and speed by step."""
    rows, points = record.rows, record.points
    best = None if record.best is None else record.best + 1
    charts = [line_chart("Loss", "epoch", _by_epoch(rows, "loss"), may_be_log=True, best=best)]
    steps = [p.step for p in points]
    finely = Line("loss", steps, [p.loss for p in points])
    charts.append(line_chart("Training loss, step by step", "step", [finely], may_be_log=True))
    names = (name.removeprefix("val_") for row in rows for name in row)
    for name in dict.fromkeys(n for n in names if n not in _APART):
        kind: Kind = "share" if amounts.measure(name, 0.5).endswith("%") else "number"
        lines = _by_epoch(rows, name)
        title = name if len(lines) > 1 else lines[0].label
        charts.append(line_chart(title, "epoch", lines, kind=kind, best=best))
    rates = Line("learning rate", steps, [p.learning_rate for p in points])
    charts.append(line_chart("Learning rate", "step", [rates], from_zero=True))
    speed = Line("samples a second", steps, [p.rate for p in points])
    charts.append(line_chart("Samples a second", "step", [speed], from_zero=True))
    shown = "".join(charts)
    return f'<div class="charts">{shown}</div>' if shown else ""


def _by_epoch(rows: Sequence[Mapping[str, float]], name: str) -> list[Line]:
    """Return a column and its validation column; epochs count from 1, as people do."""
    lines = []
    for colour, column in enumerate((name, f"val_{name}")):
        if any(column in row for row in rows):
            values = [row.get(column, math.nan) for row in rows]
            lines.append(Line(column, [row["epoch"] + 1 for row in rows], values, colour))
    return lines


SECTION = Section("curves", "Curves", render)
