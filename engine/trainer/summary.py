"""Summaries of a trainer: its layers, parameters, memory and cost; nothing is run.

Layers and their shapes come from the model, flops and memory from the plan of a step, if one was
made.  Loading the model takes most of the time; a `repr` does without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from engine.base.element_types import ITEMSIZE, REALS
from engine.base.errors import EngineError, MissingPackageError
from engine.base.representation import shorten_name
from engine.drawing import amounts
from engine.drawing.text_table import align_cells
from engine.trainer.step_plan import REGION_NAMES

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph, Node
    from engine.plan.plan import Plan
    from engine.system.paths import Paths
    from engine.trainer.learner import TrainingModels
    from engine.trainer.steps import Steps
    from engine.training.state import Slot

Shape = tuple[int | str, ...]
REST = "other parameters"  # the row of those that the outputs do not depend on
HEAD = ("layer", "operators", "output", "parameters", "trained", "size", "forward", "step")


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A part of a model.

    name: the path of its module, if the model records it; otherwise the name of its first node.
    operators: the operators of its nodes, each once.
    output: the shape of the last value that it computes; texts are sizes that batches decide.
    parameters, trained: the number of values, and how many of them are trained.
    nbytes: the bytes of the parameters.
    flops, step_flops: floating-point operations of its products in the forward pass, and in a whole
        step; None if no step is planned.
    """

    name: str
    operators: tuple[str, ...]
    output: Shape | None
    parameters: int
    trained: int
    nbytes: int
    flops: int | None
    step_flops: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The layers of a model, and the memory and cost of a step.  `print` shows a table.

    inputs: the shapes of the inputs of a step, by name.
    layers: in the order of the model; empty where the packages that read models are missing.
    parameters, trained: the number of values, and how many of them are trained.
    nbytes: the bytes of the parameters.
    regions: bytes that a step takes, by region; those that are known, if no step is planned.
    is_planned: whether a step is planned, for the shapes in `inputs`.
    """

    inputs: Mapping[str, Shape]
    layers: tuple[ModelPart, ...]
    parameters: int
    trained: int
    nbytes: int
    regions: Mapping[str, int]
    is_planned: bool

    @property
    def flops(self) -> int | None:
        """Floating-point operations of the products of a forward pass; None if not planned."""
        return _sum(layer.flops for layer in self.layers) if self.is_planned else None

    @property
    def step_flops(self) -> int | None:
        """Floating-point operations of the products of a step; None if not planned."""
        return _sum(layer.step_flops for layer in self.layers) if self.is_planned else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The layers as dicts, one each."""
        return [asdict(layer) for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON types."""
        return {
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "layers": self.rows,
            "parameters": self.parameters,
            "trained": self.trained,
            "bytes": self.nbytes,
            "regions": dict(self.regions),
            "flops": self.flops,
            "step_flops": self.step_flops,
        }

    def __str__(self) -> str:
        layers = align_cells([HEAD, *map(_make_cells, self.layers)], left=3) if self.layers else ""
        return layers + "\n".join(self._list_lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from engine.drawing.page import escape, make_table

        rows = [[escape(cell) for cell in _make_cells(layer)] for layer in self.layers]
        return make_table(HEAD, rows) + "".join(
            f"<p>{escape(line)}</p>" for line in self._list_lines()
        )

    def _list_lines(self) -> Iterator[str]:
        """Yield the sums, and what a step takes."""
        yield (
            f"{self.parameters:,} parameters ({amounts.format_size(self.nbytes)}), "
            f"{self.trained:,} "
            f"trained, {self.parameters - self.trained:,} frozen"
        )
        held = ", ".join(
            f"{amounts.format_size(size)} {REGION_NAMES[name]}"
            for name, size in self.regions.items()
        )
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.inputs.items())
        if not self.is_planned:
            yield f"memory: {held}; values and flops are known after a step, or summary(*batch)"
            return
        yield (
            f"memory of a step on {shapes}: "
            f"{amounts.format_size(sum(self.regions.values()))}: {held}"
        )
        if self.layers and self.flops is not None and self.step_flops is not None:
            yield (
                f"products of a step: {_format_flops(self.step_flops)}, "
                f"{_format_flops(self.flops)} in the "
                "forward pass"
            )


def summarize(learner: TrainingModels, steps: Steps, batch: Sequence[Any] = ()) -> Summary:
    """Return the summary of a trainer.

    steps: plan a step on the batch.
    batch: arrays or shapes; if it is empty, the plan is of the last step.

    Raises:
        EngineError: a step on the batch cannot be planned.
    """
    if batch:
        from engine.trainer.dry_run import find_shapes

        steps.plan(list(find_shapes(learner.inputs, batch).values()))
    plan, slots = find_plan(learner), learner.state.slots
    inputs = _find_inputs(learner, plan)
    layers: tuple[ModelPart, ...] = ()
    with contextlib.suppress(MissingPackageError):
        layers = tuple(_list_layers(learner, inputs, plan))
    return Summary(
        inputs,
        layers,
        sum(slot.size for slot in slots.values()),
        sum(slot.size for slot in slots.values() if slot.trainable),
        sum(map(_count_bytes, slots.values())),
        count_regions(learner, plan),
        plan is not None,
    )


def find_plan(learner: TrainingModels) -> Plan | None:
    """Return the last plan that computes gradients; None if no step is planned."""
    plans = learner.module.plans()
    return next((p for p in plans if any(s.phase == "bwd" for s in p.steps)), None)


def count_regions(learner: TrainingModels, plan: Plan | None) -> dict[str, int]:
    """Return the bytes of regions: of a plan, or those that the state has."""
    if plan is not None:
        sizes = dict(plan.regions)
        return {name: sizes[name] for name in REGION_NAMES if sizes.get(name)}
    sizes = {name: learner.state.region_bytes(name) for name in ("param", "grad", "state")}
    return {name: size for name, size in sizes.items() if size}


def describe(learner: TrainingModels) -> list[str]:
    """Return the lines of the `repr` of a trainer."""
    interface, slots = learner.session.training.interface, learner.state.slots.values()
    takes = ", ".join(f"{name} {interface.inputs[name]}" for name in learner.inputs)
    trained = sum(slot.size for slot in slots if slot.trainable)
    lines = [
        f"Trainer({learner.folder!r}) of {takes}",
        f"{sum(slot.size for slot in slots):,} parameters "
        f"({amounts.format_size(sum(map(_count_bytes, slots)))}), {trained:,} trained",
    ]
    if learner.optimizer is not None:
        rate = f"{learner.learning_rate:g}"
        lines[1] += f"; {learner.steps:,} steps done, learning rate {rate}"
    plan = find_plan(learner)
    if plan is None:
        return [*lines, "no step is planned yet"]
    shapes = ", ".join(f"{n} {list(s)}" for n, s in _find_inputs(learner, plan).items())
    size = amounts.format_size(sum(count_regions(learner, plan).values()))
    return [*lines, f"a step on {shapes}: {size}, {len(plan.steps):,} kernel calls"]


def _find_inputs(learner: TrainingModels, plan: Plan | None) -> dict[str, Shape]:
    """Return the shapes of the inputs of a step: of a plan, or as the model declares them."""
    declared = learner.session.training.interface.inputs
    known: dict[str, Shape] = {name: declared[name].shape for name in learner.inputs}
    ports = () if plan is None else plan.inputs
    return known | {port.name: port.shape for port in ports if port.name in known}


# --- layers


def _list_layers(
    learner: TrainingModels, inputs: Mapping[str, Shape], plan: Plan | None
) -> Iterator[ModelPart]:
    from engine.graphs.passes.infer import infer

    model = learner.session.evaluation or learner.session.training
    graph, slots = _forward(model.graph.copy(), learner), learner.state.slots
    flops = None if plan is None else _count_node_flops(plan)
    sizes = {n: [d for d in s if isinstance(d, int)] for n, s in inputs.items()}
    for name, shape in inputs.items():
        if name in graph.inputs and len(sizes[name]) == len(shape):
            graph.inputs[name] = graph.inputs[name].but(sizes[name])
    types: Mapping[str, Any] = {}
    with contextlib.suppress(EngineError):  # values of inputs decide shapes
        types = infer(graph).types
    rows = _group_nodes(_drop_shape_nodes(graph.nodes, slots, types), model.paths, slots)
    seen = set[str]()
    for title, members in rows.items():
        own = [n for node in members for n in node.list_reads() if n in slots and n not in seen]
        own = list(dict.fromkeys(own))
        seen.update(own)
        yield _make_layer(title, members, [slots[n] for n in own], types, flops)
    left = [slot for name, slot in slots.items() if name not in seen]
    if left:
        yield _make_layer(REST, [], left, types, flops)


def _forward(graph: Graph, learner: TrainingModels) -> Graph:
    """Drop everything of a graph that the outputs of the model do not depend on, in place."""
    from engine.graphs.passes.simplify import find_ancestors

    made = {name for node in graph.nodes for name in node.outputs}
    outputs = []
    if learner.session.evaluation is not None:
        outputs = [name for name in learner.outputs if name in made]
    graph.outputs = outputs or graph.outputs[:1]  # the loss
    needed = find_ancestors(graph)
    graph.nodes = [node for node in graph.nodes if node in needed]
    return graph


def _drop_shape_nodes(
    nodes: Sequence[Node], slots: Mapping[str, Slot], types: Mapping[str, Any]
) -> list[Node]:
    """Return nodes without those that compute whole numbers, such as shapes."""
    return [
        node
        for node in nodes
        if node.outputs[0] not in types
        or types[node.outputs[0]].dtype in REALS
        or any(name in slots for name in node.list_reads())
    ]


def _group_nodes(
    nodes: Sequence[Node], paths: Paths, slots: Mapping[str, Slot]
) -> dict[str, list[Node]]:
    """Return the nodes of each layer: of a module; or one that reads parameters, and those after
    it.
    """
    rows: dict[str, list[Node]] = {}
    last = ""
    for node in nodes:
        module = paths.find_module(node.name)
        if module:
            last = module
        elif not last or (not paths.nodes and any(name in slots for name in node.list_reads())):
            last = node.name or node.outputs[0]
        rows.setdefault(last, []).append(node)
    return rows


def _make_layer(
    name: str,
    nodes: Sequence[Node],
    slots: Sequence[Slot],
    types: Mapping[str, Any],
    flops: Mapping[str, tuple[int, int]] | None,
) -> ModelPart:
    made = [types[node.outputs[0]] for node in nodes if node.outputs[0] in types]
    counts = None if flops is None else [flops.get(node.name, (0, 0)) for node in nodes]
    return ModelPart(
        name,
        tuple(dict.fromkeys(node.op for node in nodes)),
        made[-1].shape if made else None,
        sum(slot.size for slot in slots),
        sum(slot.size for slot in slots if slot.trainable),
        sum(map(_count_bytes, slots)),
        None if counts is None else sum(forward for forward, _ in counts),
        None if counts is None else sum(step for _, step in counts),
    )


def _count_node_flops(plan: Plan) -> dict[str, tuple[int, int]] | None:
    """Return the operations of the forward pass and of a step, by the names of forward nodes.

    None where the packages that know kernels are missing.
    """
    from engine.profiling.measure import forward_node

    try:
        from engine.kernels.analysis.flops import measure_work
    except ImportError:
        return None
    counts: dict[str, tuple[int, int]] = {}
    for step, done in zip(plan.steps, measure_work(plan), strict=True):
        if done.flops:
            name = forward_node(step.source)
            forward, whole = counts.get(name, (0, 0))
            counts[name] = forward + done.flops * (step.phase == "fwd"), whole + done.flops
    return counts


def _count_bytes(slot: Slot) -> int:
    return slot.size * ITEMSIZE[slot.dtype]


def _sum(counts: Iterator[int | None]) -> int:
    return sum(count or 0 for count in counts)


def _make_cells(layer: ModelPart) -> tuple[str, ...]:
    shape = "" if layer.output is None else "×".join(map(str, layer.output)) or "1"
    trained = "all" if layer.trained == layer.parameters else f"{layer.trained:,}" or "0"
    has = layer.parameters > 0
    return (
        shorten_name(layer.name),
        " ".join(layer.operators),
        shape,
        f"{layer.parameters:,}" if has else "",
        trained if has and layer.trained else "frozen" if has else "",
        amounts.format_size(layer.nbytes) if has else "",
        _format_flops(layer.flops) if layer.flops else "",
        _format_flops(layer.step_flops) if layer.step_flops else "",
    )


def _format_flops(count: int) -> str:
    """Format operations in decimal units: 1.2 GFLOP."""
    for unit, factor in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} FLOP"
