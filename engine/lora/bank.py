"""Several adapters for one base, which share plans and weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.base.errors import InputError, NameNotFoundError, suggest_nearest
from engine.base.signatures import check_arguments
from engine.lora.adapter import AdaptableTrainer, Adapter, get_module, note_of
from engine.training.optimizer import Optimizer
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.training.module import Module


@check_arguments
class Adapters:
    """Several adapters by name for one trainer or module, which uses one at a time.

        adapters = Adapters(trainer, "poems")
        adapters.add("laws")
        adapters.use("laws")              # the next steps train it
        adapters["poems"].save("poems")

    Each has a training run of its own: its values, its optimizer state, its count of steps, its
    learning rate, and the position of its random numbers.  Switching copies these, and plans
    nothing.

    Args:
        trained: The trainer or module.
        name: Of the adapter that it has now.
        optimizer: Of a module; a trainer has its own.

    Raises:
        InputError: the model has no adapters.
    """

    def __init__(
        self,
        trained: AdaptableTrainer | Module,
        name: str = "default",
        optimizer: Optimizer | None = None,
    ) -> None:
        self._trained, self._module = trained, get_module(trained)
        note_of(self._module)
        self._optimizer: Optimizer | None = getattr(trained, "optimizer", optimizer)
        self._state = self._module.session.state
        self._first = self._take_snapshot(with_moments=False)
        self._kept: dict[str, CheckpointState] = {}
        self.active = name

    def __repr__(self) -> str:
        return f"Adapters({', '.join(map(repr, self))}; in use: {self.active!r})"

    def add(self, name: str, adapter: Adapter | None = None) -> None:
        """Add another adapter, which has not been trained here.

        adapter: Its values; by default those that the first one had when this object was made.

        Raises:
            InputError: there already is one of this name.
            EngineError: see `Adapter.put`.
        """
        if name in self:
            raise InputError(f"an adapter {name!r} already exists")
        before = self._take_snapshot(with_moments=False)
        self._set(self._first)
        try:
            if adapter is not None:
                adapter.put(self._trained)
            self._kept[name] = self._take_snapshot(with_moments=False)
        finally:
            self._set(before)

    def use(self, name: str) -> None:
        """Switch to another adapter; gradients not yet used by an update are discarded.

        Raises:
            NameNotFoundError: there is no adapter of this name.
        """
        if name == self.active:
            return
        if name not in self._kept:
            raise NameNotFoundError(f"no adapter {name!r}{suggest_nearest(name, [*self])}")
        saved = self._kept.pop(name)
        self._kept[self.active] = self._take_snapshot(with_moments=True)
        self.active = name
        if self._optimizer is not None:
            if saved.learning_rate is None:
                saved.learning_rate = self._optimizer.get_learning_rate()
            self._optimizer.restore(saved)
        self._set(saved)
        self._state.draws = saved.draws
        getattr(self._trained, "drop_gradients", self._module.lazy_reset_grad)()

    def __getitem__(self, name: str) -> Adapter:
        """Return the values of an adapter, as a copy.

        Raises:
            NameNotFoundError: there is no adapter of this name.
        """
        if name == self.active:
            return Adapter.of(self._trained)
        if name not in self._kept:
            raise NameNotFoundError(f"no adapter {name!r}{suggest_nearest(name, [*self])}")
        note, saved = note_of(self._module), self._kept[name]
        tensors = {n: saved.parameters[n].data.copy() for n in saved.trainable_names()}
        return Adapter(tensors, note.rank, note.alpha, note.dropout, note.rank_stabilised)

    def __contains__(self, name: object) -> bool:
        return name == self.active or name in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter((self.active, *self._kept))

    def __len__(self) -> int:
        return 1 + len(self._kept)

    def _take_snapshot(self, *, with_moments: bool) -> CheckpointState:
        return CheckpointState.from_bytes(self._state.to_bytes(with_moments))

    def _set(self, saved: CheckpointState) -> None:
        for name in self._state.trainable_names():
            self._state.parameters[name].data[...] = saved.parameters[name].data
