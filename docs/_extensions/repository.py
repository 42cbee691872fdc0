"""Files of the repository that are pages of the site, as CONTRIBUTING.md is.

Such a page is a file under docs/ that only leads to them, for those who read it as it is; on the
site it has their text, whose links lead to pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}
NAMES = {"README.md": "index.md", **{file: f"{page}.md" for page, file in PAGES.items()}}
LINK = re.compile(r"\]\(([^)#\s]+)")


def on_the_site(text: str) -> str:
    """Text of a file at the root with the links that it has as a page."""

    def link(found: re.Match[str]) -> str:
        return f"]({NAMES.get(found[1], found[1].removeprefix('docs/'))}"

    return LINK.sub(link, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""

    def read(app: Sphinx, name: str, source: list[str]) -> None:
        if name in PAGES:
            path = ROOT / PAGES[name]
            app.env.note_dependency(str(path))
            source[0] = on_the_site(path.read_text("utf-8"))

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
