"""docs/data.md names everything; tests/docs/test_pages.py runs its examples."""

from __future__ import annotations

import engine.data
from tests.support.places import DOCS

PAGE = DOCS / "data.md"


def test_the_page_names_everything_that_the_room_offers() -> None:
    text = PAGE.read_text("utf-8")
    missing = [n for n in engine.data.__all__ if n not in text]
    assert not missing
