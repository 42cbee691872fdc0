"""Kernels that a small library has in the place of others make the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_templates
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case
from engine.tools.trimmed.plans import use_small_kernels
from tests.support.harness import execute
from tests.support.targets import list_runnable

SMALLER = {name for name, template in list_templates().items() if template.smaller}


def list_graphs(case: Case) -> Iterator[Graph]:
    """Yield the graph of a case row, and the graph of its gradients if it has some."""
    one = OneNode(case)
    yield one.graph
    if case.grad:
        yield backward_of(one)[0]


@pytest.mark.parametrize(("threads", "plainest"), [(1, False), (3, True)])
def test_bits_are_equal(threads: int, plainest: bool) -> None:
    met = set()
    target = [*list_runnable().values()][-1] if plainest else detect_host()
    for case in list_cases():
        if case.op not in ("Conv", "ConvTranspose"):
            continue
        inputs = OneNode(case).inputs
        shapes = {name: a.shape for name, a in inputs.items()}
        for graph in list_graphs(case):
            plan = make_plan(graph, shapes, target=target, threads=threads)
            small = use_small_kernels(plan)
            if small.specs == plan.specs:
                continue
            met |= {spec for spec in plan.specs if spec not in small.specs}
            made = execute(small, inputs, target=target)
            for name, expected in execute(plan, inputs, target=target).items():
                np.testing.assert_array_equal(made[name], expected, f"{case.id}, {name}")
    assert {spec.template for spec in met} == SMALLER
    assert len({spec.params for spec in met if spec.template == "depthwise"}) > 4
