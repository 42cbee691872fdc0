"""Every kernel: the largest case row that calls it, and the rows marked `bench`, alone.

Forward, and forward with backward where the row has a gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.runtime.arena import allocate
from engine.runtime.program import Program
from engine.tools.dev.case_graphs import OneNode, all_cases, backward_of, largest_rows
from engine.tools.dev.cases.case import Case

_MARKED = [c for c in all_cases() if c.bench]
ROWS = list({c.id: c for c in (*_MARKED, *largest_rows().values())}.values())


def load(graph: Graph, inputs: dict[str, np.ndarray]) -> Program:
    """A bound single-thread program with its inputs in place."""
    plan = make_plan(graph, {n: a.shape for n, a in inputs.items()}, target=host(), threads=1)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    for name, array in inputs.items():
        np.copyto(program.inputs[name], array)
    return program


@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.id)
def bench_forward(benchmark: Any, case: Case) -> None:
    one = OneNode(case)
    benchmark(load(one.graph, one.inputs).run)


@pytest.mark.parametrize("case", [c for c in ROWS if c.grad], ids=lambda c: c.id)
def bench_forward_and_backward(benchmark: Any, case: Case) -> None:
    one = OneNode(case)
    graph, _ = backward_of(one)
    benchmark(load(graph, one.inputs).run)
