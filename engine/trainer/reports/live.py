"""A live curve: the loss and the metrics of a running training, in a notebook."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.drawing.charts import Line, draw_lines
from engine.drawing.plot import Plot
from engine.system.progress import get_logger
from engine.trainer.callbacks import Callback
from engine.trainer.epoch_charts import MOST, list_charts, make_charts
from engine.trainer.reports.notebook import is_notebook
from engine.trainer.reports.trace import Point, Trace
from engine.trainer.reports.window import View, Window

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

SHARE = 0.02  # of the time of a training run that drawing may take


@check_arguments(seconds=AT_LEAST_0)
class LiveCurve(Callback):
    """Curves of the current run below a notebook cell, in one picture that is updated.

    Outside notebooks it does nothing.  `fit` adds one wherever it shows progress.

    seconds: the shortest time between two pictures within an epoch.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self._display: Any = None  # IPython's function, while there is a notebook
        self._handle: Any = None  # of the picture that is shown
        self._trace = Trace()
        self._window = Window(0.0)
        self._due = self._free = 0.0  # the next picture within an epoch, and at its end

    def on_fit_begin(self, fit: Fit) -> None:
        """Find out whether there is a notebook, and start a new picture."""
        self._display = import_module("IPython.display").display if is_notebook() else None
        self._handle, self._trace = None, Trace()
        self._due = self._free = 0.0
        self._window = Window(self._trace.seconds)

    def on_epoch_begin(self, fit: Fit) -> None:
        """Start to measure."""
        self._window.begin(fit)

    def on_step_end(self, fit: Fit) -> None:
        """Record the loss, and update the picture if the last one is old enough."""
        if self._display is None:
            return
        view = self._window.look(fit)
        if view is not None:
            self._note(fit, view)
        if time.perf_counter() >= self._due:
            self._show(fit)

    def on_evaluate_begin(self, fit: Fit) -> None:
        """Record the rest of the epoch, without the time of the validation."""
        self._finish(fit)

    def on_epoch_end(self, fit: Fit) -> None:
        """Update the picture, unless epochs are so short that this would take much of the time."""
        self._finish(fit)
        if self._display is not None and time.perf_counter() >= self._free:
            self._show(fit)

    def on_fit_end(self, fit: Fit) -> None:
        """Show the last picture."""
        if self._display is not None:
            self._finish(fit)
            self._show(fit)
        self._display = None

    def _finish(self, fit: Fit) -> None:
        view = None if self._display is None else self._window.take_rest(fit)
        if view is not None:
            self._note(fit, view, is_rest=True)

    def _note(self, fit: Fit, view: View, *, is_rest: bool = False) -> None:
        rate = fit.logs.get("lr", float("nan"))
        point = Point(view.step, fit.seconds, view.samples, view.loss, view.rate, rate, 0)
        self._trace.add(point, is_rest=is_rest)
        self._window.seconds = self._trace.seconds

    def _show(self, fit: Fit) -> None:
        began = time.perf_counter()
        points, rows = self._trace.points, fit.history.rows
        steps = Line("loss", [p.step for p in points], [p.loss for p in points])
        finely = draw_lines("Training loss, step by step", "step", [steps], may_be_log=True)
        charts = make_charts(rows, list_charts(rows)[:MOST], fit.best_epoch)
        charts = [*charts, *([finely] if finely else [])]
        if not charts:
            return
        try:
            if self._handle is None:
                self._handle = self._display(Plot(charts), display_id=True)
            else:
                self._handle.update(Plot(charts))
        except Exception as error:  # of any kind: the notebook is somebody else's
            get_logger().warning("the notebook does not show the curve", exc_info=error)
            self._display = None
        ended = time.perf_counter()
        self._free = ended + (ended - began) / SHARE
        self._due = max(self._free, ended + self.seconds)
