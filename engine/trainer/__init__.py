"""Trainers: the loop around a module and its optimizer, and what people hang into it.

The names below are imported when they are first asked for, so that importing `Trainer` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.trainer.callbacks import EarlyStopping as EarlyStopping
    from engine.trainer.evaluation import EvaluationBatch as EvaluationBatch
    from engine.trainer.fit import Callback as Callback
    from engine.trainer.fit import Fit as Fit
    from engine.trainer.history import History as History
    from engine.trainer.metric import Metric as Metric
    from engine.trainer.metrics import AUROC as AUROC
    from engine.trainer.metrics import BLEU as BLEU
    from engine.trainer.metrics import F1 as F1
    from engine.trainer.metrics import MAE as MAE
    from engine.trainer.metrics import MCC as MCC
    from engine.trainer.metrics import MSE as MSE
    from engine.trainer.metrics import R2 as R2
    from engine.trainer.metrics import RMSE as RMSE
    from engine.trainer.metrics import Accuracy as Accuracy
    from engine.trainer.metrics import AveragePrecision as AveragePrecision
    from engine.trainer.metrics import BalancedAccuracy as BalancedAccuracy
    from engine.trainer.metrics import Dice as Dice
    from engine.trainer.metrics import ErrorRate as ErrorRate
    from engine.trainer.metrics import IoU as IoU
    from engine.trainer.metrics import MeanAveragePrecision as MeanAveragePrecision
    from engine.trainer.metrics import Perplexity as Perplexity
    from engine.trainer.metrics import Precision as Precision
    from engine.trainer.metrics import Recall as Recall
    from engine.trainer.metrics import TopK as TopK
    from engine.trainer.schedules import Constant as Constant
    from engine.trainer.schedules import Cosine as Cosine
    from engine.trainer.schedules import Linear as Linear
    from engine.trainer.schedules import OneCycle as OneCycle
    from engine.trainer.schedules import Plateau as Plateau
    from engine.trainer.schedules import Schedule as Schedule
    from engine.trainer.schedules import Step as Step
    from engine.trainer.trainer import Trainer as Trainer

_PLACES = {
    "callbacks": ("EarlyStopping",),
    "evaluation": ("EvaluationBatch",),
    "fit": ("Callback", "Fit"),
    "history": ("History",),
    "metric": ("Metric",),
    "metrics": (
        "AUROC",
        "Accuracy",
        "AveragePrecision",
        "BLEU",
        "BalancedAccuracy",
        "Dice",
        "ErrorRate",
        "F1",
        "IoU",
        "MAE",
        "MCC",
        "MSE",
        "MeanAveragePrecision",
        "Perplexity",
        "Precision",
        "R2",
        "RMSE",
        "Recall",
        "TopK",
    ),
    "schedules": ("Constant", "Cosine", "Linear", "OneCycle", "Plateau", "Schedule", "Step"),
    "trainer": ("Trainer",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def _offer(name: str) -> Any:
    """Return one of the names of this room, from the file that has it."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


if not TYPE_CHECKING:  # checkers know the names from the imports above, and refuse others
    __all__ = sorted(_MODULES)
    __getattr__ = _offer
