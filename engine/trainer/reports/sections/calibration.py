"""Calibration: whether predictions of a confidence are right as often as it says.

Of samples that may have several labels: whether a label is there as often as its share says.
"""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.drawing.charts import draw_histogram, scatter
from engine.trainer.reports.curves import BINS, Calibration
from engine.trainer.reports.findings import Findings, compute_sigmoid
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections.classes import note_thinning


def compute_calibration(findings: Findings) -> Calibration | None:
    """Return the calibration of the predicted classes, or of all labels; None if nothing is known
    of their shares.
    """
    is_right, confidence = _read_shares(findings)
    return Calibration.of(is_right, confidence) if len(confidence) else None


def _read_shares(findings: Findings) -> tuple[Array, Array]:
    """Return whether each prediction is right and its share; of labels whether they are there."""
    if findings.labels is None:
        rows = findings.odds.rows
        if not len(rows):
            return np.zeros(0, bool), np.zeros(0)
        odds = rows[:, 1:]
        return odds.argmax(1) == rows[:, 0], compute_sigmoid(odds.max(1).astype(np.float64))
    wanted, scores = (part.reshape(-1) for part in np.split(findings.scored.rows, 2, axis=1))
    known = np.isin(wanted, (0, 1)) & np.isfinite(scores)
    wanted, scores = wanted[known], scores[known].astype(np.float64)
    are_shares = findings.threshold is not None and 0 < findings.threshold < 1
    return wanted == 1, np.clip(scores, 0, 1) if are_shares else compute_sigmoid(scores)


def render(record: Record) -> str:
    """Return the reliability diagram, and how many predictions have which confidence."""
    findings = record.findings
    made = None if findings is None else compute_calibration(findings)
    if findings is None or made is None:
        return ""
    across, up, what, below = "confidence", "accuracy", "predictions", "right"
    if findings.labels is not None:
        across, up = "share given to a label", "share of samples that have it"
        what, below = "labels", "there"
    points = list(zip(made.confidence.tolist(), made.accuracy.tolist(), strict=True))
    diagram = scatter(
        "Reliability", across, up, points,
        kind="share", notes=[f", {count:,} {what}" for count in made.counts.tolist()],
    )  # fmt: skip
    bars = draw_histogram(
        f"{across.capitalize()}, all {what}", across, _read_shares(findings)[1].tolist()
    )
    told = (
        f"<p>The expected calibration error is {100 * made.error:.1f} %: the mean gap between "
        f"{across} and {up}, over {BINS} bins of equal width. Points below the diagonal are "
        f"of {what} that are {below} less often than the model says.</p>"
    )
    return (
        f"{describe_origin(record)}{told}<div "
        f'class="charts">{diagram}{bars}</div>{note_thinning(findings)}'
    )


SECTION = Section("calibration", "Calibration", render)
