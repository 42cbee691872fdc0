"""Movement that cancels: the nodes that are left, and the same values as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes.infer import infer
from engine.graphs.passes.movement import cancel_movement
from engine.graphs.passes.simplify import drop_identities
from tests.support.harness import evaluate, run

RNG = np.random.default_rng(0)
A = RNG.standard_normal((2, 3, 4)).astype(np.float32)
B = RNG.standard_normal((2, 5, 4)).astype(np.float32)
W = RNG.standard_normal((6, 4)).astype(np.float32)
M = RNG.standard_normal((3, 4)).astype(np.float32)

Step = tuple[str, tuple[str, ...], dict[str, Any]]


def transpose(x: str, *perm: int) -> Step:
    return ("Transpose", (x,), {"perm": list(perm)} if perm else {})


def reshape(x: str, *shape: int) -> Step:
    return ("Reshape", (x, ",".join(map(str, shape))), {})


def build(inputs: dict[str, np.ndarray], steps: list[Step]) -> Graph:
    """Nodes v0, v1, ...; an input written as numbers is a constant; the last value is y."""
    graph = Graph("g", {n: find_type(a) for n, a in inputs.items()}, ["y"], {}, [], {"": 17})
    for i, (op, names, attrs) in enumerate(steps):
        for name in names:
            if name[0] in "-0123456789":
                graph.initializers[name] = np.array([int(n) for n in name.split(",")])
        out = "y" if i == len(steps) - 1 else f"v{i}"
        graph.nodes.append(Node(op, names, (out,), attrs, "", f"n{i}"))
    return graph


@pytest.mark.parametrize(
    ("inputs", "steps", "left"),
    [
        ({"a": A}, [transpose("a", 1, 0, 2), transpose("v0", 1, 0, 2), ("Relu", ("v1",), {})],
         ["Relu"]),
        ({"a": A}, [transpose("a", 1, 2, 0), transpose("v0", 0, 2, 1)], ["Transpose"]),
        ({"a": A[:, :1]}, [transpose("a", 1, 0, 2)], ["Reshape"]),
        ({"a": A}, [reshape("a", 6, 4), reshape("v0", 2, 3, 4), ("Relu", ("v1",), {})], ["Relu"]),
        ({"a": A}, [reshape("a", 6, 4), reshape("v0", 0, 2, 2)], ["Reshape"]),
        ({"a": A}, [("Unsqueeze", ("a", "0"), {}), ("Squeeze", ("v0", "0"), {})], ["Identity"]),
        ({"a": A, "w": W}, [transpose("w"), ("MatMul", ("a", "v0"), {})], ["FusedMatMul"]),
        ({"a": A, "b": B}, [transpose("b", 0, 2, 1), ("MatMul", ("a", "v0"), {})],
         ["FusedMatMul"]),
        ({"a": A, "b": B}, [transpose("b", 0, 2, 1), ("MatMul", ("a", "v0"), {}),
                            transpose("v1", 0, 2, 1)], ["FusedMatMul"]),
        ({"m": M, "w": W}, [transpose("w"), ("Gemm", ("m", "v0"), {})], ["Gemm"]),
        ({"m": M, "w": W}, [("Gemm", ("m", "w"), {"transB": 1, "alpha": 0.5}), transpose("v0")],
         ["Gemm"]),
        ({"m": M, "w": W}, [transpose("m"), ("Gemm", ("v0", "w"), {"transA": 1, "transB": 1})],
         ["Gemm"]),
        ({"a": A, "b": B}, [transpose("b", 2, 0, 1), transpose("v0", 1, 0, 2),
                            ("MatMul", ("a", "v1"), {})], ["FusedMatMul"]),
    ],
)  # fmt: skip
def test_what_is_left(inputs: dict[str, np.ndarray], steps: list[Step], left: list[str]) -> None:
    graph = build(inputs, steps)
    work = graph.copy()
    types, constants, _ = infer(work)
    drop_identities(cancel_movement(work, types, constants)).check()
    assert [n.op for n in work.nodes] == left
    graph.types["y"] = types["y"]
    (expected,) = evaluate(onnx_io.to_proto(graph), inputs)
    np.testing.assert_allclose(run(graph, inputs)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_product_that_is_read_twice_is_not_swapped() -> None:
    graph = build({"a": A, "b": B}, [
        transpose("b", 0, 2, 1), ("MatMul", ("a", "v0"), {}), transpose("v1", 0, 2, 1),
        transpose("v1", 1, 0, 2), ("ReduceSum", ("v3",), {}), ("Add", ("v2", "v4"), {}),
    ])  # fmt: skip
    cancel_movement(graph, *infer(graph)[:2])
    assert [n.op for n in graph.nodes].count("Transpose") == 2
