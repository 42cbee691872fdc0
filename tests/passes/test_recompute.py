"""Values that are computed twice instead of being kept, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from engine.api import CheckpointState, Module
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes import recompute
from engine.graphs.passes.recompute import LARGE
from engine.kernels.vocabulary.expression import parse
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.vocabulary.terms import Formulas
from tests.support.places import GOLDENS

GOLDEN = GOLDENS / "mobilenet"
MS = "com.microsoft"


def graph_of(formula: str, reads_x: str) -> Graph:
    """z = Map(x); the loss reads z, so does a gradient; another gradient reads `reads_x`."""
    nodes = [
        Node(
            "Map",
            ("x",),
            ("z",),
            {"formulas": Formulas.of(parse(formula, ("a",)))},
            "engine",
            "map",
        ),
        Node("ReduceSum", ("z",), ("loss",), name="sum"),
        Node("ReduceSum", ("z",), ("dw",), name="dw"),
        Node("InPlaceAccumulatorV2", ("w_buffer", "dw"), ("w_done",), {}, MS, "add_w"),
        Node("ReduceSum", (reads_x,), ("dv",), name="dv"),
        Node("InPlaceAccumulatorV2", ("v_buffer", "dv"), ("v_done",), {}, MS, "add_v"),
    ]
    one = TensorType("f32", ())
    first = Node("Exp", ("u",), ("x",), name="first")  # x is not an input of the graph
    inputs = {"u": TensorType("f32", (1, LARGE)), "w_buffer": one, "v_buffer": one}
    return Graph("g", inputs, ["loss"], {}, [first, *nodes], {"": 17})


@pytest.mark.parametrize(
    ("formula", "reads_x", "again"),
    [
        ("add(a,1.0)", "x", True),
        ("add(a,1.0)", "u", False),  # x would have to be kept instead
        ("exp(a)", "x", True),
        ("exp(sin(exp(sin(exp(sin(a))))))", "x", False),
    ],
    ids=["cheap", "from what is gone", "less cheap", "dear"],
)
def test_cheap_maps_are_made_again(
    formula: str, reads_x: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompute, "NEAR", 0)
    graph = graph_of(formula, reads_x)
    large = TensorType("f32", (1, LARGE))
    types = {**graph.inputs, "x": large, "z": large}
    recompute.recompute(graph, types)
    once = {n.name: n for n in graph.check().nodes if not n.again}
    assert once["sum"].inputs == ("z",)
    assert once["dw"].inputs == ("z_again" if again else "z",)
    assert [n.name for n in graph.nodes if n.again] == ["map"] * again


def test_recomputation_changes_memory_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = np.load(GOLDEN / "trace.npz")
    x, y = trace["x"][0], trace["y"][0]
    results, sizes = [], []
    for large in (1 << 60, 0):
        monkeypatch.setattr(recompute, "LARGE", large)
        state = CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
        module = Module(GOLDEN / "training_model.onnx", state, threads=2)
        loss = float(module(x, y))
        grads = {n: np.array(p.grad) for n, p in state.parameters if p.requires_grad}
        results.append((loss, grads))
        sizes.append(
            module.session.training.get_program([x.shape, y.shape]).plan.compute_region_bytes(
                "work"
            )
        )
    assert sizes[1] < 0.8 * sizes[0]
    (kept, before), (again, after) = results
    assert again == kept
    for name, expected in before.items():
        np.testing.assert_array_equal(after[name], expected, err_msg=name)
