"""Layouts: channels-last tensors between convolutions, and operands that are plain."""

from __future__ import annotations

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from tests.support.harness import evaluate, run

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(), (5,), (6, 1), (6, 5), (1, 6, 1), (1, 6, 5), (3, 1, 5)])
def test_an_operand_of_any_rank_meets_a_convolution(shape: tuple[int, ...]) -> None:
    inputs = {
        "x": RNG.standard_normal((3, 2, 7)).astype(np.float32),
        "w": RNG.standard_normal((6, 2, 3)).astype(np.float32),
        "b": RNG.standard_normal(shape).astype(np.float32),
    }
    graph = Graph("g", {n: find_type(a) for n, a in inputs.items()}, ["y"], {}, [], {"": 17})
    graph.nodes += [
        Node("Conv", ("x", "w"), ("c",), {}, "", "conv"),
        Node("Mul", ("c", "b"), ("m",), {}, "", "mul"),
        Node("Tanh", ("m",), ("t",), {}, "", "tanh"),
        Node("Add", ("t", "c"), ("y",), {}, "", "add"),
    ]
    graph.types.update(infer(graph).types)
    (expected,) = evaluate(onnx_io.to_proto(graph), inputs)
    np.testing.assert_allclose(run(graph, inputs)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0, 0, 3, 0, 0], [1, 2, 0, -1, 0, 2, 3, 2]])
def test_padded_images_keep_their_layout(mode: str, pads: list[int]) -> None:
    """Networks for phones pad the channels of a shortcut: no copy in another layout is made."""
    x = RNG.standard_normal((2, 4, 5, 6)).astype(np.float32)
    w = np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)
    after = np.eye(4 + pads[1] + pads[5], dtype=np.float32)[:, :, None, None]
    value = np.array(0.5, np.float32)
    known = {"w": w, "after": after, "pads": np.array(pads), "value": value}
    nodes = [
        Node("Conv", ("x", "w"), ("a",), {}, "", "a"),
        Node("Pad", ("a", "pads", "value"), ("b",), {"mode": mode}, "", "b"),
        Node("Conv", ("b", "after"), ("y",), {}, "", "y"),
    ]
    graph = Graph("g", {"x": find_type(x)}, ["y"], known, nodes, {"": 19})
    cut = x[..., max(-pads[3], 0) :]
    widths = [(max(p, 0), q) for p, q in zip(pads[:4], pads[4:], strict=True)]
    more = {"constant_values": 0.5} if mode == "constant" else {}
    expected = np.pad(cut, widths, mode, **more)  # type: ignore[call-overload]  # of any mode
    np.testing.assert_array_equal(run(graph, {"x": x}, threads=2)["y"], expected)
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    assert [step.source for step in plan.steps if "ToPlain" in step.source] == ["y/ToPlain"]
