"""The page of plans: arenas over time, who holds the peak, what would take less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.checking import dry_run, picture
from engine.drawing.arena import count_live_bytes
from engine.graphs.planner import planner
from engine.graphs.planner.budget import Ladder
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.models.images import build_cnn
from engine.plan.plan import Plan
from engine.tools import cli
from engine.tools.dev.browser import Page, browser
from tests.support.needs import needs_browser
from tests.support.places import GOLDENS

MLP = GOLDENS / "mlp"
TITLES = "[...document.querySelectorAll('main > section > h2')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(build_cnn(), {"x": (2, 1, 28, 28)}, target=detect_host(), threads=2)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "plan.html"
    assert cli.main(["plan", str(MLP), "--batch", "4", "--picture", str(path)]) == 0
    return path


def test_the_line_is_what_lives(plan: Plan) -> None:
    """Its highest point is the bound of the plan, counted again."""
    assert max(count_live_bytes(plan)) == plan.lower_bound


def test_the_page_says_it_without_a_script(plan: Plan) -> None:
    first = plan.steps[0]
    (made,) = (a.buffer for a in first.args if a.mode == "w")
    again = replace(plan, steps=(replace(first, source="conv1", again=True), *plan.steps[1:]))
    shown = picture.render("Plans", {"infer": again}, None)
    boxes = re.findall(r"<rect class=\"(\w+)\" [^>]*><title>(.*?)</title>", shown, re.S)
    work = [b for b in plan.buffers if b.region == "work" and b.nbytes]
    assert len(boxes) == len(work)
    (kind,) = (kind for kind, told in boxes if told.startswith(f"{plan.buffers[made].name}  "))
    assert kind == "again"
    assert "made by conv1 (again)\nsteps 0 to" in shown
    assert "Computed again: 1 steps" in shown
    assert "At the peak: " in shown
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", shown)


def test_within_a_budget_one_ladder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures of the page and what it suggests are from the ladder of the plan that it draws.

    No variant takes a ladder, and there are only so many of them.
    """
    ladders, variants = list[Ladder](), list[str]()

    class Counted(Ladder):
        def __init__(self, *given: Any) -> None:
            ladders.append(self)
            super().__init__(*given)

    def counted(*given: Any) -> Iterator[dry_run.Variant]:
        for variant in list_variants(*given):
            variants.append(variant[0])
            yield variant

    list_variants = dry_run._list_variants
    monkeypatch.setattr(planner, "Ladder", Counted)
    monkeypatch.setattr(dry_run, "_list_variants", counted)
    monkeypatch.setattr(dry_run, "VARIANTS", 2)
    path = tmp_path / "plan.html"
    words = ["plan", str(MLP), "--batch", "64", "--budget"]
    assert cli.main([*words, "10kB"]) == 1
    least = re.search(r"smallest possible budget is (\d+) bytes", capsys.readouterr().err)
    assert least is not None
    ladders.clear()
    variants.clear()
    assert cli.main([*words, f"{least[1]}B", "--picture", str(path)]) == 0
    assert len(ladders) == 1
    assert len(variants) == 2
    told = capsys.readouterr().err
    assert all(f"planning {title}" in told for title in variants)


def place(shown: Page) -> tuple[float, float, float, float]:
    """Return the place in the picture, in steps and blocks."""
    x, y, w, h = map(float, shown.ask(f"{INNER}.getAttribute('viewBox')").split())
    return x, y, w, h


INNER = "document.querySelector('figure.plan svg svg')"
WHEEL = (
    f"(() => {{ const svg = {INNER}; svg.scrollIntoView({{block: 'center'}}); "
    "const r = svg.getBoundingClientRect(); svg.dispatchEvent(new WheelEvent('wheel', "
    "{deltaY: -500, clientX: r.left + r.width / 2, clientY: r.top + r.height / 2, "
    "cancelable: true, ctrlKey: true})) })()"
)
MIDDLE = (  # of a box that is in the window
    "(() => { const r = [...document.querySelector('figure.plan')"
    ".querySelectorAll('.boxes rect')].map(e => "
    "e.getBoundingClientRect()).reduce((a, b) => a.width * a.height > b.width * b.height ? a : b); "
    "return [r.left + r.width / 2, r.top + r.height / 2] })()"
)


@needs_browser
def test_a_browser_zooms_and_tells(drawn: Path) -> None:
    with browser() as actual_browser:
        shown = actual_browser.open_page(drawn)
        names = shown.ask(TITLES)
        assert names[0] == "Summary"
        assert names[-1] == "Smaller variants"
        assert names[1] == "step, batch 4"
        before = place(shown)
        shown.ask(f"{INNER}.scrollIntoView({{block: 'center'}})")
        shown.move(*shown.ask(MIDDLE))
        told = shown.ask("document.querySelector('figure.plan.on .tip').textContent")
        assert re.search(r"f32\[.*\]\n.* at .*\nmade by .*\nsteps \d+ to \d+", told)
        shown.ask(WHEEL)
        after = place(shown)
        assert after[2] < before[2]
        assert after[0] > before[0]
        shown.ask("document.querySelector('figure.plan button:last-of-type').click()")
        shown.ask("document.querySelector('figure.plan button:last-of-type').click()")
        assert place(shown) == before
        assert shown.ask("document.documentElement.scrollWidth <= innerWidth")
        assert shown.complaints() == []
        plain = actual_browser.open_page(drawn, scripts=False)
        assert plain.ask("document.querySelectorAll('figure.plan .boxes title').length") > 5
