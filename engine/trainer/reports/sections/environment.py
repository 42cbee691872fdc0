"""Environment of the training."""

from __future__ import annotations

from engine.drawing.page import Section, values
from engine.trainer.reports.record import Record


def render(record: Record) -> str:
    """Return a table of names and values."""
    return values(record.environment) if record.environment else ""


SECTION = Section("environment", "Environment", render)
