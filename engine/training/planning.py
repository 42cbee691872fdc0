"""The planners of a model: the planner gets the state, the budget and the update from here.

The only place of the runtime that asks the planner; importing it costs nothing until then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.base.aliases import Array
from engine.base.element_types import ITEMSIZE
from engine.base.errors import BudgetError, StateError
from engine.plan.plan import DONE, Plan
from engine.plan.states import StateLayout
from engine.training.bound_model import BoundModel
from engine.training.model_file import BUFFER, ModelFile, fold_constants

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.planner.planner import Planner
    from engine.training.state import Slot


PLANNERS = 2  # that a model keeps: one serves all shapes, but not all values of inputs


class NotJoinableError(StateError):
    """An optimizer model must run as a plan of its own; the message says why."""


@dataclass(frozen=True)
class GradientUse:
    """The use that a plan of a training model makes of gradients: it updates each parameter.

    optimizer: the optimizer model.
    layout: where its states lie in region state.
    """

    optimizer: ModelFile
    layout: StateLayout
    what: ClassVar[str] = "training step"

    @property
    def key(self) -> object:
        """The properties of the update that decide a plan, besides the training model."""
        return self.what, self.optimizer.digest, self.layout.key


@dataclass(frozen=True)
class Decoding:
    """The use that a plan of a decoder makes of its caches; see graphs/offline/decoding.py.

    presents: pairs of an input that holds a cache and the output that adds rows to it.
    shapes: the names and the shapes of all other inputs.
    capacity: the rows of the caches for a step, which adds one token; 0 for a prompt.
    scores: the output that has a row for each token; a plan for a prompt makes the last one.
    """

    presents: tuple[tuple[str, str], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    capacity: int
    scores: str
    what: ClassVar[str] = "decoder"


class Planners:
    """The planners of a model, the last few that were used.

    made: by what they know, the one that was used last at the end.
    """

    def __init__(self, model: BoundModel) -> None:
        self._model = model
        self.made: dict[tuple[Any, ...], Planner] = {}

    def plan(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Array] | None,
        update: GradientUse | None,
        is_part: bool = False,
    ) -> Plan:
        """Plan the model for input shapes; inputs that have `values` become constants.

        So do its large constants that are in `deciding`.  update, is_part: see
        `Model.get_program`.

        Raises:
            UnknownValueError: other values decide shapes, too; the error names them.
            NotJoinableError: the optimizer model cannot be joined.
            StateError: gradients of integers would have to be kept.
            EngineError: as `Planner.plan`.
        """
        from engine.graphs.ir.graph import find_type
        from engine.graphs.planner.draft import Place

        model, values = self._model, values or {}
        slots = model.state.slots
        buffers = model.buffers if update is None else []
        _refuse_integers([n[: -len(BUFFER)] for n in buffers], slots)
        places = {n: Place("param", slots[n].offset) for n in model.parameters}
        places |= {n: Place("grad", slots[n[: -len(BUFFER)]].offset) for n in buffers}
        bound = {**shapes, **{n: slots[n].shape for n in model.parameters}}
        bound |= {n: slots[n[: -len(BUFFER)]].shape for n in buffers}
        for name in values:
            del bound[name]
        frozen = {n: place for n, place in model.frozen.items() if n not in model.deciding}
        places |= {name: Place("frozen", offset) for name, offset in frozen.items()}
        sizes = model.list_regions()
        if update is not None:
            sizes = {**sizes, "grad": 0, "state": update.layout.nbytes}
        elif model.memory.room is not None:  # what the optimizer keeps counts, whatever runs
            sizes = {**sizes, "state": model.state.region_bytes("state")}
        known = ((name, v.dtype.str, v.shape, v.tobytes()) for name, v in values.items())
        ranks = model.ranks and (*model.ranks.key, model.memory.room is not None)
        key = (
            *(*places.items(), *sizes.items(), *known),
            *(update and update.key, ranks, is_part, model.memory.planning.precision),
            model.memory.scaling is None,
        )
        planner = self.made.pop(key, None)
        if planner is None:
            graph, outputs = self._copy_graph(is_part), model.outputs
            for name in frozen:
                graph.inputs[name] = find_type(graph.initializers.pop(name))
            for name, value in values.items():
                del graph.inputs[name]
                graph.initializers[name] = value
            name = model.what
            if update is not None:
                graph, states = self._join(graph, update)
                places |= {n: Place("state", offset) for n, offset in states.items()}
                name, outputs = update.what, [*outputs, DONE]
            planner = self._make_planner(graph, places, sizes, outputs, name)
        planner.options = model.memory.planner_options
        self.made[key] = planner
        while len(self.made) > PLANNERS:
            del self.made[next(iter(self.made))]
        with self._counting():
            return planner.plan(bound)

    def decode(self, decoding: Decoding) -> Plan:
        """Plan the model, which is a decoder, for a prompt or for a step.

        Raises:
            UnsupportedOpError: a node reads a cache in a way that is not supported; naming it.
            EngineError: as `Planner.plan`.
        """
        from engine.graphs.ir.graph import find_type
        from engine.graphs.offline.decoding import place_caches
        from engine.graphs.planner.draft import Place

        model, given = self._model, dict(decoding.shapes)
        graph = self._copy_graph(is_part=False)
        presents = dict(decoding.presents)
        graph = place_caches(graph, presents, given, decoding.capacity, decoding.scores)
        slots = model.state.slots
        places = {n: Place("param", slots[n].offset) for n in model.parameters}
        for name, offset in model.frozen.items():
            if name in graph.initializers and name not in model.deciding:
                places[name] = Place("frozen", offset)
                graph.inputs[name] = find_type(graph.initializers.pop(name))
        shapes = {n: slots[n].shape for n in model.parameters}
        planner = self._make_planner(
            graph, places, model.list_regions(), graph.outputs, Decoding.what
        )
        with self._counting():
            return planner.plan(shapes)

    def _copy_graph(self, is_part: bool) -> Graph:
        """Copy the model's graph after constant folding, as steps scale their loss; with ranks, the
        graph of one of them.
        """
        model = self._model
        training = model.graph
        is_scaled = model.memory.scaling is not None and bool(model.buffers)
        if is_scaled:
            from engine.graphs.offline.loss_scale import scale_loss

            training = scale_loss(training, model.outputs[0], model.buffers)
        if is_part:
            from engine.graphs.offline.loss_shares import make_part_graph

            return fold_constants(make_part_graph(training, model.outputs[0]))
        if model.ranks is None:
            return fold_constants(training) if is_scaled else model.constants.copy()
        from engine.graphs.offline.rank_graphs import Gradient, make_rank_graph

        slots = model.state.slots
        owners = {name: slots[name[: -len(BUFFER)]] for name in model.buffers}
        gradients = [Gradient(name, slot.dtype, slot.shape) for name, slot in owners.items()]
        graph = make_rank_graph(
            training,
            model.outputs,
            gradients,
            model.ranks.size,
            statistics=model.ranks.statistics,
            is_tight=model.memory.room is not None,
        )
        return fold_constants(graph)

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Add to an error of budgets the bytes of constants that stay in their file."""
        try:
            yield
        except BudgetError as error:
            mapped = self._model.memory.mapped
            if not mapped:
                raise
            raise BudgetError(
                f"{error}; these numbers include {mapped} bytes of constants that stay in their "
                "file, which do not count in a memory budget",
                error.least - mapped,
            ) from None

    def _join(self, graph: Graph, update: GradientUse) -> tuple[Graph, dict[str, int]]:
        """Return a training graph that updates, and where the states among its inputs lie.

        Raises:
            NotJoinableError: the optimizer model cannot be joined.
        """
        from engine.graphs.offline.joined import find_obstacle, join

        why = find_obstacle(graph, update.optimizer.constants)
        if why:
            raise NotJoinableError(why)
        names = self._model.state.trainable_names()
        gradients = {name: f"{name}{BUFFER}" for name in names}
        joined = join(graph, update.optimizer.constants, gradients, update.layout)
        return joined.graph, {name: tensor.offset for name, tensor in joined.states.items()}

    def update(self, layout: StateLayout) -> Plan:
        """Plan the model, which is an optimizer model.

        The parameters of an element type, their gradients and each state are flat tensors.  The
        plan has one output, the flag that says that the update was done.

        Raises:
            StateError: it updates integers, whose gradients are not kept.
        """
        from engine.graphs.offline import optimizers
        from engine.graphs.planner.draft import Place
        from engine.kernels.vocabulary.op import TensorType

        model, state = self._model, self._model.state
        _refuse_integers(state.trainable_names(), state.slots)
        graph, kinds = model.constants.copy(), state.trainable_kinds()
        places, begins = dict[str, Place](), dict[str, tuple[int, tuple[int, ...]]]()
        ends = optimizers.list_endings(kinds)
        for kind, names in optimizers.group_by_type(kinds).items():
            slots = [state.slots[name] for name in names]
            first = slots[0].offset
            size = (slots[-1].end - first) // ITEMSIZE[kind]
            begins |= {
                name: ((slot.offset - first) // ITEMSIZE[kind], slot.shape)
                for name, slot in zip(names, slots, strict=True)
            }
            for name, region in (("params", "param"), ("gradients", "grad")):
                graph.inputs[name + ends[kind]] = TensorType(kind, (size,))
                places[name + ends[kind]] = Place(region, first)
            for k, row in enumerate(layout.states):
                flat = layout.join_states(k, names)
                graph.inputs[row.name + ends[kind]] = TensorType(flat.dtype, flat.shape)
                places[row.name + ends[kind]] = Place("state", flat.offset)
        optimizers.place(graph, kinds, begins, layout)
        optimizers.clip_in_steps(graph)
        sizes = {**model.list_regions(), "grad": state.region_bytes("grad"), "state": layout.nbytes}
        outputs = [optimizers.list_updates(graph)[-1].outputs[0]]
        return self._make_planner(graph, places, sizes, outputs).plan({})

    def _make_planner(
        self,
        graph: Graph,
        places: Mapping[str, Any],
        sizes: Mapping[str, int],
        outputs: Sequence[str],
        name: str = "",
    ) -> Planner:
        """Make a planner for a graph of this model; sizes: of the regions that outlive a run."""
        from engine.graphs.planner.planner import Planner

        model = self._model
        return Planner(
            graph,
            target=model.target or model.memory.kernels.target,
            kernels=None if model.target or model.closed else model.memory.kernels,
            threads=model.threads,
            places=places,
            region_bytes=sizes,
            outputs=outputs,
            name=(name or model.what).replace(" ", "_"),
            closed=model.closed,
            options=model.memory.planner_options,
            answers=model.answers,
        )


def _refuse_integers(trained: Sequence[str], slots: Mapping[str, Slot]) -> None:
    """Refuse a plan that needs the kept gradients of these parameters where some are integers.

    Raises:
        StateError: there are some.
    """
    wrong = next((name for name in trained if not slots[name].has_gradient), None)
    if wrong is not None:
        raise StateError(
            f"{wrong!r} is {slots[wrong].dtype} and trained in place: no gradient of it is kept, "
            "to be accumulated or for a plan of the update alone.  Trainer.step and "
            "`edgegrad build --joined` update it as soon as its gradient is complete"
        )
