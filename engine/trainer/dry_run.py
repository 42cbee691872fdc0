"""A dry run of a trainer: what a step on a batch would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base import arguments
from engine.base.errors import BudgetError, InputError, suggest_nearest
from engine.checking import Check, Subject, advise, check

if TYPE_CHECKING:
    from engine.trainer.learner import TrainingModels


def run_dry(
    learner: TrainingModels, batch: Sequence[Any], budget: int | str | None, variants: bool
) -> Check:
    """See `Trainer.check`."""
    subject = _make_subject(learner)
    if budget is not None:
        most = arguments.check_nbytes("memory_budget", budget)
        subject = replace(subject, planning=replace(subject.planning, budget=most))
    return check(
        subject,
        find_shapes(learner.inputs, batch),
        source=learner.folder,
        variants=arguments.check_flag("variants", variants),
    )


def add_advice(
    learner: TrainingModels, shapes: Sequence[tuple[int, ...]], error: BudgetError
) -> BudgetError:
    """Return the error of a step that does not fit the budget, with what would help."""
    named = dict(zip(learner.inputs, shapes, strict=True))
    told = advise(_make_subject(learner), named)
    return error.add_advice(told) if told else error


def _make_subject(learner: TrainingModels) -> Subject:
    model, optimizer = learner.session.training, learner.optimizer
    update = None if optimizer is None else optimizer.model.source
    evaluation = learner.session.evaluation
    return Subject.of(
        model.source,
        update,
        learner.state.slots,
        learner.module.threads,
        None if evaluation is None else evaluation.source,
        learner.options.planning,
    )


def find_shapes(names: Sequence[str], batch: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a batch of arrays or shapes, by the names of the inputs.

    Raises:
        InputError: it lacks an input, or has another number of them.
    """
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        given = batch[0]
        for name in names:
            if name not in given:
                known = ", ".join(repr(str(n)) for n in given) or "nothing"
                raise InputError(
                    f"the batch lacks the input {name!r}; it has {known}"
                    f"{suggest_nearest(name, map(str, given))}"
                )
        return {name: _find_shape(name, given[name]) for name in names}
    if len(batch) != len(names):
        raise InputError(f"a step takes {len(names)} inputs {list(names)}, got {len(batch)}")
    return {name: _find_shape(name, value) for name, value in zip(names, batch, strict=True)}


def _find_shape(name: str, value: Any) -> tuple[int, ...]:
    """Return the shape of an array; a tuple of whole numbers is one itself."""
    if isinstance(value, tuple):
        return arguments.check_shape(f"input {name!r}", value)
    return tuple(np.shape(value))
