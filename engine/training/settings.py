"""Options of training, each declared once.

`generate_artifacts`, `Trainer` and `Trainer.fit` take them as keywords, `run.toml` as keys,
`edgegrad train` and `edgegrad artifacts` as options.  To add one, add a field here and the code
that uses it, then run `python -m engine.tools.dev.tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.base import arguments
from engine.base.fields import declare_option
from engine.base.plan_options import HELP, MAX_THREADS, PlanOptions, Precision
from engine.base.signatures import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    BELOW_1,
    Range,
    check_arguments,
)
from engine.base.sparse_update import SparseUpdate
from engine.training.loss_scale import GROWTH_INTERVAL, check_loss_scale
from engine.training.mode import Mode

SKIP_LIMIT = 10  # updates in a row that may be skipped


def _check_budget(what: str, value: Any) -> int | None:
    return None if value is None else arguments.check_nbytes(what, value)


def _parse_groups(words: Sequence[str]) -> bool | list[list[str]]:
    """Return the groups of tied parameters for words such as `A=B`, or True for `auto`."""
    return True if list(words) == ["auto"] else [word.split("=") for word in words]


@check_arguments
@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of the steps of a trainer."""

    threads: int | None = declare_option(
        None,
        "Threads per step, including the calling one; by default EDGEGRAD_THREADS, or all cores.",
        Range(1, MAX_THREADS),
    )
    seed: int | None = declare_option(
        None,
        "Seed of random numbers in the model, such as for dropout; by default the process's seed.",
    )
    memory_budget: int | str | None = declare_option(
        None,
        "Memory limit in bytes for the plan of a step: parameters, optimizer state, inputs, "
        "outputs and all intermediate values; a number, or text such as 48 MB.  Values that do "
        "not fit are computed a second time in the backward pass; a batch that still does not "
        "fit is trained in parts (docs/memory.md).  By default no limit: the fastest step.",
        check=_check_budget,
        metavar="BYTES",
    )
    micro_batches: int | None = declare_option(
        None,
        "Train each batch in this number of parts, one after another, with one update; by default "
        "1, or as many as the memory budget needs.",
        AT_LEAST_1,
    )
    own_statistics: bool = declare_option(
        False,
        "Compute the statistics of batch normalisations in training over each part of a batch, "
        "instead of refusing to divide the batch.  The result differs from the whole batch's.",
    )
    precision: Precision = declare_option("f32", HELP)
    loss_scale: float | str | None = declare_option(
        None,
        "Multiply the loss by this factor in the backward pass, and divide the gradients by it, so "
        "that float16 can represent small gradients: a number from 1 to 16,777,216, or dynamic, "
        "which starts at 65,536, is halved when an update is skipped because gradients are not "
        "finite, and is doubled after growth_interval successful updates in a row.  By default "
        "dynamic with precision f16, otherwise 1.",
        check=check_loss_scale,
        metavar="dynamic|FACTOR",
    )
    growth_interval: int = declare_option(
        GROWTH_INTERVAL,
        "The number of successful updates in a row after which a dynamic loss scale is doubled.",
        AT_LEAST_1,
    )
    skip_nonfinite: bool = declare_option(
        False,
        "Skip and count updates with NaN or infinite gradients, instead of failing on a loss "
        "that is not finite; by default the optimizer's option of this name decides.",
    )
    skip_limit: int = declare_option(
        SKIP_LIMIT,
        "The number of updates in a row that may be skipped before an error.",
        AT_LEAST_0,
    )

    @property
    def planning(self) -> PlanOptions:
        """The options of the plans of a step."""
        budget = _check_budget("memory_budget", self.memory_budget)
        return PlanOptions(budget=budget, precision=self.precision)


