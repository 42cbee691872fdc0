"""Keeps what tests read of a page out of the page: HTML comments become blank lines."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

COMMENT = re.compile(r"^<!--.*?-->", re.DOTALL | re.MULTILINE)


def without_comments(text: str) -> str:
    """The page without its comments, every line where it was."""
    return COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""

    def read(app: Sphinx, name: str, source: list[str]) -> None:
        source[0] = without_comments(source[0])

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
