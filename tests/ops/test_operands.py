"""Operands that ops refuse, and integers that they divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import (
    ShapeError,
    UnsupportedOpError,
)
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from tests.support.harness import run


def one_node(op: str, ins: dict[str, Any], domain: str = "", **attrs: Any) -> Graph:
    node = Node(op, tuple(ins), ("out",), attrs, domain, "n")
    types = {n: find_type(a) for n, a in ins.items()}
    return Graph(op, types, ["out"], {}, [node], {"": 17, "com.microsoft": 1})


A, B, F16 = np.ones((4, 5), np.float32), np.ones((3, 5), np.float32), np.ones(3, np.float16)
MS = "com.microsoft"


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (one_node("SoftmaxGrad_13", {"a": A, "b": B}, MS), ShapeError, r"expected the shape \[3"),
        (one_node("SoftmaxCrossEntropyLossGrad", {"a": A, "b": B, "y": np.zeros(3, int)}, MS),
         ShapeError, r"input 0 is f32\[4,5\]; expected the shape \[\]"),
        (one_node("ReluGrad", {"a": A}, MS), UnsupportedOpError, "input 1 is missing"),
        (one_node("MaxPool", {"x": A.reshape(1, 1, 4, 5)}, kernel_shape=[0, 2]),
         ShapeError, "the window is"),
        (one_node("And", {"a": F16, "b": F16}), UnsupportedOpError, "and of f16; supported: real"),
        (one_node("Exp", {"a": np.ones(3, int)}), UnsupportedOpError, "exp of i64; supported"),
    ],
)  # fmt: skip
def test_operands(graph: Graph, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"{graph.name} 'n' \(opset .*{message}"):
        make_plan(graph, {}, target=detect_host(), threads=2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_division_of_integers_never_traps(dtype: Any) -> None:
    least = np.iinfo(dtype).min
    ins = {"a": np.array([7, 8, least, 9], dtype), "b": np.array([2, 0, -1, 1]).astype(dtype)}
    out = run(one_node("Div", ins), ins)["out"]
    np.testing.assert_array_equal(out, np.array([3, 0, least, 9], dtype))
