"""Long chains and wide graphs: the work of planning grows with the graph, and nothing recurses."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest

from bench.planning import GRAPHS, list_elementwise, make_graph
from engine.errors import ShapeError
from engine.graphs.io import onnx_io, schemas
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.passes import check, infer
from engine.graphs.passes.fuse import MAX_COST, MAX_OPERANDS
from engine.graphs.passes.infer import bind
from engine.graphs.passes.pipeline import PASSES
from engine.graphs.planner import place
from engine.graphs.planner.lifetimes import MemoryBlock, compute_liveness_bound
from engine.graphs.planner.planner import make_plan
from engine.kernels.loops import map as map_
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.elementwise import WIDE
from engine.kernels.ops.movement import _walk
from engine.kernels.vocabulary.expression import FUNCTIONS, parse
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.vocabulary.row_program import Program
from engine.kernels.vocabulary.terms import Formulas, TermWriter
from engine.plan.plan import Plan
from tests.support.harness import run

TELLING = ("Relu", "LeakyRelu", "Mul", "Tanh", "Softsign", "Where", "Less", "Cast", "Clip")


class Counter:
    """Counts the terms that all writers of formulas take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.terms = 0
        put = TermWriter.put

        def counted(writer: TermWriter, *term: object) -> int:
            self.terms += 1
            return put(writer, *term)

        monkeypatch.setattr(TermWriter, "put", counted)

    def of(self, name: str, nodes: int, layers: int = 1) -> tuple[Plan, int]:
        """The plan of a graph, and the terms that were written for it."""
        graph, before = make_graph(name, nodes, layers), self.terms
        plan = make_plan(graph, {}, target=detect_host(), threads=2)
        return plan, self.terms - before


@contextmanager
def shallow(frames: int) -> Iterator[None]:
    """A stack that has room for this many frames more and no others."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def programs(plan: Plan) -> list[Program]:
    """Return the programs of the maps of a plan, each kernel once."""
    return [Program.of(str(k.params[0])) for k in plan.specs if k.template == "map"]


@pytest.mark.parametrize("name", [*TELLING, "mix"])
def test_the_formulas_of_a_chain_grow_with_its_length(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter(monkeypatch)
    counter.of(name, 10)  # what is made once
    (short, few), (long, many) = counter.of(name, 400), counter.of(name, 800)
    assert many < 2.2 * few
    assert len(long.steps) < 2.2 * len(short.steps)
    assert len(long.specs) <= len(short.specs) + 2


@pytest.mark.parametrize("name", [*list_elementwise(), "mix"])
def test_a_fused_kernel_is_bounded(name: str) -> None:
    plan = make_plan(make_graph(name, 300, 1), {}, target=detect_host(), threads=2)
    own = max(f.cost for f in FUNCTIONS.values())
    for program in programs(plan):
        assert program.formulas.estimate_cost() <= max(MAX_COST, 2 * own)
        assert len(program.ins) <= MAX_OPERANDS
    assert len(programs(plan)) < 12


@pytest.mark.parametrize("name", [n for n in GRAPHS if n.startswith("dense")])
def test_dense_layers_share_few_kernels(name: str) -> None:
    """Each layer reads all earlier ones: the kernels are of few sizes, not one for each layer."""
    plan = make_plan(make_graph(name, 0, 60), {}, target=detect_host(), threads=2)
    assert max(len(program.ins) for program in programs(plan)) <= WIDE
    assert len(programs(plan)) < 60


def test_nothing_recurses_with_the_length_of_a_chain() -> None:
    """Neither a chain of nodes nor one node of many inputs; 150 frames are for the planner."""
    for name in ("Relu", "Mul", "fan-out"):
        graph = make_graph(name, 2000, 1)
        with shallow(150):
            make_plan(graph, {}, target=detect_host(), threads=2)


def test_the_text_of_formulas_names_what_is_shared_and_what_is_deep() -> None:
    """A text is as long as the terms, and Python's parser takes it however deep they are."""
    e = ("in", 0)
    for _ in range(2000):
        e = ("mul", e, e)  # type: ignore[assignment]  # it grows
    deep = Formulas.of(e)
    assert len(deep.terms) == 2001
    for _ in range(500):
        e = ("tanh", e)  # type: ignore[assignment]  # it grows
    program = Program((), Formulas.of(e))
    assert len(program.formulas.terms) == 2501
    shared, (text,) = program.formulas.write_texts()
    assert len("; ".join([*shared, text])) < 40 * len(program.formulas.terms)
    assert Formulas.of(parse("; ".join([*shared, text]), ("a",))) == program.formulas


def test_constants_that_python_calls_equal_are_told_apart() -> None:
    """0.0 and -0.0 are two constants: 1 / x has another sign at each."""
    made = Formulas.of(("div", ("in", 0), ("const", 0.0)), ("div", ("in", 0), ("const", -0.0)))
    assert made.results[0] != made.results[1]
    np.testing.assert_array_equal(made.evaluate([np.ones(1)]), [[np.inf], [-np.inf]])


