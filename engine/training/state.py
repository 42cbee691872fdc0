"""The state of a training run: parameters, gradients, what the optimizer keeps, and properties.

`CheckpointState` owns the memory to which plans are bound.  The trainable parameters lie one after
another, each at a multiple of 64 bytes, and zeros fill the gaps.  Float32 comes before float64, so
that the optimizer can take all parameters of a type as one flat tensor.  The gradients have the
same layout.  Frozen parameters lie after the trainable ones.  Apart from that all are in the order
of their names: files differ in the order that they have, and the plans for one state must fit the
state that it is saved and loaded as.  plan/states.py says what lies where in region state.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.aliases import Array, Bytes
from engine.base.element_types import (
    FLOATS,
    ITEMSIZE,
    NUMPY,
    OF_NUMPY,
    SUPPORTED,
    TRAINED_INTEGERS,
)
from engine.base.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    NameNotFoundError,
    ShapeError,
    StateError,
    suggest_nearest,
)
from engine.base.signatures import check_arguments
from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, NominalTensor, OptimizerGroup
from engine.plan.plan import align
from engine.runtime.arena import allocate, make_view
from engine.runtime.change_clock import ChangeClock
from engine.training import artifact_set
from engine.training.artifact_set import SetId
from engine.training.loss_scale import LEAST, MOST

Source = str | os.PathLike[str] | bytes | bytearray | memoryview

GROUP = "group0"
# Properties of the file that users do not see: the learning rate, how many steps have drawn random
# numbers, how many updates were skipped, the loss scale of the next step, and how many updates in a
# row were done with it; see also artifact_set.py.
LEARNING_RATE, DRAWS = "edgegrad.learning_rate", "edgegrad.draws"
SKIPPED = "edgegrad.skipped"
LOSS_SCALE, GOOD_STEPS = "edgegrad.loss_scale", "edgegrad.good_steps"
PROGRESS = (LEARNING_RATE, DRAWS, SKIPPED, LOSS_SCALE, GOOD_STEPS)  # what trimmed builds keep, too


def name_dtype(dtype: Any, where: str) -> str:
    """Return the engine's name of a numpy element type.

    Raises:
        DTypeError: the engine has no such type.
    """
    kind = OF_NUMPY.get(np.dtype(dtype))
    if kind is None:
        raise DTypeError(f"{where}: element type {dtype}; supported: {SUPPORTED}")
    return kind


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter is kept: `offset` bytes into region param (and grad, if it is trained).

    Integers that are trained have no place in region grad: a step updates them at once.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    trainable: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def has_gradient(self) -> bool:
        """True if region grad has a place for its gradient."""
        return self.trainable and self.dtype in FLOATS

    @property
    def end(self) -> int:
        """Where the next slot can begin, in bytes."""
        return self.offset + align(self.size * ITEMSIZE[self.dtype])


@check_arguments
class Parameter:
    """One parameter of a `CheckpointState`."""

    def __init__(self, name: str, state: CheckpointState) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        """Name of the initializer in the forward model."""
        return self._name

    @property
    def requires_grad(self) -> bool:
        """True if the parameter is trained."""
        return self._state._is_trainable(self._name)

    @property
    def data(self) -> Array:
        """The value as a view, so that writing into it changes the parameter.

        An assignment copies an array of the same shape and element type.

        Raises:
            StateError: the checkpoint is nominal, and no values were loaded.
            InputError, ShapeError, DTypeError: what is assigned does not fit.
        """
        if not self._state.loaded:
            raise StateError(
                f"parameter {self._name!r} of a nominal checkpoint has no value. "
                "Please load the parameter states first"
            )
        return self._state.view("param", self._name)

    @data.setter
    def data(self, value: npt.ArrayLike) -> None:
        if not self._state.loaded:
            raise StateError(
                f"parameter {self._name!r} of a nominal checkpoint has no value. "
                "Please load all the parameter states first"
            )
        target = self.data
        new = arguments.make_array(f"parameter {self._name!r}", value)
        if new.shape != target.shape:
            raise ShapeError(
                f"parameter {self._name!r}: expected shape {target.shape}, got {new.shape}"
            )
        if new.dtype != target.dtype:
            raise DTypeError(f"parameter {self._name!r}: expected {target.dtype}, got {new.dtype}")
        target[...] = new

    @property
    def grad(self) -> Array | None:
        """The accumulated gradient as a view; None for a frozen parameter or without a Module.

        Raises:
            StateError: the last step was a plan that updates each parameter as soon as its gradient
                is complete, so that no gradient was kept; or the parameter is integers.
        """
        state = self._state
        if not self.requires_grad or not (state.has_module and state.loaded):
            return None
        if not state.slots[self._name].has_gradient:
            raise StateError(
                f"the gradient of {self._name!r} is not kept: it is "
                f"{state.slots[self._name].dtype}, which a step updates as soon as its gradient is "
                "complete"
            )
        if state.gradients_gone:
            raise StateError(
                f"the gradient of {self._name!r} was not kept: the last step updated each "
                "parameter as soon as its gradient was complete.  Trainer.accumulate keeps "
                "gradients until Trainer.update"
            )
        state.allocate_gradients()
        return state.view("grad", self._name)

    def __repr__(self) -> str:
        return f"Parameter(name={self._name!r}, requires_grad={self.requires_grad})"


@check_arguments
class Parameters:
    """The parameters of a state by name; iteration gives (name, Parameter), sorted by name."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        """Return the parameter of a name.

        Raises:
            NameNotFoundError: there is none.
            StateError: the checkpoint is nominal, and no values were loaded.
        """
        self._state._check_name(name)
        if not self._state.loaded:
            raise StateError(
                f"parameter {name!r} of a nominal checkpoint has no value. "
                "Please load the parameter states first"
            )
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self._state._check_name(name)
        Parameter(name, self._state).data = value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._state.names

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, Parameter(name, self._state)) for name in sorted(self._state.names))

    def __len__(self) -> int:
        return len(self._state.names)

    def __repr__(self) -> str:
        return f"Parameters({[p for _, p in self]})"


@check_arguments
class Properties:
    """The user's data in a checkpoint by name: int (64 bits), float (as float32) or str."""

    def __init__(self, values: Mapping[str, int | float | str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> int | float | str:
        if name not in self:
            raise NameNotFoundError(f"no property {name!r}{suggest_nearest(name, self._values)}")
        return self._values[name]

    def __setitem__(self, name: str, value: int | float | str) -> None:
        name = arguments.check_text("property", name)
        if name in (*PROGRESS, artifact_set.PROPERTY):
            raise InputError(f"a property cannot be named {name!r}")
        if isinstance(value, bool | int | np.integer | np.bool_):
            number = int(value)
            if not -(2**63) <= number < 2**63:
                raise InputError(f"property {name!r}: {number} does not fit in 64 bits")
            self._values[name] = number
        elif isinstance(value, float | np.floating):
            known = (
                arguments.check_number(f"property {name!r}", value)
                if math.isfinite(value)
                else value
            )
            self._values[name] = float(known)
        elif isinstance(value, str):
            self._values[name] = arguments.check_text(f"property {name!r}", value)
        else:
            raise DTypeError(
                f"property {name!r}: expected int, float or str, got {type(value).__name__}"
            )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._values

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        return iter(sorted(self._values.items()))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({dict(sorted(self._values.items()))})"


@dataclass(frozen=True, slots=True)
class PendingStep:
    """An optimizer step that counts if its flag says that it was done.

    group, draws: the optimizer group and the count of draws as they are after the step.
    """

    flag: Array
    group: OptimizerGroup
    draws: int


def sort_by_layout(trainable: Iterable[str], dtypes: Mapping[str, str]) -> list[str]:
    """Return trainable parameters in the order in which they lie: by element type, then by name."""
    return sorted(trainable, key=lambda name: (dtypes[name], name))


def lay_out_slots(
    trainable: Sequence[str],
    frozen: Sequence[str],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Slot]:
    """Lay out parameters: trainable ones first, f32 before f64 before integers, each by name.

    The result is in the order of `dtypes`.

    Raises:
        DTypeError: a trainable parameter is of a type that is not trained.
    """
    offset, slots, trained = 0, dict[str, Slot](), set(trainable)
    for name in (*sort_by_layout(trainable, dtypes), *sorted(frozen)):
        dtype, shape = dtypes[name], tuple(shapes[name])
        is_trained = name in trained
        if is_trained and dtype not in (*FLOATS, *TRAINED_INTEGERS):
            raise DTypeError(
                f"parameter {name!r} of {dtype} cannot be trained; supported: "
                + ", ".join((*FLOATS, *TRAINED_INTEGERS))
            )
        slots[name] = Slot(dtype, shape, offset, is_trained)
        offset = slots[name].end
    return {name: slots[name] for name in dtypes}


class _Room:
    """The regions of a new state, into which the values of a checkpoint are read.

    param: region param; None for a nominal checkpoint.
    moments: what the optimizer keeps, each `momentum<k>` of all parameters after the one before, as
        `lay_out` of plan/states.py places the states of an optimizer; None if the checkpoint has
        other ones, or none.
    """

    def __init__(self) -> None:
        self.param: Bytes | None = None
        self.moments: Bytes | None = None

    def allocate(self, known: Checkpoint) -> None:
        """Give the tensors of a checkpoint places in regions, as `storage.decode` asks for it."""
        if known.nominal:
            return
        stored: dict[str, Any] = {**known.trainable, **known.frozen}  # all are `Stored`
        dtypes = {n: name_dtype(t.dtype, f"parameter {n!r}") for n, t in stored.items()}
        shapes = {n: t.shape for n, t in stored.items()}
        slots = lay_out_slots(list(known.trainable), list(known.frozen), dtypes, shapes)
        self.param = allocate(_end_of(slots.values()), what="parameters")
        for name, tensor in stored.items():
            slot = slots[name]
            tensor.array = make_view(self.param, slot.offset, slot.dtype, slot.shape)
        if len(known.optimizer_groups) == 1:
            trained = sort_by_layout(known.trainable, dtypes)
            self._allocate_moments(known.optimizer_groups[0].states, trained)

    def _allocate_moments(
        self, states: Mapping[str, Mapping[str, Any]], trained: Sequence[str]
    ) -> None:
        count = max((len(moments) for moments in states.values()), default=0)
        names = [f"momentum{k}" for k in range(count)]
        if set(states) != set(trained) or any(set(m) != set(names) for m in states.values()):
            return
        tensors = [states[parameter][moment] for moment in names for parameter in trained]
        sizes = [align(t.dtype.itemsize * math.prod(t.shape)) for t in tensors]
        *begins, end = accumulate(sizes, initial=0)
        self.moments = allocate(end, what="optimizer state")
        for tensor, begin in zip(tensors, begins, strict=True):
            kind = name_dtype(tensor.dtype, "optimizer state")
            tensor.array = make_view(self.moments, begin, kind, tensor.shape)


def _end_of(slots: Iterable[Slot]) -> int:
    """Return where the last of these slots ends, in bytes."""
    return max((slot.end for slot in slots), default=0)


def _check_progress(groups: Sequence[OptimizerGroup], rate: object) -> None:
    """Check the learning rates and the counts of steps of a checkpoint.

    Raises:
        CheckpointError: a rate is NaN, negative or infinite, or a count is negative.
    """
    rates = [(LEARNING_RATE, rate)] if isinstance(rate, int | float) else []
    rates += [("initial_learning_rate", group.initial_learning_rate) for group in groups]
    for what, number in rates:
        if not 0 <= number < math.inf:
            raise CheckpointError(
                f"checkpoint: {what} is {number}: expected a number of at least 0"
            )
    for group in groups:
        if group.step < 0:
            raise CheckpointError(f"checkpoint: the step of {group.name!r} is {group.step}")


class CheckpointState:
    """State of a training run: parameters, gradients, optimizer state and properties.

    `load_checkpoint` and `from_bytes` make it.

    slots: where each parameter is kept.
    regions: the bytes of the regions param, grad and state, as far as they exist.
    changes: the changes of region param; whoever writes to it notes them.
    draws: how many steps have drawn random numbers; the next one draws those that follow.
    skipped: how many updates were skipped, as gradients or losses were not finite.
    loss_scale, good_steps: a dynamic loss scale, and the number of updates in a row since it
        changed; None before the first step with one.
    loaded: whether the parameters have values; after a nominal checkpoint they have none at first.
    moments: the bytes in which the optimizer states of the checkpoint lie, if they lie as in region
        state; until an optimizer takes them over.
    pending: what an optimizer step that may not have been counted yet leaves.
    has_module: whether a Module trains this state, so that there are gradients.
    gradients_gone: whether the gradients of the last step were not kept.
    path: the path of the file that it was read from; None for other states.
    artifacts: the set of artifacts that the checkpoint was of.
    trained_by: the set of the models that train it, which it belongs to from now on.
    """

    def __init__(self, content: Checkpoint, room: _Room | None = None) -> None:
        if not isinstance(content, Checkpoint):
            raise DTypeError(
                "a CheckpointState is made by CheckpointState.load_checkpoint(path) or "
                f".from_bytes(data), not from {type(content).__name__}"
            )
        values = dict(content.properties)
        rate = values.pop(LEARNING_RATE, None)
        _check_progress(content.optimizer_groups, rate)
        self.learning_rate = float(rate) if isinstance(rate, int | float) else None
        drawn = values.pop(DRAWS, 0)
        self.draws = max(drawn, 0) if isinstance(drawn, int) else 0
        skipped = values.pop(SKIPPED, 0)
        self.skipped = max(skipped, 0) if isinstance(skipped, int) else 0
        scale, good = values.pop(LOSS_SCALE, None), values.pop(GOOD_STEPS, 0)
        self.loss_scale: float | None = None
        if isinstance(scale, float) and LEAST <= scale <= MOST:
            self.loss_scale = scale
        self.good_steps = max(good, 0) if isinstance(good, int) else 0
        self.path: str | os.PathLike[str] | None = None
        self.artifacts = SetId.parse(values.pop(artifact_set.PROPERTY, None))
        self.trained_by = self.artifacts
        self._properties = Properties(values)
        self._trainable, self._frozen = list(content.trainable), list(content.frozen)
        self._dtypes = {
            name: name_dtype(t.dtype, f"parameter {name!r}")
            for name, t in (*content.trainable.items(), *content.frozen.items())
        }
        self.groups = list(content.optimizer_groups)
        self.pending: PendingStep | None = None
        self.has_module = self.gradients_gone = False
        self.slots: dict[str, Slot] = {}
        self.regions: dict[str, Bytes] = {}
        self.changes = ChangeClock()
        self.moments = None if room is None else room.moments
        self.loaded = False
        if not content.nominal:
            arrays = {**content.trainable, **content.frozen}
            shapes = {n: a.shape for n, a in arrays.items() if isinstance(a, np.ndarray)}
            self.slots = self.layout(shapes)
            if room is not None and room.param is not None:  # where the values are already
                self.regions["param"], self.loaded = room.param, True
                return
            self.allocate()
            for name, array in arrays.items():
                self.view("param", name)[...] = array

    # --- files

    def __repr__(self) -> str:
        if not self.loaded:
            return f"CheckpointState({len(self.names)} parameters, nominal: without values)"
        slots = self.slots.values()
        values = sum(slot.size for slot in slots)
        trained = sum(slot.size for slot in slots if slot.trainable)
        return f"CheckpointState({len(slots)} parameters of {values:,} values, {trained:,} trained)"

    @classmethod
    @check_arguments
    def load_checkpoint(cls, checkpoint_uri: Source) -> CheckpointState:
        """Read a checkpoint from a path, or from bytes.

        The values are read straight to their places in the memory of the state.  The file is not
        needed afterwards: it may change or go.

        Raises:
            CheckpointError: the content is not a valid checkpoint.
            FileError: the file cannot be read.
        """
        if isinstance(checkpoint_uri, bytes | bytearray | memoryview):
            return cls.from_bytes(checkpoint_uri)
        room = _Room()
        state = cls(storage.read(checkpoint_uri, room.allocate), room)
        state.path = checkpoint_uri
        return state

    @classmethod
    @check_arguments
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Write a checkpoint.  A crash leaves the old file or the new one, never a part.

        Raises:
            FileError: the file cannot be written; the old one is as it was.
            StateError: a nominal state without values would replace a checkpoint that has some.
        """
        if not state.loaded and storage.holds_values(checkpoint_uri):
            raise StateError(
                f"{os.fspath(checkpoint_uri)!r} is a checkpoint with values, and this state has "
                "none: load the model parameters first, or save it to another path"
            )
        storage.write(state.content(include_optimizer_state), checkpoint_uri)

    @classmethod
    @check_arguments
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> CheckpointState:
        """Read a checkpoint from its bytes.

        Raises:
            CheckpointError: they are not a valid checkpoint.
        """
        room = _Room()
        return cls(storage.decode(data, allocate=room.allocate), room)

    @check_arguments
    def to_bytes(self, include_optimizer_state: bool = False) -> bytes:
        """Return the checkpoint as bytes.

        Raises:
            CheckpointError: its tensors are too large for one buffer (1800 MiB): save it to a path.
        """
        data, external = storage.encode(self.content(include_optimizer_state))
        if external is not None:
            raise CheckpointError(
                "the checkpoint needs a second file for its tensors: use save_checkpoint(path)"
            )
        return data

    @check_arguments
    def content(self, include_optimizer_state: bool) -> Checkpoint:
        """Return everything that a checkpoint holds; its arrays share the memory of the state."""

        def collect(names: Sequence[str]) -> dict[str, Array | NominalTensor]:
            if not self.loaded:
                return {n: NominalTensor(np.dtype(NUMPY[self._dtypes[n]])) for n in names}
            return {**view_values(self, names)}

        self.settle()
        properties = dict(self._properties)
        if self.trained_by.models:
            properties[artifact_set.PROPERTY] = str(self.trained_by)
        groups: list[OptimizerGroup] = []
        if include_optimizer_state:
            groups = self.groups
            if self.learning_rate is not None:
                properties[LEARNING_RATE] = float(self.learning_rate)
            if self.draws:
                properties[DRAWS] = self.draws
            if self.skipped:
                properties[SKIPPED] = self.skipped
            if self.loss_scale is not None:
                properties[LOSS_SCALE] = self.loss_scale
            if self.good_steps:
                properties[GOOD_STEPS] = self.good_steps
        return Checkpoint(
            trainable=collect(self._trainable),
            frozen=collect(self._frozen),
            nominal=not self.loaded,
            optimizer_groups=groups,
            properties=properties,
        )

    def settle(self) -> None:
        """Count the last optimizer step if its flag says that it was done; idempotent."""
        pending = self.pending
        if pending is not None and pending.flag.all():
            self.groups, self.draws = [pending.group], pending.draws
        self.pending = None

    # --- content

    @property
    def parameters(self) -> Parameters:
        """The parameters by name."""
        return Parameters(self)

    @property
    def properties(self) -> Properties:
        """User data by name."""
        return self._properties

    @property
    def names(self) -> Mapping[str, str]:
        """The element types of all parameters, by their names."""
        return self._dtypes

    def _is_trainable(self, name: str) -> bool:
        return name in self._trainable

    def _check_name(self, name: str) -> None:
        if name not in self.parameters:
            raise NameNotFoundError(f"no parameter {name!r}{suggest_nearest(name, self._dtypes)}")

    @check_arguments
    def view(self, region: str, name: str) -> Array:
        """Return the array of a parameter in region param, or of its gradient in region grad."""
        slot, memory = self.slots[name], self.regions[region]
        if region != "param" or not slot.size:
            return make_view(memory, slot.offset, slot.dtype, slot.shape)
        # An array from a buffer: the base of all views that are made of it, and not the region.
        lent: Array = np.frombuffer(memory.data, NUMPY[slot.dtype], slot.size, slot.offset)
        self.changes.note_loan((slot.offset, slot.end), lent)
        return lent.reshape(slot.shape)

    # --- memory

    def layout(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Slot]:
        """Lay out the parameters, which have these shapes, as `lay_out_slots` does.

        The result is in the order of the file.

        Raises:
            DTypeError: a trainable parameter is of a type that is not trained.
        """
        return lay_out_slots(self._trainable, self._frozen, self._dtypes, shapes)

    def allocate(self) -> None:
        """Make the bytes of region param, all zero."""
        self.regions["param"] = allocate(self.region_bytes("param"), what="parameters")
        self.loaded = True

    def allocate_gradients(self) -> None:
        """Make the bytes of region grad, all zero, unless they exist."""
        if "grad" not in self.regions:
            self.regions["grad"] = allocate(self.region_bytes("grad"), what="gradients")

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore parameters, gradients and moments on leaving, no matter what has run inside.

        They are copied for that, and need as much memory again meanwhile.  Steps of an optimizer
        inside do not count.
        """
        self.settle()
        kept = {name: memory.copy() for name, memory in self.regions.items()}
        try:
            yield
        finally:
            for name, memory in self.regions.items():
                memory[...] = kept.get(name, 0)
            self.changes.note([(0, self.region_bytes("param"))])

    def region_bytes(self, region: str) -> int:
        """Return the size in bytes of region param, grad (its trained floats) or state."""
        if region == "state":
            return self.regions["state"].nbytes if "state" in self.regions else 0
        return sum(
            s.end - s.offset for s in self.slots.values() if region == "param" or s.has_gradient
        )

    def trainable_kinds(self) -> dict[str, str]:
        """Return the element types of the trained parameters by name, in the order of memory."""
        return {name: self._dtypes[name] for name in self.trainable_names()}

    def trainable_names(self) -> list[str]:
        """Return the names of the trained parameters, in the order in which they lie."""
        return sort_by_layout(self._trainable, self._dtypes)

    def gradients(self) -> list[Array]:
        """Return region grad as one flat array for each element type of the trained parameters.

        *Requires* that the region exists.
        """
        pieces: list[Array] = []
        names = [name for name in self.trainable_names() if self.slots[name].has_gradient]
        for kind, run in groupby(names, key=self._dtypes.__getitem__):
            slots = [self.slots[name] for name in run]
            piece = self.regions["grad"][slots[0].offset : slots[-1].end]
            pieces.append(piece.view(NUMPY[kind]))
        return pieces


def view_values(state: CheckpointState, names: Iterable[str]) -> dict[str, Array]:
    """Return parameters by name, as arrays that share their memory and cannot be written to."""
    values: dict[str, Array] = {}
    for name in names:
        slot = state.slots[name]
        array = make_view(state.regions["param"], slot.offset, slot.dtype, slot.shape)
        array.flags.writeable = False
        values[name] = array
    return values
