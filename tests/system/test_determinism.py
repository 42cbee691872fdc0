"""Sums by index are the same bits whatever the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases import cumulative, gather, scatter
from engine.tools.dev.cases.case import Case
from tests.support.harness import run

ADDING = {"ScatterElements", "ScatterND", "GatherGrad", "GatherElementsGrad", "GatherNDGrad"}
ROWS = [c for c in (*gather.CASES, *scatter.CASES) if c.op in ADDING]


@pytest.mark.parametrize("case", [*ROWS, *cumulative.CASES], ids=lambda c: c.id)
def test_threads_do_not_change_a_bit(case: Case) -> None:
    one = OneNode(case)
    alone = run(one.graph, one.inputs, threads=1)
    for threads in (2, 5):
        together = run(one.graph, one.inputs, threads=threads)
        for name, y in alone.items():
            np.testing.assert_array_equal(together[name], y)
