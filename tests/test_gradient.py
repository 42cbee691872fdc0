"""Every differentiable case row: one random direction, in float64, against central differences.

<grad, v> must equal d/de sum(u * y(x + e v)) at e = 0.  Source: the check_vjp of JAX.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases.case import Case
from tests.harness import OneNode, all_cases, backward_of, run, with_loss

EPS = 1e-5
TOL = 2e-7


@pytest.mark.parametrize("case", [c for c in all_cases() if c.grad], ids=lambda c: c.id)
def test_gradient(case: Case) -> None:
    one = OneNode(case, double=True)
    rng = np.random.default_rng(1)
    outputs = run(one.graph, one.inputs)
    weights = {n: rng.standard_normal(y.shape) for n, y in outputs.items() if y.dtype == np.float64}
    graph = with_loss(one.graph, weights)
    wrt = [f"x{i}" for i in case.grad]
    backward, names = backward_of(one, weights)
    grads = run(backward, one.inputs, threads=2)
    direction = {n: rng.standard_normal(one.inputs[n].shape) for n in wrt}
    losses = []
    for e in (EPS, -EPS):
        moved = {n: a + e * direction[n] if n in direction else a for n, a in one.inputs.items()}
        losses.append(float(run(graph, moved)["loss"]))
    numeric = (losses[0] - losses[1]) / (2 * EPS)
    exact = sum(float(np.sum(grads[names[n]] * direction[n])) for n in wrt)
    scale = sum(float(np.linalg.norm(grads[names[n]])) for n in wrt) + abs(losses[0]) + 1
    for n in wrt:
        assert grads[names[n]].shape == one.inputs[n].shape
    assert abs(numeric - exact) <= TOL * scale, (numeric, exact)
