"""Losses to train with, and their options: what `generate_artifacts(loss=...)` takes."""

from __future__ import annotations

from enum import IntEnum

from engine.loss_types.base import Loss, NamedLoss
from engine.loss_types.classes import CrossEntropyLoss, FocalLoss, NLLLoss
from engine.loss_types.elementwise import (
    BCEWithLogitsLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
)
from engine.loss_types.embeddings import (
    BatchHardTripletLoss,
    CosineEmbeddingLoss,
    InfoNCELoss,
    TripletMarginLoss,
)
from engine.loss_types.regions import CIoULoss, DiceLoss, GIoULoss
from engine.loss_types.sequences import CTCLoss

__all__ = [
    "BCEWithLogitsLoss",
    "BatchHardTripletLoss",
    "CIoULoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "DiceLoss",
    "FocalLoss",
    "GIoULoss",
    "HuberLoss",
    "InfoNCELoss",
    "KLDivLoss",
    "L1Loss",
    "Loss",
    "LossType",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
    "TripletMarginLoss",
]


class LossType(IntEnum):
    """The losses, with their default options; the classes of the same names take options."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    HuberLoss = 5
    SmoothL1Loss = 6
    KLDivLoss = 7
    NLLLoss = 8
    CosineEmbeddingLoss = 9
    FocalLoss = 10
    GIoULoss = 11
    CIoULoss = 12
    DiceLoss = 13
    TripletMarginLoss = 14
    BatchHardTripletLoss = 15
    InfoNCELoss = 16
    CTCLoss = 17


LOSSES: dict[LossType, type[NamedLoss]] = {
    LossType[c.__name__]: c for c in NamedLoss.__subclasses__()
}
