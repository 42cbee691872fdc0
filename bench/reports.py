"""Overhead of the default reports for a thousand batches, and the time to write their page.

hooks   a bar on a terminal, CSV, JSON lines and the page, for 1000 batches without work
page    one writing of the page after a training run of many points
"""

from __future__ import annotations

import io
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from bench.measuring import repeat
from bench.rows import Bench, Cells
from engine.reports import HtmlReport, default
from engine.trainer.fit import Callback, Fit
from engine.trainer.reports.trace import MAX_POINTS, Point, Trace

BATCHES, SAMPLES = 1000, 64


class Terminal(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def make_fit() -> Fit:
    """Return a training run without a model."""
    trainer: Any = SimpleNamespace(
        features=[], inputs=[], outputs=[], module=SimpleNamespace(plans=list)
    )
    return Fit(trainer=trainer, epochs=1, batches=BATCHES, batch_size=SAMPLES)


def time_hooks(folder: Path) -> list[float]:
    """Return the seconds of telling the default reports of an epoch."""
    callbacks = default(True, folder)
    fit = make_fit()
    for callback in callbacks:
        callback.on_fit_begin(fit)
    hooks = [
        [
            getattr(c, name)
            for c in callbacks
            if getattr(type(c), name) is not getattr(Callback, name)
        ]
        for name in ("on_batch_end", "on_step_end")
    ]

    def end_epoch() -> None:
        fit.batch = fit.samples = 0
        fit.logs = {"loss": 1.0, "lr": 1e-3}
        for callback in callbacks:
            callback.on_epoch_begin(fit)
        for _ in range(BATCHES):
            fit.batch, fit.samples, fit.step = fit.batch + 1, fit.samples + SAMPLES, fit.step + 1
            for group in hooks:
                for hook in group:
                    hook(fit)

    times = repeat(end_epoch)
    for callback in callbacks:
        callback.on_fit_end(fit)
    return times


def time_page(folder: Path) -> list[float]:
    """Return the seconds of writing the page."""
    report, fit, trace = HtmlReport(folder / "report.html"), make_fit(), Trace()
    for n in range(MAX_POINTS - 1):
        trace.add(Point(n, n * 0.1, SAMPLES, 1.0 / (n + 1), 1e4, 1e-3, 10**8))
    report.restore({"trace": trace.make_state()})
    report.on_fit_begin(fit)
    return repeat(lambda: report.write(fit, "running"))


def measure(run: Callable[[Path], list[float]], _: Namespace) -> Iterator[Cells]:
    """Yield a row, as on a terminal."""
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(Terminal()):
        timings = run(Path(folder))
    yield 1e3 * median(timings), 1e3 * min(timings)


BENCHES = (
    Bench(
        "reports",
        "what the default reports add to a training run",
        {"hooks": time_hooks, "page": time_page},
        ("ms:.2f", "least ms:.2f"),
        measure,
    ),
)
