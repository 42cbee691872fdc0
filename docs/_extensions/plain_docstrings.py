"""Docstrings of this house as reStructuredText.

They are plain text with code in backticks, indented code, lists, and sections as `Args:` and
`Raises:`, which napoleon reads.  What reStructuredText would take otherwise is changed before:

    indented text         becomes a block of code
    a list under a line   gets a blank line before it
    "name: what it is"    at the beginning of a paragraph becomes a row of a section
    * | \\ and a last _    outside of code are taken as they stand
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
ITEM = re.compile(r"(-|\d+\.) ")
ROW = re.compile(r"[*a-z_]\w*(, [*a-z_]\w*)*: ")
MEMBER = re.compile(r"[*\w]+(, [*\w]+)*: ")  # of a section, in which errors have capitals
CODE = re.compile(r"(``.*?``|`.*?`)")
MARKUP = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")


def rewritten(lines: list[str], rows: str = "Args") -> Iterator[str]:
    """The docstring as napoleon and reStructuredText take it.

    Args:
        lines: of the docstring, without its indentation.
        rows: the section that lines as "name: what it is" become.
    """
    place, blank = "text", True
    item = 0  # how far the items of a list inside of a section are indented
    for line in lines:
        stripped = line.lstrip()
        depth = len(line) - len(stripped)
        if not line:
            pass
        elif depth and place == "text" and blank:
            place = "code"
            yield from ("::", "")
        elif not depth:
            before, place = place, _place(line, place, blank)
            if place != before and not blank:
                yield ""
            if place == "rows" != before:
                yield f"{rows}:"
            item = 0
        elif place in ("section", "rows"):
            begins = depth if ITEM.match(stripped) else item if depth > item else 0
            if begins != item and not blank:
                yield ""
            item = begins
        yield _line(line, stripped, depth, place)
        blank = not line


def _place(line: str, before: str, blank: bool) -> str:
    """What a line at the left margin is part of."""
    if SECTION.match(line):
        return "section"
    if ROW.match(line) and (blank or before == "rows"):
        return "rows"
    return "list" if ITEM.match(line) else "text"


def _line(line: str, stripped: str, depth: int, place: str) -> str:
    if place == "code":
        return line
    member = MEMBER if place == "section" and depth == 4 else ROW
    row = member.match(stripped) if place in ("section", "rows") else None
    head = row[0] if row else ""
    indent = " " * (depth + 4 * (place == "rows" and bool(line)))
    return indent + head + escaped(stripped[len(head) :])


def escaped(text: str) -> str:
    """The text with what is markup outside of code taken literally."""
    parts = CODE.split(text)
    parts[::2] = [MARKUP.sub(lambda found: "\\" + found[0], part) for part in parts[::2]]
    return "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to autodoc, before napoleon."""

    def process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: Any) -> None:
        kind = "Attributes" if what in ("class", "exception", "module") else "Args"
        lines[:] = rewritten(list(lines), kind)

    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
