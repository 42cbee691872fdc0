"""A model as plans: which inputs are the caller's, which live in the state, one plan a shape.

The only place of the runtime that asks the planner; importing it costs nothing until then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.arena import DTYPES, Bytes, allocate
from engine.errors import DTypeError, InputError, ModelError, ShapeError, StateError, nearest
from engine.plan import Plan
from engine.runtime import Program
from engine.state import CheckpointState

if TYPE_CHECKING:
    from engine.graphs.ir import Graph

Array = npt.NDArray[Any]
ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview

BUFFER, UPDATED, RESET = "_grad.accumulation.buffer", "_grad.accumulation.out", "lazy_reset_grad"


class WorkArena:
    """The work memory that all plans of a module share: the largest any of them needs."""

    def __init__(self) -> None:
        self.memory: Bytes = allocate(0)
        self.programs: list[Program] = []

    def fit(self, plan: Plan) -> bool:
        """Grow to hold the plan's work region; True when the memory moved."""
        if plan.region_bytes("work") <= self.memory.nbytes:
            return False
        self.memory = allocate(plan.region_bytes("work"), zero=False)
        return True


class Model:
    """One ONNX graph (training, eval or optimizer) and its plans by input shapes."""

    def __init__(
        self,
        source: ModelSource,
        state: CheckpointState,
        arena: WorkArena,
        threads: int,
        what: str,
    ) -> None:
        from engine.graphs import onnx_io

        self.what, self.state, self.arena, self.threads = what, state, arena, threads
        self.graph: Graph = onnx_io.load(
            bytes(source) if isinstance(source, bytearray | memoryview) else source
        )
        names = set(state.parameters._state._names())
        self.parameters = [n for n in self.graph.inputs if n in names]
        self.buffers = [n for n in self.graph.inputs if n.endswith(BUFFER)]
        internal = {*names, *self.buffers, RESET}
        self.inputs = [n for n in self.graph.inputs if n not in internal]
        self.outputs = [n for n in self.graph.outputs if not n.endswith(UPDATED)]
        self._programs: dict[tuple[tuple[int, ...], ...], Program] = {}

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters as this model declares them.

        Raises:
            ModelError: a shape is not fully given.
        """
        return {n: self.graph.inputs[n].dims for n in self.parameters}

    def check_parameters(self) -> None:
        """Check that model and state speak of the same parameters.

        Raises:
            ModelError, ShapeError, DTypeError: naming the parameter and both sides.
        """
        state = self.state
        for name in self.parameters:
            t = self.graph.inputs[name]
            slot = state.slots[name]
            if t.dtype != slot.dtype:
                raise DTypeError(
                    f"parameter {name!r}: {t.dtype} in the {self.what}, {slot.dtype} in the state"
                )
            if all(isinstance(d, int) for d in t.shape) and t.shape != slot.shape:
                raise ShapeError(
                    f"parameter {name!r}: {list(t.shape)} in the {self.what}, "
                    f"{list(slot.shape)} in the checkpoint"
                )
        for name in self.buffers:
            owner = name[: -len(BUFFER)]
            if not state._is_trainable(owner):
                raise ModelError(
                    f"the {self.what} accumulates a gradient of {owner!r}, which is no trainable "
                    f"parameter of the checkpoint{nearest(owner, state.trainable_names())}"
                )

    def arrays(self, given: Sequence[Any]) -> list[Array]:
        """The caller's inputs as arrays, checked in number, element type and rank.

        Entries that are None are skipped, as onnxruntime-training does.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
        """
        values = [v for v in given if v is not None]
        if len(values) != len(self.inputs):
            raise InputError(
                f"the {self.what} takes {len(self.inputs)} inputs {self.inputs}, got {len(values)}"
            )
        out = []
        for name, value in zip(self.inputs, values, strict=True):
            t = self.graph.inputs[name]
            kind = np.dtype(DTYPES[t.dtype])
            if not isinstance(value, np.ndarray) and hasattr(value, "numpy"):
                value = value.numpy()
            array = np.asarray(value) if isinstance(value, np.ndarray) else _from_list(value, kind)
            if array.dtype != kind:
                raise DTypeError(f"input {name!r}: expected {kind}, got {array.dtype}")
            if array.ndim != t.rank:
                raise ShapeError(
                    f"input {name!r}: expected {t.rank} dimensions {list(t.shape)}, "
                    f"got shape {list(array.shape)}"
                )
            if 0 in array.shape:
                raise InputError(f"input {name!r} is empty: shape {list(array.shape)}")
            out.append(array)
        return out

    def program(self, shapes: Sequence[tuple[int, ...]]) -> Program:
        """The program for these shapes of the caller's inputs, planned and compiled on first use.

        Raises:
            ShapeError: the shapes do not fit the model.
            UnsupportedOpError: naming the node.
        """
        if not self.state.loaded:
            raise StateError(
                "the state was made from a nominal checkpoint. "
                "Please load the model parameters first."
            )
        key = tuple(shapes)
        if key not in self._programs:
            plan = self.plan(dict(zip(self.inputs, shapes, strict=True)))
            self._programs[key] = self.load(plan)
        return self._programs[key]

    def plan(self, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
        """Plan this model for input shapes."""
        from engine.graphs.lower import Place
        from engine.graphs.pipeline import make_plan
        from engine.kernels._target import host

        slots = self.state.slots
        places = {n: Place("param", slots[n].offset) for n in self.parameters}
        places |= {n: Place("grad", slots[n[: -len(BUFFER)]].offset) for n in self.buffers}
        bound = {**shapes, **{n: slots[n].shape for n in self.parameters}}
        bound |= {n: slots[n[: -len(BUFFER)]].shape for n in self.buffers}
        return make_plan(
            self.graph,
            bound,
            target=host(),
            threads=self.threads,
            places=places,
            region_bytes={r: self.state.region_bytes(r) for r in ("param", "grad")},
            outputs=self.outputs,
            name=self.what.replace(" ", "_"),
        )

    def load(self, plan: Plan) -> Program:
        """Compile and bind a plan; its work memory is shared with the module's other plans."""
        from engine.kernels._load import addresses

        moved = self.arena.fit(plan)
        regions = {**self.state.regions, "work": self.arena.memory}
        program = Program(plan, addresses, regions)
        if moved:
            for other in self.arena.programs:
                other.bind({**self.state.regions, "work": self.arena.memory})
        self.arena.programs.append(program)
        return program


def _from_list(value: Any, kind: np.dtype[Any]) -> Array:
    """A list as an array of the expected type, if the values keep their meaning in it."""
    array = np.asarray(value)
    if array.dtype == object or not np.can_cast(array.dtype, kind, "same_kind"):
        raise DTypeError(f"expected values of type {kind}, got {array.dtype}")
    return array.astype(kind)
