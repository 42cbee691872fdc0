"""Settings of the run, as in run.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engine.drawing.page import make_values
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section

MAX_LETTERS = 300  # of a value


def render(record: Record) -> str:
    """Return a folded table of names and values; nested names are joined: `data.batch_size`."""
    rows = dict(flatten(record.request))
    if not rows:
        return ""
    return f"<details><summary>{len(rows)} settings</summary>{make_values(rows)}</details>"


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and values of nested settings as texts, without those that are None."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        elif value is not None:
            shown = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{name}", shown[:MAX_LETTERS] + "…" * (len(shown) > MAX_LETTERS)


SECTION = Section("request", "Settings", render)
