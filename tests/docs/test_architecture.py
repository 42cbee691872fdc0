"""Pages about the code itself: they are short, and the files that they name exist."""

from __future__ import annotations

import re

from tests.support.places import ROOT

TOUR, PAGE = ROOT / "docs/architecture.md", ROOT / "docs/internals.md"


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the page, without its head."""
    section = re.split(r"\n###? ", PAGE.read_text("utf-8").split(f"\n## {title}\n")[1])[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_tour_is_short_and_has_one_drawing() -> None:
    text = TOUR.read_text("utf-8")
    assert len(text.split()) <= 1200
    assert text.count("\n```text\n") == 1


def test_the_changelog_can_be_read() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    areas = text.split("\n## [Unreleased]\n")[1].split("\n## [")[0].split("\n### ")
    assert not areas[0].strip()
    assert sum(area.count("\n- ") for area in areas) <= 60


def test_contributing_begins_with_what_people_do_and_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    first = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| [")]
    assert [line.split("[")[1].split("]")[0] for line in first] == [
        *(f"add {a}" for a in ("an operator", "an optimizer", "a loss", "a metric")),
        "add an architecture",
        "add a fusion",
        "add a training option",
        "add a target",
        "run, test, measure",
    ]
    tops = "engine|kernels|graphs|tools|tests|docs|bench"
    named = re.findall(rf"`((?:{tops})/[\w/.-]*)`", text)
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_folder_is_in_the_table_with_the_file_to_start_with() -> None:
    listed = {}
    for folder, _, first in rows("Folders"):
        listed[folder.strip("`").rstrip("/")] = first.strip("`")
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("engine", "kernels", "graphs", "tools")
        for path in (ROOT / top).rglob("__init__.py")
        if path.resolve() == path
    }
    families = {p for p in packages if p.startswith("kernels/ops/")}  # one row describes all
    assert packages - families - {"kernels", "graphs"} <= listed.keys() | {"engine/onnxblock"}
    for folder, first in listed.items():
        assert (ROOT / folder).exists(), folder
        assert not first or (ROOT / folder / first).is_file(), folder


def test_the_files_that_decide_exist() -> None:
    for _, place in rows("Where is it decided?"):
        folder = ROOT
        for name in re.findall(r"`([\w/]+\.py)`", place):
            path = ROOT / name if "/" in name else folder / name
            assert path.is_file(), name
            folder = path.parent


def test_the_glossary_is_in_order() -> None:
    words = [word for word, _ in rows("Glossary")]
    assert words == sorted(words)
    assert len(words) > 30
