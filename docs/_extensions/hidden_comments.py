"""Comments of pages: those for tests are left out, those for the index become entries of it.

`<!-- index: class weights; rare classes -->`, above a heading and a blank line, makes these words
lead to it: the search of the site lists entries of the index before anything it finds in the text.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

COMMENT = re.compile(r"^<!--.*?-->", re.DOTALL | re.MULTILINE)
INDEX = re.compile(r"^<!-- index: ([^\n]+) -->\n$", re.MULTILINE)


def with_entries(text: str) -> str:
    """Return the page with entries of the index, every line where it was.

    An entry with "!" is the main one of its words, which the search lists first.
    """
    return INDEX.sub(
        lambda found: "```{index} " + ", ".join(f"! {w}" for w in found[1].split("; ")) + "\n```",
        text,
    )


def without_comments(text: str) -> str:
    """Return the page without its comments, every line where it was."""
    return COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""

    def read(app: Sphinx, name: str, source: list[str]) -> None:
        source[0] = without_comments(with_entries(source[0]))

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
