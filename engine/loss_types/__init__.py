"""Losses to train with, and their options: what `generate_artifacts(loss=...)` takes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from engine.base.fields import describe_fields
from engine.loss_types.base import Loss as Loss
from engine.loss_types.base import LossOfScores, NamedLoss
from engine.loss_types.classes import *
from engine.loss_types.elementwise import *
from engine.loss_types.embeddings import *
from engine.loss_types.regions import *
from engine.loss_types.sequences import *


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
    LossType[c.__name__]: describe_fields(c)
    for base in (NamedLoss, LossOfScores)
    for c in base.__subclasses__()
    if c is not LossOfScores
}

if not TYPE_CHECKING:  # checkers take all that is imported above for public
    __all__ = ["Loss", "LossType", *LossType.__members__]
