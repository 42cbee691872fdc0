"""Losses, optimizers and schedules by name: `loss="cross_entropy"`, `--optimizer adamw`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from engine.base import arguments, option_tables
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
    """Return a class's name for options: KLDivLoss is kl_div, and GIoULoss giou.

    A word begins before a capital that two small letters follow, or that follows two.
    """
    base = name.removesuffix("Loss") or name
    return re.sub(r"(?<=\w)(?=[A-Z][a-z]{2})|(?<=[a-z]{2})(?=[A-Z])", "_", base).lower()


def list_losses() -> dict[str, type[Loss]]:
    """Return the losses by name."""
    return {spell_name(kind.__name__): kind for kind in LOSSES.values()}


def list_optimizers() -> dict[str, type[OptimizerSpec]]:
    """Return the optimizers by name."""
    return {kind.__name__.lower(): kind for kind in OPTIMIZERS.values()}


def schedule_kinds() -> dict[str, type[Schedule]]:
    """Return the schedules by name."""
    return {spell_name(kind.__name__): kind for kind in _SCHEDULES}


def make_loss(name: str, options: Mapping[str, Any], place: str) -> Loss:
    """Return the loss of a name, with its options; place: the beginning of messages.

    Raises:
        InputError, DTypeError: there is nothing of that name, or an option does not fit.
    """
    return _make_named(list_losses(), name, options, "loss", place)


def make_losses(given: Mapping[str, Any], place: str) -> dict[str, tuple[Loss, float]]:
    """Return the losses of several outputs and their weights, of a table of TOML or JSON.

    given: by the names of outputs the name of a loss, a table of it and its options as
        {"name": "huber", "delta": 2}, or a list of one of these and a weight.

    Raises:
        InputError, DTypeError: as `make_loss`, or a value has another type.
    """
    made = {}
    for output, value in given.items():
        here = f"{place}.{output}"
        is_pair = isinstance(value, list | tuple) and len(value) == 2
        loss, weight = value if is_pair else (value, 1.0)
        table = dict(loss) if isinstance(loss, Mapping) else {"name": loss}
        name = arguments.check_text(f"{here}: name", table.pop("name", None))
        made[output] = make_loss(name, table, here), arguments.check_real(f"{here}: weight", weight)
    return made


def make_optimizer(name: str, options: Mapping[str, Any], place: str) -> OptimizerSpec:
    """Return the optimizer of a name, with its options, as `make_loss`."""
    return _make_named(list_optimizers(), name, options, "optimizer", place)


def make_schedule(name: str, options: Mapping[str, Any], place: str) -> Schedule:
    """Return the schedule of a name, with its options, as `make_loss`."""
    return _make_named(schedule_kinds(), name, options, "schedule", place)


def _make_named(
    known: Mapping[str, type[Kind]], name: str, options: Mapping[str, Any], what: str, place: str
) -> Kind:
    """Return an instance of the class of a name; what: see `choose_named`."""
    kind = choose_named(known, name, what, place)
    return option_tables.make(kind, options, f"{place} {name}")


def choose_named(
    known: Mapping[str, type[Kind]], name: str, what: str, place: str = ""
) -> type[Kind]:
    """Return the class of a name; capitals, `_` and `-` do not count.

    what: what is chosen, in messages.  place: their beginning.

    Raises:
        InputError: there is nothing of that name.
    """
    plain = {_simplify(each): each for each in known}
    match = plain.get(_simplify(name))
    if match is None:
        others = {
            _simplify(other): each
            for each, kind in known.items()
            for other in getattr(kind, "other_names", "").split()
        }
        here = others.get(_simplify(name))
        hint = f"; here it is {here!r}" if here else suggest_nearest(name, known)
        raise InputError(
            f"{place}{': ' if place else ''}no {what} {name!r}"
            f"{hint or '; known: ' + ', '.join(known)}"
        )
    return known[match]


def _simplify(name: str) -> str:
    return re.sub(r"[_-]", "", name.lower()).removesuffix("loss")
