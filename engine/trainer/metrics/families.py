"""The metrics of this package: each family names its own in `__all__`."""

from typing import TYPE_CHECKING

from engine.trainer.metrics import boxes, classes, ranking, sequences, tallies, values
from engine.trainer.metrics.boxes import *
from engine.trainer.metrics.classes import *
from engine.trainer.metrics.ranking import *
from engine.trainer.metrics.sequences import *
from engine.trainer.metrics.tallies import *
from engine.trainer.metrics.values import *

_FAMILIES = (classes, tallies, ranking, boxes, values, sequences)

if not TYPE_CHECKING:  # checkers take all that is imported above for public
    __all__ = [name for family in _FAMILIES for name in family.__all__]
