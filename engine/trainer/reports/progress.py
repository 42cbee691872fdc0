"""Progress: a bar per epoch where a person watches, and a line per epoch that stays.

The bar of an epoch starts with its first batch: planning and compiling show their own progress
(engine/system/progress.py) and are excluded from its estimate.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from engine.base.signatures import check_arguments
from engine.drawing import amounts
from engine.system.preparation import read_clock
from engine.trainer.fit import Callback
from engine.trainer.metrics.named import NOT_RESULTS, is_share
from engine.trainer.reports.notebook import is_notebook
from engine.trainer.reports.process import measure_resident

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

PATIENCE = 0.25  # seconds from one look of a bar to the next
_COUNTED = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {elapsed}<{remaining}{postfix}"
_UNCOUNTED = "{desc} {n_fmt} batches {elapsed}{postfix}"


@check_arguments
class Progress(Callback):
    """The progress of a training run, shown to people.

    On a terminal or in a notebook: a bar per epoch, with the remaining time, the loss, samples
    per second and memory, drawn by the package tqdm.  Everywhere, at the end of an epoch, one line
    that stays.  A stream that can no longer be written to is ignored.

    file: the output; None for standard error at the start of the training, in a notebook standard
        output.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        self._given = file
        self._file: IO[str] | None = file
        self._make: Any = None  # makes a bar, where there are any
        self._bar: Any = None  # of the epoch
        self._inner: Any = None  # of the validation
        self._due = 0.0
        self._began, self._samples = 0.0, 0  # when the bar of the epoch began

    def on_fit_begin(self, fit: Fit) -> None:
        """Find out how to show progress."""
        notebook = self._given is None and is_notebook()
        self._file = self._given or (sys.stdout if notebook else sys.stderr)
        self._make = _find_bars(self._file) if notebook or _is_terminal(self._file) else None
        if fit.resumed:
            at = f"epoch {min(fit.epoch + 1, fit.epochs)}/{fit.epochs}"
            note = fit.resumed_note and f"; {fit.resumed_note}"
            self._say(f"resumed at step {fit.step:,}, {at}{note}")

    def on_epoch_begin(self, fit: Fit) -> None:
        """Create the bar at the first batch."""
        self._due = 0.0

    def on_batch_end(self, fit: Fit) -> None:
        """Start the bar of the epoch, or move it, if the last move is old enough."""
        if self._make is None:
            return
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + PATIENCE
            self._move(fit)

    def on_evaluate_begin(self, fit: Fit) -> None:
        """Move the bar to its end; a long validation gets its own bar."""
        now = time.perf_counter()
        self._due = now + PATIENCE
        if self._bar is not None:
            self._move(fit)

    def on_evaluate_batch_end(self, fit: Fit) -> None:
        """Move the bar of the validation."""
        now = time.perf_counter()
        if self._make is None or fit.evaluation is None or now < self._due:
            return
        self._due = now + PATIENCE
        done, total = fit.evaluation.index + 1, fit.evaluation.batches
        if self._inner is None:
            self._inner = self._make("validation", total, done)
        else:
            self._inner.update(done - self._inner.n)

    def on_evaluate_end(self, fit: Fit) -> None:
        """Remove the bar of the validation."""
        if self._inner is not None:
            self._inner.close()
            self._inner = None

    def on_epoch_end(self, fit: Fit) -> None:
        """Replace the bar by the line of the epoch."""
        self._close()
        self._say(summarize_row(fit.history.rows[-1], fit.epochs))

    def on_stop(self, fit: Fit) -> None:
        """Say why the training ends before its last epoch."""
        self._close()
        self._say(f"stopped: {fit.stop_reason}")

    def on_fit_end(self, fit: Fit) -> None:
        """Remove all bars, whatever has happened."""
        self._close()

    def _move(self, fit: Fit) -> None:
        parts = [_measure(name, value) for name, value in fit.logs.items() if name != "lr"]
        if self._bar is not None:
            seconds = max(read_clock() - self._began, 1e-9)
            parts.append(amounts.format_rate((fit.samples - self._samples) / seconds))
        memory = measure_resident()
        if memory:
            parts.append(amounts.format_size(memory))
        told = ", ".join(parts)
        if self._bar is None:
            self._began, self._samples = read_clock(), fit.samples
            text = f"epoch {fit.epoch + 1}/{fit.epochs}"
            self._bar = self._make(text, fit.batches, fit.batch, told)
        else:
            self._bar.set_postfix_str(told, refresh=False)
            self._bar.update(fit.batch - self._bar.n)

    def _close(self) -> None:
        for bar in (self._inner, self._bar):
            if bar is not None:
                bar.close()
        self._inner = self._bar = None

    def _say(self, text: str) -> None:
        if self._file is None:  # a process without a console has no standard error
            return
        try:
            print(text, file=self._file, flush=True)
        except (OSError, ValueError):  # its reader is gone, or it is closed
            self._file = self._make = None


def summarize_row(row: Mapping[str, float], epochs: int) -> str:
    """Format a row of a history as a line.

    epoch 3/10  loss 0.4213  val_loss 0.4000  val_accuracy 88.1 %  1,240 samples/s  118 MB  4.2 s
    """
    parts = [f"epoch {int(row['epoch']) + 1}/{epochs}"]
    parts += [_measure(name, value) for name, value in row.items() if name not in NOT_RESULTS]
    forms = {
        "samples_per_second": amounts.format_rate,
        "memory": amounts.format_size,
        "seconds": amounts.format_duration,
    }
    return "  ".join(parts + [form(row[n]) for n, form in forms.items() if n in row])


def _measure(column: str, value: float) -> str:
    return f"{column} {amounts.measure(value, is_share(column))}"


def _is_terminal(file: IO[str] | None) -> bool:
    try:
        return file is not None and file.isatty()
    except (AttributeError, ValueError):  # a stand-in for a file, or one that is closed
        return False


def _find_bars(file: IO[str] | None) -> Any:
    """Return a function that makes a bar from text, end, start and figures; None without tqdm."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets has bars of text
            from tqdm.auto import tqdm
    except ImportError:
        return None

    @functools.wraps(tqdm)
    def make(text: str, total: int | None, done: int, told: str = "") -> Any:
        form = _COUNTED if total else _UNCOUNTED
        return tqdm(
            desc=text, postfix=told, total=total, initial=done, file=file, leave=False,
            dynamic_ncols=True, bar_format=form, mininterval=0, miniters=1,
        )  # fmt: skip

    return make
