"""Pages are true that are made from tables: of ops, of switches, of commands."""

from __future__ import annotations

import re

from engine.models.catalog import ARCHITECTURES
from engine.system.config import PREFIX, SWITCHES
from engine.tools.commands import page
from engine.tools.dev import models, operators
from tests.support.places import ROOT


def test_the_operator_table_is_that_of_the_declarations() -> None:
    """If not: `python -m engine.tools.dev.operators docs/operators.md`."""
    assert (ROOT / "docs/operators.md").read_text() == operators.make_table()


def test_the_page_of_commands_is_that_of_the_commands() -> None:
    """If not: `python -m engine.tools.commands.page docs/commands.md`."""
    text = (ROOT / "docs/commands.md").read_text()
    assert text == page.make_page(text)
    assert text.count("<!-- made: ") == text.count("<!-- end -->") == 3


def test_the_page_of_models_is_their_catalog() -> None:
    """If not: `python -m engine.tools.dev.models docs/models.md`."""
    text = (ROOT / "docs/models.md").read_text()
    assert text == models.make_page(text)
    assert text.count("\n| ") == 1 + len(ARCHITECTURES)


def test_the_page_of_switches_is_their_table() -> None:
    page = (ROOT / "docs/switches.md").read_text()
    rows = re.findall(rf"^\| `{PREFIX}([A-Z_]+)` \| (.*) \|$", page, re.MULTILINE)
    assert dict(rows) == SWITCHES
