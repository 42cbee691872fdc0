"""Predictions: samples of the validation, the worst and some correct ones."""

from __future__ import annotations

from collections.abc import Sequence

from engine.drawing import amounts
from engine.drawing.page import escape, make_table
from engine.trainer.reports import png
from engine.trainer.reports.findings import Findings, Sample
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections.classes import name_classes


def render(record: Record) -> str:
    """Return cards with pictures if the samples look like pictures, otherwise tables of values."""
    findings = record.findings
    if findings is None or not (findings.worst or findings.best):
        return ""
    parts = [describe_origin(record)]
    samples = findings.worst or findings.best
    is_classes = bool(samples) and samples[0].confidence is not None
    titles = ("Most wrong", "Right") if is_classes else ("Largest errors", "Smallest errors")
    for title, group in zip(titles, (findings.worst, findings.best), strict=True):
        if group:
            pictured = all(sample.picture is not None for sample in group)
            show = _make_cards if pictured else _make_rows
            parts.append(f"<h3>{title}</h3>{show(findings, group)}")
    return "".join(parts)


def _make_cards(findings: Findings, samples: Sequence[Sample]) -> str:
    cards = []
    for sample in samples:
        predicted, expected = _format_ends(findings, sample)
        assert sample.picture is not None
        share = "" if sample.confidence is None else f" ({100 * sample.confidence:.0f} %)"
        note = "" if predicted == expected else f"<small>expected {escape(expected)}</small>"
        note += f"<small>{escape(sample.name)}</small>" if sample.name else ""
        cards.append(
            f'<figure><img src="{png.make_address(sample.picture)}" alt="sample expected as '
            f'{escape(expected)}"><figcaption>{escape(predicted)}{share}{note}</figcaption></figure>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _make_rows(findings: Findings, samples: Sequence[Sample]) -> str:
    rows, are_named = [], any(sample.name for sample in samples)
    for sample in samples:
        predicted, expected = _format_ends(findings, sample)
        last = (
            amounts.format_number(sample.error)
            if sample.confidence is None
            else f"{100 * sample.confidence:.0f} %"
        )
        named = (escape(sample.name),) if are_named else ()
        rows.append(
            (escape(expected), escape(predicted), last, *named, escape(_format_values(sample)))
        )
    last = "share" if samples[0].confidence is not None else "mean error"
    head = ("expected", "predicted", last, *(("file",) if are_named else ()))
    return make_table((*head, escape(findings.features)), rows, "samples")


def _format_values(sample: Sample) -> str:
    shown = " ".join(v if isinstance(v, str) else amounts.format_number(v) for v in sample.values)
    left = sample.size - len(sample.values)
    return f"{shown} … {left:,} more" if sample.values and left else shown


def _format_ends(findings: Findings, sample: Sample) -> tuple[str, str]:
    """Return the predicted and the expected value as text."""
    if sample.confidence is None:
        ends = (
            " ".join(map(amounts.format_number, v)) for v in (sample.predicted, sample.expected)
        )
        return next(ends), next(ends)
    known = findings.classes or ()
    names = name_classes(known, len(known)) if known else []
    classes = [int(v[0]) for v in (sample.predicted, sample.expected)]
    first, second = (names[i] if i < len(names) else str(i) for i in classes)
    return first, second


SECTION = Section("predictions", "Predictions", render)
