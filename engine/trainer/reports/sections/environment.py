"""Environment of the training."""

from __future__ import annotations

from engine.drawing.page import make_values
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section


def render(record: Record) -> str:
    """Return a table of names and values."""
    return make_values(record.environment) if record.environment else ""


SECTION = Section("environment", "Environment", render)
