"""Limits: what asks for too much is refused before the work is done, and a switch allows more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import limits
from engine.errors import LETTERS, EngineError, LimitError, ModelError, nearest

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_limits_is_their_table() -> None:
    page = (DOCS / "limits.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z_]+) \| `(\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, limits.PREFIX + name, row.told(), row.meaning) for name, row in limits.LIMITS.items()
    ]
    assert re.findall(r"^- \*\*([A-Z_]+)\*\*: ", page, re.MULTILINE) == [*limits.LIMITS]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NODES", "", 200_000),
        ("NODES", "300", 300),
        ("PLAN_BYTES", "1.5 GB", 1_500_000_000),
        ("PLAN_BYTES", "4096", 4096),
        ("NODES", "1_0", "EDGEGRAD_MAX_NODES='1_0': expected a whole number of nodes"),
        ("NODES", "0", "EDGEGRAD_MAX_NODES='0': expected 1 to"),
        ("NODES", "9" * 5000, "EDGEGRAD_MAX_NODES='999"),
        ("PLAN_BYTES", "4 XB", "EDGEGRAD_MAX_PLAN_BYTES='4 XB': expected bytes, as '48 MB'"),
        ("NODE", "4", "unknown switch EDGEGRAD_MAX_NODE; .*nearest: 'EDGEGRAD_MAX_NODES'"),
    ],
)
def test_switches_of_limits(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: int | str
) -> None:
    monkeypatch.setenv(limits.PREFIX + name, value)
    if isinstance(expected, int):
        assert limits.limit(name) == expected
    else:
        with pytest.raises(EngineError, match=expected):
            limits.limit("NODES" if name == "NODE" else name)


def test_the_error_names_limit_value_and_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        LimitError, match=r"^Loop 'l': 300000 nodes; .* 200000\. .* EDGEGRAD_MAX_NODES"
    ) as e:
        limits.check("NODES", 300_000, "Loop 'l'")
    assert (e.value.limit, e.value.value, e.value.most) == ("NODES", 300_000, 200_000)
    assert isinstance(e.value, MemoryError)
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "300000")
    limits.check("NODES", 300_000, "Loop 'l'")
    with pytest.raises(LimitError, match="10\\*\\*18 or more nodes"):
        limits.check("NODES", 10**10_000, "Loop 'l'")


def test_messages_stay_short() -> None:
    """A name of ten million letters is cut, and compared with no other."""
    name = "n" * 10_000_000
    text = str(ModelError(f"{name!r}: two nodes make it; expected one{nearest(name, [name, 'n'])}"))
    assert len(text) < LETTERS + 50
    assert text.startswith("'nnn")
    assert text.endswith("two nodes make it; expected one")
    assert "letters ...]" in text
