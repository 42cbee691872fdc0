"""Curves: loss, metrics, learning rate and speed."""

from __future__ import annotations

from engine.drawing.charts import Line, draw_line_chart, wrap_chart
from engine.trainer.epoch_charts import MOST, list_charts, make_charts
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section


def render(record: Record) -> str:
    """Return charts: loss by epoch and step, metrics by epoch, learning rate and speed by step."""
    rows, points = record.rows, record.points
    names = [name for name in list_charts(rows) if name != "loss"]
    charts = [wrap_chart(chart) for chart in make_charts(rows, ["loss"], record.best)]
    steps = [p.step for p in points]
    finely = Line("loss", steps, [p.loss for p in points])
    charts.append(draw_line_chart("Training loss, step by step", "step", [finely], may_be_log=True))
    charts += [wrap_chart(chart) for chart in make_charts(rows, names[:MOST], record.best)]
    rates = Line("learning rate", steps, [p.learning_rate for p in points])
    charts.append(draw_line_chart("Learning rate", "step", [rates], from_zero=True))
    speed = Line("samples a second", steps, [p.rate for p in points])
    charts.append(draw_line_chart("Samples a second", "step", [speed], from_zero=True))
    shown = "".join(charts)
    shown = f'<div class="charts">{shown}</div>' if shown else ""
    left = [wrap_chart(chart) for chart in make_charts(rows, names[MOST:], record.best)]
    if left:
        folded = f'<div class="charts">{"".join(left)}</div>'
        shown += f"<details><summary>{len(left)} more columns</summary>{folded}</details>"
    return shown


SECTION = Section("curves", "Curves", render)
