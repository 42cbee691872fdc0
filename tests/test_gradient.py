"""Every differentiable case row: one random direction, in float64, against central differences.

<grad, v> must equal d/de sum(u * y(x + e v)) at e = 0.  Source: the check_vjp of JAX.

Each row runs by closed plans, whose formulas are data for one kernel, so that nothing is compiled
for a row alone.  Open plans, which compile a kernel for every formula, run the first row of each
op.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cases.case import Case
from tests.harness import OneNode, all_cases, backward_of, run, with_loss

EPS = 1e-5
TOL = 2e-7


def rows() -> list[Any]:
    """Each row with a closed and an open plan; open ones beyond an op's first are not sampled."""
    found, seen = [], set()
    for case in (c for c in all_cases() if c.grad):
        found.append(pytest.param(case, True, id=f"{case.id}-closed"))
        marks = [pytest.mark.whole] if (case.domain, case.op) in seen else []
        found.append(pytest.param(case, False, id=f"{case.id}-open", marks=marks))
        seen.add((case.domain, case.op))
    return found


@pytest.mark.parametrize(("case", "closed"), rows())
def test_gradient(case: Case, closed: bool) -> None:
    one = OneNode(case, double=True)
    rng = np.random.default_rng(1)
    outputs = run(one.graph, one.inputs, closed=closed)
    weights = {n: rng.standard_normal(y.shape) for n, y in outputs.items() if y.dtype == np.float64}
    graph = with_loss(one.graph, weights)
    wrt = [f"x{i}" for i in case.grad]
    backward, names = backward_of(one, weights)
    grads = run(backward, one.inputs, threads=2, closed=closed)
    direction = {n: rng.standard_normal(one.inputs[n].shape) for n in wrt}
    losses = []
    for e in (EPS, -EPS):
        moved = {n: a + e * direction[n] if n in direction else a for n, a in one.inputs.items()}
        losses.append(float(run(graph, moved, closed=closed)["loss"]))
    numeric = (losses[0] - losses[1]) / (2 * EPS)
    exact = sum(float(np.sum(grads[names[n]] * direction[n])) for n in wrt)
    scale = sum(float(np.linalg.norm(grads[names[n]])) for n in wrt) + abs(losses[0]) + 1
    for n in wrt:
        assert grads[names[n]].shape == one.inputs[n].shape
    assert abs(numeric - exact) <= TOL * scale, (numeric, exact)
