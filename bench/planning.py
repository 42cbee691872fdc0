"""Time of planning models, and of long and wide graphs.

A row of `planning.models` is a model: `first` is its first plan, `half` and `double` the plans of
half and twice the batch by the same model, each with its ratio to the first; `decode`, `verify` and
`bind` the times to read the plan from a plan file, to verify it, and to bind it. All are
milliseconds of processor time, medians of five.

A row of `planning` is a graph, written to a file and read back.  `plan` is everything from the file
to the verified plan, `artifacts` the time of `generate_artifacts`, and `training` and `eval` the
times of planning the written models.  All are seconds of processor time.  `terms` is the number of
terms in the formulas of all different kernels, the input of a compiler; subjects are the ops, and
`GRAPHS`.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import time_process
from bench.rows import Bench, Cells, Option
from engine import artifacts
from engine.api import CheckpointState
from engine.base.element_types import ONNX_CODE
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_addresses
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS, Op, Site, TensorType
from engine.kernels.vocabulary.row_program import Program
from engine.models.images import build_mlp
from engine.models.mobilenets import build_mobilenet_v2
from engine.models.post_norm import build_minilm
from engine.plan import plan_file
from engine.plan.plan import Plan
from engine.plan.verify import verify
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram as Bound
from engine.runtime.team import LAUNCH, WORKER
from engine.tools.benchmark.workload import write_artifacts
from engine.training.memory import Memory
from engine.training.model import Model

SHAPE = (64, 256)
ATTRS: dict[str, dict[str, Any]] = {
    "Cast": {"to": ONNX_CODE["f64"]},
    "BitShift": {"direction": "LEFT"},
}  # needed ones
INPUTS = {"Clip": 3, "Max": 2, "Mean": 2, "Min": 2, "Sum": 2}  # more than they need
OTHERS = ("Expand",)  # formulas that only repeat their input
OPSET = 20


class Builder:
    """Writer of a graph of values of one shape: `first`, which is x w, and the results of `add`."""

    def __init__(self, name: str) -> None:
        types = {"x": TensorType("f32", SHAPE)}
        held = {"w": np.full(SHAPE[1:], 0.5, np.float32), "axis": np.zeros(1, np.int64)}
        self.graph = Graph(name, types, [], held, [], {"": OPSET, "com.microsoft": 1})
        self.kinds = {"x": "f32", "w": "f32"}
        self.first = self.add("Mul", "x", "w")

    def add(self, op: str, *inputs: str, domain: str = "", kind: str = "f32", **attrs: Any) -> str:
        """Append a node that makes a value of an element type; return the name of the value."""
        name = f"v{len(self.graph.nodes)}"
        self.graph.nodes.append(Node(op, inputs, (name,), attrs, domain, f"{op}/{name}"))
        self.kinds[name] = kind
        return name

    def cast(self, value: str, kind: str) -> str:
        """Return the value as another element type."""
        if self.kinds[value] == kind:
            return value
        return self.add("Cast", value, kind=kind, to=ONNX_CODE[kind])

    def finish(self, value: str) -> Graph:
        """Return the graph, whose output is the mean of a value."""
        mean = self.add("ReduceMean", self.cast(value, "f32"), keepdims=0)
        self.graph.outputs, self.graph.types = [mean], {mean: TensorType("f32", ())}
        return self.graph


def list_elementwise() -> dict[str, Op]:
    """Return the ops of ONNX and of onnxruntime that are formulas, by title."""
    formulas = {op.title: op for op in list_ops().values() if op.expr and op.domain != OURS}
    return {title: op for title, op in formulas.items() if title not in OTHERS}


def find_kinds(op: Op, attrs: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the element types of the fewest inputs that an op takes, and the type that it
    makes.
    """
    choices = ("f32", "b1", "u32", "i64")
    for count in range(INPUTS.get(op.title, 1), 4):
        for kinds in itertools.product(choices, repeat=count):
            site = Site(
                op=op.name,
                domain=op.domain,
                name="",
                opset=OPSET,
                ins=tuple(TensorType(kind, SHAPE) for kind in kinds),
                attrs={**op.attrs, **attrs},
                values=(None,) * count,
                n_outs=1,
                expr=op.expr,
            )
            try:
                (made,) = op.infer(site)
                if (
                    not site.formula().explain_misfit(kinds)
                    and len(site.formula().list_reads()) == count
                ):
                    return kinds, made.dtype
            except (EngineError, IndexError):
                continue
    raise LookupError(f"{op.title} takes none of {choices}")


