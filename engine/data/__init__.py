"""Data for training: arrays, tables, pictures, sounds, texts, and loaders of other packages.

`batches` makes batches of any of them; `Trainer.fit` calls it.  The classes here are datasets that
read files.  Packages that only some of them need are imported when such a dataset is created.
"""

from engine.data.arrays import Arrays
from engine.data.augment import (
    ColorJitter,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    RandomRotation,
)
from engine.data.buckets import Buckets
from engine.data.dataset import Dataset
from engine.data.features import LogMel
from engine.data.images import Images
from engine.data.loader import Batches
from engine.data.masks import Masks
from engine.data.mixing import CutMix, Mixup
from engine.data.preparation import Preparation
from engine.data.sound_changes import SpecAugment, TimeShift
from engine.data.sounds import Sounds
from engine.data.sources import batches, dataset_of
from engine.data.tables import Csv, Table
from engine.data.tagged import TaggedTexts
from engine.data.texts import LabelledTexts, Texts
from engine.data.tokens import ByteTokenizer, train_tokenizer

__all__ = [
    "Arrays",
    "Batches",
    "Buckets",
    "ByteTokenizer",
    "ColorJitter",
    "Csv",
    "CutMix",
    "Dataset",
    "Images",
    "LabelledTexts",
    "LogMel",
    "Masks",
    "Mixup",
    "Preparation",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Sounds",
    "SpecAugment",
    "Table",
    "TaggedTexts",
    "Texts",
    "TimeShift",
    "batches",
    "dataset_of",
    "train_tokenizer",
]
