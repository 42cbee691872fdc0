"""Pages that follow from declarations are up to date: ops, losses, metrics, models, commands."""

from __future__ import annotations

import re

from engine.models.catalog import ARCHITECTURES
from engine.system.config import PREFIX, SWITCHES
from engine.tools.dev import tables
from engine.tools.dev.made_parts import make_again
from tests.support.places import ROOT


def test_every_table_is_up_to_date() -> None:
    """If not: `python -m engine.tools.dev.tables`."""
    assert not [path.name for path, _ in tables.find_stale()]


def test_the_pages_have_the_parts_that_are_made() -> None:
    commands = (ROOT / "docs/commands.md").read_text()
    assert commands.count("<!-- made: ") == commands.count("<!-- end -->") == 3
    models = (ROOT / "docs/models.md").read_text()
    assert models.count("\n| ") == 1 + len(ARCHITECTURES)


def test_a_part_is_made_again() -> None:
    page = "a\n<!-- made: x -->\nold\n<!-- end -->\nb"
    assert make_again(page, {"x": lambda: "new\n"}) == page.replace("old", "new")


def test_the_page_of_switches_is_their_table() -> None:
    page = (ROOT / "docs/switches.md").read_text()
    rows = re.findall(rf"^\| `{PREFIX}([A-Z_]+)` \| (.*) \|$", page, re.MULTILINE)
    assert dict(rows) == SWITCHES
