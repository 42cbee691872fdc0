"""The curve of a running training in a notebook: one picture, which is updated."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engine.drawing.plot import Plot
from engine.reports import LiveCurve, Progress, default
from tests.support.places import ROOT
from tests.support.report_runs import BATCHES, fit


class Notebook:
    """IPython in the kernel of a notebook: what is displayed, and how often."""

    def __init__(self) -> None:
        self.shown: list[Any] = []  # every display, with what it shows now
        self.updates = 0

    def display(self, made: Any, *, display_id: bool) -> Any:
        assert display_id is True
        self.shown.append(made)
        place = len(self.shown) - 1

        def update(newer: Any) -> None:
            self.shown[place] = newer
            self.updates += 1

        return SimpleNamespace(update=update)


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def put(display: Any) -> None:
        package, inner = ModuleType("IPython"), ModuleType("IPython.display")
        shell = SimpleNamespace(config={"IPKernelApp": {}})
        vars(package)["get_ipython"] = lambda: shell
        vars(inner)["display"] = display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", inner)

    return put


def kinds(progress: bool) -> list[type]:
    return [type(each) for each in default(progress, None)]


def test_a_notebook_has_one_picture_that_is_updated(
    enter: Callable[[Any], None], tmp_path: Path
) -> None:
    assert kinds(True) == [Progress], "no notebook yet"
    notebook = Notebook()
    enter(notebook.display)
    assert kinds(True) == [Progress, LiveCurve]
    assert kinds(False) == []
    live = LiveCurve(seconds=0)
    fit(tmp_path, 2, progress=False, callbacks=[live])
    (plot,) = notebook.shown
    assert isinstance(plot, Plot)
    assert plot.titles == ["Loss", "val_accuracy", "Training loss, step by step"]
    assert notebook.updates >= 1
    assert "best epoch" in plot.svg
    assert sum(p.samples for p in live._trace.points) == 2 * BATCHES * 16


def test_drawing_takes_a_small_share_of_the_time(
    enter: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that stands still except for the drawing, which takes a second each time."""
    clock = [0.0]
    notebook = Notebook()

    def slow(*made: Any, **more: Any) -> Any:
        clock[0] += 1.0
        return notebook.display(*made, **more)

    enter(slow)
    monkeypatch.setattr("engine.trainer.reports.live.time.perf_counter", lambda: clock[0])
    fit(tmp_path, 3, progress=False, callbacks=[LiveCurve(seconds=0)])
    assert (len(notebook.shown), notebook.updates) == (1, 1), "the first, and the last one"


def test_a_notebook_that_fails_ends_nothing(
    enter: Callable[[Any], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the front end is gone")

    enter(broken)
    with caplog.at_level(logging.WARNING, "edgegrad"):
        assert len(fit(tmp_path, 2, progress=False, callbacks=[LiveCurve(seconds=0)])) == 2
    assert [r.getMessage() for r in caplog.records] == ["the notebook does not show the curve"]


def test_without_a_notebook_nothing_is_displayed(tmp_path: Path) -> None:
    live = LiveCurve(seconds=0)
    fit(tmp_path, 1, progress=False, callbacks=[live])
    assert not live._trace.points


CELL = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.support.report_runs import fit
history = fit(Path("run"), 2)
history
"""


def test_a_real_kernel_shows_the_curve_and_the_history(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    nbformat: Any = pytest.importorskip("nbformat", reason="needs nbclient")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    kernel = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=kernel).execute()
    outputs = book.cells[0].outputs
    (plot,) = (o for o in outputs if o.output_type == "display_data" and "image/svg+xml" in o.data)
    assert "val_accuracy" in plot.data["image/svg+xml"]
    assert plot.data["text/html"].startswith("<svg")
    (shown,) = (o for o in outputs if o.output_type == "execute_result")
    assert "<table" in shown.data["text/html"]
    said = "".join(o.text for o in outputs if o.output_type == "stream")
    assert "epoch 2/2  loss" in said
