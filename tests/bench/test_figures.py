"""The timed tables of documents: each has a place, a bench, and columns that the bench has."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import figures, running
from bench.figures import FIGURES, Figure, View, find_mark, name_subject
from bench.rows import Bench, Cells, find
from engine.errors import EngineError
from tests.support.places import ROOT

DOCUMENTS = sorted({view.document for figure in FIGURES.values() for view in figure.views})


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_names_columns_of_its_bench(name: str) -> None:
    words = FIGURES[name].words.split()
    bench = find(words[0])
    options = running.make_parser([bench]).parse_args(words)
    ((_, subjects),) = running.choose_benches(options.words)
    titles = {title.partition(":")[0] for title in bench.list_titles(options)} | {"subject"}
    assert subjects
    assert FIGURES[name].list_sources() <= titles
    assert {view.only[0] for view in FIGURES[name].views if view.only} <= titles


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_the_places_of_its_figures_and_no_others(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    wanted = [
        name for name, each in FIGURES.items() for view in each.views if view.document == document
    ]
    assert sorted(re.findall(r"<!-- measured: (.+) -->", text)) == sorted(wanted)
    for name in wanted:
        place = find_mark(name).search(text)
        assert place
        assert f"`python -m bench {FIGURES[name].words}`" in " ".join(place[0].split())


def measure(subject: int, options: Namespace) -> Iterator[Cells]:
    for threads in (1, 2):
        yield threads, subject / threads, None


SHARES = Bench("shares", "quotients", {"mlp": 1, "b": 1234}, ("threads", "ms:.1f", "x"), measure)
KEPT = "before\n<!-- measured: shares -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    views = (
        View("a.md", ("threads", "time = ms", "x")),
        View("b.md", (), across=("ms",)),
        View("c.md", ("ms",), only=("threads", 2)),
    )
    monkeypatch.setattr(figures, "FIGURES", {"shares": Figure("shares mlp b", views)})
    monkeypatch.setattr(figures, "find", lambda name: SHARES)
    monkeypatch.setattr(running, "find", lambda name: SHARES)
    monkeypatch.setattr(running, "list_modules", lambda: ["shares"])


@pytest.mark.usefixtures("shares")
def test_tables_are_put_into_their_places(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.md").write_text(KEPT)
    ((rows, _, documents),) = figures.measure_figure("shares", Namespace(folder=tmp_path))
    assert (rows, documents) == (4, "a.md, b.md, c.md")
    mlp = name_subject("mlp")
    tables = {
        "a": f"|  | threads | time | x |\n|---|---|---|---|\n| {mlp} | 1 | 1.00 |  |\n"
        f"| {mlp} | 2 | 0.50 |  |\n| b | 1 | 1234 |  |\n| b | 2 | 617 |  |\n",
        "b": "|  | ms, 1 thread | ms, 2 threads |\n|---|---|---|\n"
        f"| {mlp} | 1.00 | 0.50 |\n| b | 1234 | 617 |\n",
        "c": f"|  | ms |\n|---|---|\n| {mlp} | 0.50 |\n| b | 617 |\n",
    }
    for name, table in tables.items():
        text = (tmp_path / f"{name}.md").read_text()
        assert text.startswith(f"before\n<!-- measured: shares -->\n\n{table}\n")
        assert text.endswith("`python -m bench shares mlp b`.\n<!-- end -->\nafter\n")


@pytest.mark.usefixtures("shares")
def test_a_document_without_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("nothing\n")
    with pytest.raises(EngineError, match=r"a\.md: has no place for the figure shares"):
        list(figures.measure_figure("shares", Namespace(folder=tmp_path)))


def test_figures_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["figures", "--list"]) == 0
    assert set(FIGURES) <= set(capsys.readouterr().out.split())
