"""The record of a training, from which the sections of a report are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from engine.plan.plan import Plan
from engine.trainer.reports.findings import Findings
from engine.trainer.reports.trace import Point

Status: TypeAlias = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The facts that a report describes.

    title: of the page.
    status: of the training; `reason` says why it was stopped or has failed.
    updated: the time of writing, in UTC.
    epochs: the planned number of epochs.
    step, samples: the numbers of steps made and of samples trained on.
    seconds: the running time.
    monitor: the column of the history that decides which checkpoint is the best.
    rows: of the history, one per epoch.
    points: of the training, step by step.
    findings: of the last validation; None: there was none.
    plans: the plans that the training runs on, the last used first.
    environment: names and values.
    request: the request of the run, as in run.json.
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
