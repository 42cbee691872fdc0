"""Memory of the process over time, and of the model's plans."""

from __future__ import annotations

from engine.drawing import amounts
from engine.drawing.charts import Line, draw_line_chart
from engine.drawing.page import make_values
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section
from engine.trainer.step_plan import REGION_NAMES


def render(record: Record) -> str:
    """Return a chart over time, and a table of regions with the sizes of the largest plan."""
    points = [p for p in record.points if p.memory]
    line = Line("resident", [p.seconds for p in points], [float(p.memory) for p in points])
    chart = draw_line_chart(
        "Memory of the process", "time", [line], kind="bytes", x_kind="seconds", from_zero=True
    )
    sizes = {
        what: max((plan.compute_region_bytes(region) for plan in record.plans), default=0)
        for region, what in REGION_NAMES.items()
    }
    rows = {what: amounts.format_size(size) for what, size in sizes.items() if size}
    held = f"<h3>Of it, held by the model's plans</h3>{make_values(rows)}" if rows else ""
    return f'<div class="charts">{chart}<div>{held}</div></div>' if chart or held else ""


SECTION = Section("memory", "Memory", render)
