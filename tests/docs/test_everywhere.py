"""The table of docs/everywhere.md: each cell is what a test shows, and every target has a row."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from engine.tools.trimmed.bindings.languages import LANGUAGES
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support import pages
from tests.support.places import DOCS
from tests.support.shown import How, Shown, list_shown

PAGE = DOCS / "everywhere.md"
SYSTEMS = {
    "linux": "Linux", "windows": "Windows", "macos": "macOS", "ios": "iOS", "ios-simulator": "iOS",
    "android": "Android",
}  # fmt: skip
MACHINES = {"x86_64": "x86-64", "aarch64": "AArch64", "arm": "ARMv6 and ARMv7",
            "riscv64": "RISC-V 64"}  # fmt: skip
MODULES = ("WebAssembly, WASI", "WebAssembly, Node.js", "WebAssembly, browsers")
BARE = {
    "cortex-m4": "Cortex-M4F, M7 and M33", "cortex-m7": "Cortex-M4F, M7 and M33",
    "cortex-m33": "Cortex-M4F, M7 and M33",
    "cortex-m55": "Cortex-M55 and M85", "cortex-m85": "Cortex-M55 and M85",
    "generic-rv32": "RV32IMAFC",
}  # fmt: skip
# Columns, and the languages of `--bindings`; None: each build has it.
COLUMNS = {
    "C": None, "C++17": None, "Python": None, "JavaScript": "js", "Java": "java",
    "Kotlin": "kotlin", "Swift": "swift", "Objective-C": "swift", "C#": "csharp", "Rust": "rust",
    "Go": "go",
}  # fmt: skip


def name_rows(target: str) -> tuple[str, ...]:
    """Return the rows of the table that a target belongs to."""
    platform = resolve(target)
    if platform.is_wasm:
        return MODULES
    if platform.is_bare:
        return (BARE.get(platform.target.cpu, platform.target.cpu),)
    system = SYSTEMS.get(platform.system, platform.system)
    if system == "Android" and platform.machine == "arm":
        return ("Android, ARMv7",)
    machine = MACHINES.get(platform.machine, platform.machine)
    return (system if system in ("macOS", "iOS") else f"{system}, {machine}",)


# Rows, each with a target that belongs to it; this one first.
ROWS: dict[str, str] = {}
for each in ("x86-64-v2", *TARGETS):
    for title in name_rows(each):
        ROWS.setdefault(title, each)


def make_table(shown: list[Shown]) -> str:
    """Return the table; a dash means that no test shows it, an empty cell that it cannot be."""
    lines = [f"| platform | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for row, target in ROWS.items():
        cells = []
        for column in COLUMNS:
            here = [s for s in shown if (s.language, s.platform) == (column, row)]
            if here:
                cells.append(str(min(here, key=lambda s: s.strength)))
            else:
                cells.append("–" if can_be(row, column, target) else "")
        lines.append(
            f"| {row} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")
        )
    return "\n".join(lines) + "\n"


def can_be(row: str, column: str, target: str) -> bool:
    """Return whether a language can call builds on the platform of a row."""
    language, platform = COLUMNS[column], resolve(target)
    if language is not None:
        return LANGUAGES[language].fits(platform) and not row.endswith("WASI")
    is_module = row.startswith("WebAssembly, ")
    return not is_module and not (column == "Python" and (platform.is_bare or platform.sdk))


def test_every_language_has_a_column_and_a_page() -> None:
    assert {name for name in COLUMNS.values() if name} == set(LANGUAGES)
    text = PAGE.read_text("utf-8")
    for name in LANGUAGES:
        (page,) = re.findall(rf"(?m)^\| `{name}` .*\]\((\w+\.md)\) \|$", text)
        content = (DOCS / page).read_text("utf-8")
        programs = sum(b.text.count("\n") for b in pages.list_blocks(content) if b.file)
        lines = content.count("\n") - programs
        assert lines <= 60, f"{page} is longer than a screen besides its programs"
        assert f"--bindings {name}" in content


def test_marks_name_cells() -> None:
    for mark in list_shown():
        assert mark.language in COLUMNS, mark
        assert mark.platform in ROWS, mark
        assert mark.how in get_args(How), mark


def test_the_table_is_what_tests_show(request: pytest.FixtureRequest) -> None:
    """Or is made so by --update-golden."""
    text = PAGE.read_text("utf-8")
    table = make_table(list(list_shown()))
    (old,) = re.findall(r"(?ms)^\| platform \|.*?\n(?=\n)", text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text.replace(old, table), "utf-8")
        return
    assert old == table, "run pytest tests/docs/test_everywhere.py --update-golden"
