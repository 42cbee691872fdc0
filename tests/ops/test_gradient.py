"""Every differentiable case row: one random direction, in float64, against central differences.

<grad, v> must equal d/de sum(u * y(x + e v)) at e = 0.  Source: the check_vjp of JAX.

Each row runs by closed plans, whose formulas are data for one kernel, so that nothing is compiled
for a row alone.  Open plans, which compile a kernel for every formula, run the first row of each
op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.errors import UnsupportedOpError
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases, with_loss
from engine.tools.dev.cases.case import Case, Tensor
from tests.support.harness import run

EPS = 1e-5
TOL = 2e-7


def rows() -> list[Any]:
    """Each row with a closed and an open plan; open ones beyond an op's first are not sampled."""
    actual, seen = [], set()
    for case in (c for c in list_cases() if c.grad):
        actual.append(pytest.param(case, True, id=f"{case.id}-closed"))
        marks = [pytest.mark.whole] if (case.domain, case.op) in seen else []
        actual.append(pytest.param(case, False, id=f"{case.id}-open", marks=marks))
        seen.add((case.domain, case.op))
    return actual


def ignored() -> list[Any]:
    """Yield the rows of several real outputs whose gradients are not checked: the first of each op.

    A fake output has the gradient of something else.
    """
    actual: dict[str, Any] = {}
    for case in (c for c in list_cases() if not c.grad and c.outs != 1):
        op = list_ops().get((case.domain, case.op))
        if op is None or op.grad is None or op.title in actual or "FakeQuant" in case.op:
            continue
        one = OneNode(case)
        types = infer(one.graph).types
        if sum(types[o].dtype == "f32" for o in one.outputs) > 1:
            actual[op.title] = pytest.param(case, id=case.id)
    return list(actual.values())


@pytest.mark.parametrize(("case", "closed"), rows())
def test_gradient(case: Case, closed: bool) -> None:
    assert_slope(case, closed)


@pytest.mark.parametrize("case", ignored())
def test_a_loss_of_all_outputs_has_its_gradient_or_is_refused(case: Case) -> None:
    """A rule that reads only the gradient of the first output left out the others."""
    stop = list_ops()[case.domain, case.op].no_gradient
    floats = [i for i, given in enumerate(case.ins) if isinstance(given, Tensor) and i not in stop]
    wrt = [i for i in floats if OneNode(case).inputs[f"x{i}"].dtype == np.float32]
    refusal = "no gradient for"
    try:
        assert_slope(replace(case, grad=tuple(wrt)), closed=True)
    except UnsupportedOpError as error:
        refusal = str(error)
    assert "no gradient for" in refusal


def assert_slope(case: Case, closed: bool) -> None:
    """Compare the gradients of a row's inputs with central differences."""
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
