"""A planner plans further shapes from what it knows; its plans are those made from nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from engine.api import CheckpointState
from engine.base.aliases import Shapes
from engine.base.plan_options import PlanOptions, Precision
from engine.errors import BudgetError, EngineError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.loss_scale import scale_loss
from engine.graphs.passes.infer import bind
from engine.graphs.planner.draft import Place
from engine.graphs.planner.memo import NodeMemo
from engine.graphs.planner.planner import GAIN, Planner, make_plan
from engine.kernels.analysis.cost import predict_steps
from engine.kernels.machine.target import Target, make
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import Plan
from engine.tools.dev.case_graphs import OneNode, list_cases
from engine.tools.dev.cases.case import Case
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.model_file import BUFFER, UPDATED
from tests.support.places import GOLDENS

TARGET = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")


def outcome(plan: Plan | EngineError) -> str:
    """The text of a plan with its constants, or of an error."""
    if isinstance(plan, Plan):
        return f"{plan}\n{plan.constants}"
    return f"{type(plan).__name__}: {plan}"


def known(planner: Planner, shapes: Shapes) -> str:
    """Return a planner's results for shapes."""
    try:
        return outcome(planner.plan(shapes))
    except EngineError as error:
        return outcome(error)


def anew(graph: Graph, shapes: Shapes) -> str:
    """Return the results for a graph whose dimensions are these numbers, so that it has no
    sizes.
    """
    try:
        return outcome(make_plan(bind(graph, shapes), {}, target=TARGET, threads=2))
    except EngineError as error:
        return outcome(error)


# --- the plans are the same


def symbolic(graph: Graph) -> tuple[Graph, dict[str, int]]:
    """The graph with a symbol for each size above 1 of its inputs, and the sizes."""
    sizes = {f"n{d}": d for t in graph.inputs.values() for d in t.dims if d > 1}
    out = graph.copy()
    for name, t in graph.inputs.items():
        out.inputs[name] = t.but([f"n{d}" if d > 1 else d for d in t.dims])
    return out, sizes


def variants(sizes: Mapping[str, int], rng: np.random.Generator) -> Iterator[dict[str, int]]:
    """Sizes to plan for, one after another."""
    yield dict(sizes)
    yield {name: 2 * n for name, n in sizes.items()}
    for step in (1, 3, 40):
        name = rng.choice(list(sizes))
        yield {**sizes, name: sizes[name] + step}
    yield {**sizes, rng.choice(list(sizes)): 1}
    yield dict(sizes)


def shapes_of(graph: Graph, sizes: Mapping[str, int]) -> Shapes:
    """The shapes of all inputs for sizes of their symbols."""
    return {
        name: tuple(sizes[d] if isinstance(d, str) else d for d in t.shape)
        for name, t in graph.inputs.items()
    }


ROWS = [(c.id, *symbolic(OneNode(c).graph)) for c in list_cases()]
ROWS = [row for row in ROWS if row[2]]


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        pytest.param(graph, sizes, id=name, marks=[pytest.mark.whole] if i % 4 else [])
        for i, (name, graph, sizes) in enumerate(ROWS)
    ],
)
def test_plans_of_case_rows_are_those_made_from_nothing(
    graph: Graph, sizes: Mapping[str, int]
) -> None:
    planner = Planner(graph, target=TARGET, threads=2)
    for given in variants(sizes, np.random.default_rng(0)):
        shapes = shapes_of(graph, given)
        assert known(planner, shapes) == anew(graph, shapes), shapes


def doubled(graph: Graph) -> Graph:
    """A graph, and a copy of it beside it that reads inputs of its own."""
    out = graph.copy()
    made = {o for node in graph.nodes for o in node.outputs} | set(graph.inputs)
    new = {name: f"{name}'" for name in made - {""}}
    out.inputs |= {new[name]: t for name, t in graph.inputs.items()}
    out.outputs += [new.get(name, name) for name in graph.outputs]
    for node in graph.copy().nodes:
        node.inputs = tuple(new.get(i, i) for i in node.inputs)
        node.outputs = tuple(new.get(o, o) for o in node.outputs)
        node.name += "'"
        out.nodes.append(node)
    return out


