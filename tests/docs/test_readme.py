"""Pages that follow from declarations are up to date: ops, losses, metrics, models, commands."""

from __future__ import annotations

import re

from engine.graphs.io import opsets
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


def test_figures_in_words_are_those_of_their_pages() -> None:
    """Numbers of families, of node tests and of opsets stand in sentences of several pages."""
    families = re.findall(r"of (\d+) families", (ROOT / "docs/families.md").read_text())[0]
    passed = re.findall(r"which is ([\d.]+)%", (ROOT / "docs/conformance.md").read_text())[0]
    expected = {
        r"\b(\d+) families\b": families,
        r"(\d+) % of (?:ONNX's node tests|all) on numeric": str(round(float(passed))),
        r"(?<!from )\bopsets? (\d+) to": str(opsets.OLDEST),
        r"(?<!from )\bopsets? \d+ to (\d+)": str(opsets.LAST),
    }
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    text = " ".join(" ".join(page.read_text("utf-8").split()) for page in pages)
    for pattern, number in expected.items():
        assert {*re.findall(pattern, text)} == {number}, pattern
