"""Names of a model mean nothing: what the planner adds never has the name of one of its values."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import ModelError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import FAULT, NOISE
from tests.support.harness import run

LABELS = np.array([0, 2, 4, 1])


def losses(x: str, name: str, loss: str = "first") -> Graph:
    """Two losses of the same scores `x`, the second one named `name`."""
    nodes = [
        Node("SoftmaxCrossEntropyLoss", (x, "labels"), (loss,), {"reduction": "sum"}),
        Node("SoftmaxCrossEntropyLoss", (x, "labels"), ("mean",), {}, "", name),
    ]
    inputs = {x: TensorType("f32", (4, 5)), "labels": TensorType("i64", (4,))}
    return Graph("g", inputs, [loss, "mean"], {}, nodes, {"": 17})


def check(graph: Graph) -> None:
    """The graph's two losses are right."""
    scores = np.linspace(-2.0, 3.0, 20, dtype=np.float32).reshape(4, 5)
    outcome = run(graph, {next(iter(graph.inputs)): scores, "labels": LABELS}, threads=2)
    logs = np.log(np.exp(scores).sum(1)) - scores[np.arange(4), LABELS]
    results = [outcome[name] for name in graph.outputs]
    np.testing.assert_allclose(results, [logs.sum(), logs.mean()], rtol=1e-5)


def test_values_may_have_the_names_of_what_the_planner_adds() -> None:
    plan = make_plan(losses("x", "second"), {}, target=detect_host(), threads=2)
    added = [b.name for b in plan.buffers if "#" in b.name and b.name != FAULT]
    assert any(name.startswith("first#") for name in added)
    assert any(name.startswith("second#") for name in added)
    for name in added:
        check(losses(name, "second"))
        check(losses("x", "second", loss=name))


def test_a_node_may_have_the_name_of_anothers_output() -> None:
    check(losses("x", "first"))


@pytest.mark.parametrize("name", ["fault", "noise", "reset", "labels#1", "#", "#c1"])
def test_inputs_of_any_name(name: str) -> None:
    check(losses(name, name))


@pytest.mark.parametrize("name", [FAULT, NOISE])
def test_what_the_runtime_fills_is_no_name_for_a_value(name: str) -> None:
    with pytest.raises(ModelError, match=f"'{name}' is the name of an input"):
        make_plan(losses(name, "second"), {}, target=detect_host(), threads=1)
