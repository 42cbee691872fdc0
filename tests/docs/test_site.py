"""The documentation site: it builds without a warning, and every link on it leads somewhere."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from engine import errors
from engine.tools.dev.browser import browser
from tests.support.needs import needs_browser, needs_node
from tests.support.places import DOCS, ROOT

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and kind.__module__ == errors.__name__
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` makes them."""
    out = tmp_path_factory.mktemp("site")
    options = ["-q", "-b", "html", "-W", "--keep-going", "-n", "-d", str(out / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, DOCS, out / "html"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


class Page(HTMLParser):
    """The links of a page, and the names that links to it may end with."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.names.add(value)


def broken(site: Path) -> Iterator[str]:
    """Links that lead nowhere on the site, or to files that are not part of it."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_relative_to(site) or not target.exists():
                yield f"{path.relative_to(site)}: {link}"
            names = pages[target].names if target in pages else None
            if parts.fragment and names is not None and unquote(parts.fragment) not in names:
                yield f"{path.relative_to(site)}: {link} has no such anchor"


def test_every_link_leads_somewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 20
    assert not list(broken(site.resolve()))


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html">1</a> <a href="#no">2</a> <a href="x">3</a>')
    (tmp_path / "b.html").write_text('<p id="yes"><a href="a.html#no">4</a> <a href="#yes">5</a>')
    actual_parts = [line.split()[1] for line in broken(tmp_path.resolve())]
    assert sorted(actual_parts) == ["#no", "a.html#no", "x"]


def test_links_of_files_lead_to_files() -> None:
    """As those who read the repository follow them; the site has its own."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    wrong = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\((?!\w+:)([^)#\s]+)", page.read_text("utf-8"))
        if not (page.parent / link).exists()
    ]
    assert len(pages) > 20
    assert not wrong


# The site's own search, outside a browser: its files, as search.html loads them.
SEARCH = """
const fs = require("fs"), vm = require("vm"), [site, ...queries] = process.argv.slice(1);
const page = vm.createContext({
  document: { getElementById: () => null }, _ready: () => {}, _: (text) => text,
  SPHINX_HIGHLIGHT_ENABLED: false,
});
page.window = page;
for (const file of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(`${site}/${file}`, "utf8"), page);
const search = vm.runInContext("(q) => Search._performSearch(...Search._parseQuery(q))", page);
console.log(JSON.stringify(queries.map((q) => [...search(q)].pop()?.slice(0, 3) ?? null)));
"""
FOUND = {
    "class weights": "data.html#rare-classes", "imbalanced": "data.html#rare-classes",
    "early stopping": "training.html#early-stopping", "memory": "memory.html#memory",
    "learning rate": "training.html#learning-rates", "resume": "training.html#checkpoints",
    "gradient clipping": "training.html#gradient-accumulation", "freezing": "training.html#frozen",
    "confusion matrix": "reports.html#report-html", "metrics": "metrics.html#metrics",
    "out of memory": "memory.html#memory", "mixup": "data.html#augmentation",
    "wandb": "reports.html#tensorboard", "fine-tuning": "from-pytorch.html#coming",
    "errors": "errors.html#errors", "pandas": "data.html#dataframes", "lora": "lora.html#lora",
}  # fmt: skip


@needs_node
def test_search_lists_the_right_section_first(site: Path) -> None:
    done = subprocess.run(
        ["node", "-e", SEARCH, site, *FOUND], capture_output=True, text=True, check=True
    )
    wrong = {}
    for query, first in zip(FOUND, json.loads(done.stdout), strict=True):
        page, expected = FOUND[query].split("#")
        name, _, anchor = first or ("", "", "")
        sections: list[str] = []  # around the anchor, or the last that began before it
        if f"{name}.html" == page:
            before, mark, _ = (site / page).read_text("utf-8").partition(f'id="{anchor[1:]}"')
            sections = re.findall(r'<section[^>]* id="([^"]+)', before)[-1:]
            assert mark, (query, anchor)
        if not any(section.startswith(expected) for section in sections):
            wrong[query] = (first, sections)
    assert not wrong


@needs_browser
def test_no_page_is_wider_than_its_window(site: Path) -> None:
    """Wide tables and code scroll by themselves, on a desk and on a phone."""
    wide, tables = [], 0
    with browser() as actual_browser:
        for path in sorted(site.rglob("*.html")):
            page = actual_browser.open_page(path, 390)
            for width in (390, 1280):
                page.resize(width)
                root = "document.documentElement"
                if page.ask(f"{root}.scrollWidth > {root}.clientWidth"):
                    wide.append((path.name, width))
            tables += page.ask("document.querySelectorAll('article table').length")
            page.close()
    assert tables > 50
    assert not wide


def test_no_page_shows_comments_for_tests_or_markup(site: Path) -> None:
    marks = ("page_setup", "{width", "index: ")
    texts = {p.name: p.read_text("utf-8") for p in site.glob("*.html")}
    assert not [(name, mark) for name, text in texts.items() for mark in marks if mark in text]


def test_every_error_has_an_entry() -> None:
    """Its meaning and what to do; what can be raised also lists what it says."""
    page = (DOCS / "errors.md").read_text("utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\(#(\w+)\)", page, re.MULTILINE)
    parts = re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:]
    entries = dict(zip(parts[::2], parts[1::2], strict=True))
    assert {kind.__name__ for kind in CLASSES} == set(entries)
    assert [name for name, _ in listed] == list(entries)
    assert all(name.lower() == anchor for name, anchor in listed)
    for kind in CLASSES:
        entry = entries[kind.__name__]
        assert kind is errors.EngineError or "**What to do:**" in entry, kind
        assert ("```{messages} " + kind.__name__ in entry) == issubclass(kind, errors.EngineError)


def test_the_bases_of_every_error_are_those_of_the_table() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    for name, told in re.findall(r"^\| \[(\w+)\].*?\| (.*?) \|", page, re.MULTILINE):
        bases = {b.__name__ for b in vars(errors)[name].__bases__}
        distinct = set(re.findall(r"`(\w+)`", told))
        assert distinct == (bases - {"EngineError"} or {"RuntimeError"}), name


def test_messages_are_read_from_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    messages = importlib.import_module("messages").messages()
    assert "no batch has been accumulated since the last update" in messages["StateError"]
    assert any(text.startswith("no parameter …") for text in messages["NameNotFoundError"])
    assert messages.keys() <= {kind.__name__ for kind in CLASSES}
    assert sum(map(len, messages.values())) > 400


DOCSTRING = """\
Take x * y and call_it_.

    code * here

What follows is a list:
- one,
  and more
- `two_`

first, second: what they are,
    and more.
third: *args

Raises:
    InputError: not one of
        - a | b;
        - c,
          or d.
    StateError: too late.
"""
REWRITTEN = """\
Take x \\* y and call_it\\_.

::

    code * here

What follows is a list:

- one,
  and more
- `two_`

Args:
    first, second: what they are,
        and more.
    third: \\*args

Raises:
    InputError: not one of

        - a \\| b;
        - c,
          or d.

    StateError: too late.
"""


def test_docstrings_become_what_sphinx_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    rewritten = importlib.import_module("plain_docstrings").rewritten
    assert "\n".join(rewritten(DOCSTRING.splitlines())) + "\n" == REWRITTEN
