"""The case rows marked `bench` under pytest-benchmark, which keeps runs and compares them.

    python -m pytest bench/bench_cases.py --benchmark-autosave     # before a change
    python -m pytest bench/bench_cases.py --benchmark-compare      # after it

`python -m bench cases` measures the same rows, and the largest row of every kernel, as a table.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench.programs import load
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case

ROWS = [case for case in list_cases() if case.bench]


@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.id)
def bench_forward(benchmark: Any, case: Case) -> None:
    one = OneNode(case)
    benchmark(load(one.graph, inputs=one.inputs).run)


@pytest.mark.parametrize("case", [c for c in ROWS if c.grad], ids=lambda c: c.id)
def bench_forward_and_backward(benchmark: Any, case: Case) -> None:
    one = OneNode(case)
    benchmark(load(backward_of(one)[0], inputs=one.inputs).run)
