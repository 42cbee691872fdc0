"""The history of a training as CSV, one row per epoch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engine.base.signatures import check_arguments
from engine.trainer.fit import Callback
from engine.trainer.reports.log_file import LogFile

if TYPE_CHECKING:
    from engine.trainer.fit import Fit


@check_arguments
class CsvLog(Callback):
    """A file with the rows of `fit.history`, which `History.read` reads.

    A row is added at the end of its epoch.  A new column, such as one of a validation that does not
    run in every epoch, rewrites the file with that column.  A resumed training keeps the rows up to
    the point where it resumes, a new training run starts without rows.

    path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file: LogFile | None = None
        self._written = ""

    def on_fit_begin(self, fit: Fit) -> None:
        """Open the file.

        Raises:
            FileError: it cannot be written.
        """
        self._written = _make_text(fit)
        self._file = LogFile(self._path, "history", self._written.encode())

    def on_epoch_end(self, fit: Fit) -> None:
        """Add the row of the epoch."""
        self._bring_up_to_date(fit)

    def on_fit_end(self, fit: Fit) -> None:
        """Write the rows that could not be written before."""
        self._bring_up_to_date(fit)
        if self._file is not None:
            self._file.catch_up()

    def _bring_up_to_date(self, fit: Fit) -> None:
        text = _make_text(fit)
        if self._file is None or text == self._written:
            return
        if text.startswith(self._written) and self._written:
            self._file.add(text[len(self._written) :].encode())
            self._written = text
        elif self._file.replace(text.encode()):
            self._written = text


def _make_text(fit: Fit) -> str:
    return fit.history.to_csv() if fit.history.rows else ""
