"""Planning is near-linear: graphs of four times the nodes take about four times the work.

Work is counted, not time: executed lines of Python, and comparisons of names, because a search in a
list makes many that are not lines of ours.  `python -m bench growth` has the times of larger
graphs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

import pytest

from bench import budgets, deep
from bench.growth import SHAPES, measure_stages
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.offline.training import choose, make_artifacts
from engine.graphs.planner import budget, place, search
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.models.post_norm import build_minilm
from engine.tools.benchmark.workload import Workload

FEW, TIMES, MOST = 84, 4, 4.6  # nodes; how many times as many; by how much work may grow then
NOTABLE = 1000  # lines of a function below which its growth means nothing


def lines(name: str, nodes: int) -> Counter[CodeType]:
    """Of each function the lines that are executed, each round of a comprehension as one.

    It is for all from a forward graph to the plan, read from a file again, as a program.
    """
    count: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            count[frame.f_code] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        measure_stages(name, nodes)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", ["mlp", "concat", "outputs"])
def test_four_times_the_nodes_execute_about_four_times_the_lines(name: str) -> None:
    """In every function, except for tries to place blocks, whose work has a limit in all."""
    measure_stages(name, FEW)  # what is made once
    few, many = (lines(name, nodes) for nodes in (FEW, TIMES * FEW))
    assert many.total() < MOST * few.total()
    steep = [f for f, n in many.items() if n > NOTABLE and n > MOST * few[f]]
    assert [f for f in steep if f.co_filename != place.__file__] == []


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_the_search_for_a_budget_keeps_to_its_bound(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ways to save memory are evaluated up to a number for each call, so linearly in the calls."""
    efforts = list[search.Effort]()

    class Seen(search.Effort):
        def __init__(self, calls: int) -> None:
            super().__init__(calls)
            efforts.append(self)

    monkeypatch.setattr(budget, "Effort", Seen)
    monkeypatch.setattr(search, "WAYS", 4)
    for nodes in (FEW, TIMES * FEW):
        measure_stages(name, nodes, least=True)
    few, many = efforts
    assert 0 < few.ways <= few.most
    assert few.ways < many.ways <= many.most
    assert many.ways <= TIMES**1.4 * few.ways  # 1.36 of the MLP, whose products are of few rows


def test_ways_grow_about_as_the_layers_of_a_network_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the bound: what is tried for a choice does not go with how much was chosen."""
    monkeypatch.setattr(search, "WAYS", 1 << 20)
    actual = []
    for layers in (6, 12):
        graph = partial(build_minilm, words=100, layers=layers)
        one = Workload(f"encoder{layers}", (8, 128), graph, words=100)
        monkeypatch.setitem(deep.MODELS, one.name, one)
        (tmp_path / one.name).mkdir()
        trained = budgets.Trained(one.name, tmp_path / one.name)
        actual.append((len(trained.free.steps), trained.plan(trained.least).searched[0]))
    (few, ways), (many, more) = actual
    assert many > 1.9 * few
    assert ways < more <= (many / few) ** 1.3 * ways


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def with_counted_names(graph: Graph) -> Graph:
    """The graph with names that count."""
    known: dict[str, Counted] = {}

    def of(name: str) -> str:
        return known.setdefault(name, Counted(name)) if name else name

    return replace(
        graph,
        inputs={of(n): t for n, t in graph.inputs.items()},
        outputs=[of(n) for n in graph.outputs],
        initializers={of(n): a for n, a in graph.initializers.items()},
        nodes=[
            replace(node, inputs=tuple(map(of, node.inputs)), outputs=tuple(map(of, node.outputs)))
            for node in graph.nodes
        ],
        types={of(n): t for n, t in graph.types.items()},
    )


def compared(name: str, nodes: int) -> int:
    """Return how often names are compared for a graph's artifacts, and for the plan of its
    training.
    """
    make, trains = SHAPES[name]
    graph = with_counted_names(make(nodes))
    begin = Counted.compared
    if trains:
        graph.nodes.append(Node("ReduceMean", ("scores",), ("mean",), {"keepdims": 0}, "", "mean"))
        chosen = choose(graph, list_parameters(graph), None)
        graph = make_artifacts(graph, chosen, lambda _: "mean", []).training
    shapes = {n: [d if isinstance(d, int) else 2 for d in t.shape] for n, t in graph.inputs.items()}
    make_plan(with_counted_names(graph), shapes, target=detect_host(), threads=2)
    return Counted.compared - begin


@pytest.mark.parametrize("name", ["mlp", "residual", "outputs", "concat", "loop"])
def test_names_are_not_searched_for_in_lists(name: str) -> None:
    """Lists were searched to see if a value is an output or trained, for every node."""
    few, many = (compared(name, nodes) for nodes in (FEW, TIMES * FEW))
    assert few < many < MOST * few