@check_arguments
@dataclass(frozen=True, kw_only=True)
class ArtifactOptions:
    """Options of the artifacts of a forward model."""

    frozen_batch_norm: bool | Sequence[str] | None = declare_option(
        None,
        "Batch normalisations that use their running statistics in training, and leave them "
        "unchanged: all (true), none (false), or those whose nodes or parameters have the listed "
        "names.  By default those whose scale and bias are both frozen; with a sparse update, "
        "those whose scale is frozen.",
        flag="--frozen-batch-norm/--training-batch-norm",
    )
    update: SparseUpdate | None = declare_option(
        None,
        "Train only a part of the chosen parameters, such as {biases = true, last = 2}: fields of "
        "SparseUpdate (docs/memory.md).  By default all of them are trained.",
    )
    external_data: bool | None = declare_option(
        None,
        "Write large constants of the models to one file next to them, constants.<id>.data, which "
        "is mapped into memory.  By default only if the model has external data or LoRA adapters.",
        flag="--external-data/--internal-data",
    )
    proximal: bool = declare_option(
        False,
        "Add a term to the gradients that pulls trained parameters towards anchors in the "
        "checkpoint, as in FedProx (edgegrad.proximal).",
    )
    tie: Sequence[Sequence[str]] | str | bool | None = declare_option(
        None,
        "Groups of parameters to train as one, because an exporter has stored one parameter "
        'several times, equal or transposed: true or "auto" for all such copies, false for none.  '
        "By default none, with a warning that lists the copies.",
        flag="--tie",
        metavar="A=B",
        words=_parse_groups,
    )

    @property
    def ties(self) -> Sequence[Sequence[str]] | str | None:
        """The groups of parameters to train as one; "auto": all found; None if not decided."""
        if isinstance(self.tie, bool):
            return "auto" if self.tie else ()
        return self.tie


@check_arguments
@dataclass(frozen=True, kw_only=True)
class RecipeOptions(ArtifactOptions):
    """Options of artifacts that are made for a trainer."""

    loss_inputs: Sequence[str] | None = declare_option(
        (),
        "The outputs to compute the loss from, then the names of its targets, which may be values "
        "of the model; by default the only output, and new inputs.",
        flag="--loss-input",
        metavar="NAME",
    )


@check_arguments
@dataclass(frozen=True, kw_only=True)
class TrainerOptions(RecipeOptions, StepOptions):
    """Options of a trainer that is made from a forward model."""


@check_arguments
@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of a training run over epochs."""

    epochs: int = declare_option(1, "Passes over the data.", AT_LEAST_1)
    accumulate: int = declare_option(
        1, "The number of batches per optimizer step, which takes their mean gradient.", AT_LEAST_1
    )
    hours: float | None = declare_option(
        None, "Stop after this many hours, at the end of a batch.", ABOVE_0, metavar="H"
    )
    seed: int = declare_option(
        0,
        "Seed of the order of samples, of augmentation and of the choice of validation samples.  "
        "Random numbers in the model follow from the trainer's seed.",
    )
    monitor: str | None = declare_option(
        None,
        "The column of the history that decides which checkpoint is the best; by default "
        "val_loss, or loss without validation data.",
        metavar="COLUMN",
    )
    mode: Mode | None = declare_option(
        None, "The direction in which that column improves; by default its name decides."
    )
    train_metrics: bool = declare_option(
        False,
        "Also measure the metrics on the training data, on the outputs of the training steps: "
        "before each update, with dropout and the statistics of the batch.",
    )
    keep: int | None = declare_option(
        2,
        "The number of newest checkpoints to keep, in addition to the best; in Python, None keeps "
        "all.",
        AT_LEAST_1,
    )
    keep_best: int = declare_option(
        1, "The number of best checkpoints to keep, by the monitored column.", AT_LEAST_1
    )
    restore: Literal["last", "best"] = declare_option(
        "last",
        "Parameters to end with: after the last step, or after the epoch with the best value of "
        "the monitored column.",
    )
    ema: float | None = declare_option(
        None,
        "Keep an exponential moving average of the trained parameters over steps, with this decay, "
        "such as 0.999; by default none.",
        BELOW_1,
        metavar="DECAY",
    )
    swa: float | None = declare_option(
        None,
        "Average the parameters at the ends of epochs, from this epoch on; a number below 1 is a "
        "share of all epochs.  By default none.",
        AT_LEAST_0,
        metavar="EPOCH",
    )
    averaged: bool = declare_option(
        True,
        "Validate with the averaged parameters and end with them; otherwise only save them in "
        "checkpoints.",
        flag="--averaged/--not-averaged",
    )
    checkpoint_every: int | None = declare_option(
        None, "Optimizer steps between checkpoints; by default one epoch.", AT_LEAST_1
    )
    class_weight: str | Sequence[float] | Mapping[str, float] | None = declare_option(
        None,
        "Weights of the classes in the loss: balanced, so that rare classes count as much as "
        "frequent ones; a list of numbers; or a table of numbers by class.  By default none.",
        metavar="balanced|FACTORS",
    )
    unfreeze: Mapping[str, int] | None = declare_option(
        None, "Patterns of names, each with the epoch from which matching parameters are trained."
    )
    freeze_statistics: int | None = declare_option(
        None,
        "The epoch, counted from 0, from which the running statistics of batch normalisations and "
        "the ranges of rounded values stay fixed; by default every epoch updates them.",
        AT_LEAST_0,
    )