def chain(titles: Sequence[str], nodes: int) -> Graph:
    """Return a chain of `nodes` nodes of these ops in turns.

    An op of several inputs reads it several times.  Where a type does not fit, a Cast stands
    between.
    """
    known = list_elementwise()
    rows = []
    for title in titles:
        op = known[title]
        attrs = ATTRS.get(title, {})
        rows.append((op, attrs, *find_kinds(op, attrs)))
    builder = Builder("+".join(titles))
    value = builder.first
    for op, attrs, kinds, made in itertools.islice(itertools.cycle(rows), nodes):
        inputs = [builder.cast(value, kind) for kind in kinds]
        value = builder.add(op.name, *inputs, domain=op.domain, kind=made, **attrs)
    return builder.finish(value)


def make_dense(layers: int, join: Callable[[Builder, list[str]], str]) -> Graph:
    """Return layers, each with the join of the values of all earlier ones as its input."""
    builder = Builder("dense")
    values = [builder.first]
    for _ in range(layers):
        total = join(builder, values) if len(values) > 1 else values[0]
        values.append(builder.add("Tanh", total))
    return builder.finish(values[-1])


def sum_of(builder: Builder, values: list[str]) -> str:
    """Return one Sum of all values."""
    return builder.add("Sum", *values)


def add_all(builder: Builder, values: list[str]) -> str:
    """Return the sum of all values by one Add after the other."""
    total = values[0]
    for value in values[1:]:
        total = builder.add("Add", total, value)
    return total


def concatenate_all(builder: Builder, values: list[str]) -> str:
    """Return the mean of the concatenation of all values along a new axis."""
    parts = [builder.add("Unsqueeze", value, "axis") for value in values]
    whole = builder.add("Concat", *parts, axis=0)
    return builder.add("ReduceMean", whole, "axis", keepdims=0)


def make_fan_out(nodes: int) -> Graph:
    """Return one value that all nodes read, and the sum of their results."""
    builder = Builder("fan-out")
    source = builder.add("Relu", builder.first)
    return builder.finish(builder.add("Sum", *(builder.add("Tanh", source) for _ in range(nodes))))


MIX = ("Relu", "Mul", "LeakyRelu", "Tanh", "Add", "Sigmoid", "Abs", "Sub", "Neg")


def make_graph(name: str, nodes: int, layers: int) -> Graph:
    """Return the graph of a row."""
    match name:
        case "mix":
            return chain(MIX, nodes)
        case "every op":
            return chain([title for title in list_elementwise() if title != "Pow"], nodes)
        case "dense, Sum":
            return make_dense(layers, sum_of)
        case "dense, Add":
            return make_dense(layers, add_all)
        case "dense, Concat":
            return make_dense(layers, concatenate_all)
        case "fan-out":
            return make_fan_out(nodes)
    return chain([name], nodes)


GRAPHS = ("mix", "every op", "dense, Sum", "dense, Add", "dense, Concat", "fan-out")


def count_figures(plan: Plan) -> tuple[int, int, int]:
    """Return its steps, its kernels, and the terms of all their formulas."""
    programs = [Program.of(str(k.params[0])) for k in plan.specs if k.template == "map"]
    return len(plan.steps), len(plan.specs), sum(len(p.formulas.terms) for p in programs)


