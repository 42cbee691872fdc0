"""The sections of a report, in their order; a section is a file of this folder and a row here."""

from __future__ import annotations

from engine.trainer.reports.section import Section
from engine.trainer.reports.sections import (
    calibration,
    classes,
    confusion,
    curves,
    environment,
    memory,
    plan,
    predictions,
    ranking,
    request,
    residuals,
    summary,
)

SECTIONS: tuple[Section, ...] = (
    summary.SECTION,
    curves.SECTION,
    confusion.SECTION,
    classes.SECTION,
    ranking.SECTION,
    calibration.SECTION,
    residuals.SECTION,
    predictions.SECTION,
    memory.SECTION,
    plan.SECTION,
    environment.SECTION,
    request.SECTION,
)
