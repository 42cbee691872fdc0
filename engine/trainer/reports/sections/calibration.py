"""Calibration: whether predictions of a confidence are right as often as it says."""

from __future__ import annotations

import numpy as np

from engine.drawing.charts import draw_histogram, scatter
from engine.trainer.reports.curves import BINS, Calibration
from engine.trainer.reports.findings import Array, Findings, compute_sigmoid
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections.classes import note_thinning


def compute_calibration(findings: Findings) -> Calibration | None:
    """Return the calibration of the predicted classes; None if no shares are known."""
    rows = findings.odds.rows
    if not len(rows):
        return None
    predicted = rows[:, 1:].argmax(1)
    return Calibration.of(predicted == rows[:, 0], compute_confidence(findings))


def compute_confidence(findings: Findings) -> Array:
    """Return the shares of the predicted classes."""
    return compute_sigmoid(findings.odds.rows[:, 1:].max(1).astype(np.float64))


def render(record: Record) -> str:
    """Return the reliability diagram, and how many predictions have which confidence."""
    findings = record.findings
    made = None if findings is None else compute_calibration(findings)
    if findings is None or made is None:
        return ""
    points = list(zip(made.confidence.tolist(), made.accuracy.tolist(), strict=True))
    diagram = scatter(
        "Reliability", "confidence", "accuracy", points,
        kind="share", notes=[f", {count:,} predictions" for count in made.counts.tolist()],
    )  # fmt: skip
    bars = draw_histogram(
        "Confidence of the predictions", "confidence", compute_confidence(findings).tolist()
    )
    told = (
        f"<p>The expected calibration error is {100 * made.error:.1f} %: the mean gap between "
        f"confidence and accuracy, over {BINS} bins of equal width. Points below the diagonal are "
        "of predictions that are right less often than their confidence says.</p>"
    )
    return (
        f"{describe_origin(record)}{told}<div "
        f'class="charts">{diagram}{bars}</div>{note_thinning(findings)}'
    )


SECTION = Section("calibration", "Calibration", render)
