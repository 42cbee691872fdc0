"""Interface for a device's part of a round, with a trainer or with a trimmed build.

This file needs numpy alone: a device with a trimmed build needs nothing that plans or compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.base.errors import InputError
from engine.federated.local_options import LocalOptions
from engine.federated.parameters import Arrays


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of a training on a device.

    arrays: the new values of the received parameters, by name.
    examples: the number of samples of the training; the weight of the arrays in an average.
    loss: the mean loss over its last epoch.
    """

    arrays: Arrays
    examples: int
    loss: float


@dataclass(frozen=True, slots=True)
class Kept:
    """State that a device keeps from round to round: arrays, and integers, by name."""

    arrays: Arrays = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


class LocalLearner(Protocol):
    """Protocol of `engine.federated.local.Learner` and `engine.federated.trimmed.TrimmedLearner`.

    It can serve many clients in turn: `begin` forgets the one before.
    """

    @property
    def trainer(self) -> Any:
        """The trainer, of the engine or of a trimmed build."""

    def begin(
        self, arrays: Mapping[str, Any], options: LocalOptions, kept: Kept | None = None
    ) -> None:
        """Start the part of a client in a round.

        arrays: the arrays from the server.  kept: the state that the client has kept, or None.
        """

    def train(self, data: Any, options: LocalOptions) -> Learned:
        """Train on the data of the client."""

    def evaluate(self, data: Any, options: LocalOptions) -> tuple[int, dict[str, float]]:
        """Return the number of samples of some data, and their loss and metrics by name."""

    def kept(self, options: LocalOptions) -> Kept:
        """Return the state that the client keeps for its next round."""


def require_samples(data: Any, purpose: str) -> None:
    """Refuse data that are known to be empty.

    Raises:
        InputError: there are no data, or an array has no sample.
    """
    arrays = list(data.values()) if isinstance(data, Mapping) else data
    if data is None or (isinstance(arrays, list | tuple) and not arrays):
        raise InputError(f"there are no data to {purpose}")
    for array in arrays if isinstance(arrays, list | tuple) else [arrays]:
        if hasattr(array, "__len__") and len(array) == 0:
            raise InputError(f"there are no data to {purpose}: 0 samples")
