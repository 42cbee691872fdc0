"""A model as plans: which inputs are the caller's, which live in the state, one plan a shape.

The only place of the runtime that asks the planner; importing it costs nothing until then.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine import arguments
from engine.element_types import ITEMSIZE, NUMPY
from engine.errors import (
    BudgetError,
    DTypeError,
    EngineError,
    InputError,
    InternalError,
    MissingPackageError,
    ModelError,
    PlanError,
    ShapeError,
    StateError,
    UnknownValueError,
    nearest,
)
from engine.runtime import files, plan_file
from engine.runtime.arena import view
from engine.runtime.config import require_64_bit, switch
from engine.runtime.plan import DONE, Plan, align
from engine.runtime.program import Program
from engine.runtime.progress import announced
from engine.runtime.states import Layout, State, lay_out
from engine.training import kept
from engine.training.interface import Interface, external_digest, pieces
from engine.training.kept import Records
from engine.training.memory import Memory
from engine.training.state import CheckpointState, Slot

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.planner.pipeline import Planner
    from engine.kernels.target import Target

Array = npt.NDArray[Any]
ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview

BUFFER, UPDATED, RESET = "_grad.accumulation.buffer", "_grad.accumulation.out", "lazy_reset_grad"
FROZEN_BYTES = 4096  # from this size on, a constant of a model is kept once for all plans
PLANNERS = 2  # that a model keeps: one serves all shapes, but not all values of inputs
_PLANNER = ("onnx", "google", "numba", "llvmlite")  # packages that only planning needs


class NotJoinableError(StateError):
    """An optimizer model must run as a plan of its own; the message says why."""


@dataclass(frozen=True)
class Update:
    """What a plan of a training model does with gradients: it updates each parameter from its own.

    optimizer: the optimizer model.
    layout: where its states lie in region state.
    """

    optimizer: Model
    layout: Layout
    what: ClassVar[str] = "training step"

    @property
    def key(self) -> object:
        """What decides a plan, besides what decides that of the training model."""
        return self.what, self.optimizer.digest, self.layout.states


class Model:
    """One ONNX model (training, eval or optimizer) and its plans by input shapes.

    Its graph is read when something is planned or exported.  What else is needed of it is its
    interface, which is kept with its plans if there are records (see kept.py).

    frozen: the offsets of its large constants in region frozen.
    deciding: those of them whose values decide shapes, so that plans need them as constants.
    target: the CPU that plans are for; None means that of the memory's set of kernels, which are
        then the only ones that plans use.
    closed: as `Planner` says.
    records: where what planning finds out is kept; None if it is not.  The constructor takes what
        makes them for the folder of the model, if that is known.
    selected: the values that are the outputs in place of those of the file, see `select`; None
        for the model as it is.
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
    ) -> None:
        require_64_bit()
        self.selected = None if selected is None else tuple(selected)
        self.what, self.state, self.memory, self.threads = what, state, memory, threads
        self.target, self.closed = target, closed
        self.frozen: dict[str, int] = {}
        self.deciding: set[str] = set()
        self.records: Records | None = None
        if isinstance(source, bytearray | memoryview):
            source = bytes(arguments.octets(what, source))
        self._source: str | os.PathLike[str] | bytes = source
        self._pieces: list[bytes | tuple[int, int]] = []  # of the file while `_graphs` is None
        self._planners: dict[tuple[Any, ...], Planner] = {}  # by what they know, used last last
        self._graphs: tuple[Graph, Graph] | None = None  # as loaded, and after constant folding
        self._make_records = records
        self._content = ""  # the digest of the file
        self.digest = ""  # of that, and of what is selected of it
        if records is not None and isinstance(source, str | os.PathLike | bytes):
            self.interface = self._open(source, records)
        else:
            self._graphs = self._load(None)
            self.interface = Interface.of(*self._graphs, FROZEN_BYTES)
        if self.records is not None:
            memory.prepared |= self.records.kernel_sets(self.digest, threads)
        names = set(state.parameters._state._names())
        self.parameters = [n for n in self.interface.inputs if n in names]
        self.buffers = [n for n in self.interface.inputs if n.endswith(BUFFER)]
        internal = {*names, *self.buffers, RESET}
        self.inputs = [n for n in self.interface.inputs if n not in internal]
        self.outputs = [n for n in self.interface.outputs if not n.endswith(UPDATED)]

    # --- the file

    @property
    def source(self) -> str | os.PathLike[str] | bytes:
        """The path or the bytes of the file that it was opened from."""
        return self._source

    def _open(
        self, source: str | os.PathLike[str] | bytes, make: Callable[[str | None], Records]
    ) -> Interface:
        """The interface of a model, from the records or from its graph, which is then kept.

        make: makes the records of a folder.
        """
        if isinstance(source, bytes):
            data, records = source, make(None)
        else:
            path = arguments.path("model", source)
            data, records = files.read(path, "model"), make(os.path.dirname(path))
        self.digest = self._content = kept.digest(data)
        if self.selected is not None:
            self.digest = kept.key("selected", self.digest, self.selected)
        key = kept.key("interface", self.digest, FROZEN_BYTES)
        raw = records.get(key)
        if raw is not None:
            with contextlib.suppress(ValueError, LookupError, TypeError):  # no interface
                found = Interface.from_bytes(raw)
                if external_digest(self._folder, found.external) == found.stamp:
                    self._keep(found, records)
                    self._pieces = [data]
                    return found
        with self._planning("read", records):
            from engine.graphs.passes.infer import FOLD_BYTES

            self._graphs = graph, folded = self._load(data)
        found = Interface.of(graph, folded, FROZEN_BYTES)
        if _may_be_kept(graph):
            beside = graph.external, self._folder, FOLD_BYTES
            known = found.located(folded.initializers, data, *beside)
            records.put(key, known.to_bytes())
            self._keep(known, records)
            records.tell(self.digest, None)
        return found

    def _keep(self, interface: Interface, records: Records) -> None:
        """Keep records of this model from now on, under a digest of all that decides its plans.

        Of external data that is what may be folded into other constants.  What is larger decides
        no plan, unless its values turn out to decide shapes; such plans are not kept.
        """
        self.records = records
        if interface.external:
            self.digest = kept.key("external", self.digest, interface.stamp)

    @property
    def _folder(self) -> str:
        """The folder of the file; "" if it was opened from bytes."""
        return "" if isinstance(self._source, bytes) else os.path.dirname(os.fspath(self._source))

    def _load(self, data: bytes | None) -> tuple[Graph, Graph]:
        """Read the graph, and make another one of it by constant folding.

        data: the content of the file, if it is at hand.
        """
        from engine.graphs.io import onnx_io
        from engine.graphs.passes.control import has_control_flow
        from engine.graphs.passes.foreign import pool_grads_know_input
        from engine.graphs.passes.infer import infer

        graph = onnx_io.load(self._source, data)
        if self.selected is not None:
            from engine.graphs.offline.export import select

            graph = select(graph, self.selected)
        folded = graph.copy()
        large = any(a.nbytes >= FROZEN_BYTES for a in graph.initializers.values())
        if large and not has_control_flow(graph):
            try:
                infer(pool_grads_know_input(folded))
            except InternalError:
                raise
            except EngineError:
                pass  # planning knows more: values of inputs, and single floats for half ones
        return graph, folded

    @contextlib.contextmanager
    def _planning(self, purpose: str, records: Records | None) -> Iterator[None]:
        """Inside, a package that only planning needs may be missing.

        purpose: what is to be done with the model.

        Raises:
            MissingPackageError: it is; the message says what to do.
        """
        try:
            yield
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _PLANNER:
                raise
            found, folder = "", None
            if records is not None and records.beside is not None:
                found = records.complaint(self.digest, self.setting())
            if records is not None:
                folder = records.folder
            command = kept.command(folder, self.threads)
            raise MissingPackageError(
                f"the {self.what} must be {purpose}, which takes the package {error.name!r}, and "
                f"it is not installed (pip install edgegrad); {found}or run `{command}` where it "
                f"is, and copy {kept.PREPARED} beside the model"
            ) from error

    def _loaded(self) -> tuple[Graph, Graph]:
        """The graph as loaded, and the same after constant folding; read now if they were not."""
        if self._graphs is None:
            parts = (
                p if isinstance(p, bytes) else self.memory.frozen[slice(*p)].tobytes()
                for p in self._pieces
            )
            with self._planning("read", self.records):
                self._graphs = self._load(b"".join(parts))
            self._pieces = []
            if self.frozen:
                self.freeze()
        return self._graphs

    @property
    def graph(self) -> Graph:
        """The model as loaded."""
        return self._loaded()[0]

    @property
    def constants(self) -> Graph:
        """The model after constant folding."""
        return self._loaded()[1]

    def contents(self) -> Iterator[tuple[str, Array]]:
        """The large constants by name, with their values."""
        if self._graphs is not None:
            values = self._graphs[1].initializers
            yield from ((each.name, values[each.name]) for each in self.interface.large)
        else:
            (data,) = self._pieces
            assert isinstance(data, bytes)
            yield from self.interface.contents(data, self._folder)

    def freeze(self) -> None:
        """Let region frozen hold the large constants, which have their places there, alone."""
        if self._graphs is None:
            frozen, (data,) = self.memory.frozen, self._pieces
            assert isinstance(data, bytes)
            for each, (name, array) in zip(self.interface.large, self.contents(), strict=True):
                if self.frozen[name] not in self.memory.laid:
                    view(frozen, self.frozen[name], each.dtype, each.shape)[...] = array
            self._pieces = pieces(self.interface.large, self.frozen, data)
            self.interface = replace(self.interface, made=b"")
            return
        graph, folded = self._graphs
        for each in self.interface.large:
            mine = view(self.memory.frozen, self.frozen[each.name], each.dtype, each.shape)
            if self.frozen[each.name] in self.memory.laid:
                mine.flags.writeable = False
            else:
                mine[...] = folded.initializers[each.name]
            folded.initializers[each.name] = mine
            if each.name in graph.initializers:
                graph.initializers[each.name] = mine

    def select(self, names: Sequence[str], what: str) -> Model:
        """This model with other values as its outputs, and without the inputs they do not need.

        It is a model of its own over the same state and memory, the large constants included.

        names: of any values of the model.  what: what messages call it.

        Raises:
            NameNotFoundError: the model has no value of such a name.
            ModelError: the file has been changed since this model was opened.
        """
        found = Model(
            self._source,
            self.state,
            self.memory,
            self.threads,
            what,
            self.target,
            self.closed,
            records=self._make_records,
            selected=names,
        )
        if found._content != self._content:
            raise ModelError(f"the file of the {self.what} has been changed since it was opened")
        large = found.interface.large
        if all(each.name in self.frozen for each in large):
            found.frozen = {each.name: self.frozen[each.name] for each in large}
            found.freeze()
        return found

    # --- checks

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters as this model declares them.

        Raises:
            ModelError: a shape is not fully given.
        """
        return {n: self.interface.inputs[n].dims for n in self.parameters}

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
        fixed = sorted(slots.keys() & set(self.interface.constants))
        if fixed:
            raise ModelError(
                f"the {self.what} holds {fixed} as constants, the checkpoint as parameters: it is "
                "an inference or forward model, or belongs to another checkpoint"
            )
        for name in self.inputs:
            dtype = self.interface.inputs[name].dtype
            if dtype not in NUMPY:
                raise DTypeError(
                    f"the {self.what} has the input {name!r} of {dtype}; "
                    f"supported: {', '.join(NUMPY)}"
                )

    def _check_type(self, name: str, owner: str, slot: Slot) -> None:
        """Check that an input has the type of its parameter; `owner` is the name of that."""
        t = self.interface.inputs[name]
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
        reset = self.interface.inputs.get(RESET)
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
        declared = {n: self.interface.inputs[n].shape for n in arrays}
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
        t = self.interface.inputs[name]
        if t.dtype not in NUMPY:
            raise DTypeError(f"input {name!r} is a {t.dtype}; supported: {', '.join(NUMPY)}")
        kind = np.dtype(NUMPY[t.dtype])
        if name in self.interface.texts:
            value = arguments.numbers(f"input {name!r}", value, kind)
        if hasattr(value, "numpy") or isinstance(value, np.ndarray):
            array = arguments.array(f"input {name!r}", value)
        else:
            array = arguments.cast(f"input {name!r}", value, kind)
        if array.dtype != kind:
            raise DTypeError(f"input {name!r}: expected {kind}, got {array.dtype}")
        if array.ndim != len(t.shape):
            raise ShapeError(
                f"input {name!r}: expected {len(t.shape)} dimensions {list(t.shape)}, "
                f"got shape {list(array.shape)}"
            )
        return array

    def program(
        self,
        shapes: Sequence[tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: Update | None = None,
    ) -> Program:
        """The program for these shapes of the caller's inputs, planned and compiled on first use.

        values: of inputs that are constants in the plan.
        update: what the plan of a training model does with the gradients; None: it accumulates
            them, in region grad.

        Raises:
            StateError: a nominal state has no values yet.
            ShapeError: the shapes do not fit the model.
            UnsupportedOpError: naming the node.
            FileError: a file that holds constants has been changed.
        """
        for mapped in self.memory.files:
            mapped.check()
        if not self.state.loaded:
            raise StateError(
                "the state was made from a nominal checkpoint. "
                "Please load the model parameters first."
            )
        values = values or {}
        what = self.what if update is None else update.what
        key = (what, *shapes, *((name, v.tobytes()) for name, v in values.items()))
        found = self.memory.used(key)
        if found is None:
            with announced(f"planning the {what} for shapes {[list(s) for s in shapes]}"):
                named = dict(zip(self.inputs, shapes, strict=True))
                plan, file = self._planned(named, values, update)
            self.memory.grow(plan, self.state)
            shared = {**self.memory.regions(self.state), "io": self.memory.io}
            resolve, constants = self.memory.kernels.resolve, self.memory.constants
            found = Program(plan, resolve, shared, constants, file)
            self.memory.keep(key, found)
        return found

    # --- plans

    def setting(self) -> kept.Setting:
        """What plans of this model run on."""
        kernels = self.memory.kernels
        return kernels.name, kernels.target.name, self.threads

    def _regions(self) -> dict[str, int]:
        """The sizes of the regions that outlive a run, but for region state.

        Of region frozen it is as much as this model has its constants in.
        """
        sizes = {each.name: align(each.nbytes) for each in self.interface.large}
        ends = (offset + sizes[name] for name, offset in self.frozen.items())
        return {
            "param": self.state.region_bytes("param"),
            "grad": self.state.region_bytes("grad") if self.buffers else 0,
            "frozen": max(ends, default=0),
        }

    def _kept(
        self, kind: str, what: str, asked: object, make: Callable[[], Plan]
    ) -> tuple[Plan, bytes | None]:
        """A plan of a kind from the records, or a new one, which is kept; and its file if it is.

        what: what the plan is for, in messages.  asked: what decides it besides this model.
        """
        records = self.records
        if records is None:
            return make(), None
        setting = self.setting()
        key = kept.key(
            kind,
            self.digest,
            self.what,
            sorted((n, astuple(slot)) for n, slot in self.state.slots.items()),
            self._regions(),
            sorted(self.frozen.items()),
            setting,
            self.closed,
            switch("REUSE") == "0",
            switch("CONVOLUTION") == "direct",
            self.memory.room and (self.memory.room, self.state.region_bytes("state")),
            asked,
        )
        raw = records.get(key)
        if raw is not None:
            with contextlib.suppress(PlanError, ValueError):  # ValueError: not one plan
                made_for = self.memory.kernels.target.name if self.closed else setting[0]
                (plan,) = plan_file.from_bytes(raw, made_for)
                if all(spec in self.memory.kernels for spec in plan.specs):
                    if switch("DEBUG") == "1":
                        print(plan.summary(), file=sys.stderr)
                    return plan, raw
        with self._planning(what, records):
            plan = make()
        if self.deciding and self.interface.external:
            return plan, None
        raw = plan_file.to_bytes([plan], plan.target)
        records.put(key, raw)
        records.tell(self.digest, setting)
        return plan, raw

    def planned(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: Update | None = None,
    ) -> Plan:
        """As `plan`; the plan is read from the records if it is there, else it is kept in them."""
        return self._planned(shapes, values, update)[0]

    def _planned(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None,
        update: Update | None,
    ) -> tuple[Plan, bytes | None]:
        """As `planned`, with the file of the plan if it is kept."""
        known = [(n, a.dtype.str, a.shape, a.tobytes()) for n, a in (values or {}).items()]
        inputs = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        return self._kept(
            "plan",
            f"planned for {inputs}",
            (list(shapes.items()), known, update and update.key),
            lambda: self.plan(shapes, values, update),
        )

    def planned_update(self, layout: Layout) -> Plan:
        """As `update_plan`; the plan is read from the records if it is there, else kept."""
        make = partial(self.update_plan, layout)
        return self._kept("update", "planned", layout.states, make)[0]

    def plan(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: Update | None = None,
    ) -> Plan:
        """Plan this model for input shapes; inputs that have `values` become constants.

        update: see `program`.

        So do large constants whose values turn out to decide shapes, as the sizes of a Split may.
        """
        while True:
            try:
                return self._plan(shapes, values, update)
            except UnknownValueError as error:
                new = self.frozen.keys() & set(error.inputs) - self.deciding
                if not new:
                    raise
                self.deciding |= new

    def _plan(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None,
        update: Update | None,
    ) -> Plan:
        """As `plan`, with the values of those large constants that are in `deciding`."""
        from engine.graphs.ir.graph import type_of
        from engine.graphs.planner.lower import Place

        slots, values = self.state.slots, values or {}
        buffers = self.buffers if update is None else []
        places = {n: Place("param", slots[n].offset) for n in self.parameters}
        places |= {n: Place("grad", slots[n[: -len(BUFFER)]].offset) for n in buffers}
        bound = {**shapes, **{n: slots[n].shape for n in self.parameters}}
        bound |= {n: slots[n[: -len(BUFFER)]].shape for n in buffers}
        for name in values:
            del bound[name]
        frozen = {n: place for n, place in self.frozen.items() if n not in self.deciding}
        places |= {name: Place("frozen", offset) for name, offset in frozen.items()}
        sizes = self._regions()
        if update is not None:
            sizes = {**sizes, "grad": 0, "state": update.layout.nbytes}
        elif self.memory.budget is not None:  # what the optimizer keeps counts, whatever runs
            sizes = {**sizes, "state": self.state.region_bytes("state")}
        known = ((name, v.dtype.str, v.shape, v.tobytes()) for name, v in values.items())
        key = (*places.items(), *sizes.items(), *known, update and update.key)
        planner = self._planners.pop(key, None)
        if planner is None:
            graph, outputs = self.constants.copy(), self.outputs
            for name in frozen:
                graph.inputs[name] = type_of(graph.initializers.pop(name))
            for name, value in values.items():
                del graph.inputs[name]
                graph.initializers[name] = value
            name = self.what
            if update is not None:
                graph, states = self._joined(graph, update)
                places |= {n: Place("state", offset) for n, offset in states.items()}
                name, outputs = update.what, [*outputs, DONE]
            planner = self._planner(graph, places, sizes, outputs, name)
        planner.budget = self.memory.room
        self._planners[key] = planner
        while len(self._planners) > PLANNERS:
            del self._planners[next(iter(self._planners))]
        with self._counting():
            return planner.plan(bound)

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Inside, errors of budgets count all regions; outside, not what stays in its file."""
        try:
            yield
        except BudgetError as error:
            mapped = self.memory.mapped
            if not mapped:
                raise
            raise BudgetError(
                f"{error}; in these numbers are {mapped} bytes of constants that stay in their "
                "file, which do not count in a memory budget",
                error.least - mapped,
            ) from None

    def _joined(self, graph: Graph, update: Update) -> tuple[Graph, dict[str, int]]:
        """A training graph that updates, and where its inputs that are states lie in the region.

        Raises:
            NotJoinableError: the optimizer model cannot be joined.
        """
        from engine.graphs.offline.joined import join, obstacle

        why = obstacle(graph, update.optimizer.constants)
        if why:
            raise NotJoinableError(why)
        names = self.state.trainable_names()
        gradients = {name: f"{name}{BUFFER}" for name in names}
        kind = self.state.trainable_dtype()
        joined = join(graph, update.optimizer.constants, gradients, kind, update.layout)
        return joined.graph, {name: tensor.offset for name, tensor in joined.states.items()}

    def states(self) -> Layout:
        """The states that an optimizer model keeps for the trained parameters, laid out in memory.

        Raises:
            ModelError, DTypeError: it is no optimizer model for these parameters.
        """
        names, slots = self.state.trainable_names(), self.state.slots
        found = self._states(self.state.trainable_dtype(), names)
        return lay_out(found, {n: (slots[n].dtype, slots[n].shape) for n in names if n in slots})

    def _states(self, dtype: str, names: Sequence[str]) -> tuple[State, ...]:
        """The table of states for parameters of an element type, from the records or the graph."""
        key = kept.key("states", self.digest, dtype, list(names))
        raw = None if self.records is None else self.records.get(key)
        if raw is not None:
            with contextlib.suppress(ValueError, TypeError):
                return tuple(State(*row) for row in json.loads(raw))
        with self._planning("read", self.records):
            from engine.graphs.offline import optimizers

            found = optimizers.states_of(self.graph, dtype, names)
        if self.records is not None:
            self.records.put(key, json.dumps([astuple(state) for state in found]).encode())
        return found

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
        optimizers.clip_in_steps(graph)
        sizes = {**self._regions(), "grad": state.region_bytes("grad"), "state": layout.nbytes}
        outputs = [optimizers.updates(graph)[-1].outputs[0]]
        return self._planner(graph, places, sizes, outputs).plan({})

    def _planner(
        self,
        graph: Graph,
        places: Mapping[str, Any],
        sizes: Mapping[str, int],
        outputs: Sequence[str],
        name: str = "",
    ) -> Planner:
        """A planner for a graph made of this model; sizes: of the regions that outlive a run."""
        from engine.graphs.planner.pipeline import Planner

        return Planner(
            graph,
            target=self.target or self.memory.kernels.target,
            kernels=None if self.target or self.closed else self.memory.kernels,
            threads=self.threads,
            places=places,
            region_bytes=sizes,
            outputs=outputs,
            name=(name or self.what).replace(" ", "_"),
            closed=self.closed,
            budget=self.memory.room,
        )

    def load(self, plan: Plan) -> Program:
        """Compile and bind a plan that is kept, with inputs and outputs of its own."""
        self.memory.grow(plan, self.state)
        regions = self.memory.regions(self.state)
        program = Program(plan, self.memory.kernels.resolve, regions, self.memory.constants)
        self.memory.others.append(program)
        return program

    def model_outputs(self) -> list[str]:
        """Names of the outputs of the forward model that this eval model was made of.

        The file has them in its metadata.  Elsewhere they are the outputs behind the loss, or what
        the loss is computed of together with the last input, which is then the target.

        Raises:
            ModelError: nothing that the model computes enters the loss beside the target.
        """
        known = self.interface.notes.get("outputs")
        if known is None and self.outputs[1:]:
            return self.outputs[1:]
        key = kept.key("outputs", self.digest)
        if known is None and self.records is not None:
            raw = self.records.get(key)
            known = None if raw is None else raw.decode()
        if known is not None:
            return [str(name) for name in json.loads(known)]
        with self._planning("read", self.records):
            from engine.graphs.offline import export

            found = export.model_outputs(self.graph, self.inputs[-1]) if self.inputs else []
        if not found:
            raise ModelError(
                f"the {self.what} computes its loss of inputs alone: name the outputs of the model"
            )
        if self.records is not None:
            self.records.put(key, json.dumps(found).encode())
        return found

    def export(
        self, parameters: Mapping[str, Array], names: list[str], path: str | os.PathLike[str] | None
    ) -> bytes:
        """Write this eval model as an inference model to a path, or return its bytes for None."""
        with self._planning("exported", self.records):
            from engine.graphs.offline import export

            graph = self.graph
        if path is None:
            return export.inference_model_bytes(graph, parameters, names)
        export.save_inference_model(graph, parameters, names, path)
        return b""


