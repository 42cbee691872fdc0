"""Time of every stage of planning against the number of nodes of a graph.

A row is a stage, a column a number of nodes: seconds of processor time of the stage alone, without
those that it calls and that have rows of their own.  `find_exponent` is log(t2 / t1) / log(n2 / n1)
of the two largest graphs, n counting their nodes: 1.00 is linear.  Stages below `LEAST` of a second
have none, because so little is noise.

For shapes that train, artifacts are made from a forward graph, and the training model is planned:
`nodes` counts its graph.  For the others the written graph is planned.  The plan is for a step that
updates; `plan of a Module` is the total time for a step that accumulates, and with --least `least
budget` is the time to find the smallest plan of all.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.rows import Bench, Cells, Option
from engine.api import CheckpointState
from engine.artifacts import generate
from engine.base.plan_options import PlanOptions
from engine.checkpoint import storage
from engine.errors import BudgetError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, Subgraph
from engine.graphs.offline import joined, training
from engine.graphs.passes import check, pipeline
from engine.graphs.planner import assemble, lower, planner
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.models.layers import Layers
from engine.models.post_norm import build_minilm
from engine.plan import plan_file
from engine.plan.plan import Plan
from engine.runtime import program
from engine.runtime.arena import allocate
from engine.tools.benchmark.workload import write_artifacts
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.planning import GradientUse

SIZES = (100, 1_000, 10_000, 50_000)
LEAST = 0.02  # seconds
WIDTH = 8
BATCH = 2  # samples, where a graph leaves them open


class Clock:
    """Processor time by stage.  A stage that calls another one is charged only its own time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._is_whole = False
        self._mark = time.process_time()

    def _charge(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._mark
        self._mark = now

    @contextlib.contextmanager
    def stage(self, title: str, *, whole: bool = False) -> Iterator[None]:
        """Charge time to a stage; if `whole`, include the stages that it calls."""
        if self._is_whole:
            yield
            return
        self._charge()
        self._open.append(title)
        self._is_whole = whole
        try:
            yield
        finally:
            self._charge()
            self._open.pop()
            self._is_whole = False

    def time_stage(self, title: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is charged to a stage."""

        def call(*args: Any, **more: Any) -> Any:
            with self.stage(title):
                return run(*args, **more)

        return call


STAGES: tuple[tuple[Any, str, str], ...] = (  # where a function is called, its name, its stage
    (onnx_io, "load", "read model"),
    (onnx_io, "save", "write model"),
    (storage, "write", "write checkpoint"),
    (training, "choose", "offline: choose"),
    (training, "infer", "offline: infer"),
    (training, "fuse_patterns", "offline: fuse patterns"),
    (training, "differentiate", "offline: differentiate"),
    (training, "prune", "offline: prune"),
    (generate, "_make_optimizer_graph", "offline: optimizer"),
    (joined, "join", "join optimizer"),
    (planner, "resize", "sizes"),
    (planner, "bind", "sizes"),
    (pipeline, "list_kinds", "checks"),
    (pipeline, "_check_ops", "checks"),
    (check.Watch, "check", "checks"),
    (planner, "DraftSource", "lower"),
    (lower.DraftSource, "make_draft", "lower"),
    (planner, "drop_dead_calls", "drop dead calls"),
    (planner, "make_rows", "rows"),
    (planner, "settle_updates", "settle updates"),
    (planner, "order", "order"),
    (planner, "group", "tiles"),
    (assemble, "find_lifetimes", "lifetimes"),
    (assemble, "merge_inplace", "lifetimes"),
    (assemble, "place", "place"),
    (assemble, "find_barriers", "barriers"),
    (planner, "assemble", "assemble"),
    (assemble, "verify", "verify"),
)


@contextlib.contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """Time every stage."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in STAGES]
    passes = pipeline.PASSES
    try:
        for owner, name, title in STAGES:
            setattr(owner, name, clock.time_stage(title, getattr(owner, name)))
        setattr(  # noqa: B010  # it is Final for all others
            pipeline,
            "PASSES",
            tuple(
                pipeline.Pass(p.name, clock.time_stage(f"pass: {p.name}", p.run), p.may_add)
                for p in passes
            ),
        )
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        pipeline.PASSES = passes


# --- graphs


def _make_plain(
    name: str,
    nodes: Sequence[Node],
    held: Mapping[str, Any],
    outputs: Mapping[str, tuple[int, ...]],
    rows: int = 4,
) -> Graph:
    """Return a graph of nodes over x: f32[rows, 8]; outputs are f32 of these shapes."""
    types = {n: TensorType("f32", shape) for n, shape in outputs.items()}
    constants = {n: np.asarray(a) for n, a in held.items()}
    inputs = {"x": TensorType("f32", (rows, WIDTH))}
    return Graph(name, inputs, list(types), constants, list(nodes), {"": 17}, types)


def chain(nodes: int) -> Graph:
    """Return a chain of elementwise nodes."""
    ops = ("Relu", "Tanh", "Abs", "Sigmoid", "Neg")
    made = [
        Node(ops[i % len(ops)], (f"v{i}" if i else "x",), (f"v{i + 1}",), {}, "", f"n{i}")
        for i in range(nodes)
    ]
    return _make_plain("chain", made, {}, {f"v{nodes}": (4, WIDTH)})


def make_mlp(nodes: int) -> Graph:
    """Return layers of a product, a bias and Relu, and their gradients."""
    to = Layers()
    y = "x"
    for i in range(max(nodes // 9, 1)):
        y = to.add_op("Relu", to.add_linear(y, f"l{i}", WIDTH, WIDTH))
    to.classify(y, WIDTH)
    return to.make_graph("mlp", TensorType("f32", (4, WIDTH)))


def make_residual(nodes: int) -> Graph:
    """Return blocks of two normalised convolutions beside a shortcut, and their gradients."""
    to = Layers()
    y = "x"
    for i in range(max(nodes // 21, 1)):
        a = to.add_op(
            "Relu", to.add_batch_norm(to.add_convolution(y, f"a{i}", 4, 4, 3, pad=1), f"na{i}", 4)
        )
        b = to.add_batch_norm(to.add_convolution(a, f"b{i}", 4, 4, 3, pad=1), f"nb{i}", 4)
        y = to.add_op("Relu", to.add_op("Add", y, b))
    to.classify(to.add_op("ReduceMean", y, axes=[2, 3], keepdims=0), 4)
    return to.make_graph("residual", TensorType("f32", (2, 4, 6, 6)))


def make_attention(nodes: int) -> Graph:
    """Return layers of a transformer, and their gradients."""
    return build_minilm(positions=4, words=10, layers=max(nodes // 110, 1), width=24)


def make_fan_out(nodes: int) -> Graph:
    """Return nodes that read one value, and the Sum of all their results."""
    made = [Node("Tanh", ("x",), (f"v{i}",), {}, "", f"n{i}") for i in range(nodes)]
    total = Node("Sum", tuple(f"v{i}" for i in range(nodes)), ("y",), {}, "", "sum")
    return _make_plain("fan-out", [*made, total], {}, {"y": (4, WIDTH)})


def make_softmaxes(nodes: int) -> Graph:
    """Return softmaxes of one value, and the Sum of all: no two of them fuse."""
    made = [Node("Softmax", ("x",), (f"v{i}",), {"axis": i % 2}, "", f"n{i}") for i in range(nodes)]
    total = Node("Sum", tuple(f"v{i}" for i in range(nodes)), ("y",), {}, "", "sum")
    return _make_plain("softmaxes", [*made, total], {}, {"y": (4, WIDTH)})


def make_concat(nodes: int) -> Graph:
    """Return one Concat of `nodes` values."""
    made = [Node("Neg", ("x",), (f"v{i}",), {}, "", f"n{i}") for i in range(nodes)]
    joint = Node("Concat", tuple(f"v{i}" for i in range(nodes)), ("y",), {"axis": 0}, "", "concat")
    return _make_plain("concat", [*made, joint], {}, {"y": (4 * nodes, WIDTH)})


def split(nodes: int) -> Graph:
    """Return one Split, a node for each of its parts, and the Sum of these."""
    parts = tuple(f"p{i}" for i in range(nodes))
    cut = Node("Split", ("x",), parts, {"axis": 0}, "", "split")
    made = [Node("Softmax", (p,), (f"v{i}",), {}, "", f"n{i}") for i, p in enumerate(parts)]
    total = Node("Sum", tuple(f"v{i}" for i in range(nodes)), ("y",), {}, "", "sum")
    return _make_plain("split", [cut, *made, total], {}, {"y": (1, WIDTH)}, nodes)


def make_loop(nodes: int) -> Graph:
    """Return a Loop of four nodes a trip, which is unrolled; its scanned output joins all trips."""
    body = Graph(
        "body",
        {
            "i": TensorType("i64", ()),
            "go": TensorType("b1", ()),
            "s": TensorType("f32", (4, WIDTH)),
        },
        ["on", "t", "t"],
        {},
        [
            Node("Identity", ("go",), ("on",), {}, "", "on"),
            Node("Mul", ("s", "w"), ("a",), {}, "", "a"),
            Node("Softmax", ("a",), ("b",), {}, "", "b"),
            Node("Add", ("b", "x"), ("t",), {}, "", "t"),
        ],
        {"": 17},
    )
    body.types = {"on": TensorType("b1", ()), "t": TensorType("f32", (4, WIDTH))}
    inner = Subgraph.of(body, onnx_io.to_proto(body).graph)
    trips = max(nodes // 4, 1)
    node = Node("Loop", ("trips", "", "x"), ("y", "all"), {"body": inner}, "", "loop")
    held = {"trips": np.int64(trips), "w": np.ones(WIDTH, np.float32)}
    return _make_plain("loop", [node], held, {"y": (4, WIDTH), "all": (trips, 4, WIDTH)})


def make_outputs(nodes: int) -> Graph:
    """Return nodes that read one value, and whose results are all outputs of the graph."""
    made = [Node("Tanh", ("x",), (f"v{i}",), {}, "", f"n{i}") for i in range(nodes)]
    return _make_plain("outputs", made, {}, {f"v{i}": (4, WIDTH) for i in range(nodes)})


SHAPES: dict[str, tuple[Callable[[int], Graph], bool]] = {  # the graph, and whether it trains
    "chain": (chain, False),
    "mlp": (make_mlp, True),
    "residual": (make_residual, True),
    "transformer": (make_attention, True),
    "fan-out": (make_fan_out, False),
    "softmaxes": (make_softmaxes, False),
    "concat": (make_concat, False),
    "split": (split, False),
    "loop": (make_loop, False),
    "outputs": (make_outputs, False),
}


# --- times


def _plan_training(forward: Graph, folder: Path, clock: Clock, least: bool) -> tuple[Plan, int]:
    """Return the plan of a training step with its update, and the nodes of the training model."""
    with clock.stage("offline: the rest"):
        write_artifacts(forward, folder)
    with clock.stage("open model"):
        state, memory = CheckpointState.load_checkpoint(folder / "checkpoint"), Memory()
        model, optimizer = (
            Model(folder / f"{name}_model.onnx", state, memory, 2, name, detect_host())
            for name in ("training", "optimizer")
        )
        update = GradientUse(optimizer, optimizer.lay_out_states())
    batch = tuple(d if isinstance(d, int) else BATCH for d in forward.inputs["x"].shape)
    given = dict(zip(model.inputs, (batch, batch[:1]), strict=True))
    with clock.stage("the rest"):
        plan = model.plan(given, update=update)
    with clock.stage("plan of a Module", whole=True):
        model.plan(given)
    if least:
        memory.planning = PlanOptions(budget=1)
        with clock.stage("least budget", whole=True), contextlib.suppress(BudgetError):
            model.plan(given, update=update)
    return plan, len(model.graph.nodes)


def _plan_graph(graph: Graph, folder: Path, clock: Clock) -> tuple[Plan, int]:
    """Return the plan of a graph that is written to a file, and its nodes."""
    path = folder / "forward.onnx"
    onnx_io.save(graph, path)
    with clock.stage("the rest"):
        plan = planner.make_plan(onnx_io.load(path), {}, target=detect_host(), threads=2)
    return plan, len(graph.nodes)


def _make_addresses(kernels: Iterable[object]) -> Mapping[str, int]:
    """Return addresses of kernels for programs that are not run."""
    return defaultdict(int)


def measure_stages(name: str, nodes: int, *, least: bool = False) -> tuple[int, Clock]:
    """Return the number of planned nodes, and the time of every stage, for one graph."""
    clock = Clock()
    make, trains = SHAPES[name]
    graph = make(nodes)
    with tempfile.TemporaryDirectory() as folder, watched(clock):
        if trains:
            plan, count = _plan_training(graph, Path(folder), clock, least)
        else:
            plan, count = _plan_graph(graph, Path(folder), clock)
    with clock.stage("write plan"):
        data = plan_file.to_bytes([plan], plan.target)
    with clock.stage("read plan"):
        plan_file.from_bytes(data, plan.target)
    regions = {region: allocate(size, zero=False) for region, size in plan.regions}
    with clock.stage("program table"), patch.object(program, "get_team"):
        program.BoundProgram(plan, _make_addresses, regions)
    return count if name != "loop" else nodes, clock


def find_exponent(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the power of the nodes with which time grows, from the two largest graphs."""
    (n1, n2), (t1, t2) = counts[-2:], seconds[-2:]
    return math.log(t2 / max(t1, 1e-6)) / math.log(n2 / n1)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each stage of a shape."""
    columns = [measure_stages(name, nodes, least=options.least) for nodes in options.sizes]
    counts = [count for count, _ in columns]
    stages = dict.fromkeys(stage for _, clock in columns for stage in clock.seconds)
    rows = {stage: [clock.seconds[stage] for _, clock in columns] for stage in stages}
    rows["total"] = [sum(clock.seconds.values()) for _, clock in columns]
    yield "nodes", *map(str, counts), None
    for stage, seconds in rows.items():
        grows = len(counts) > 1 and seconds[-1] >= LEAST
        yield stage, *seconds, find_exponent(counts, seconds) if grows else None


def list_titles(options: Namespace) -> tuple[str, ...]:
    """Return the columns, one a size."""
    return ("stage", *(f"s at {size}:.3f" for size in options.sizes), "exponent:.2f")


BENCHES = (
    Bench(
        "growth",
        "the time of every stage of planning against the number of nodes of a graph",
        {name: name for name in SHAPES},
        list_titles,
        measure,
        options=(
            Option("sizes", SIZES, "nodes of the graphs"),
            Option("least", False, "also the search for the smallest plan of all"),
        ),
        small="chain --sizes 10",
    ),
)
