"""Every case row forward, against onnx.reference in float64, for one and several threads."""

from __future__ import annotations

import numpy as np
import pytest

from engine.tools.dev.case_graphs import OneNode, list_cases
from engine.tools.dev.cases.case import Case
from tests.support.harness import compute_reference, run


@pytest.mark.parametrize("case", list_cases(), ids=lambda c: c.id)
@pytest.mark.parametrize("threads", [1, 3])
def test_forward(case: Case, threads: int) -> None:
    one = OneNode(case)
    outcome = run(one.graph, one.inputs, threads=threads)
    for name, expected in zip(one.outputs, compute_reference(one), strict=True):
        got, want = outcome[name], np.asarray(expected)
        assert got.shape == want.shape
        if got.dtype.kind == "f":
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            np.testing.assert_allclose(got, want, rtol=0, atol=case.tol * scale, equal_nan=True)
        else:
            np.testing.assert_array_equal(got, want)
