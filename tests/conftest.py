"""Options and fixtures all tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what the code does"
    )
    parser.addoption(
        "--no-skips", action="store_true",
        help="a test that needs a tool this machine lacks fails, as in CI, and is not skipped",
    )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under --no-skips, a skip for want of a tool is a failure."""
    report = yield
    if item.config.getoption("--no-skips") and _lacking(report):
        report.outcome, report.longrepr = "failed", f"{_lacking(report)} (--no-skips)"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in plain words what did not run here."""
    reports = terminalreporter.stats.get("skipped", [])
    for reason, count in sorted(Counter(filter(None, map(_lacking, reports))).items()):
        terminalreporter.write_line(f"NOT RUN: {count} tests, each {reason}", yellow=True)


def _lacking(report: Any) -> str:
    """The reason of a skip for want of a tool, `needs ...`; else an empty string."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return ""
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    return reason if reason.startswith("needs ") else ""


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file of tests/golden, or write the file under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{name}: run pytest --update-golden and review the change"

    return check
