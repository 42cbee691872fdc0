"""Numbers of bytes that people write."""

from __future__ import annotations

from typing import Any

import pytest

from engine.base import arguments
from engine.errors import EngineError

GOOD = {"48 MB": 48 * 10**6, "48mib": 48 << 20, " 1.5 GB ": 1_500_000_000, "7B": 7, 12: 12}
BAD = {
    "12": "units: B, kB, MB", "-1 MB": "expected a number of bytes, such as '48 MB'",
    "0.1 B": "at least 1 byte", 0: "at least 1 byte", 1.5: "expected a whole number",
}  # fmt: skip


@pytest.mark.parametrize("value", GOOD)
def test_bytes_are_read(value: Any) -> None:
    assert arguments.check_nbytes("memory_budget", value) == GOOD[value]


@pytest.mark.parametrize("value", BAD)
def test_what_is_no_number_of_bytes_is_refused(value: Any) -> None:
    with pytest.raises(EngineError, match="memory_budget.*" + BAD[value]):
        arguments.check_nbytes("memory_budget", value)
