"""Reports of a training run, see `engine.trainer.reports`."""

from typing import TYPE_CHECKING

from engine.trainer import reports
from engine.trainer.reports import *

if not TYPE_CHECKING:  # checkers take all that is imported above for public
    __all__ = reports.__all__
