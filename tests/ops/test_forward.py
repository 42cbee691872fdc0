"""Every case row forward, against onnx.reference in float64, for one and several threads."""

from __future__ import annotations

import numpy as np
import pytest

from engine.tools.dev.case_graphs import OneNode, list_cases
from engine.tools.dev.cases.case import Case
from tests.support.harness import compute_reference, run


@pytest.mark.parametrize("case", list_cases(), ids=lambda c: c.id)
def test_forward(case: Case) -> None:
    one = OneNode(case)
    references = [np.asarray(values) for values in compute_reference(one)]
    for threads in (1, 3):
        outcome = run(one.graph, one.inputs, threads=threads)
        place = f"with {threads} threads"
        for name, want in zip(one.outputs, references, strict=True):
            got = outcome[name]
            assert got.shape == want.shape, place
            if got.dtype.kind == "f":
                scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
                np.testing.assert_allclose(
                    got, want, rtol=0, atol=case.tol * scale, equal_nan=True, err_msg=place
                )
            else:
                np.testing.assert_array_equal(got, want, err_msg=place)
