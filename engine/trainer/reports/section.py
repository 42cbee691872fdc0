"""A section of a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.trainer.reports.record import Record


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    name: the name of its place in the page, such as `curves`; letters, digits and dashes.
    title: the heading above it.
    render: returns the HTML below the heading; empty text: this report does not have it.
    """

    name: str
    title: str
    render: Callable[[Record], str]
