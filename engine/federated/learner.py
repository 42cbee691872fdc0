"""Common part of a device's rounds, with a trainer or with a trimmed build.

This file needs numpy alone: a device with a trimmed build needs nothing that plans or compiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.base.errors import InputError, StateError
from engine.federated import parameters
from engine.federated.local_options import LocalOptions, matches
from engine.federated.parameters import Arrays
from engine.training.proximal import MU, is_of_term, set_anchors

_VALUE = "parameter/"  # prefix of the names of kept arrays


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of a training run on a device.

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


class LocalLearner(ABC):
    """Device's part of rounds, on its own data.

    It can serve many clients in turn: `begin` forgets the one before.

    trainer: `Trainer` of the engine or of a trimmed build, of a model with an optimizer.  Its
        present values are every client's initial values of arrays that no server sends.
    names: the parameters that the server has sent in this round.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._rate = trainer.learning_rate
        self._start = {name: np.array(p.data) for name, p in trainer.state.parameters}
        self.names: list[str] = []

    def begin(
        self, arrays: Mapping[str, Any], options: LocalOptions, kept: Kept | None = None
    ) -> None:
        """Start the part of a client in a round.

        arrays: the arrays from the server.  kept: the state that the client has kept, or None.

        Raises:
            EngineError: see `parameters.check`; a trained parameter that is not `local` is missing;
                or the kept state belongs to another model.
            StateError: a proximal term is requested, but the model has none.
        """
        trainer, kept = self.trainer, kept or Kept()
        needed = [n for n in parameters.trainable(trainer) if not matches(n, options.local)]
        new = parameters.check(trainer, arrays, needed)
        self.names = list(new)
        mine = {n.removeprefix(_VALUE): a for n, a in kept.arrays.items() if n.startswith(_VALUE)}
        new |= {n: a for n, a in parameters.check(trainer, mine, ()).items() if n not in new}
        self._restore_optimizer(kept if options.keep_optimizer else Kept())
        rate = self._rate if options.learning_rate is None else options.learning_rate
        trainer.learning_rate = rate
        parameters.apply(trainer, self._start | new, ())
        if options.proximal_mu or MU in trainer.state.parameters:
            set_anchors(trainer.state, options.proximal_mu)

    def kept(self, options: LocalOptions) -> Kept:
        """Return the state that the client keeps for its next round."""
        state, arrays = self.trainer.state, {}
        for name, parameter in state.parameters:
            if name in self.names or is_of_term(name, state):
                continue
            if not np.array_equal(parameter.data, self._start[name]):
                arrays[_VALUE + name] = np.array(parameter.data)
        optimizer = self._keep_optimizer() if options.keep_optimizer else Kept()
        return Kept(arrays | optimizer.arrays, optimizer.numbers)

    @abstractmethod
    def train(self, data: Any, options: LocalOptions) -> Learned:
        """Train on the data of the client."""

    @abstractmethod
    def evaluate(self, data: Any, options: LocalOptions) -> tuple[int, dict[str, float]]:
        """Return the number of samples of some data, and their loss and metrics by name."""

    @abstractmethod
    def _keep_optimizer(self) -> Kept:
        """Return the state of the optimizer."""

    @abstractmethod
    def _restore_optimizer(self, kept: Kept) -> None:
        """Restore the state that `_keep_optimizer` has returned; without any it starts afresh."""

    def require_round(self) -> None:
        """Raise StateError unless `begin` has been called."""
        if not self.names:
            raise StateError("call begin() first: it gives the learner the parameters of the round")


def require_samples(data: Any, purpose: str) -> None:
    """Refuse data that are known to be empty.

    Raises:
        InputError: there are no data, or an array has no sample.
    """
    arrays = list(data.values()) if isinstance(data, Mapping) else data
    if data is None or (isinstance(arrays, list | tuple) and not arrays):
        raise InputError(f"there is no data to {purpose}")
    for array in arrays if isinstance(arrays, list | tuple) else [arrays]:
        if hasattr(array, "__len__") and len(array) == 0:
            raise InputError(f"there is no data to {purpose}: 0 samples")