def _may_be_kept(graph: Graph) -> bool:
    """Whether its file alone, and this package alone, decide what is planned for a model.

    It is not so where operators are somebody's own.  Of what is in other files, the digest has what
    is small enough to be folded, see `_keep`.
    """
    from engine.kernels.vocabulary.op import MS, OURS

    return _domains(graph) <= {"", MS, OURS}


def _domains(graph: Graph) -> set[str]:
    """The domains of all nodes, those of subgraphs included."""
    found = {node.domain for node in graph.nodes}
    inner = (getattr(value, "graph", None) for n in graph.nodes for value in n.attrs.values())
    return found.union(*(_domains(body) for body in inner if body is not None))


def open_models(
    train: ModelSource,
    evaluation: ModelSource | None,
    state: CheckpointState,
    memory: Memory,
    threads: int,
    records: Callable[[str | None], Records] = Records,
) -> tuple[Model, Model | None]:
    """The training model and the eval model over a state, checked against it.

    The state gets its slots if it has none, as a nominal one.

    Raises:
        ModelError, ShapeError, DTypeError: a model is malformed or does not fit the state.
        StateError: no model declares the shape of a nominal parameter.
        FileError: a file cannot be read.
    """
    first = Model(train, state, memory, threads, "training model", records=records)
    second = None
    if evaluation is not None:
        second = Model(evaluation, state, memory, threads, "eval model", records=records)
    both = [first] if second is None else [first, second]
    memory.freeze(both)
    slots = state.slots or state.layout(_nominal_shapes(both, state))
    first.check(slots)
    first.check_training(slots)
    if second is not None:
        second.check(slots)
        second.check_eval()
    state.slots = slots
    return first, second


def _nominal_shapes(models: Sequence[Model], state: CheckpointState) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters as models declare them, the first model that does."""
    shapes: dict[str, tuple[int, ...]] = {}
    for model in reversed(models):
        shapes |= model.parameter_shapes()
    missing = sorted({name for name, _ in state.parameters} - set(shapes))
    if missing:
        raise StateError(f"the nominal checkpoint holds {missing}, whose shapes no model declares")
    return shapes
