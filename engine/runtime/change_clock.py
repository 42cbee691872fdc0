"""Changes of the bytes of a region, noted so that whatever was made of them can be made again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

Span = tuple[int, int]  # the first byte and the end of a run of bytes


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return runs of bytes in order, with those that touch as one."""
    runs: list[Span] = []
    for begin, end in sorted(spans):
        if runs and begin <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((begin, end))
    return tuple(runs)


def have_overlap(spans: Iterable[Span], others: Iterable[Span]) -> bool:
    """Return whether some bytes are in both."""
    known = list(others)
    return any(a < end and begin < b for a, b in spans for begin, end in known)


class ChangeClock:
    """A clock that counts changes, and when each run of bytes changed last.

    Arrays that were lent may be written to at any time: as long as one of them exists, its bytes
    count as changed.
    """

    def __init__(self) -> None:
        self.clock = 0
        self._times: dict[Span, int] = {}
        self._lent: dict[Span, list[weakref.ref[npt.NDArray[Any]]]] = {}

    def note(self, spans: Iterable[Span]) -> None:
        """Note that these bytes change now."""
        self.clock += 1
        for span in spans:
            self._times[span] = self.clock

    def note_loan(self, span: Span, array: npt.NDArray[Any]) -> None:
        """Note that an array, which all views of it keep alive, gives its holder these bytes."""
        self.note([span])
        alive = [each for each in self._lent.get(span, ()) if each() is not None]
        self._lent[span] = [*alive, weakref.ref(array)]

    def is_same_since(self, clock: int) -> bool:
        """Return whether nothing has changed since a reading of the clock."""
        return clock == self.clock and not self._lent

    def list_since(self, clock: int) -> list[Span]:
        """Return the bytes that have changed since a reading of the clock, and those on loan."""
        for span, arrays in list(self._lent.items()):
            if all(each() is None for each in arrays):
                del self._lent[span]
                self.note([span])  # its last writes may be later than any reading
        return [span for span, at in self._times.items() if at > clock or span in self._lent]
