"""Layouts: what elementwise ops make of channels-last tensors and operands that are not."""

from __future__ import annotations

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes.infer import infer
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