def test_a_chain_computes_what_its_nodes_do() -> None:
    """Longer than one kernel, and of every op that doubled formulas: Relu, Mul(x, x), LeakyRelu."""
    nodes, value = [], "x"
    for i in range(120):
        inputs = (value, value) if i % 3 == 1 else (value,)
        op = ("Relu", "Mul", "LeakyRelu")[i % 3]
        nodes.append(Node(op, inputs, (f"a{i}",), {}, "", f"a{i}"))
        nodes.append(Node("Sub", (f"a{i}", "half"), (f"b{i}",), {}, "", f"b{i}"))
        value = f"b{i}"
    half = np.array(0.5, np.float32)
    graph = Graph("g", {"x": TensorType("f32", (3, 50))}, [value], {"half": half}, nodes, {"": 17})
    x = np.linspace(-1.5, 1.5, 150, dtype=np.float32).reshape(3, 50)
    want = x
    for i in range(120):
        want = (np.maximum(want, 0), want * want, np.where(want < 0, 0.01 * want, want))[i % 3]
        want = (want - half).astype(np.float32)
    np.testing.assert_allclose(run(graph, {"x": x})[value], want, rtol=1e-4, atol=1e-5)


def test_names_are_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is taken many times is not looked for from 1 each time."""
    graph = Graph("g", {"x": TensorType("f32", (1,))}, [], {}, [], {})
    names, looked = Names(graph), 0

    class Taken(set[str]):
        def __contains__(self, name: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(name)

    names.taken = Taken(names.taken)
    assert [names.take_fresh("x") for _ in range(500)][-1] == "x_500"
    assert looked < 3 * 500


def test_nodes_in_reverse_are_sorted_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that stands backwards was walked once for each node."""
    chain = [Node("Relu", (f"v{i}",), (f"v{i + 1}",), {}, "", f"n{i}") for i in range(300)]
    graph = Graph("g", {"v0": TensorType("f32", (1,))}, ["v300"], {}, chain[::-1], {})
    read, reads = 0, Node.list_reads

    def counted(node: Node) -> tuple[str, ...]:
        nonlocal read
        read += 1
        return reads(node)

    monkeypatch.setattr(Node, "list_reads", counted)
    assert graph.sort().nodes == chain
    assert read <= 2 * 300


def test_a_model_in_order_is_walked_once_to_be_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file was sorted by counting what each node waits for, though most are in order."""
    chain = [Node("Relu", (f"v{i}",), (f"v{i + 1}",), {}, "", f"n{i}") for i in range(300)]
    graph = Graph("g", {"v0": TensorType("f32", (1,))}, ["v300"], {}, list(chain), {})
    read, reads = 0, Node.list_reads

    def counted(node: Node) -> tuple[str, ...]:
        nonlocal read
        read += 1
        return reads(node)

    monkeypatch.setattr(Node, "list_reads", counted)
    assert graph.sort().nodes == chain
    assert read == 300


def test_a_schema_is_looked_up_once_and_not_asked_of_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked, and its attributes listed, for every node of a file."""
    model = onnx_io.to_bytes(make_graph("mix", 300, 1))
    parsed: list[str] = []
    parse_line = schemas.Schema.parse

    def counted(line: str) -> schemas.Schema:
        parsed.append(line)
        return parse_line(line)

    monkeypatch.setattr(onnx.defs, "get_schema", None)
    monkeypatch.setattr(schemas.Schema, "parse", counted)
    schemas.find_schema.cache_clear()
    onnx_io.load(model)
    assert 0 < len(parsed) < 30


@pytest.mark.parametrize("backwards", [False, True])
def test_blocks_placed_in_time_do_not_meet(backwards: bool) -> None:
    rng = np.random.default_rng(0)
    births = rng.integers(0, 60, 200)
    blocks = [
        MemoryBlock([str(i)], 32 * int(rng.integers(0, 9)), int(b), int(b + rng.integers(0, 12)))
        for i, b in enumerate(births)
    ]
    top, offsets = place._fit_in_time(blocks, backwards)
    assert compute_liveness_bound(blocks) <= top <= 1.5 * compute_liveness_bound(blocks)
    placed = list(zip(blocks, offsets, strict=True))
    for i, (a, begin) in enumerate(placed):
        assert begin + a.nbytes <= top
        for b, other in placed[:i]:
            apart = a.last < b.first or b.last < a.first
            below = begin + a.nbytes <= other or other + b.nbytes <= begin
            assert apart or below or 0 in (a.nbytes, b.nbytes)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_after_planning_as_before(
    monkeypatch: pytest.MonkeyPatch,
    enabled: bool,
) -> None:
    graph = make_graph("Relu", 3, 1)
    inside = []

    def watched(*args: Any, **more: Any) -> Graph:
        inside.append(gc.isenabled())
        return bind(*args, **more)

    monkeypatch.setattr("engine.graphs.planner.planner.bind", watched)
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        make_plan(graph, {}, target=detect_host(), threads=1)
        assert gc.isenabled() == enabled
        with pytest.raises(ShapeError):
            make_plan(
                graph, {next(iter(graph.inputs)): (2, 2, 2, 2)}, target=detect_host(), threads=1
            )
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert not any(inside)


