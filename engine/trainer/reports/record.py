"""The record of a training run, from which the sections of a report are made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from engine.drawing.page import escape
from engine.plan.plan import Plan
from engine.trainer.reports.findings import Findings
from engine.trainer.reports.trace import Point

Status: TypeAlias = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The facts that a report describes.

    title: the title of the page.
    status: the status of the training; `reason` says why it was stopped or has failed.
    updated: the time of writing, in UTC.
    epochs: the planned number of epochs.
    step, samples: the numbers of steps made and of samples trained on.
    seconds: the running time.
    monitor: the column of the history that decides which checkpoint is the best.
    rows: the rows of the history, one per epoch.
    points: the values of the training, step by step.
    findings: the findings of the last validation, or if `keeps_best` of the best epoch's; None
        without validation.
    best: the best epoch by the monitored column, from 0 on; None if there is none yet.
    keeps_best: whether the parameters after that epoch are the ones that are left: in the folder of
        the run as its best checkpoint, or in the trainer, which a callback gave them back.
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
    best: int | None = None
    keeps_best: bool = False
    plans: Sequence[Plan] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)


def describe_origin(record: Record) -> str:
    """Return a line of HTML that says which epoch the findings are of; `read_epoch` reads it."""
    findings = record.findings
    assert findings is not None
    told = f"Of epoch {findings.epoch + 1} (step {findings.step:,})"
    if record.keeps_best and findings.epoch == record.best:
        told += f", the best by {escape(record.monitor)}, whose parameters are kept"
    return f'<p class="origin" data-epoch="{findings.epoch}">{told}.</p>'


def read_epoch(section: str) -> int | None:
    """Return the epoch of the findings that a section shows; None if it shows none."""
    match = re.search(r'<p class="origin" data-epoch="(\d+)">', section)
    return int(match[1]) if match else None
