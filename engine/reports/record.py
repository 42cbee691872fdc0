"""A record: all that a report tells of, as sections are given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from engine.reports.findings import Findings
from engine.reports.trace import Point
from engine.runtime.plan import Plan

Status: TypeAlias = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a report tells of.

    title: of the page.
    status: of the training; `reason` says why it was stopped or has failed.
    updated: when this was written, in UTC.
    epochs: how many the training is to have.
    step, samples: how many it has made, and was trained on.
    seconds: how long it has run.
    monitor: the column of the history that decides which checkpoint is the best.
    rows: of the history, one an epoch.
    points: of the training, step by step.
    findings: of the last validation; None: there was none.
    plans: that the training runs on, the last used first.
    environment: names and values.
    request: what was asked for, as run.json has it.
    """

    title: str
    status: Status
    reason: str = ""
    updated: str = ""
    epochs: int
    step: int
    samples: int
    seconds: float
    monitor: str
    rows: Sequence[Mapping[str, float]] = ()
    points: Sequence[Point] = ()
    findings: Findings | None = None
    plans: Sequence[Plan] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
