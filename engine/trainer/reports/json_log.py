"""The events of a training as JSON lines, for programs that follow it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.system import files
from engine.trainer.fit import Callback
from engine.trainer.reports.log_file import LogFile, make_writable
from engine.trainer.reports.window import View, Window

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

SECONDS = 1.0  # from one line of kind step to the next


@check_arguments(seconds=AT_LEAST_0)
class JsonLog(Callback):
    """A file with one JSON object per line, each with its `kind`, its `time` in UTC and `step`.

    fit: the training starts, or resumes (`resumed`); its `epochs`, `epoch` and `batches`.
    step: `loss`, the mean since the previous line, `lr`, `samples_per_second`, `epoch`, and the
        `samples` done in the epoch; at most one line per `seconds`.
    skip: an update was skipped; `epoch`, `batch`, and the number skipped in the epoch, `skipped`.
    epoch: the row of the history.
    checkpoint: one was written.
    stop: the `reason` to end before the last epoch.
    error: the `error` that ended the training, with its kind.
    end: the training has ended; its `seconds`.

    Lines are written at once, so that `tail -f` shows them.  NaN and infinities are null, as JSON
    has none.  A resumed run appends to the file, after removing steps, epochs and checkpoints
    that come after the point where it continues.

    Args:
        path: the file.
        seconds: between lines of kind step; 0: a line for every step.
    """

    def __init__(self, path: str | os.PathLike[str], seconds: float = SECONDS) -> None:
        self._path = path
        self._file: LogFile | None = None
        self._window = Window(seconds)

    def on_fit_begin(self, fit: Fit) -> None:
        """Open the file.

        Raises:
            FileError: it cannot be written.
        """
        path = make_writable(self._path, "log")
        kept = _keep_lines(path, fit) if fit.resumed and path.exists() else b""
        self._file = LogFile(self._path, "log", kept)
        self._add(
            fit, "fit",
            resumed=fit.resumed, epoch=fit.epoch, epochs=fit.epochs, batches=fit.batches,
            batch_size=fit.batch_size, monitor=fit.monitor,
        )  # fmt: skip

    def on_epoch_begin(self, fit: Fit) -> None:
        """Start to measure."""
        self._window.begin(fit)

    def on_step_end(self, fit: Fit) -> None:
        """Write a line, if the last one is old enough."""
        view = self._window.look(fit)
        if view is not None:
            self._add_step(fit, view)

    def on_skip(self, fit: Fit) -> None:
        """Write that an update was skipped."""
        self._add(fit, "skip", epoch=fit.epoch, batch=fit.batch, skipped=fit.skipped)

    def on_epoch_end(self, fit: Fit) -> None:
        """Write the row of the epoch."""
        self._add(fit, "epoch", **fit.history.rows[-1])

    def on_checkpoint(self, fit: Fit, folder: Path) -> None:
        """Write that a checkpoint was written."""
        self._add(fit, "checkpoint")

    def on_stop(self, fit: Fit) -> None:
        """Write why the training ends."""
        self._add(fit, "stop", reason=fit.stop_reason)

    def on_fit_end(self, fit: Fit) -> None:
        """Write how it ended."""
        if fit.error is not None:
            self._add(fit, "error", error=f"{type(fit.error).__name__}: {fit.error}")
        self._add(fit, "end", seconds=fit.seconds)

    def _add_step(self, fit: Fit, view: View) -> None:
        self._add(
            fit, "step",
            epoch=fit.epoch, samples=fit.samples, loss=view.loss, lr=fit.logs.get("lr"),
            samples_per_second=view.rate,
        )  # fmt: skip

    def _add(self, fit: Fit, kind: str, /, **more: Any) -> None:
        if self._file is None:  # the training ends because this file could not be opened
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        row = {"kind": kind, "time": time, "step": fit.step, **_convert(more)}
        self._file.add(json.dumps(row, allow_nan=False).encode() + b"\n")


def _convert(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to JSON."""
    return {
        name: None if isinstance(v, float) and not math.isfinite(v) else v
        for name, v in ((n, v.item() if hasattr(v, "item") else v) for n, v in values.items())
    }


def _keep_lines(path: Path, fit: Fit) -> bytes:
    """Return the lines of the file that stay valid if the training continues at `fit.step`."""
    last = fit.history.rows[-1]["epoch"] if fit.history.rows else -1
    kept = []
    for line in files.read(os.fspath(path), "log").splitlines():
        try:
            row = json.loads(line)
            kind = row["kind"]
            behind = (kind in ("step", "skip", "checkpoint") and row["step"] > fit.step) or (
                kind == "epoch" and row["epoch"] > last
            )
        except (ValueError, TypeError, KeyError):  # the process ended within the line
            continue
        if not behind:
            kept.append(line + b"\n")
    return b"".join(kept)
