"""Losses, optimizers and schedules by name: `loss="cross_entropy"`, `--optimizer adamw`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from engine.base import option_tables
from engine.base.errors import InputError, suggest_nearest
from engine.graphs.offline.optim_types import OPTIMIZERS, OptimizerSpec
from engine.loss_types import LOSSES, Loss
from engine.trainer import schedules
from engine.trainer.schedules import Schedule

Kind = TypeVar("Kind")

_SCHEDULES = (
    schedules.Constant, schedules.Linear, schedules.Cosine, schedules.Step, schedules.OneCycle,
    schedules.Plateau,
)  # fmt: skip


def spell_name(name: str) -> str:
    """Return a class's name for options: CrossEntropyLoss is cross_entropy, KLDivLoss kl_div."""
    base = name.removesuffix("Loss") or name
    return re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", base).lower()


def list_losses() -> dict[str, type[Loss]]:
    """Return the losses by name."""
    return {spell_name(kind.__name__): kind for kind in LOSSES.values()}


def list_optimizers() -> dict[str, type[OptimizerSpec]]:
    """Return the optimizers by name."""
    return {kind.__name__.lower(): kind for kind in OPTIMIZERS.values()}


def schedule_kinds() -> dict[str, type[Schedule]]:
    """Return the schedules by name."""
    return {spell_name(kind.__name__): kind for kind in _SCHEDULES}


def make_schedule(name: str, options: Mapping[str, Any], place: str) -> Schedule:
    """Return the schedule of a name, with its options; place: the beginning of messages.

    Raises:
        InputError, DTypeError: there is none of that name, or an option does not fit.
    """
    try:
        kind = choose_named(schedule_kinds(), name, "schedule")
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return option_tables.make(kind, options, f"{place} {name}")


def choose_named(known: Mapping[str, type[Kind]], name: str, what: str) -> type[Kind]:
    """Return the class of a name; capitals, `_` and `-` do not count.

    what: what is chosen, in messages.

    Raises:
        InputError: there is none of that name.
    """
    plain = {_simplify(each): each for each in known}
    match = plain.get(_simplify(name))
    if match is None:
        raise InputError(
            f"no {what} {name!r}{suggest_nearest(name, known) or '; known: ' + ', '.join(known)}"
        )
    return known[match]


def _simplify(name: str) -> str:
    return re.sub(r"[_-]", "", name.lower()).removesuffix("loss")
