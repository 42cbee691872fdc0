"""Residuals of a regression: predicted minus expected values."""

from __future__ import annotations

import numpy as np

from engine.drawing import amounts
from engine.drawing.charts import draw_histogram, scatter
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section


def render(record: Record) -> str:
    """Return charts of predictions over expected values, of residuals, and of their sizes."""
    findings = record.findings
    if findings is None or not len(findings.pairs.rows):
        return ""
    pairs = findings.pairs.rows[np.isfinite(findings.pairs.rows).all(1)]
    if not len(pairs):
        return ""
    expected, predicted = pairs.T
    left = predicted - expected
    charts = (
        scatter("Predicted over expected values", "expected", "predicted", _list_points(pairs)),
        scatter(
            "Residuals over predicted values", "predicted", "predicted - expected",
            _list_points(np.stack([predicted, left], 1)), reference="zero",
        ),
        draw_histogram("Distribution of the residuals", "predicted - expected", left.tolist()),
    )  # fmt: skip
    stride = findings.pairs.stride
    which = "all" if stride == 1 else f"every {stride}th"
    told = (
        f"<p>A residual is a predicted minus an expected value. Of {which} of "
        f"{findings.pairs.seen:,} values the mean residual is "
        f"{amounts.format_number(left.mean())}, and "
        f"the standard deviation {amounts.format_number(left.std())}.</p>"
    )
    return f'{describe_origin(record)}{told}<div class="charts">{"".join(charts)}</div>'


def _list_points(
    rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in rows]


SECTION = Section("residuals", "Residuals", render)
