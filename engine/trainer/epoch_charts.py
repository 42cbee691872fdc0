"""Charts of a history: a column and its validation column over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from engine.drawing.axes import Kind
from engine.drawing.charts import Chart, Line, draw_lines
from engine.trainer.metrics.named import NOT_RESULTS, is_share

MOST = 8  # charts that are drawn unless more are asked for, as metrics may have a column a class
VALIDATION = "val_"  # before the name of a column of the validation


def list_charts(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the columns that have a chart, the loss first; validation columns share theirs."""
    names = (name.removeprefix(VALIDATION) for row in rows for name in row)
    return sorted(
        dict.fromkeys(n for n in names if n not in NOT_RESULTS), key=lambda n: n != "loss"
    )


def make_charts(
    rows: Sequence[Mapping[str, float]], names: Iterable[str], best: int | None = None
) -> list[Chart]:
    """Return a chart for each of these columns that has a finite value.

    best: the epoch to mark, from 0 on.  In charts epochs count from 1, as people do.
    """
    charts = []
    for name in names:
        kind: Kind = "share" if is_share(name) else "bytes" if name == "memory" else "number"
        lines = _make_lines(rows, name)
        title = name if len(lines) != 1 else lines[0].label
        charts.append(
            draw_lines(
                "Loss" if name == "loss" else title, "epoch", lines, kind=kind,
                may_be_log=name == "loss", best=None if best is None else best + 1,
            )
        )  # fmt: skip
    return [chart for chart in charts if chart is not None]


def _make_lines(rows: Sequence[Mapping[str, float]], name: str) -> list[Line]:
    lines = []
    for colour, column in enumerate((name, f"{VALIDATION}{name}")):
        if any(column in row for row in rows):
            values = [row.get(column, math.nan) for row in rows]
            lines.append(Line(column, [row["epoch"] + 1 for row in rows], values, colour))
    return lines