class Asked:
    """Counts the nodes whose shape rule is asked, by inference and by the checks between passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = 0
        for module in (infer, check):
            self.count(monkeypatch, module)

    def count(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        make_site = module.make_site

        def counted(*args: Any) -> Any:
            self.nodes += 1
            return make_site(*args)

        monkeypatch.setattr(module, "make_site", counted)

    def of(self, graph: Graph) -> int:
        """Count the nodes that are asked for the plan of a graph."""
        before = self.nodes
        make_plan(graph, {}, target=detect_host(), threads=2)
        return self.nodes - before


@pytest.mark.parametrize("name", ["Relu", "LeakyRelu", "Mul", "Clip", "mix", "fan-out"])
def test_of_nodes_that_are_alike_one_is_asked_for_its_types(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node was asked three times: when it was inferred, checked, and fused."""
    asked = Asked(monkeypatch)
    few, many = (asked.of(make_graph(name, nodes, 1)) for nodes in (180, 360))
    assert many <= few + 2 < 60  # the rest of a chain may be a smaller map


def test_an_expansion_asks_its_own_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole graph was inferred again for each depth of expansions."""

    def graph(count: int) -> Graph:
        """Return values of `count` different shapes, followed by an op that expands."""
        held = {"pads": np.array([0, 0, 0, 0, 0, 0, 1, 0], np.int64)}
        nodes, value = [], "x"
        for i in range(count):
            nodes.append(Node("Pad", (value, "pads"), (f"a{i}",), {}, "", f"pad{i}"))
            value = f"a{i}"
        nodes.append(Node("DepthToSpace", (value,), ("y",), {"blocksize": 2}, "", "expands"))
        types = {"x": TensorType("f32", (1, 8, 2, 3))}
        return Graph("g", types, ["y"], held, nodes, {"": 17})

    asked = Asked(monkeypatch)
    few, many = asked.of(graph(8)), asked.of(graph(28))
    assert many - few == 20


def test_names_and_order_are_checked_where_a_pass_has_changed_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A walk over all nodes followed each of the eighteen passes; one checks what was given."""
    walks, walk = 0, Graph.check

    def counted(graph: Graph) -> Graph:
        nonlocal walks
        walks += 1
        return walk(graph)

    monkeypatch.setattr(Graph, "check", counted)
    node = Node("MatMul", ("x", "x"), ("y",), {}, "", "product")
    types = {"x": TensorType("f32", (4, 4))}
    make_plan(Graph("g", types, ["y"], {}, [node], {"": 17}), {}, target=detect_host(), threads=1)
    untyped = [step.name for step in PASSES].index("infer")
    assert walks <= untyped + 2


@pytest.mark.parametrize(
    ("name", "made"), [("Elu", map_._call_of), ("fan-out", map_._call_of), ("copies", _walk)]
)
def test_calls_that_are_alike_are_made_once(
    name: str, made: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every map had its formula printed, and every map and copy its dimensions joined."""
    count = 0

    def counted(*args: Any) -> object:
        nonlocal count
        count += 1
        return made(*args)

    def of(nodes: int) -> int:
        """Count the calls that are made for the plan of a graph."""
        nonlocal count
        count = 0
        graph = transposes(nodes) if name == "copies" else make_graph(name, nodes, 1)
        make_plan(graph, {}, target=detect_host(), threads=2)
        return count

    monkeypatch.setattr(sys.modules[made.__module__], made.__name__, counted)
    few, many = of(150), of(300)
    assert 0 < few < 30
    assert many <= few + 2


def transposes(count: int) -> Graph:
    """Transposes of values that have other readers, so that each is a copy."""
    nodes, value = [], "x"
    for i in range(count):
        nodes.append(Node("Transpose", (value,), (f"t{i}",), {}, "", f"transpose{i}"))
        nodes.append(Node("Softmax", (f"t{i}",), (f"v{i}",), {}, "", f"softmax{i}"))
        value = f"v{i}"
    return Graph("g", {"x": TensorType("f32", (8, 8))}, [value], {}, nodes, {"": 17})


PLAN = """
from engine.kernels.machine.target import make
from engine.graphs.passes.pipeline import PASSES
from engine.graphs.planner.planner import make_plan
from engine.tools.dev.case_graphs import OneNode, list_cases
target = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")
for case in list_cases():
    if case.op in ("TopK", "LayerNormalization"):
        print(make_plan(OneNode(case).graph, {}, target=target, threads=2))
"""


def test_every_process_makes_the_same_plan() -> None:
    """Two values that one call touches were placed in the order of their hashes."""

    def plans(seed: int) -> str:
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = [sys.executable, "-c", PLAN]
        return subprocess.run(done, env=env, check=True, capture_output=True, text=True).stdout

    first = plans(1)
    assert "topk" in first
    assert all(plans(seed) == first for seed in (2, 3))
