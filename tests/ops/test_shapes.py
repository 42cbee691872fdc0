"""Cost of a new input shape, in kernels and in bytes of the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.api import CheckpointState, Module
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.models.mobilenets import build_mobilenet_v2
from engine.models.post_norm import build_transformer
from engine.tools.benchmark.workload import write_artifacts
from engine.training.memory import Memory
from engine.training.model import Model


def encoder() -> Graph:
    """The transformer of the benchmarks, of any length."""
    graph = build_transformer()
    graph.inputs["x"] = graph.inputs["x"].but(("batch", "length", 256))
    return graph


CASES: dict[str, tuple[Graph, list[tuple[int, ...]]]] = {
    "transformer": (encoder(), [(9, 40, 256), (9, 41, 256), (10, 50, 256)]),
    "mobilenet": (
        build_mobilenet_v2((3, 32, 32)),
        [(5, 3, 32, 32), (6, 3, 32, 32), (7, 3, 32, 32)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_shapes_share_kernels(name: str, tmp_path: Path) -> None:
    """Numbers that sizes decide, as the divisor of a mean, are operands and not code.

    Products of up to 8 rows have a kernel of their own, so batches are larger.
    """
    graph, shapes = CASES[name]
    write_artifacts(graph, tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    model = Model(tmp_path / "training_model.onnx", state, Memory(), 1, "training model")
    state.slots = state.layout(model.list_parameter_shapes())
    plans = [model.plan({"x": s, "labels": s[:1]}) for s in shapes]
    assert {p.specs for p in plans} == {plans[0].specs}


def test_numbers_of_the_model_are_code() -> None:
    """Only what sizes decide is an operand; 2 is written into the formula."""
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("ReduceProd", ("s",), ("n",), {"keepdims": 0}),
        Node("Cast", ("n",), ("count",), {"to": 1}),
        Node("Mul", ("x", "two"), ("doubled",)),
        Node("Div", ("doubled", "count"), ("y",)),
    ]
    x = {"x": TensorType("f32", ("batch", 3))}
    graph = Graph("g", x, ["y"], {"two": np.array(2, np.float32)}, nodes, {"": 17})
    plans = [make_plan(graph, {"x": (n, 3)}, target=detect_host(), threads=1) for n in (4, 5)]
    (spec,) = plans[0].specs
    assert plans[1].specs == plans[0].specs
    assert "2.0" in str(spec.params[0])
    assert [np.frombuffer(data, np.float32)[0] for p in plans for _, data in p.constants] == [
        12,
        15,
    ]


def test_a_plan_has_little_for_itself(tmp_path: Path) -> None:
    """Inputs, outputs, values and constants are shared; a plan has its table of steps."""
    graph, shapes = CASES["mobilenet"]
    write_artifacts(graph, tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    for shape in shapes:
        module(np.zeros(shape, np.float32), np.zeros(shape[0], np.int64))
    programs = list(module.session.memory.programs.values())
    assert len(programs) == len(shapes)
    assert max(p.nbytes for p in programs) < 300 * len(programs[0].plan.steps)
