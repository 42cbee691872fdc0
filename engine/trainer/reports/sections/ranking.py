"""ROC and precision over recall: what other thresholds than the usual one would find."""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.drawing.charts import COLOURS, Line, draw_line_chart
from engine.trainer.reports.curves import ThresholdCounts
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections.classes import name_classes, note_thinning, rank_samples

POINTS = 200  # of a curve, at most


def render(record: Record) -> str:
    """Return both charts: of class 1 if there are two, otherwise of the least well ranked classes
    or labels.
    """
    findings = record.findings
    if findings is None or not findings.total:
        return ""
    several = findings.labels is not None
    counts = findings.labels if several else findings.counts
    if counts is None:
        return ""
    names = name_classes(findings.classes, len(counts))
    labels = [1] if len(names) == 2 and not several else range(len(names))
    known = [(r, names[i]) for i in labels if (r := rank_samples(findings, i)) is not None]
    if not known:
        return ""
    known.sort(key=lambda each: each[0].average_precision)
    left = len(known) - COLOURS
    recalled, roc = [], []
    for colour, (made, name) in enumerate(known[:COLOURS]):
        precision, recall = _make_steps(made)
        recalled.append(Line(f"{name}, {made.average_precision:.3f}", recall, precision, colour))
        false, true = map(_thin, made.compute_roc())
        roc.append(Line(f"{name}, {made.area:.3f}", false, true, colour))
    told = "each class against all others" if len(labels) > 1 else f"the class {known[0][1]}"
    if several:
        told = "each label" if len(labels) > 1 else f"the label {known[0][1]}"
    titles = (
        f"Precision over recall, {told}; average precision",
        f"True over false positive rate (ROC), {told}; area below",
    )
    charts = "".join(
        draw_line_chart(_with_value(title, lines), across, lines, kind="share", x_kind="share",
                   from_zero=True)
        for title, across, lines in zip(
            titles, ("recall", "false positive rate"), (recalled, roc), strict=True
        )
    )  # fmt: skip
    kinds = "labels" if several else "classes"
    note = f"<small>{left} {kinds} that are ranked better are left out.</small>" if left > 0 else ""
    return (
        f"{describe_origin(record)}<div "
        f'class="charts">{charts}</div>{note}{note_thinning(findings)}'
    )


def _with_value(title: str, lines: list[Line]) -> str:
    """Return a title with the value of a single line, which has no legend."""
    return title if len(lines) > 1 else f"{title} {lines[0].label.rsplit(', ', 1)[1]}"


def _make_steps(made: ThresholdCounts) -> tuple[list[float], list[float]]:
    """Return precision and recall as a line: recall grows at the precision of its threshold."""
    precision, recall = made.compute_precision_recall()
    full = int(np.argmax(recall >= 1)) + 1  # lower thresholds only lose precision
    heights, ends = _thin(precision[:full]), _thin(recall[:full])
    begins = [0.0, *ends[:-1]]
    down = [height for height in heights for _ in (0, 1)]
    return down, [r for pair in zip(begins, ends, strict=True) for r in pair]


def _thin(values: Array) -> list[float]:
    """Return values at equal distances, the first and the last among them."""
    if len(values) <= POINTS:
        return list(map(float, values))
    return [float(values[i]) for i in np.linspace(0, len(values) - 1, POINTS).round().astype(int)]


SECTION = Section("ranking", "Precision, recall and ROC", render)
