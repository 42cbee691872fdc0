"""Numbers that tests of bindings share."""

from __future__ import annotations

import pytest


@pytest.fixture
def sessions(request: pytest.FixtureRequest) -> str:
    """Return how many sessions a drill makes and ends: ten thousand where tests run whole."""
    return "10000" if request.config.option.whole else "1000"
