"""Constants computed while planning equal the results of kernels for the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from engine.tools.dev.case_graphs import OneNode, list_cases
from engine.tools.dev.cases.case import Case
from tests.support.harness import run

MOST = 1 << 12  # elements of an input
# What onnx's reference gets wrong, or not as kernels do: L1 norms without absolute values,
# axes as of later opsets, shapes of pools, windows of LRN, groups of transposed convolutions,
# logarithms of sums of integers.
WRONG = ("LpNormalization", "Softmax", "LogSoftmax", "Hardmax", "LRN", "GlobalMaxPool", "MaxPool",
         "AveragePool", "LpPool", "ConvTranspose", "ReduceLogSum", "ReduceLogSumExp",
         "Scatter")  # fmt: skip


def small(case: Case) -> bool:
    """Return whether a row can be computed in no time."""
    return all(np.prod(getattr(given, "shape", ())) <= MOST for given in case.ins)


def by_reference() -> list[Any]:
    """The rows of all ops whose constants onnx's reference computes."""
    cases = [c for c in list_cases() if (c.domain, c.op) in list_ops()]
    rows = [c for c in cases if list_ops()[c.domain, c.op].by_reference and small(c)]
    return [pytest.param(case, id=case.id) for case in rows]


def constant(case: Case) -> tuple[OneNode, Graph]:
    """Return a row, and its graph with constants instead of inputs."""
    one = OneNode(case)
    graph = one.graph.copy()
    graph.inputs = {}
    graph.initializers.update(one.inputs)
    return one, graph


@pytest.mark.parametrize("case", by_reference())
def test_what_the_reference_computes_is_what_kernels_compute(case: Case) -> None:
    one, graph = constant(case)
    folded = infer(graph).constants
    made = run(one.graph, one.inputs, closed=True)
    for name, y in made.items():
        if name not in folded:  # the reference cannot compute it
            continue
        assert folded[name].dtype == y.dtype
        np.testing.assert_allclose(folded[name], y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", WRONG)
def test_constants_that_the_reference_gets_wrong_are_left_to_kernels(op: str) -> None:
    """An L1 norm of constants was 133 off, a MaxPool had another shape, in silence."""
    for case in (c for c in list_cases() if c.op == op and not c.domain and small(c)):
        one, graph = constant(case)
        made = run(one.graph, one.inputs, closed=True)
        for name, y in run(graph, {}, closed=True).items():
            assert y.shape == made[name].shape, case.id
            np.testing.assert_allclose(y, made[name], rtol=2e-5, atol=2e-5, err_msg=case.id)
