"""The README and the operator table are true: made from the op tables and the switches."""

from __future__ import annotations

import re
from pathlib import Path

from engine.runtime.config import PREFIX, SWITCHES
from engine.tools import operators

ROOT = Path(__file__).parents[1]


def test_the_operator_table_is_that_of_the_declarations() -> None:
    """If not: `python -m engine.tools.operators docs/operators.md`."""
    assert (ROOT / "docs/operators.md").read_text() == operators.table()


def test_every_switch_is_named() -> None:
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(rf"{PREFIX}([A-Z_]+)", readme)) == set(SWITCHES)
