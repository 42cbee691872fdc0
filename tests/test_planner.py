"""A planner plans further shapes from what it knows; its plans are those made from nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError
from engine.graphs.ir.graph import Graph
from engine.graphs.passes.infer import bind
from engine.graphs.planner.pipeline import Planner, make_plan
from engine.kernels.target import make
from engine.runtime.plan import Plan
from tests.harness import OneNode, all_cases

GOLDENS = Path(__file__).parent / "data" / "goldens"
TARGET = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")

Shapes = Mapping[str, tuple[int, ...]]


def outcome(plan: Plan | EngineError) -> str:
    """The text of a plan with its constants, or of an error."""
    if isinstance(plan, Plan):
        return f"{plan}\n{plan.constants}"
    return f"{type(plan).__name__}: {plan}"


def known(planner: Planner, shapes: Shapes) -> str:
    """What a planner makes of shapes."""
    try:
        return outcome(planner.plan(shapes))
    except EngineError as error:
        return outcome(error)


def anew(graph: Graph, shapes: Shapes) -> str:
    """What is made of a graph whose dimensions are these numbers, so that it has no sizes."""
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


ROWS = [(c.id, *symbolic(OneNode(c).graph)) for c in all_cases()]
ROWS = [row for row in ROWS if row[2]]


@pytest.mark.parametrize(
    ("graph", "sizes"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_plans_of_case_rows_are_those_made_from_nothing(
    graph: Graph, sizes: Mapping[str, int]
) -> None:
    planner = Planner(graph, target=TARGET, threads=2)
    for given in variants(sizes, np.random.default_rng(0)):
        shapes = shapes_of(graph, given)
        assert known(planner, shapes) == anew(graph, shapes), shapes
