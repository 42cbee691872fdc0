"""Prediction of a training's memory, time and obstacles, before the first step.

`check` plans the steps of a training and of variants of it that take less, and trains nothing.
"""

from __future__ import annotations

from engine.checking.dry_run import advice, check, faults_of
from engine.checking.report import Check, Fault, Figures, Input, Suggestion, by_bytes
from engine.checking.subject import Subject

__all__ = [
    "Check",
    "Fault",
    "Figures",
    "Input",
    "Subject",
    "Suggestion",
    "advice",
    "by_bytes",
    "check",
    "faults_of",
]
