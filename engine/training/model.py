"""A model as plans, one for each set of input shapes, and the programs made of them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.base.aliases import Array, Bytes
from engine.base.errors import (
    BudgetError,
    ModelError,
    PlanError,
    StateError,
    UnknownValueError,
)
from engine.plan import plan_file
from engine.plan.plan import Plan
from engine.plan.states import State, StateLayout, lay_out
from engine.runtime.program import BoundProgram
from engine.system.config import switch
from engine.system.garbage import collecting_later
from engine.system.preparation import preparing
from engine.system.progress import announced
from engine.training import artifact_set, checks, plan_cache
from engine.training.bound_model import BoundModel
from engine.training.large_constants import freeze_constants
from engine.training.memory import Memory
from engine.training.model_file import ModelSource
from engine.training.plan_cache import Records
from engine.training.planning import Decoding, GradientUse, Planners
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.kernels.machine.target import Target


class Model(BoundModel):
    """One ONNX model (training, eval or optimizer) over a state, and its plans by input shapes.

    See `BoundModel` for the arguments.
    """

    @functools.cached_property
    def _planners(self) -> Planners:
        """The planners of this model, made when it first plans."""
        return Planners(self)

    def select(self, names: Sequence[str], what: str, *, answers: bool = False) -> Model:
        """Return this model with other values as outputs, without the inputs they do not need.

        It is a model of its own over the same state and memory, the large constants included.

        names: values of the model.  what: its name in messages.  answers: as in `BoundModel`.

        Raises:
            NameNotFoundError: the model has no value of such a name.
            ModelError: the file has been changed since this model was opened.
        """
        model = Model(
            self.source,
            self.state,
            self.memory,
            self.threads,
            what,
            self.target,
            self.closed,
            records=self.make_records,
            selected=names,
            answers=answers,
        )
        if model.content_digest != self.content_digest:
            raise ModelError(f"the file of the {self.what} has been changed since it was opened")
        large = model.interface.large
        if all(each.name in self.frozen for each in large):
            model.frozen = {each.name: self.frozen[each.name] for each in large}
            model.freeze()
        return model

    def get_program(
        self,
        shapes: Sequence[tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: GradientUse | None = None,
        *,
        is_part: bool = False,
    ) -> BoundProgram:
        """Return the program for these shapes of inputs, planned and compiled on first use.

        values: the values of inputs that are constants in the plan.
        update: the use of the gradients in the plan of a training model; None if they are
            accumulated in region grad.
        is_part: whether the plan is for a part of a batch.  It then has the input `SHARE` of
            engine/plan/collective.py: what the loss of the part counts.

        Raises:
            StateError: a nominal state has no values yet.
            ShapeError: the shapes do not fit the model.
            UnsupportedOpError: naming the node.
            FileError: a file that holds constants has been changed.
        """
        key = self.make_key(shapes, values, update, is_part)
        program = self.find_program(key)
        if program is None:
            program = self._make_program(shapes, values, update, is_part)
            self.memory.keep(key, program)
        return program

    @preparing()
    def _make_program(
        self,
        shapes: Sequence[tuple[int, ...]],
        values: Mapping[str, Array] | None,
        update: GradientUse | None,
        is_part: bool,
    ) -> BoundProgram:
        """Plan and compile a program; the arguments of `get_program`."""
        what = self.what if update is None else update.what
        with announced(f"planning the {what} for shapes {[list(s) for s in shapes]}"):
            named = dict(zip(self.inputs, shapes, strict=True))
            plan, file = self._make_plan(named, values, update, is_part)
        return self._bind_shared(plan, file)

    @preparing()
    def _bind_shared(self, plan: Plan, file: bytes | None) -> BoundProgram:
        """Bind a plan with the inputs and outputs that all programs of the memory share."""
        self.memory.grow(plan, self.state)
        return self._bind(plan, file, {"io": self.memory.io})

    def _bind(self, plan: Plan, file: bytes | None, regions: Mapping[str, Bytes]) -> BoundProgram:
        """Bind a plan to the memory, which it fits, and to more regions.

        file: as of `BoundProgram`.
        """
        shared = {**self.memory.get_regions(self.state), **regions}
        resolve, constants = self.memory.kernels.resolve, self.memory.constants
        group = None if self.ranks is None else self.ranks.group
        return BoundProgram(
            plan, resolve, shared, constants, file, group, self.state.changes, self.memory.made
        )

    def make_key(
        self,
        shapes: Sequence[tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: GradientUse | None = None,
        is_part: bool = False,
    ) -> tuple[Any, ...]:
        """Return the key by which the memory keeps the program; the arguments of `get_program`."""
        return (
            self.what if update is None else update.what,
            () if update is None else tuple(update.layout.steps_before.items()),
            self.selected,
            self.answers,
            is_part,
            self.memory.planning,
            self.memory.scaling is None,
            *shapes,
            *((name, v.tobytes()) for name, v in (values or {}).items()),
        )

    def find_program(self, key: tuple[Any, ...]) -> BoundProgram | None:
        """Return the program that is kept by a key of `make_key`; None if there is none.

        Raises:
            StateError, FileError: as `require_values`.
        """
        self.require_values()
        return self.memory.use_program(key)

    def require_values(self) -> None:
        """Check that all parameters and constants have the values that they should have.

        Raises:
            StateError: a nominal state has no values yet.
            FileError: a file that holds constants has been changed.
        """
        for mapped in self.memory.files:
            mapped.check()
        if not self.state.loaded:
            raise StateError(
                "the state was made from a nominal checkpoint. "
                "Please load the model parameters first."
            )

    # --- plans

    def _find_or_make(
        self, kind: str, what: str, asked: object, make: Callable[[], Plan]
    ) -> tuple[Plan, bytes | None]:
        """Return a plan from the records, or make one and keep it; and its file if it is kept.

        That no plan keeps to the budget is kept, too: a batch that is trained in parts is tried as
        a whole first, and without this each process would plan for that.

        what: what the plan is for, in messages.  asked: what decides it besides this model.
        """
        records = self.records
        if records is None:
            return make(), None
        setting = self.make_setting()
        key = plan_cache.make_key(
            kind,
            self.digest,
            self.what,
            sorted((n, astuple(slot)) for n, slot in self.state.slots.items()),
            self.list_regions(),
            sorted(self.frozen.items()),
            setting,
            self.closed,
            switch("REUSE") == "0",
            switch("CONVOLUTION") == "direct",
            self.memory.room and (self.memory.room, self.state.region_bytes("state")),
            self.memory.planning.precision,
            self.answers,
            self.memory.scaling is None or not self.buffers,
            asked,
        )
        made_for = self.memory.kernels.target.name if self.closed else setting[0]
        for find in (records.read_prepared, records.read_cached):
            raw = find(key)
            with contextlib.suppress(PlanError, ValueError):  # ValueError: not one plan
                if raw is None:
                    continue
                (plan,) = plan_file.from_bytes(raw, made_for)
                if find == records.read_prepared and not self._stays_inside(plan, raw, records):
                    continue
                if all(spec in self.memory.kernels for spec in plan.specs):
                    if switch("DEBUG") == "1":
                        print(plan.summary(), file=sys.stderr)
                    return plan, raw
        refusal = plan_cache.make_key("no plan", key)
        if (known := records.get(refusal)) is not None:
            with contextlib.suppress(ValueError, TypeError):
                text, least = json.loads(known)
                raise BudgetError(str(text), int(least))
        is_decided = bool(self.deciding and self.interface.external)
        try:
            with self.planning(what, records):
                plan = make()
        except BudgetError as error:
            if not is_decided:
                records.put(refusal, json.dumps([str(error), error.least]).encode())
            raise
        if is_decided:
            return plan, None
        raw = plan_file.to_bytes([plan], plan.target)
        records.put(key, raw)
        records.tell(self.digest, setting)
        return plan, raw

    def _stays_inside(self, plan: Plan, raw: bytes, records: Records) -> bool:
        """Check that no step of a plan beside the artifacts reaches outside of its operands.

        A warning names a step that does, and the result is False.  Otherwise the cache folder says
        so from then on, as the check asks the declarations of all kernels, which takes some tenths
        of a second.

        raw: the plan as it was read.
        """
        target = self.memory.kernels.target
        passed = plan_cache.make_key("stays inside", raw, target)
        if records.read_cached(passed) is not None:
            return True
        from engine.kernels.analysis.bounds import check
        from engine.kernels.vocabulary.call import Machine

        try:
            check(plan, Machine.of(target))
        except PlanError as error:
            records.refuse(str(error))
            return False
        records.put(passed, b"")
        return True

    def make_plan(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: GradientUse | None = None,
    ) -> Plan:
        """Return the plan as `plan` does, from the records if it is there; otherwise keep it."""
        return self._make_plan(shapes, values, update)[0]

    @collecting_later()
    def _make_plan(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None,
        update: GradientUse | None,
        is_part: bool = False,
    ) -> tuple[Plan, bytes | None]:
        """Return the plan as `make_plan` does, with its file if it is kept."""
        known = [(n, a.dtype.str, a.shape, a.tobytes()) for n, a in (values or {}).items()]
        inputs = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        mine = ("part",) if is_part else self.ranks and self.ranks.key
        return self._find_or_make(
            "plan",
            f"planned for {inputs}",
            (list(shapes.items()), known, update and update.key, mine),
            lambda: self.plan(shapes, values, update, is_part),
        )

    def get_prompt_program(self, decoding: Decoding) -> BoundProgram:
        """Return the program of a decoder for prompts; it is kept as `get_program` keeps it.

        Raises:
            EngineError: as `Planners.decode` and `require_values`.
        """
        key = (self.what, Decoding.what, self.selected, self.memory.planning, decoding)
        program = self.find_program(key)
        if program is None:
            plan, file = self.plan_decoding(decoding)
            program = self._bind_shared(plan, file)
            self.memory.keep(key, program)
        return program

    def make_step_program(self, decoding: Decoding) -> BoundProgram:
        """Return a new program of a decoder for steps; its inputs hold caches of its own.

        Raises:
            EngineError: as `Planners.decode`.
        """
        plan, _ = self.plan_decoding(decoding)
        return self.load(plan)

    @preparing()
    def plan_decoding(self, decoding: Decoding) -> tuple[Plan, bytes | None]:
        """Return the plan for a prompt or a step of this decoder, and its file if it is kept."""
        make = partial(self._planners.decode, decoding)
        shapes = [list(shape) for _, shape in decoding.shapes]
        with announced(f"planning the {self.what} for shapes {shapes}"):
            return self._find_or_make("decoding", "planned", astuple(decoding), make)

    @preparing()
    def plan_update(self, layout: StateLayout) -> Plan:
        """Return the plan of this optimizer model for these states.

        It comes from the records if it is there; otherwise it is made, and kept in them.
        """
        make = partial(self._planners.update, layout)
        return self._find_or_make("update", "planned", layout.key, make)[0]

    def plan(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None = None,
        update: GradientUse | None = None,
        is_part: bool = False,
    ) -> Plan:
        """Plan this model for input shapes; inputs that have `values` become constants.

        update, is_part: see `get_program`.

        So do large constants that turn out to be needed: the sizes of a Split decide shapes, and a
        batch normalisation leaves constant statistics as they are.
        """
        while True:
            try:
                return self._planners.plan(shapes, values, update, is_part)
            except UnknownValueError as error:
                new = self.frozen.keys() & set(error.inputs) - self.deciding
                if not new:
                    raise
                self.deciding |= new

    def lay_out_states(self) -> StateLayout:
        """Lay out the states that an optimizer model keeps for the trained parameters.

        Raises:
            ModelError, DTypeError: it is not an optimizer model for these parameters.
        """
        kinds, slots = self.state.trainable_kinds(), self.state.slots
        states = self._list_states(kinds)
        return lay_out(states, {n: (slots[n].dtype, slots[n].shape) for n in kinds if n in slots})

    def _list_states(self, kinds: Mapping[str, str]) -> tuple[State, ...]:
        """Return the states for parameters of these types, from the records or the graph."""
        key = plan_cache.make_key("states", self.digest, list(kinds.items()))
        raw = None if self.records is None else self.records.get(key)
        if raw is not None:
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                return tuple(map(State.of, json.loads(raw)))
        with self.planning("read", self.records):
            from engine.graphs.offline import optimizers

            states = optimizers.list_states(self.graph, kinds)
        if self.records is not None:
            self.records.put(key, json.dumps([astuple(state) for state in states]).encode())
        return states

    def skips_updates(self) -> bool:
        """Return whether this optimizer model updates nothing if a gradient is NaN or infinite."""
        key = plan_cache.make_key("skips", self.digest)
        raw = None if self.records is None else self.records.get(key)
        if raw in (b"0", b"1"):
            return raw == b"1"
        with self.planning("read", self.records):
            from engine.graphs.offline import optimizers

            skips = bool(optimizers.find_signals(self.graph))
        if self.records is not None:
            self.records.put(key, b"1" if skips else b"0")
        return skips

    def make_guarded(self) -> bytes:
        """Return this optimizer model as one that updates nothing if a gradient is not finite.

        Raises:
            ModelError: its updates have several signals already.
        """
        with self.planning("changed", self.records):
            from engine.graphs.io import onnx_io
            from engine.graphs.offline import optimizers

            graph = self.graph.copy()
            optimizers.guard(graph)
            return onnx_io.to_bytes(graph)

    def make_skipping(self) -> Model:
        """Return this optimizer model if it skips updates, or one made of it that does.

        Raises:
            ModelError: its updates have several signals already.
        """
        if self.skips_updates():
            return self
        return Model(
            self.make_guarded(),
            self.state,
            self.memory,
            self.threads,
            self.what,
            self.target,
            self.closed,
            records=self.make_records,
        )

    @preparing()
    def load(self, plan: Plan) -> BoundProgram:
        """Compile and bind a plan, with inputs and outputs of its own."""
        self.memory.grow(plan, self.state)
        program = self._bind(plan, None, {})
        self.memory.others.add(program)
        return program

    def list_model_outputs(self) -> list[str]:
        """Return the names of the outputs of the forward model that this eval model was made of.

        The file has them in its metadata.  Elsewhere they are the outputs after the loss, or the
        values that the loss is computed of, besides the last input, which is then the target.

        Raises:
            ModelError: nothing that the model computes enters the loss beside the target.
        """
        known = self.interface.notes.get("outputs")
        if known is None and self.outputs[1:]:
            return self.outputs[1:]
        key = plan_cache.make_key("outputs", self.digest)
        if known is None and self.records is not None:
            raw = self.records.get(key)
            known = None if raw is None else raw.decode(errors="replace")
        with contextlib.suppress(ValueError, TypeError, RecursionError):  # none, or no list
            return [str(name) for name in json.loads(known or "")]
        with self.planning("read", self.records):
            from engine.graphs.offline import export

            names = export.list_model_outputs(self.graph, self.inputs[-1]) if self.inputs else []
        if not names:
            raise ModelError(
                f"the {self.what} computes its loss from inputs alone: "
                "name the outputs of the model"
            )
        if self.records is not None:
            self.records.put(key, json.dumps(names).encode())
        return names

    def export(
        self, parameters: Mapping[str, Array], names: list[str], path: str | os.PathLike[str] | None
    ) -> bytes:
        """Write this eval model as an inference model to a path, or return its bytes for None."""
        with self.planning("exported", self.records):
            from engine.graphs.offline import export

            graph = self.graph
        if path is None:
            return export.make_inference_model_bytes(graph, parameters, names)
        export.save_inference_model(graph, parameters, names, path)
        return b""


def open_models(
    train: ModelSource,
    evaluation: ModelSource | None,
    state: CheckpointState,
    memory: Memory,
    threads: int,
    records: Callable[[str | None], Records] = Records,
) -> tuple[Model, Model | None]:
    """Return the training model and the eval model over a state, checked against it.

    The state gets its slots if it has none, as a nominal one.

    Raises:
        ModelError, ShapeError, DTypeError: a model is malformed, does not fit the state, or is of
            another set of artifacts than a file beside it.
        StateError: no model declares the shape of a nominal parameter.
        FileError: a file cannot be read.
    """
    first = Model(train, state, memory, threads, "training model", records=records)
    second = None
    if evaluation is not None:
        second = Model(evaluation, state, memory, threads, "eval model", records=records)
    both = [first] if second is None else [first, second]
    for model in both:
        artifact_set.check(model.source, model.artifacts, state.path, state.artifacts)
    if second is not None:
        artifact_set.check(first.source, first.artifacts, second.source, second.artifacts)
    freeze_constants(both, memory)
    slots = state.slots or state.layout(_list_nominal_shapes(both, state))
    checks.check(first, slots)
    checks.check_training(first, slots)
    if second is not None:
        checks.check(second, slots)
        checks.check_eval(second)
    state.slots = slots
    return first, second


def open_optimizer(
    source: ModelSource,
    state: CheckpointState,
    memory: Memory,
    threads: int,
    target: Target | None = None,
    records: Callable[[str | None], Records] = Records,
) -> Model:
    """Return the optimizer model over a state, ready to be planned.

    It skips updates that are not finite if the memory scales the loss.

    Raises:
        EngineError: the model is malformed, or does not fit the state; see `Model`.
    """
    model = Model(source, state, memory, threads, "optimizer model", target, records=records)
    return model if memory.scaling is None else model.make_skipping()


def _list_nominal_shapes(
    models: Sequence[Model], state: CheckpointState
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters as models declare them, the first model that does."""
    shapes: dict[str, tuple[int, ...]] = {}
    for model in reversed(models):
        shapes |= model.list_parameter_shapes()
    missing = sorted({name for name, _ in state.parameters} - set(shapes))
    if missing:
        raise StateError(f"the nominal checkpoint holds {missing}, whose shapes no model declares")
    return shapes
