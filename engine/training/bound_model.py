"""A model over a state: which of its inputs are the caller's, and which live in the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.element_types import NUMPY, SUPPORTED, widen_bfloats
from engine.base.errors import DTypeError, InputError, ShapeError
from engine.plan.plan import align
from engine.system.config import require_64_bit
from engine.system.paths import KEY, Paths
from engine.training.membership import Membership
from engine.training.memory import Memory
from engine.training.model_file import BUFFER, RESET, UPDATED, ModelFile, ModelSource
from engine.training.plan_cache import Records
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.kernels.machine.target import Target


class BoundModel(ModelFile):
    """One ONNX model (training, eval or optimizer) bound to a state and to memory.

    state, memory: what its plans run over.
    parameters, buffers, inputs, outputs: the names of its inputs and outputs: parameters of the
        state, accumulated gradients, and what is the caller's.
    resets: whether it has the flag by which a step overwrites accumulated gradients.
    deciding: its large constants that plans need as constants, as those that decide shapes.
    target: the CPU that plans are for; None means the CPU of the memory's set of kernels, which are
        then the only ones that plans use.
    closed, answers: as `Planner` says.
    ranks: the ranks that train a model together; None if this process trains it alone.
    threads, what, records, selected: as `ModelFile` says.
    """

    def __init__(
        self,
        source: ModelSource,
        state: CheckpointState,
        memory: Memory,
        threads: int,
        what: str,
        target: Target | None = None,
        closed: bool = False,
        *,
        records: Callable[[str | None], Records] | None = None,
        selected: Sequence[str] | None = None,
        answers: bool = False,
    ) -> None:
        require_64_bit()
        super().__init__(source, memory, threads, what, records=records, selected=selected)
        self.state, self.target, self.closed, self.answers = state, target, closed, answers
        self.deciding: set[str] = set()
        self.ranks: Membership | None = None
        if self.records is not None:
            memory.prepared |= self.records.list_kernel_sets(self.digest, threads)
        names = set(state.names)
        self.parameters = [n for n in self.interface.inputs if n in names]
        # By the names of what is trained, as inputs and outputs of users may end alike.
        owners = {n.removesuffix(BUFFER) for n in self.interface.inputs if n.endswith(BUFFER)}
        owners = {n for n in owners if f"{n}{UPDATED}" in self.interface.outputs}
        self.buffers = [
            n
            for n in self.interface.inputs
            if n.endswith(BUFFER) and n.removesuffix(BUFFER) in owners
        ]
        self.resets = bool(self.buffers) and RESET in self.interface.inputs
        internal = {*names, *self.buffers, *([RESET] if self.buffers else ())}
        self.inputs = [n for n in self.interface.inputs if n not in internal]
        updated = {f"{name}{UPDATED}" for name in owners}
        self.outputs = [n for n in self.interface.outputs if n not in updated]

    @property
    def paths(self) -> Paths:
        """Where in the module that it was exported from its tensors and nodes stand."""
        return Paths.of(self.interface.notes, KEY)

    def list_parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters as this model declares them.

        Raises:
            ModelError: a shape is not fully given.
        """
        return {n: self.interface.inputs[n].dims for n in self.parameters}

    def make_arrays(self, given: Sequence[Any]) -> list[Array]:
        """Return the caller's inputs as arrays, checked in number, element type and rank.

        Entries that are None are skipped, as onnxruntime-training does.  An input may have no
        elements, as the past of a sequence that begins.  A batch may not: all inputs whose first
        dimension is symbolic, or all inputs if there are no such inputs, cannot be empty at once.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
        """
        values = [v for v in given if v is not None]
        if len(values) != len(self.inputs):
            raise InputError(
                f"the {self.what} takes {len(self.inputs)} inputs {self.inputs}, got {len(values)}"
            )
        arrays = {n: self.make_array(n, v) for n, v in zip(self.inputs, values, strict=True)}
        declared = {n: self.interface.inputs[n].shape for n in arrays}
        batched = [n for n, shape in declared.items() if shape and isinstance(shape[0], str)]
        sizes = [arrays[n].shape[0] for n in batched] or [a.size for a in arrays.values()]
        if arrays and not any(sizes):
            name, array = next((n, a) for n, a in arrays.items() if 0 in a.shape)
            raise InputError(f"input {name!r} is empty: shape {list(array.shape)}")
        return list(arrays.values())

    def make_array(self, name: str, value: Any) -> Array:
        """Return one of the caller's inputs as an array, checked in element type and rank.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
        """
        t = self.interface.inputs[name]
        if t.dtype not in NUMPY:
            raise DTypeError(f"input {name!r} is a {t.dtype}; supported: {SUPPORTED}")
        kind = np.dtype(NUMPY[t.dtype])
        if name in self.interface.texts:
            value = arguments.parse_numbers(f"input {name!r}", value, kind)
        if hasattr(value, "numpy") or isinstance(value, np.ndarray):
            array = arguments.make_array(f"input {name!r}", value)
        else:
            array = arguments.cast(f"input {name!r}", value, kind)
        if kind == np.float32 and array.dtype.name == "bfloat16":  # of the package ml_dtypes
            array = widen_bfloats(array.view(np.uint16))
        if array.dtype != kind:
            raise DTypeError(f"input {name!r}: expected {kind}, got {array.dtype}")
        if array.ndim != len(t.shape):
            raise ShapeError(
                f"input {name!r}: expected {len(t.shape)} dimensions {list(t.shape)}, "
                f"got shape {list(array.shape)}"
            )
        return array

    def list_regions(self) -> dict[str, int]:
        """Return the sizes of the regions that outlive a run, except for region state.

        Of region frozen it is as much as this model has its constants in.
        """
        sizes = {each.name: align(each.nbytes) for each in self.interface.large}
        ends = (offset + sizes[name] for name, offset in self.frozen.items())
        return {
            "param": self.state.region_bytes("param"),
            "grad": self.state.region_bytes("grad") if self.buffers else 0,
            "frozen": max(ends, default=0),
        }
