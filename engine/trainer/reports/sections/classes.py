"""Classes, or several labels: how well each is found in the validation, and the mean of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.aliases import Array
from engine.drawing.page import escape, make_table
from engine.trainer.reports.curves import ThresholdCounts
from engine.trainer.reports.findings import Findings
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section

OPEN = 24  # classes of a table that is not folded


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Scores of each class or label, f64[classes] each; NaN where a score has no value.

    there: the number of its samples.
    precision: the share of right ones among the predictions of the class.
    recall: the share of its samples that were found.
    f1: the harmonic mean of both.
    area, average_precision: values of the class against all others; see `Ranking`.
    """

    there: Array
    precision: Array
    recall: Array
    f1: Array
    area: Array
    average_precision: Array

    @classmethod
    def of(cls, findings: Findings) -> ClassScores:
        """Return the scores of findings that have a confusion matrix, or several labels."""
        if findings.labels is not None:
            there, taken, right = findings.labels.T.astype(np.float64)
        else:
            assert findings.counts is not None
            counts = findings.counts.astype(np.float64)
            right, there, taken = np.diag(counts), counts.sum(1), counts.sum(0)
        ranked = [rank_samples(findings, i) for i in range(len(there))]
        return cls(
            there,
            _divide(right, taken),
            _divide(right, there),
            _divide(2 * right, there + taken),
            np.array([np.nan if r is None else r.area for r in ranked]),
            np.array([np.nan if r is None else r.average_precision for r in ranked]),
        )


def rank_samples(findings: Findings, label: int) -> ThresholdCounts | None:
    """Return how the log-odds of a class, or the scores of a label, rank the samples kept."""
    if findings.labels is not None:
        pairs = findings.scored.rows[:, [label, label + len(findings.labels)]]
        wanted, scores = pairs[np.isin(pairs[:, 0], (0, 1)) & np.isfinite(pairs[:, 1])].T
        return ThresholdCounts.of(wanted == 1, scores)
    rows = findings.odds.rows
    return ThresholdCounts.of(rows[:, 0] == label, rows[:, 1 + label]) if len(rows) else None


def name_classes(names: Sequence[str] | None, count: int) -> list[str]:
    """Return the names of the classes if their number matches, otherwise numbers."""
    if names is not None and len(names) == count:
        return [str(name) for name in names]
    return [str(i) for i in range(count)]


def share(value: float) -> str:
    """Format a share of one; a dash if there is none."""
    return f"{100 * value:.1f} %" if np.isfinite(value) else "–"


def render(record: Record) -> str:
    """Return a table with a row a class or label, the one with the least F1 first."""
    findings = record.findings
    if findings is None or not findings.total:
        return ""
    if findings.counts is None and findings.labels is None:
        return ""
    scores = ClassScores.of(findings)
    there = scores.there.astype(np.int64)
    names = name_classes(findings.classes, len(there))
    kind, kinds = ("class", "classes") if findings.labels is None else ("label", "labels")
    columns = (
        scores.precision, scores.recall, scores.f1, scores.area, scores.average_precision
    )  # fmt: skip
    order = sorted(range(len(names)), key=lambda i: (np.nan_to_num(scores.f1[i], nan=2.0), i))
    rows = [
        (escape(names[i]), f"{there[i]:,}", *(share(column[i]) for column in columns))
        for i in order
    ]
    known = there > 0
    means = (
        float(np.nanmean(c[known])) if np.isfinite(c[known]).any() else np.nan for c in columns
    )
    rows.insert(0, (f"<b>mean of the {kinds}</b>", f"{there.sum():,}", *map(share, means)))
    head = (kind, "samples", "precision", "recall", "F1", "AUROC", "average precision")
    every = make_table(head, rows, "scores")
    if len(names) > OPEN:
        every = f"<details><summary>All {len(names)} {kinds}</summary>{every}</details>"
    return f"{describe_origin(record)}{every}{note_thinning(findings)}"


def note_thinning(findings: Findings) -> str:
    """Return a sentence on how many samples the curves are made of, if not of all."""
    if findings.labels is not None:
        stride, what = findings.scored.stride, "sample"
    else:
        stride, what = findings.odds.stride, f"of {findings.total:,} labels"
    if stride == 1:
        return ""
    return f"<small>Areas and curves are of every {stride}th {what}.</small>"


def _divide(part: Array, whole: Array) -> Array:
    result: Array = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return result


SECTION = Section("classes", "Classes", render)
