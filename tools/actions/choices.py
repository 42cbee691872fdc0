"""Choices by name on the command line, with their options: losses, optimizers and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from engine.base import option_tables as tables
from engine.base.errors import InputError
from engine.graphs.offline.optim_types import OptimizerSpec
from engine.loss_types import Loss
from engine.trainer import names
from engine.trainer.reports import trackers
from engine.trainer.reports.tracker import Tracker
from engine.trainer.schedules import Schedule

Kind = TypeVar("Kind")


def make_loss(name: str, options: Mapping[str, Any], place: str) -> Loss:
    """Return a loss with its options.

    Raises:
        InputError, DTypeError: there is none of that name, or an option does not fit.
    """
    return tables.make(
        _choose(names.list_losses(), name, "loss", place), options, f"{place} {name}"
    )


def make_optimizer(name: str, options: Mapping[str, Any], place: str) -> OptimizerSpec:
    """Return an optimizer with its options, as `make_loss`."""
    kind = _choose(names.list_optimizers(), name, "optimizer", place)
    return tables.make(kind, options, f"{place} {name}")


def make_schedule(name: str, options: Mapping[str, Any], place: str) -> Schedule:
    """Return a schedule with its options, as `make_loss`."""
    return names.make_schedule(name, options, place)


def make_tracker(name: str, options: Mapping[str, Any], place: str, folder: Path) -> Tracker:
    """Return a tracker with its options, as `make_loss`.

    folder: of the run; a tracker that writes files into a folder of its own has one in it.
    """
    kind = _choose(trackers.list_known(), name, "log", place)
    known = tables.list_options(kind)
    given: dict[str, Any] = {"folder": folder / name.lower(), "run": None}
    given = {key: value for key, value in given.items() if key in known}
    return tables.make(kind, options, f"{place} {name}", **given)


def _choose(known: Mapping[str, type[Kind]], name: str, what: str, place: str) -> type[Kind]:
    try:
        return names.choose_named(known, name, what)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
