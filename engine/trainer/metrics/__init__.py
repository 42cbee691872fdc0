"""Metrics: numbers that say how good a model is, gathered batch by batch; see docs/metrics.md."""

from __future__ import annotations

from engine.trainer.metric import IGNORED, Declaration, Given, Metric, Tensors
from engine.trainer.metrics.boxes import MeanAveragePrecision
from engine.trainer.metrics.classes import Accuracy, TopK
from engine.trainer.metrics.named import METRICS, metrics_of
from engine.trainer.metrics.ranking import AUROC, AveragePrecision
from engine.trainer.metrics.sequences import BLEU, ErrorRate
from engine.trainer.metrics.tallies import (
    F1,
    MCC,
    BalancedAccuracy,
    Dice,
    IoU,
    Precision,
    Recall,
)
from engine.trainer.metrics.values import MAE, MSE, R2, RMSE, Function, Perplexity

__all__ = [
    "AUROC",
    "BLEU",
    "F1",
    "IGNORED",
    "MAE",
    "MCC",
    "METRICS",
    "MSE",
    "R2",
    "RMSE",
    "Accuracy",
    "AveragePrecision",
    "BalancedAccuracy",
    "Declaration",
    "Dice",
    "ErrorRate",
    "Function",
    "Given",
    "IoU",
    "MeanAveragePrecision",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "Tensors",
    "TopK",
    "metrics_of",
]
