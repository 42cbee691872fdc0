"""Prediction of a training run's memory, time and obstacles, before the first step.

`check` plans the steps of a training and of variants of it that take less, and trains nothing.
"""

from __future__ import annotations

from engine.checking.dry_run import advise, check, list_faults
from engine.checking.report import (
    Check,
    Fault,
    Figures,
    Halves,
    ModelInput,
    Suggestion,
    sort_by_bytes,
)
from engine.checking.subject import Subject

__all__ = [
    "Check",
    "Fault",
    "Figures",
    "Halves",
    "ModelInput",
    "Subject",
    "Suggestion",
    "advise",
    "check",
    "list_faults",
    "sort_by_bytes",
]
