"""Request: the settings of the run, as in run.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engine.drawing.page import values
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section

MAX_LETTERS = 300  # of a value


def render(record: Record) -> str:
    """Return a table of names and values; nested names are joined, as in `data.batch_size`."""
    rows = dict(_flat("", record.request))
    return values(rows) if rows else ""


def _flat(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}{name}.", value)
        elif value is not None:
            shown = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{name}", shown[:MAX_LETTERS] + "…" * (len(shown) > MAX_LETTERS)


SECTION = Section("request", "Request", render)