OF_EVERY_OP = {case.op: case for case in list_cases()}


@pytest.mark.parametrize("case", OF_EVERY_OP.values(), ids=OF_EVERY_OP)
def test_nodes_that_are_alike_become_what_each_would_alone(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = doubled(OneNode(case).graph)
    actual_known = known(Planner(graph, target=TARGET, threads=2), {})
    monkeypatch.setattr(NodeMemo, "make_key", lambda self, node, phase: None)
    assert actual_known == known(Planner(graph, target=TARGET, threads=2), {})


def test_of_nodes_that_are_alike_one_is_lowered() -> None:
    graph, places = golden("mlp")
    shapes = batch(graph, 4)
    regions = {"param": 1 << 24, "grad": 1 << 24}
    planner = Planner(graph, target=TARGET, threads=2, places=places, region_bytes=regions)
    _, _, alone = work(planner, shapes)
    both = doubled(graph)
    shapes = batch(both, 4)
    behind = {f"{n}'": Place(p.region, p.offset + (1 << 23)) for n, p in places.items()}
    places = {**places, **behind}
    planner = Planner(both, target=TARGET, threads=2, places=places, region_bytes=regions)
    _, _, twice = work(planner, shapes)
    assert twice <= alone + len(graph.outputs)  # whose copies are calls that belong to no node


# --- and cost less


def golden(case: str) -> tuple[Graph, Mapping[str, Place]]:
    """The training model of a golden, and where its parameters and gradients are."""
    folder = GOLDENS / case
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    graph, places = onnx_io.load(folder / "training_model.onnx"), {}
    for name in graph.inputs:
        owner = name.removesuffix(BUFFER)
        if owner in state.slots:
            region = "grad" if name.endswith(BUFFER) else "param"
            places[name] = Place(region, state.slots[owner].offset)
    graph.outputs = [o for o in graph.outputs if not o.endswith(UPDATED)]
    return graph, places


def batch(graph: Graph, n: int) -> Shapes:
    """The shapes of the inputs for a batch of n."""
    symbols = {d for t in graph.inputs.values() for d in t.shape if isinstance(d, str)}
    return shapes_of(graph, dict.fromkeys(symbols, n))


def work(planner: Planner, shapes: Shapes) -> tuple[Plan, int, int]:
    """The plan for shapes, how often the passes ran for it, and how many nodes were lowered."""
    passes, nodes = planner.passed, count_lowered(planner)
    plan = planner.plan(shapes)
    return plan, planner.passed - passes, count_lowered(planner) - nodes


def count_lowered(planner: Planner) -> int:
    return sum(recipe.made for known in planner._recipes.values() for _, recipe in known)


@pytest.mark.parametrize("case", ["mlp", "cnn", "bce", "regression_sgd"])
def test_a_further_batch_size_runs_no_pass(case: str) -> None:
    """No pass or rule runs, and the plan equals a new planner's."""
    graph, places = golden(case)
    regions = {"param": 1 << 30, "grad": 1 << 30}
    planner = Planner(graph, target=TARGET, threads=2, places=places, region_bytes=regions)
    _, passes, nodes = work(planner, batch(graph, 64))
    assert passes == 1
    assert nodes > 0
    for n in (65, 71, 64):
        plan, passes, nodes = work(planner, batch(graph, n))
        assert (passes, nodes) == (0, 0), n
        bound = bind(graph, batch(graph, n))
        fresh = Planner(bound, target=TARGET, threads=2, places=places, region_bytes=regions)
        assert str(plan) == str(fresh.plan({}))


def test_only_nodes_that_lower_otherwise_are_lowered_again() -> None:
    """The thousand rows of the second product take another split of the work; the rest stays."""
    graph, places = golden("cnn")
    regions = {"param": 1 << 30, "grad": 1 << 30}
    planner = Planner(graph, target=TARGET, threads=2, places=places, region_bytes=regions)
    _, _, every = work(planner, batch(graph, 128))
    _, passes, nodes = work(planner, batch(graph, 1000))
    assert passes == 0
    assert 0 < nodes < every / 2
    assert work(planner, batch(graph, 1000))[1:] == (0, 0)


def test_a_size_that_a_pass_asks_for_runs_the_passes_again() -> None:
    """A transposed row is the same bytes; no other transposed matrix is."""
    node = Node("Transpose", ("x",), ("y",), {"perm": [1, 0]}, name="t")
    graph = Graph("turn", {"x": TensorType("f32", ("n", 6))}, ["y"], {}, [node], {"": 17})
    planner = Planner(graph, target=TARGET, threads=2)
    for n, expected in ((4, 1), (1, 1), (5, 0), (1, 0)):
        plan, passes, _ = work(planner, {"x": (n, 6)})
        assert passes == expected, n
        assert outcome(plan) == anew(graph, {"x": (n, 6)})


def test_shapes_that_a_model_computes_do_not_fix_its_sizes() -> None:
    """Exporters reshape to the sizes of the input, by Shape, Gather, Mul, Concat."""
    nodes = [
        Node("Shape", ("x",), ("shape",), name="shape"),
        Node("Gather", ("shape", "zero"), ("n",), {"axis": 0}, name="n"),
        Node("Gather", ("shape", "one"), ("length",), {"axis": 0}, name="length"),
        Node("Mul", ("n", "length"), ("rows",), name="rows"),
        Node("Unsqueeze", ("rows", "axis"), ("rows1",), name="rows1"),
        Node("Concat", ("rows1", "rest"), ("to",), {"axis": 0}, name="to"),
        Node("Reshape", ("x", "to"), ("flat",), name="flat"),
        Node("Cast", ("rows",), ("count",), {"to": 1}, name="count"),
        Node("Div", ("flat", "count"), ("y",), name="y"),
    ]
    held = {
        "zero": np.array(0), "one": np.array(1), "axis": np.array([0]), "rest": np.array([-1]),
    }  # fmt: skip
    graph = Graph(
        "flatten", {"x": TensorType("f32", ("n", "length", 6))}, ["y"], held, nodes, {"": 17}
    )
    planner = Planner(graph, target=TARGET, threads=2)
    assert work(planner, {"x": (40, 50, 6)})[1] == 1
    for n, length in ((50, 70), (90, 40), (64, 33)):
        shapes = {"x": (n, length, 6)}
        plan, passes, lowered = work(planner, shapes)
        assert (passes, lowered) == (0, 0)
        assert outcome(plan) == anew(graph, shapes)


def test_models_keep_their_planner() -> None:
    """A session plans its second batch size by what it knows from the first."""
    state = CheckpointState.load_checkpoint(GOLDENS / "mlp" / "checkpoint")
    path = GOLDENS / "mlp" / "training_model.onnx"
    model = Model(path, state, Memory(), 2, "training model", TARGET)
    for n in (64, 65):
        model.plan({name: batch(model.graph, n)[name] for name in model.inputs})
    (planner,) = model._planners.made.values()
    assert planner.passed == 1


# --- the precision that is chosen


@pytest.mark.parametrize("case", ["mlp", "cnn", "transformer", "mobilenet", "lstm"])
@pytest.mark.parametrize("features", ["+avx512bf16", ""])
def test_what_auto_chooses_never_costs_more_than_float32(case: str, features: str) -> None:
    graph, _ = golden(case)
    target = make("x86_64-unknown-linux-gnu", "znver4", features, "avx512")
    assert bool(target.products) == bool(features)
    shapes = batch(graph, 8)

    def plan(precision: Precision) -> Plan:
        options = PlanOptions(precision=precision)
        return make_plan(graph, shapes, target=target, threads=1, options=options)

    chosen, single, half = plan("auto"), plan("f32"), plan("bf16")
    assert chosen in (single, half)
    price = sum(predict_steps(chosen))
    if features:
        prices = [sum(predict_steps(each)) for each in (single, half)]
        assert price == prices[prices[0] > GAIN * prices[1]]
        assert f"predicted {price * 1e3:.3g} ms; " in chosen.summary()
    else:
        assert chosen == single
        assert "precision f32, as the CPU has no products of 16 bits" in chosen.summary()


@pytest.mark.parametrize(
    ("target", "half", "told"),
    [
        (make("x86_64-unknown-linux-gnu", "znver4", "+avx512bf16", "avx512"), "bf16", ""),
        (
            make("x86_64-unknown-linux-gnu", "znver4", "+avx512bf16", "avx512"), "f16",
            "f16 in memory alone, as x86_64/znver4/v64 multiplies it in float32; products of f16 "
            "take fullfp16 on aarch64; auto chooses between f32 and bf16",
        ),
        (
            make("aarch64-unknown-linux-gnu", "cortex-a72", "", "neon"), "bf16",
            "bf16 in memory alone, as aarch64/cortex-a72/v16 multiplies it in float32; products of "
            "bf16 take avx512bf16 on x86_64 or bf16 on aarch64; auto takes f32, or bf16 where only "
            "that keeps to a budget",
        ),
    ],
)  # fmt: skip
def test_a_target_that_only_stores_a_type_is_told(
    target: Target, half: Precision, told: str
) -> None:
    graph, _ = golden("transformer")
    options = PlanOptions(precision=half)
    plan = make_plan(graph, batch(graph, 8), target=target, threads=1, options=options)
    assert plan.count_halves()
    assert plan.precision == told
    assert (f"precision {told}" in plan.summary()) == bool(told)


def test_auto_takes_float16_where_its_loss_is_scaled() -> None:
    graph, places = golden("cnn")
    target = make("aarch64-unknown-linux-gnu", "cortex-a76", "+fullfp16", "neon")
    shapes = batch(graph, 64)

    def plan(graph: Graph) -> Plan:
        options = PlanOptions(precision="auto")
        return make_plan(graph, shapes, target=target, threads=1, options=options)

    assert "precision f32, as float16 is taken only where the loss is scaled" in (
        plan(graph).summary()
    )
    buffers = [name for name in places if name.endswith(BUFFER)]
    chosen = plan(scale_loss(graph, graph.outputs[0], buffers))
    assert chosen.count_halves()
    assert "precision f16, predicted " in chosen.summary()


@pytest.mark.parametrize("features", ["+avx512bf16", ""])
def test_auto_takes_16_bits_where_they_are_faster_or_float32_does_not_fit(features: str) -> None:
    graph, _ = golden("transformer")
    target = make("x86_64-unknown-linux-gnu", "znver4", features, "avx512")
    automatic = PlanOptions(precision="auto")
    planner = Planner(graph, target=target, threads=1, options=automatic)
    shapes = batch(graph, 64)
    assert bool(planner.plan(shapes).count_halves()) == bool(features)
    planner.options = PlanOptions(budget=1)
    with pytest.raises(BudgetError) as of_float32:
        planner.plan(shapes)
    budget = of_float32.value.least - 1
    planner.options = replace(automatic, budget=budget)
    plan = planner.plan(shapes)
    assert plan.count_halves()
    assert plan.nbytes <= budget
    assert "precision bf16, predicted " in plan.summary()
    assert "no other can be planned here" in plan.summary()
    planner.options = replace(automatic, budget=1)
    with pytest.raises(BudgetError) as of_both:
        planner.plan(shapes)
    assert of_both.value.least < of_float32.value.least
