"""Files of the repository that are pages of the site, as CONTRIBUTING.md is.

Such a page is a file under docs/ that only leads to them, for those who read it as it is; on the
site it has their text, whose links lead to pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
PAGES = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "examples/index": "examples/README.md",
    **{f"examples/{name}": f"examples/{name}/README.md" for name in EXAMPLES},
    "security": "SECURITY.md",
}
NAMES = {"README.md": "index", **{file: page for page, file in PAGES.items()}}
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def on_the_site(page: str, text: str) -> str:
    """The text of a page with links to pages in place of those to files of the repository."""
    here = posixpath.dirname(PAGES[page])

    def link(found: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(here, found[1]))
        target = f"{NAMES[file]}.md" if file in NAMES else file.removeprefix("docs/")
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}"

    return LINK.sub(link, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""

    def read(app: Sphinx, name: str, source: list[str]) -> None:
        if name in PAGES:
            path = ROOT / PAGES[name]
            app.env.note_dependency(str(path))
            source[0] = on_the_site(name, path.read_text("utf-8"))
            if name == "examples/index":
                source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(EXAMPLES) + "\n```\n"

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
