"""Metrics: numbers that say how good a model is, gathered batch by batch; see docs/metrics.md."""

from typing import TYPE_CHECKING

from engine.base.labels import IGNORED as IGNORED
from engine.trainer.metric import Declaration as Declaration
from engine.trainer.metric import Given as Given
from engine.trainer.metric import Metric as Metric
from engine.trainer.metric import Tensors as Tensors
from engine.trainer.metrics import families
from engine.trainer.metrics.families import *
from engine.trainer.metrics.named import METRICS as METRICS
from engine.trainer.metrics.named import metrics_of as metrics_of
from engine.trainer.metrics.values import Function as Function

if not TYPE_CHECKING:  # checkers take all that is imported above for public
    __all__ = ["IGNORED", "METRICS", "Declaration", "Function", "Given", "Metric", "Tensors"]
    __all__ += ["metrics_of", *families.__all__]
