"""Keywords of training for editors and type checkers, which alone import this file.

`python -m engine.tools.dev.tables` writes it from the options in settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from engine.base.plan_options import Precision
from engine.base.sparse_update import SparseUpdate
from engine.training.mode import Mode


class StepKeywords(TypedDict, total=False):
    """Options of the steps of a trainer."""

    threads: int | None
    seed: int | None
    memory_budget: int | str | None
    micro_batches: int | None
    own_statistics: bool
    precision: Precision
    loss_scale: float | str | None
    growth_interval: int
    skip_nonfinite: bool
    skip_limit: int


class ArtifactKeywords(TypedDict, total=False):
    """Options of the artifacts of a forward model."""

    frozen_batch_norm: bool | Sequence[str] | None
    update: SparseUpdate | None
    external_data: bool | None
    proximal: bool
    tie: Sequence[Sequence[str]] | str | bool | None


class RecipeKeywords(ArtifactKeywords, total=False):
    """Options of artifacts that are made for a trainer."""

    loss_inputs: Sequence[str] | None


class TrainerKeywords(RecipeKeywords, StepKeywords, total=False):
    """Options of a trainer that is made from a forward model."""


class FitKeywords(TypedDict, total=False):
    """Options of a training run over epochs."""

    epochs: int
    accumulate: int
    hours: float | None
    seed: int
    monitor: str | None
    mode: Mode | None
    train_metrics: bool
    keep: int | None
    keep_best: int
    restore: Literal["last", "best"]
    ema: float | None
    swa: float | None
    averaged: bool
    checkpoint_every: int | None
    class_weight: str | Sequence[float] | Mapping[str, float] | None
    unfreeze: Mapping[str, int] | None
    freeze_statistics: int | None
