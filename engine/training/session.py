"""A model as plans: which inputs are the caller's, which live in the state, one plan a shape.

The only place of the runtime that asks the planner; importing it costs nothing until then.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine import arguments
from engine.element_types import ITEMSIZE, NUMPY, OF_NUMPY
from engine.errors import (
    DTypeError,
    EngineError,
    InputError,
    InternalError,
    ModelError,
    ShapeError,
    StateError,
    UnknownValueError,
    nearest,
)
from engine.runtime.arena import Bytes, allocate, view
from engine.runtime.config import plan_bytes, require_64_bit
from engine.runtime.plan import Plan, align
from engine.runtime.program import Program
from engine.runtime.states import Layout, lay_out
from engine.runtime.turn import Turn
from engine.training.state import CheckpointState, Slot

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.kernels.sets import KernelSet
    from engine.kernels.target import Target

Array = npt.NDArray[Any]
ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview

BUFFER, UPDATED, RESET = "_grad.accumulation.buffer", "_grad.accumulation.out", "lazy_reset_grad"
FROZEN_BYTES = 4096  # from this size on, a constant of a model is kept once for all plans

_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def _renew_locks() -> None:
    """Replace all locks in a forked child, where a thread that held one does not exist."""
    for memory in _memories:
        memory.turn.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Memory:
    """The memory that all plans of a module share: work memory, inputs and outputs, constants.

    work, io: as large as the largest plan has needed.
    constants: contents of region const by their digest.
    programs: of the models' plans, by kind of model and shapes, the least recently used first.
    others: programs that are kept as long as the memory, and have inputs and outputs of their own.
    kernels: the set of kernels that all programs run on.
    turn: is held during a run, since runs share the memory.
    """

    def __init__(self) -> None:
        self.work: Bytes = allocate(0)
        self.io: Bytes = allocate(0)
        self.frozen: Bytes = allocate(0)
        self.constants: weakref.WeakValueDictionary[bytes, Bytes] = weakref.WeakValueDictionary()
        self.programs: dict[tuple[Any, ...], Program] = {}
        self.others: list[Program] = []
        self._kernels: KernelSet | None = None
        self.turn = Turn("a step of this model")
        _memories.add(self)

    @property
    def kernels(self) -> KernelSet:
        """The set of kernels, chosen when first asked for and then kept.

        Raises:
            EngineError: no kernels can run here.
        """
        if self._kernels is None:
            from engine.kernels import sets

            self._kernels = sets.current()
        return self._kernels

    def regions(self, state: CheckpointState) -> dict[str, Bytes]:
        """The bytes of every region that all programs share."""
        return {**state.regions, "work": self.work, "frozen": self.frozen}

    def grow(self, plan: Plan, state: CheckpointState) -> None:
        """Make the shared regions large enough for a plan; bind all programs anew if one moves."""
        what, work, io = f"plan {plan.name}", plan.region_bytes("work"), plan.region_bytes("io")
        moves = work > self.work.nbytes or io > self.io.nbytes
        if work > self.work.nbytes:
            self.work = allocate(work, zero=False, what=what)
        if io > self.io.nbytes:
            self.io = allocate(io, what=what)
        if moves:
            for program in self.others:
                program.bind(self.regions(state))
            for program in self.programs.values():
                program.bind({**self.regions(state), "io": self.io})

    def used(self, key: tuple[Any, ...]) -> Program | None:
        """A program that is kept, from now on the one used last."""
        program = self.programs.pop(key, None)
        if program is not None:
            self.programs[key] = program
        return program

    def keep(self, key: tuple[Any, ...], program: Program) -> None:
        """Keep a new program; programs long not used go while the limit is passed.

        The limit is that of `config.plan_bytes`, on the memory that programs have for themselves.
        """
        self.programs[key] = program
        total = sum(p.nbytes for p in self.programs.values())
        while total > plan_bytes() and len(self.programs) > 1:
            total -= self.programs.pop(next(iter(self.programs))).nbytes

    def freeze(self, models: Sequence[Model]) -> None:
        """Move large constants of the models into this memory; equal ones of one name only once."""
        kept: dict[str, list[tuple[Array, int]]] = {}
        top = 0
        for model in models:
            for name, array in model.constants.initializers.items():
                if array.nbytes < FROZEN_BYTES or array.dtype not in OF_NUMPY:
                    continue
                known = kept.setdefault(name, [])
                equal = [at for other, at in known if _same(array, other)]
                if not equal:
                    known.append((array, top))
                model.frozen[name] = equal[0] if equal else top
                top += 0 if equal else align(array.nbytes)
        self.frozen = allocate(top, what="constants")
        for model in models:
            for name, offset in model.frozen.items():
                array = model.constants.initializers[name]
                mine = view(self.frozen, offset, OF_NUMPY[array.dtype], array.shape)
                mine[...] = array
                model.constants.initializers[name] = mine
                if name in model.graph.initializers:
                    model.graph.initializers[name] = mine


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Model:
    """One ONNX graph (training, eval or optimizer) and its plans by input shapes.

    graph: the model as loaded.
    constants: the same model after constant folding.
    frozen: the offsets of its large constants in region frozen.
    deciding: those of them whose values decide shapes, so that plans need them as constants.
    target: the CPU that plans are for; None means that of the memory's set of kernels, which are
        then the only ones that plans use.
    closed: as `make_plan` says.
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
    ) -> None:
        require_64_bit()
        from engine.graphs.io import onnx_io
        from engine.graphs.passes.control import has_control_flow
        from engine.graphs.passes.foreign import pool_grads_know_input
        from engine.graphs.passes.infer import infer

        self.what, self.state, self.memory, self.threads = what, state, memory, threads
        self.target, self.closed = target, closed
        if isinstance(source, bytearray | memoryview):
            source = bytes(arguments.octets(what, source))
        self.graph: Graph = onnx_io.load(source)
        names = set(state.parameters._state._names())
        self.parameters = [n for n in self.graph.inputs if n in names]
        self.buffers = [n for n in self.graph.inputs if n.endswith(BUFFER)]
        internal = {*names, *self.buffers, RESET}
        self.inputs = [n for n in self.graph.inputs if n not in internal]
        self.outputs = [n for n in self.graph.outputs if not n.endswith(UPDATED)]
        self.constants = self.graph.copy()
        self.frozen: dict[str, int] = {}
        self.deciding: set[str] = set()
        large = any(a.nbytes >= FROZEN_BYTES for a in self.graph.initializers.values())
        if large and not has_control_flow(self.graph):
            try:
                infer(pool_grads_know_input(self.constants))
            except InternalError:
                raise
            except EngineError:
                pass  # planning knows more: values of inputs, and single floats for half ones

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters as this model declares them.

        Raises:
            ModelError: a shape is not fully given.
        """
        return {n: self.graph.inputs[n].dims for n in self.parameters}

    def check(self, slots: Mapping[str, Slot]) -> None:
        """Check that the model and the state have the same parameters, of the same types.

        Raises:
            ModelError, ShapeError, DTypeError: naming the parameter and both sides.
        """
        for name in self.parameters:
            self._check_type(name, name, slots[name])
        for name in self.buffers:
            owner = name[: -len(BUFFER)]
            if owner not in slots or not slots[owner].trainable:
                known = [n for n, s in slots.items() if s.trainable]
                raise ModelError(
                    f"the {self.what} accumulates a gradient of {owner!r}, which is no trainable "
                    f"parameter of the checkpoint{nearest(owner, known)}"
                )
            self._check_type(name, owner, slots[owner])
        fixed = sorted(slots.keys() & self.graph.initializers.keys())
        if fixed:
            raise ModelError(
                f"the {self.what} holds {fixed} as constants, the checkpoint as parameters: it is "
                "an inference or forward model, or belongs to another checkpoint"
            )
        for name in self.inputs:
            if self.graph.inputs[name].dtype not in NUMPY:
                raise DTypeError(
                    f"the {self.what} has the input {name!r} of {self.graph.inputs[name].dtype}; "
                    f"supported: {', '.join(NUMPY)}"
                )

    def _check_type(self, name: str, owner: str, slot: Slot) -> None:
        """Check that an input has the type of its parameter; `owner` is the name of that."""
        t = self.graph.inputs[name]
        if t.dtype != slot.dtype:
            raise DTypeError(
                f"parameter {owner!r}: {t.dtype} in the {self.what}, {slot.dtype} in the state"
            )
        if all(isinstance(d, int) for d in t.shape) and t.shape != slot.shape:
            raise ShapeError(
                f"parameter {owner!r}: {list(t.shape)} in the {self.what}, "
                f"{list(slot.shape)} in the checkpoint"
            )

    def check_training(self, slots: Mapping[str, Slot]) -> None:
        """Check that this model accumulates the gradients of all trainable parameters.

        Raises:
            ModelError: it does not, or it has no flag that resets the gradients.
        """
        trained = {n[: -len(BUFFER)] for n in self.buffers}
        missing = [n for n, s in slots.items() if s.trainable and n not in trained]
        if missing:
            raise ModelError(
                f"the {self.what} accumulates no gradient of {missing}, trainable in the "
                "checkpoint: it is an eval model, or belongs to another checkpoint"
            )
        reset = self.graph.inputs.get(RESET)
        if self.buffers and (reset is None or (reset.dtype, reset.shape) != ("b1", (1,))):
            raise ModelError(
                f"the {self.what} has the input {RESET!r} as {reset or 'nothing'}; expected b1[1]"
            )

    def check_eval(self) -> None:
        """Check that this model accumulates no gradients.

        Raises:
            ModelError: it accumulates gradients.
        """
        if self.buffers:
            owners = [n[: -len(BUFFER)] for n in self.buffers]
            raise ModelError(
                f"the {self.what} accumulates gradients of {owners}: it is a training model"
            )

    def arrays(self, given: Sequence[Any]) -> list[Array]:
        """The caller's inputs as arrays, checked in number, element type and rank.

        Entries that are None are skipped, as onnxruntime-training does.  An input may have no
        elements, as the past of a sequence that begins.  A batch may not: all inputs whose first
        dimension is symbolic, or all inputs if there are none of those, cannot be empty at once.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
        """
        values = [v for v in given if v is not None]
        if len(values) != len(self.inputs):
            raise InputError(
                f"the {self.what} takes {len(self.inputs)} inputs {self.inputs}, got {len(values)}"
            )
        arrays = {n: self.array(n, v) for n, v in zip(self.inputs, values, strict=True)}
        declared = {n: self.graph.inputs[n].shape for n in arrays}
        batched = [n for n, shape in declared.items() if shape and isinstance(shape[0], str)]
        sizes = [arrays[n].shape[0] for n in batched] or [a.size for a in arrays.values()]
        if arrays and not any(sizes):
            name, array = next((n, a) for n, a in arrays.items() if 0 in a.shape)
            raise InputError(f"input {name!r} is empty: shape {list(array.shape)}")
        return list(arrays.values())

    def array(self, name: str, value: Any) -> Array:
        """One of the caller's inputs as an array, checked in element type and rank.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
        """
        t = self.graph.inputs[name]
        if t.dtype not in NUMPY:
            raise DTypeError(f"input {name!r} is a {t.dtype}; supported: {', '.join(NUMPY)}")
        kind = np.dtype(NUMPY[t.dtype])
        if name in self.graph.text_inputs:
            value = arguments.numbers(f"input {name!r}", value, kind)
        if hasattr(value, "numpy") or isinstance(value, np.ndarray):
            array = arguments.array(f"input {name!r}", value)
        else:
            array = arguments.cast(f"input {name!r}", value, kind)
        if array.dtype != kind:
            raise DTypeError(f"input {name!r}: expected {kind}, got {array.dtype}")
        if array.ndim != t.rank:
            raise ShapeError(
                f"input {name!r}: expected {t.rank} dimensions {list(t.shape)}, "
                f"got shape {list(array.shape)}"
            )
        return array

    def program(
        self, shapes: Sequence[tuple[int, ...]], values: Mapping[str, Array] | None = None
    ) -> Program:
        """The program for these shapes of the caller's inputs, planned and compiled on first use.

        values: of inputs that are constants in the plan.

        Raises:
            StateError: a nominal state has no values yet.
            ShapeError: the shapes do not fit the model.
            UnsupportedOpError: naming the node.
        """
        if not self.state.loaded:
            raise StateError(
                "the state was made from a nominal checkpoint. "
                "Please load the model parameters first."
            )
        values = values or {}
        key = (self.what, *shapes, *((name, v.tobytes()) for name, v in values.items()))
        found = self.memory.used(key)
        if found is None:
            plan = self.plan(dict(zip(self.inputs, shapes, strict=True)), values)
            self.memory.grow(plan, self.state)
            shared = {**self.memory.regions(self.state), "io": self.memory.io}
            found = Program(plan, self.memory.kernels.resolve, shared, self.memory.constants)
            self.memory.keep(key, found)
        return found

    def plan(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array] | None = None
    ) -> Plan:
        """Plan this model for input shapes; inputs that have `values` become constants.

        So do large constants whose values turn out to decide shapes, as the sizes of a Split may.
        """
        while True:
            try:
                return self._plan(shapes, values)
            except UnknownValueError as error:
                new = self.frozen.keys() & set(error.inputs) - self.deciding
                if not new:
                    raise
                self.deciding |= new

    def _plan(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array] | None
    ) -> Plan:
        """As `plan`, with the values of those large constants that are in `deciding`."""
        from engine.graphs.ir.graph import type_of
        from engine.graphs.planner.lower import Place

        slots = self.state.slots
        places = {n: Place("param", slots[n].offset) for n in self.parameters}
        places |= {n: Place("grad", slots[n[: -len(BUFFER)]].offset) for n in self.buffers}
        bound = {**shapes, **{n: slots[n].shape for n in self.parameters}}
        bound |= {n: slots[n[: -len(BUFFER)]].shape for n in self.buffers}
        graph = self.constants.copy()
        for name, offset in self.frozen.items():
            if name not in self.deciding:
                graph.inputs[name] = type_of(graph.initializers.pop(name))
                places[name] = Place("frozen", offset)
        for name, value in (values or {}).items():
            del graph.inputs[name], bound[name]
            graph.initializers[name] = value
        return self._make(graph, bound, places, self.outputs)

    def states(self) -> Layout:
        """The states that an optimizer model keeps for the trained parameters, laid out in memory.

        Raises:
            ModelError, DTypeError: it is no optimizer model for these parameters.
        """
        from engine.graphs.offline import optimizers

        names, slots = self.state.trainable_names(), self.state.slots
        found = optimizers.states_of(self.graph, self.state.trainable_dtype(), names)
        return lay_out(found, {n: (slots[n].dtype, slots[n].shape) for n in names if n in slots})

    def update_plan(self, layout: Layout) -> Plan:
        """Plan an optimizer model.  The parameters, the gradients and each state are flat tensors.

        The plan has one output, the flag that says that the update was done.
        """
        from engine.graphs.offline import optimizers
        from engine.graphs.planner.lower import Place
        from engine.kernels.vocabulary.op import TensorType

        state = self.state
        kind = state.trainable_dtype()
        n = state.region_bytes("grad") // ITEMSIZE[kind]
        graph = self.constants.copy()
        places = {"params": Place("param", 0), "gradients": Place("grad", 0)}
        for name in places:
            graph.inputs[name] = TensorType(kind, (n,))
        graph.inputs["learning_rate"] = TensorType(kind, (1,))  # f32 in the file, written by value
        for k, row in enumerate(layout.states):
            dtype, size = layout.flat(k)
            graph.inputs[row.name] = TensorType(dtype, (size,))
            places[row.name] = Place("state", layout.begins[k])
        slots = {name: state.slots[name] for name in state.trainable_names()}
        begins = {n: (s.offset // ITEMSIZE[kind], s.shape) for n, s in slots.items()}
        optimizers.place(graph, begins, layout)
        return self._make(graph, {}, places, [optimizers.updates(graph)[-1].outputs[0]])

    def _make(
        self,
        graph: Graph,
        shapes: Mapping[str, tuple[int, ...]],
        places: Mapping[str, Any],
        outputs: Sequence[str],
    ) -> Plan:
        from engine.graphs.planner.pipeline import make_plan

        return make_plan(
            graph,
            shapes,
            target=self.target or self.memory.kernels.target,
            kernels=None if self.target else self.memory.kernels,
            threads=self.threads,
            places=places,
            region_bytes={
                "param": self.state.region_bytes("param"),
                "grad": self.state.region_bytes("grad"),
                "state": self.state.region_bytes("state"),
                "frozen": self.memory.frozen.nbytes,
            },
            outputs=outputs,
            name=self.what.replace(" ", "_"),
            closed=self.closed,
        )

    def load(self, plan: Plan) -> Program:
        """Compile and bind a plan that is kept, with inputs and outputs of its own."""
        self.memory.grow(plan, self.state)
        regions = self.memory.regions(self.state)
        program = Program(plan, self.memory.kernels.resolve, regions, self.memory.constants)
        self.memory.others.append(program)
        return program

    def export(
        self, parameters: Mapping[str, Array], names: list[str], path: str | os.PathLike[str] | None
    ) -> bytes:
        """Write this eval model as an inference model to a path, or return its bytes for None."""
        from engine.graphs.offline import export

        if path is None:
            return export.inference_model_bytes(self.graph, parameters, names)
        export.save_inference_model(self.graph, parameters, names, path)
        return b""
