"""The report of a training run: a page that anybody can open, now and in ten years."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.drawing.page import escape, make_page
from engine.system import files
from engine.system.progress import get_logger
from engine.trainer.fit import Callback
from engine.trainer.reports.environment import describe
from engine.trainer.reports.findings import Findings
from engine.trainer.reports.log_file import Tolerance, make_writable
from engine.trainer.reports.process import measure_resident
from engine.trainer.reports.record import Record, Status, read_epoch
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections import SECTIONS
from engine.trainer.reports.trace import Point, Trace
from engine.trainer.reports.window import View, Window
from engine.trainer.runs import RUN

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

SAMPLES = 12  # of each kind that are shown
SHARE = 0.01  # of the time of a training run that writing reports may take


@check_arguments(samples=AT_LEAST_0)
class HtmlReport(Callback):
    """A page with curves, predictions, memory, plans and the environment of the training.

    It is a single file that needs no network and no other file.  It is written in one step at the
    end of an epoch, unless epochs are so short that this would take more than a hundredth of the
    time, and at the end, for whatever reason the training ends.  A resumed run continues the
    curves of the run; contents for which it has nothing new, such as predictions before its first
    validation, stay unchanged.

    Args:
        path: the file.
        title: the title of the page; by default the name of the folder that contains the file.
        sections: the sections of the page, in their order.
        samples: the number of predictions of each kind to show, wrong ones and correct ones.

    Raises:
        InputError: `samples` is less than 0.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        sections: Sequence[Section] = SECTIONS,
        samples: int = SAMPLES,
    ) -> None:
        self._path = Path(path)
        self._title = self._path.absolute().parent.name if title is None else title
        self._sections = tuple(sections)
        self._samples = samples
        self._tolerance = Tolerance(self._path)
        self._trace = Trace()
        self._window = Window(self._trace.seconds)
        self._last: Findings | None = None  # of the last validation that is over
        self._best: Findings | None = None  # of the validation of the best epoch
        self._shown: int | None = None  # the epoch whose findings the page shows
        self._looking: Findings | None = None  # of the one that goes on
        self._earlier: dict[str, str] = {}  # sections of the file as it was
        self._is_open = False
        self._restored = False
        self._written = 0.0  # when, and how long it took
        self._cost = 0.0

    def on_fit_begin(self, fit: Fit) -> None:
        """Check that the file can be written.

        Raises:
            FileError: it cannot.
        """
        self._is_open = False
        make_writable(self._path, "report")
        if not self._restored:
            self._trace, self._shown = Trace(), None
        self._restored = False
        self._window = Window(self._trace.seconds)
        self._last = self._best = self._looking = None
        self._earlier = _read_sections(self._path, self._shown) if fit.resumed else {}
        self._written = self._cost = 0.0
        self._is_open = True

    def on_epoch_begin(self, fit: Fit) -> None:
        """Start to measure."""
        self._window.begin(fit)
        if self._trace.points:  # the loss of one step, as of the very first, would be a jump
            self._window.postpone()

    def on_step_end(self, fit: Fit) -> None:
        """Record the state of the training, if the last record is old enough."""
        view = self._window.look(fit)
        if view is not None:
            self._note(fit, view)

    def on_evaluate_begin(self, fit: Fit) -> None:
        """Record the rest of the epoch, and start to collect predictions."""
        self._finish(fit)
        trainer = fit.trainer
        if trainer.features and trainer.outputs:
            output, target = trainer.learner.compared
            self._looking = Findings(
                features=trainer.features[0],
                target=target,
                output=output,
                classes=fit.classes,
                threshold=trainer.threshold,
                limit=self._samples,
                step=fit.step,
                epoch=fit.epoch,
            )

    def on_evaluate_batch_end(self, fit: Fit) -> None:
        """Collect the predictions of a batch."""
        batch, source = fit.evaluation, fit.validation
        if self._looking is None or batch is None:
            return

        def name(row: int) -> str:
            return "" if source is None else source.sample_name(batch.index, row)

        self._looking.add(batch.inputs, batch.outputs, name)

    def on_evaluate_end(self, fit: Fit) -> None:
        """Keep the findings of this validation."""
        self._last, self._looking = self._looking, None

    def on_epoch_end(self, fit: Fit) -> None:
        """Write the page, if that takes only a little of the time."""
        if fit.best_epoch == fit.epoch:
            self._best = self._last
        findings = self._find_findings(fit)
        self._shown = self._shown if findings is None else findings.epoch
        self._finish(fit)
        if time.perf_counter() - self._written >= self._cost / SHARE:
            self.write(fit, "running")

    def on_fit_end(self, fit: Fit) -> None:
        """Write the page for the last time."""
        if not self._is_open:
            return
        self._finish(fit)
        reason = fit.stop_reason or ""
        status: Status = "stopped" if reason else "finished"
        if isinstance(fit.error, KeyboardInterrupt):
            status, reason = "stopped", "interrupted"
        elif fit.error is not None:
            status, reason = "failed", f"{type(fit.error).__name__}: {fit.error}"
        self.write(fit, status, reason)
        self._is_open = False

    def state(self) -> dict[str, Any]:
        """Return the points of the curves, and which epoch's findings the page shows."""
        return {"trace": self._trace.make_state(), "shown": self._shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore these points, and continue with them."""
        self._trace = Trace()
        self._trace.restore(state["trace"])
        self._shown = state.get("shown")
        self._restored = True

    def _find_findings(self, fit: Fit) -> Findings | None:
        """Return the findings to show: of the parameters that are kept."""
        return self._best if fit.keeps_best else self._last

    def _finish(self, fit: Fit) -> None:
        view = self._window.take_rest(fit)
        if view is not None:
            self._note(fit, view, is_rest=True)

    def _note(self, fit: Fit, view: View, *, is_rest: bool = False) -> None:
        rate = fit.logs.get("lr", float("nan"))
        point = Point(
            view.step, fit.seconds, view.samples, view.loss, view.rate, rate, measure_resident()
        )
        self._trace.add(point, is_rest=is_rest)
        self._window.seconds = self._trace.seconds

    def write(self, fit: Fit, status: Status, reason: str = "") -> None:
        """Write the page as the training is now; a file that cannot be written is a warning.

        reason: the reason for the status, in words.
        """
        began = time.perf_counter()
        record = self._make_record(fit, status, reason)
        shown = []
        for section in self._sections:
            content = _render(section, record) or self._earlier.get(section.name, "")
            if content:
                shown.append((section.name, section.title, content))
        content = make_page(f"Training of {self._title}", _make_status(record), shown)
        with self._tolerance():
            files.write(os.fspath(self._path), [content.encode()])
        self._written = time.perf_counter()
        self._cost = self._written - began

    def _make_record(self, fit: Fit, status: Status, reason: str) -> Record:
        plans = fit.trainer.module.plans()
        return Record(
            title=self._title,
            status=status,
            reason=reason,
            updated=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            epochs=fit.epochs,
            step=fit.step,
            samples=fit.samples_total,
            seconds=fit.seconds,
            monitor=fit.monitor,
            rows=fit.history.rows,
            points=self._trace.points,
            findings=self._find_findings(fit),
            best=fit.best_epoch,
            keeps_best=fit.keeps_best,
            plans=plans,
            environment=describe(plans),
            request=_request(fit.folder),
        )


def _render(section: Section, record: Record) -> str:
    """Return the HTML of a section; a section that fails says so, and the training continues."""
    try:
        return section.render(record)
    except Exception as error:  # of any kind, as sections may be the user's
        get_logger().warning(f"section {section.name!r} of the report failed", exc_info=error)
        return f"<p>This section failed: {escape(repr(error))}</p>"


def _make_status(record: Record) -> str:
    """Return the line below the title: status, reason and time."""
    reason = f"<span>{escape(record.reason)}</span>" if record.reason else ""
    return (
        f'<p class="status"><b class="{record.status}">{record.status}</b>{reason}'
        f"<span>{escape(record.updated)}</span></p>"
    )


def _request(folder: Path | None) -> dict[str, Any]:
    """Return the content of run.json; nothing if it is missing or unreadable."""
    try:
        content = json.loads((folder / RUN).read_text("utf-8")) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_sections(path: Path, epoch: int | None) -> dict[str, str]:
    """Return the contents of the sections of a report by their names.

    epoch: the epoch of the findings to keep; others come from a validation that the resumed run
        has not made, or from a worse epoch.
    """
    try:
        written = path.read_text("utf-8")
    except (OSError, ValueError):
        return {}
    form = r'<section id="([\w-]+)">\n<h2>[^\n]*</h2>\n(.*?)\n</section>'
    contents = dict(re.findall(form, written, re.DOTALL))
    return {name: text for name, text in contents.items() if read_epoch(text) in (None, epoch)}
