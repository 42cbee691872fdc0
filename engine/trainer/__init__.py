"""Trainers: the loop around a module and its optimizer, and what people attach to it.

The names below are imported when they are first asked for, so that importing `Trainer` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.base.public_names import HOMES

if TYPE_CHECKING:
    from engine.trainer.callbacks import EarlyStopping as EarlyStopping
    from engine.trainer.evaluation import EvaluationBatch as EvaluationBatch
    from engine.trainer.fit import Callback as Callback
    from engine.trainer.fit import Fit as Fit
    from engine.trainer.history import History as History
    from engine.trainer.metric import Metric as Metric
    from engine.trainer.metrics.families import *
    from engine.trainer.schedules import Constant as Constant
    from engine.trainer.schedules import Cosine as Cosine
    from engine.trainer.schedules import Linear as Linear
    from engine.trainer.schedules import OneCycle as OneCycle
    from engine.trainer.schedules import Plateau as Plateau
    from engine.trainer.schedules import Schedule as Schedule
    from engine.trainer.schedules import Step as Step
    from engine.trainer.trainer import Trainer as Trainer

_HOMES = {name: home for name, home in HOMES.items() if home.startswith(f"{__name__}.")}


def _offer(name: str) -> Any:
    """Return one of the names of this room, from the file that has it."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


if not TYPE_CHECKING:  # checkers know the names from the imports above, and refuse others
    __all__ = list(_HOMES)
    __getattr__ = _offer