def plan_network(model: Path, state: CheckpointState) -> Plan:
    """Return the plan of a model whose parameters are in a state."""
    return Model(model, state, Memory(), 2, model.stem, detect_host()).plan({"x": SHAPE})


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for the plan of a graph, and for the plans of the models that train it."""
    graph, target = make_graph(name, options.nodes, options.layers), detect_host()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / "forward.onnx"
        onnx_io.save(graph, path)
        plan, took = time_process(
            lambda: make_plan(onnx_io.load(path), {}, target=target, threads=2)
        )
        yield "plan", len(graph.nodes), took, *count_figures(plan)
        try:
            _, took = time_process(
                lambda: artifacts.generate_artifacts(path, ["w"], [], artifact_directory=folder)
            )
        except EngineError:  # no gradient flows through these ops
            return
        yield "artifacts", len(graph.nodes), took, None, None, None
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        for kind in ("training", "eval"):
            made, took = time_process(partial(plan_network, folder / f"{kind}_model.onnx", state))
            yield kind, None, took, *count_figures(made)


MODELS: dict[str, tuple[Callable[[], Graph], tuple[int, ...]]] = {  # shape of the input
    "mlp": (build_mlp, (64, 784)),
    "mobilenet": (build_mobilenet_v2, (8, 3, 224, 224)),
    "minilm": (build_minilm, (8, 128)),
}
REPEATS = 5


def plan_further(model: Model, shape: Sequence[int]) -> Plan:
    """Return the plan of a training model for one shape of its first input; its labels follow."""
    x, labels = model.inputs
    return model.plan({x: tuple(shape), labels: tuple(shape[:1])})


def decode_plan(data: bytes) -> Plan:
    """Return the plan of a plan file, not verified."""
    (plan,) = plan_file.PlanReader(plan_file.Tables(data)).read_plans()
    return plan


def measure_model(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a model; compiles what is not cached yet."""
    graph, shape = MODELS[name]
    batch, *rest = shape
    times: dict[str, list[float]] = {}

    def note_time(what: str, run: Callable[[], Any]) -> Any:
        made, seconds = time_process(run)
        times.setdefault(what, []).append(1e3 * seconds)
        return made

    with tempfile.TemporaryDirectory() as folder:
        write_artifacts(graph(), Path(folder))
        state = CheckpointState.load_checkpoint(Path(folder) / "checkpoint")
        path = Path(folder) / "training_model.onnx"
        for _turn in range(REPEATS):
            model = Model(path, state, Memory(), 2, "training model", detect_host())
            plan = note_time("first", partial(plan_further, model, shape))
            note_time("half", partial(plan_further, model, (batch // 2, *rest)))
            note_time("double", partial(plan_further, model, (2 * batch, *rest)))
            data = plan_file.to_bytes([plan], plan.target)
            note_time("verify", partial(verify, note_time("decode", partial(decode_plan, data))))
            regions = {region: allocate(size, zero=False) for region, size in plan.regions}
            get_addresses((LAUNCH, WORKER, *plan.kernels))  # compiled before it is timed
            note_time("bind", partial(Bound, plan, get_addresses, regions))
    medians = {what: statistics.median(values) for what, values in times.items()}
    ratios = (medians[what] / medians["first"] for what in ("half", "double"))
    yield *(medians[what] for what in STAGES), *ratios


STAGES = ("first", "half", "double", "decode", "verify", "bind")
BENCHES = (
    Bench(
        "planning",
        "the time of planning long and wide graphs: 10,000 nodes of every elementwise op, mixes",
        lambda: {name: name for name in [*list_elementwise(), *GRAPHS]},
        ("what", "nodes", "s:.2f", "steps", "kernels", "terms"),
        measure,
        options=(
            Option("nodes", 10_000, "of a chain"),
            Option("layers", 200, "of a dense graph"),
        ),
        small="Relu --nodes 10",
    ),
    Bench(
        "planning.models",
        "the time of planning models, of other shapes, of reading, verifying and binding plans",
        {name: name for name in MODELS},
        (*(f"{stage} ms:.1f" for stage in STAGES), "half / first:.2f", "double / first:.2f"),
        measure_model,
        small="mlp",
    ),
)
