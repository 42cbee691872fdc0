"""Progress of a command that takes a while: lines on standard error, each with the time so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

EVERY = 2.0  # seconds between two lines on the items of one list


class StagePrinter:
    """Printing of stages, even without a terminal; a silent one prints nothing.

    [  0.6 s] planning the training model, batch 8
    [  3.1 s] compiling kernels, or reading them from the cache: 21 of 59
    """

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line."""
        if not self.silent:
            print(f"[{time.monotonic() - self._start:5.1f} s] {text}", file=sys.stderr, flush=True)

    def count_each(self, text: str, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items; a line before the first, and one every EVERY seconds that counts
        them.
        """
        self.say(f"{text}: {len(items)}")
        last = time.monotonic()
        for k, item in enumerate(items):
            if time.monotonic() - last >= EVERY:
                self.say(f"{text}: {k} of {len(items)}")
                last = time.monotonic()
            yield item


SILENT = StagePrinter(silent=True)
