"""Cross entropies of scores in 16 bits: which are, and how exact loss and gradient are."""

from __future__ import annotations

import numpy as np
import pytest

from engine.base.plan_options import PlanOptions
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes.losses import keep_scores
from engine.graphs.passes.pipeline import PassState, run_passes
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import MS
from tests.support.halves import EPSILON, round_to_half
from tests.support.harness import execute

SHAPE = (40, 3000)
RNG = np.random.default_rng(3)
FED: dict[str, np.ndarray] = {
    "z": (12 * RNG.standard_normal(SHAPE)).astype(np.float32),
    "label": RNG.integers(0, SHAPE[1], SHAPE[:1]),
    "dy": np.ones((), np.float32),
}


def cross_entropy(*outputs: str) -> Graph:
    """Return a graph of the scores x = -z, their loss and the gradient of z."""
    nodes = [
        Node("Neg", ("z",), ("x",), name="scores"),
        Node("SoftmaxCrossEntropyLoss", ("x", "label"), ("loss", "logp"), name="loss"),
        Node("SoftmaxCrossEntropyLossGrad", ("dy", "logp", "label"), ("dx",), domain=MS, name="g"),
        Node("Neg", ("dx",), ("dz",), name="gradient"),
    ]
    types = {n: find_type(a) for n, a in FED.items()}
    return Graph("scores", types, [*outputs], {}, nodes, {"": 17, MS: 1})


def test_loss_and_gradient_are_those_of_rounded_scores() -> None:
    """The gradient's error is its own rounding: log softmax of 16 bits would have 2^-8 |logp|."""
    graph, shapes = cross_entropy("loss", "dz"), {n: a.shape for n, a in FED.items()}
    half = execute(
        make_plan(
            graph.copy(),
            shapes,
            target=detect_host(),
            threads=2,
            options=PlanOptions(precision="bf16"),
        ),
        FED,
    )
    x = round_to_half(-FED["z"], "bf16").astype(np.float64)
    logp = x - x.max(1, keepdims=True)
    logp -= np.log(np.exp(logp).sum(1, keepdims=True))
    assert np.abs(logp).max() > 60, "where 16 bits have steps of 1/4"
    at = np.arange(len(x)), FED["label"]
    np.testing.assert_allclose(half["loss"], -logp[at].mean(), rtol=1e-6)
    want = np.exp(logp)
    want[at] -= 1
    actual = -half["dz"] * len(x)
    # Rounding, and the error of exp: |x - m| + 5 units of float32, as in softmax.py.
    # Numbers below 2^-126 are taken for 0.
    bound = np.abs(want) * (EPSILON["bf16"] + 100 * 2.0**-24) + len(x) * 2.0**-126
    assert (np.abs(actual - want) <= bound).all()


@pytest.mark.parametrize("outputs", [("loss", "dz"), ("loss", "dz", "logp")])
def test_log_softmax_stays_where_something_else_reads_it(outputs: tuple[str, ...]) -> None:
    work = PassState(cross_entropy(*outputs))
    run_passes(work)
    keep_scores(work.graph, work.types)
    domains = {n.domain for n in work.graph.nodes if n.op.startswith("SoftmaxCrossEntropyLoss")}
    assert domains == ({"", MS} if "logp" in outputs else {"engine"})
    read = next(n.inputs for n in work.graph.nodes if n.op == "SoftmaxCrossEntropyLossGrad")
    assert ("x" in read) == ("logp" not in outputs)
