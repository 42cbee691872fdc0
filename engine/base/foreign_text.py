"""Texts from outside, such as names of files, classes and columns, made safe for display.

A spreadsheet treats a cell that begins with `=` as a formula, and a terminal treats an escape
character as a command.  All code that writes tables or lines of such texts uses these functions;
pages escape theirs in `engine.drawing.page`.

    OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
# Control characters except for tabs and line ends, and those that reverse the order of letters.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def format_csv(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Return rows as CSV with a line of names; a value that a row lacks is an empty cell.

    A text that a spreadsheet would take for a formula gets an apostrophe before it, as OWASP
    advises, in the line of names, too; numbers and texts of numbers, as -1, are as they are.
    """
    names = list(columns)
    lines = _Lines()
    writer = csv.writer(lines)
    writer.writerow([_read_cell(name) for name in names])
    writer.writerows([[_read_cell(row.get(name, "")) for name in names] for row in rows])
    return "".join(lines)


def read_table(text: str) -> list[dict[str, str]]:
    """Return the rows that `format_csv` wrote, by column, without the apostrophes that it added.

    Raises:
        csv.Error: it is not CSV.
        ValueError: a row has more cells than there are columns, or fewer; or two columns have one
            name.
    """
    rows = [
        [_write_cell(cell) for cell in row] for row in csv.reader(io.StringIO(text), strict=True)
    ]
    names, cells = rows[0] if rows else [], [row for row in rows[1:] if row]
    if len(set(names)) < len(names):
        raise ValueError("two columns have one name")
    for number, row in enumerate(cells, 2):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} cells, expected {len(names)}")
    return [dict(zip(names, row, strict=True)) for row in cells]


def escape(text: str) -> str:
    r"""Return a text for a terminal: characters that would steer it are shown as \x1b is.

    Those are the control characters of ASCII and Latin-1 other than tab and line feed, and the
    marks of Unicode that turn the direction of writing.
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Lines(list[str]):
    """Lines from a writer of CSV, each with a line feed at its end.

    The writer puts into quotes what is in its own line ends, so that these are a carriage return
    and a line feed: it would leave a carriage return in a cell without quotes otherwise.
    """

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def _read_cell(value: Any) -> Any:
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _is_number(value)
    return f"'{value}" if is_formula else value


def _write_cell(cell: str) -> str:
    """Return the text from which `_read_cell` made a cell."""
    rest = cell[1:]
    return rest if cell[:1] == "'" and _FORMULA.match(rest) and not _is_number(rest) else cell


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is not None
