"""Predictions: samples of the validation, the worst and some correct ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.drawing import amounts
from engine.drawing.class_colours import choose_colours
from engine.drawing.page import escape, make_table
from engine.trainer.reports import png
from engine.trainer.reports.findings import Findings, Sample
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections.classes import name_classes

EXPLAINED = 12  # classes with a colour in the legend


def render(record: Record) -> str:
    """Return cards with pictures if the samples look like pictures, otherwise tables of values."""
    findings = record.findings
    if findings is None or not (findings.worst or findings.best):
        return ""
    parts = [describe_origin(record)]
    if findings.are_masks:
        parts.append(
            f"<p>Each picture, its expected and its predicted mask.{_explain(findings)}</p>"
        )
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
        assert sample.picture is not None
        if findings.are_masks:
            cards.append(_make_mask_card(sample))
            continue
        predicted, expected = _format_ends(findings, sample)
        share = "" if sample.confidence is None else f" ({100 * sample.confidence:.0f} %)"
        note = "" if predicted == expected else f"<small>expected {escape(expected)}</small>"
        note += f"<small>{escape(sample.name)}</small>" if sample.name else ""
        cards.append(
            f'<figure><img src="{png.make_address(sample.picture)}" alt="sample expected as '
            f'{escape(expected)}"><figcaption>{escape(predicted)}{share}{note}</figcaption></figure>'
        )
    wide = " wide" if findings.are_masks else ""
    return f'<div class="cards{wide}">{"".join(cards)}</div>'


def _make_mask_card(sample: Sample) -> str:
    """Return a picture beside its masks."""
    assert sample.picture is not None
    note = f"<small>{escape(sample.name)}</small>" if sample.name else ""
    wrong = f"{100 * sample.error:.1f} % of the pixels are wrong"
    return (
        f'<figure><img src="{png.make_address(sample.picture)}" alt="a picture, its expected and '
        f'its predicted mask: {wrong}"><figcaption>{wrong}{note}</figcaption></figure>'
    )


def _explain(findings: Findings) -> str:
    """Return the colours of the classes in masks, where these are few."""
    count = 0 if findings.counts is None else len(findings.counts)
    if not 0 < count <= EXPLAINED:
        return ""
    names = name_classes(findings.classes or (), count)
    colours = choose_colours(count)
    swatches = (np.full((1, 1, 3), colour, np.uint8) for colour in colours)
    return "".join(
        f' <img class="colour" src="{png.make_address(swatch)}" alt=""> {escape(name)}'
        for name, swatch in zip(names, swatches, strict=True)
    )


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
