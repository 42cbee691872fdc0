"""Tables of benches: a line for each row as soon as it is known, as text or Markdown; or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.rows import Cells
from engine.tools.benchmark import machine

FORMATS = ("text", "markdown", "json")
WIDTH = 9  # characters of a column of text, at least


def describe_machine() -> str:
    """Return the machine in one line; the JSON of a table has all that is known of it."""
    facts = machine.describe()
    names = ("machine", "processor", "cores", "load", "edgegrad", "date")
    return ", ".join(f"{n} {facts[n]}" for n in names if n in facts)


class Table:
    """Table of a bench, printed row by row.

    titles: the titles of the columns, each with the format of its cells after a colon.
    """

    def __init__(self, title: str, titles: Sequence[str], names: Sequence[str], kind: str) -> None:
        self.title, self.kind = title, kind
        self.columns = ["", *(title.partition(":")[0] for title in titles)]
        self.formats = ["", *(title.partition(":")[2] for title in titles)]
        self.rows: list[Cells] = []
        first = max(map(len, ["", *names]), default=0)
        self.widths = [first, *(max(len(c), WIDTH) for c in self.columns[1:])]

    def __enter__(self) -> Table:
        if self.kind == "markdown":
            print(*make_markdown(self.columns, []), sep="\n", flush=True)
        elif self.kind == "text":
            print(f"{self.title}\n{self._join_line(self.columns)}", flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.kind != "json":
            print(flush=True)

    def add(self, subject: str, cells: Cells) -> None:
        """Add a row, and print it."""
        row = (subject, *cells)
        if len(row) != len(self.columns):
            raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns")
        self.rows.append(row)
        texts = [format_cell(value, form) for value, form in zip(row, self.formats, strict=True)]
        if self.kind == "markdown":
            print(f"| {' | '.join(texts)} |", flush=True)
        elif self.kind == "text":
            print(self._join_line(texts), flush=True)

    def _join_line(self, texts: Sequence[str]) -> str:
        self.widths = [max(w, len(text)) for w, text in zip(self.widths, texts, strict=True)]
        first, *others = zip(texts, self.widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return "  ".join(cells).rstrip()

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as JSON can hold them, by the titles of columns."""
        names = ["subject", *self.columns[1:]]
        return [{n: _convert(v) for n, v in zip(names, row, strict=True)} for row in self.rows]


def format_cell(value: object, form: str = "") -> str:
    """Return a cell as text; unknown values are empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else format(value, form)


def make_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of Markdown."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def write_json(tables: Sequence[Table]) -> str:
    """Return tables with the machine that they were measured on as a text of JSON."""
    held = {
        "machine": machine.describe(),
        "benches": {table.title: table.as_dicts() for table in tables},
    }
    return json.dumps(held, indent=1, allow_nan=False)


def _convert(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
