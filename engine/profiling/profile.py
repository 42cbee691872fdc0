"""A profile: the times of the steps of some plans, which can be written as a trace or a page."""

from __future__ import annotations

import os
from dataclasses import dataclass

from engine.base.signatures import check_arguments
from engine.profiling.times import Times


@check_arguments
@dataclass(frozen=True, slots=True)
class Profile(Times):
    """The times of the steps of some plans.  `str` is a table; times are in seconds."""

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the fastest run in Chrome's trace event format, a track for each thread.

        chrome://tracing and https://ui.perfetto.dev open it.

        Raises:
            FileError: the file cannot be written.
        """
        from engine.profiling import chrome

        chrome.write(self, path)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file with the tables and pictures, which needs no other file.

        Raises:
            FileError: the file cannot be written.
        """
        from engine.profiling import picture

        picture.write(self, path)
