"""The page of a report: a single file, which needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from engine.plan.plan import PHASES

# Classes of page.css, by the phase of a step in words.
PHASE_COLOURS = {name: f"c{n}" for n, name in enumerate(PHASES.values())}


def escape(value: object) -> str:
    """Escape a value as HTML text."""
    return html.escape(str(value))


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table in its own box, which scrolls in narrow windows; cells are HTML."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    top = f"<thead><tr>{top}</tr></thead>" if head else ""
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def make_values(rows: Mapping[str, object]) -> str:
    """Return a table of names and values."""
    return make_table([], ([escape(name), escape(value)] for name, value in rows.items()), "values")


def make_legend(rows: Iterable[tuple[str, str]]) -> str:
    """Return a legend of classes of page.css and what they mean; "" for none."""
    items = "".join(f'<li class="{kind}">{escape(meaning)}</li>' for kind, meaning in rows)
    return f'<ul class="legend">{items}</ul>' if items else ""


def insert_section(page: str, after: str, name: str, heading: str, content: str) -> str:
    """Return a page with one more section, which follows the section with the id `after`.

    name, heading, content: as in `make_page`.  Without such a section the page stays as it is.
    """
    link, end, begin = f'<a href="#{after}">', "</section>", f'<section id="{after}">'
    before, _, rest = page.partition(begin)
    own, ended, others = rest.partition(end)
    head, at, tail = before.partition(link)
    if not (ended and at):
        return page
    title, close, links = tail.partition("</a>")
    head = f"{head}{at}{title}{close}{_make_link(name, heading)}{links}"
    return f"{head}{begin}{own}{end}\n{_make_section(name, heading, content)}{others}"


def _make_link(name: str, heading: str) -> str:
    return f'<a href="#{name}">{escape(heading)}</a>'


def _make_section(name: str, heading: str, content: str) -> str:
    return f'<section id="{name}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>'


@cache
def read_part(name: str) -> str:
    """Read a file beside this one."""
    from importlib import resources

    return resources.files("engine.drawing").joinpath(name).read_text("utf-8")


def _compute_digest(source: str) -> str:
    """Return the source of a policy that allows only this style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def make_page(title: str, head: str, sections: Iterable[tuple[str, str, str]]) -> str:
    """Return the whole page.

    head: the HTML between the title and the sections.
    sections: the id, the title and the HTML of each.

    The policy in the page lets a browser run and read only the contents of this file.
    """
    style = read_part("page.css") + read_part("chart.css")
    code = read_part("page.js") + read_part("arena.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_compute_digest(style)}; "
        f"script-src {_compute_digest(code)}; base-uri 'none'; form-action 'none'"
    )
    sections = list(sections)
    links = "".join(_make_link(name, heading) for name, heading, _ in sections)
    body = "\n".join(_make_section(*each) for each in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{head}
<nav>{links}</nav>
</header>
<main>
{body}
</main>
<script>{code}</script>
</body>
</html>
"""
