"""Gradients where a formula would divide by zero, and where several elements share one maximum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from tests.support.harness import run

PRODUCT = np.array([[2.0, 3, 4], [0, 3, 4], [0, 3, 0], [-1, 0, 5]])
TIES = np.array([[1.0, 3, 3], [2, 2, 2], [5, 4, 4]])


def gradients(
    op: str, ins: list[np.ndarray], wrt: list[int], attrs: Mapping[str, Any] | None = None
) -> list[np.ndarray]:
    """The gradients of sum(y), by float64."""
    fed = {f"x{i}": a for i, a in enumerate(ins)}
    inputs = {n: find_type(a) for n, a in fed.items() if a.dtype == np.float64}
    constants = {n: a for n, a in fed.items() if n not in inputs}
    nodes = [
        Node(op, tuple(fed), ("y",), dict(attrs or {}), "", "node"),
        Node("ReduceSum", ("y",), ("loss",), {"keepdims": 0}, "", "sum"),
    ]
    opsets = {"": 18, "com.microsoft": 1, "engine": 1}
    graph = Graph(op, inputs, ["loss"], constants, nodes, opsets)
    names = differentiate(graph, "loss", [f"x{i}" for i in wrt], infer(graph.copy()).types)
    graph.outputs = [names[f"x{i}"] for i in wrt]
    outcome = run(graph, {n: fed[n] for n in inputs}, threads=2)
    return [outcome[names[f"x{i}"]] for i in wrt]


def others(x: np.ndarray) -> np.ndarray:
    """For each element the product of the others of its row."""
    n = x.shape[1]
    return np.stack([np.delete(x, i, 1).prod(1) for i in range(n)], 1)


def test_a_product_of_zeros() -> None:
    (dx,) = gradients("ReduceProd", [PRODUCT, np.array([1])], [0])
    np.testing.assert_array_equal(dx, others(PRODUCT))


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        ("ReduceL1", [0, -3, 4], [0, -1, 1]),
        ("ReduceL2", [0, 0, 0], [0, 0, 0]),
        ("ReduceL2", [0, -3, 4], [0, -0.6, 0.8]),
        ("ReduceLogSumExp", [-np.inf] * 3, [0, 0, 0]),
        ("ReduceLogSumExp", [-np.inf, 2000, 2000], [0, 0.5, 0.5]),
        ("ReduceLogSumExp", [-2000, -2000, -9000], [0.5, 0.5, 0]),
    ],
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_norms_and_logarithms(op: str, x: Any, expected: Any, keepdims: int) -> None:
    (dx,) = gradients(op, [np.array([x], float), np.array([1])], [0], {"keepdims": keepdims})
    np.testing.assert_allclose(dx, [expected], rtol=1e-15)


@pytest.mark.parametrize("data", [1.0, 0.0])
def test_scattered_zeros(data: float) -> None:
    x, index = np.full((4, 1), data), np.zeros((4, 3), np.int64)
    attrs = {"axis": 1, "reduction": "mul"}
    dx, du = gradients("ScatterElements", [x, index, PRODUCT], [0, 2], attrs)
    whole = others(np.concatenate([x, PRODUCT], 1))
    np.testing.assert_array_equal(dx, whole[:, :1])
    np.testing.assert_array_equal(du, whole[:, 1:])


@pytest.mark.parametrize(("op", "extreme"), [("ReduceMax", np.max), ("ReduceMin", np.min)])
def test_ties_of_a_reduction_share(op: str, extreme: Any) -> None:
    (dx,) = gradients(op, [TIES, np.array([1])], [0])
    hit = extreme(TIES, 1, keepdims=True) == TIES
    np.testing.assert_array_equal(dx, hit / hit.sum(1, keepdims=True))


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_ties_of_a_scatter_share(reduction: str) -> None:
    """As in torch.scatter_reduce: the data takes part."""
    x, index = np.array([[3.0], [2], [4]]), np.zeros((3, 3), np.int64)
    attrs = {"axis": 1, "reduction": reduction}
    dx, du = gradients("ScatterElements", [x, index, TIES], [0, 2], attrs)
    whole = np.concatenate([x, TIES], 1)
    hit = (whole.max if reduction == "max" else whole.min)(1, keepdims=True) == whole
    share = hit / hit.sum(1, keepdims=True)
    np.testing.assert_array_equal(dx, share[:, :1])
    np.testing.assert_array_equal(du, share[:, 1:])


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_the_last_update_of_a_place_wins(op: str) -> None:
    index = np.array([2, 0, 2, -4])
    ins = [np.zeros(4), index if op == "ScatterElements" else index[:, None], np.ones(4)]
    dx, du = gradients(op, ins, [0, 2])
    np.testing.assert_array_equal(dx, [0, 1, 0, 1])
    np.testing.assert_array_equal(du, [0, 0, 1, 1])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_running_product_of_zeros(exclusive: int, reverse: int) -> None:
    """Against the sum over outputs of the products of all other factors."""
    attrs = {"exclusive": exclusive, "reverse": reverse}
    (dx,) = gradients("CumProd", [PRODUCT, np.array(1)], [0], attrs)
    x, expected = PRODUCT[:, ::-1] if reverse else PRODUCT, np.zeros(PRODUCT.shape)
    for k in range(1, x.shape[1] + 1 - exclusive):
        expected[:, :k] += others(x[:, :k])
    np.testing.assert_array_equal(dx, expected[:, ::-1] if reverse else expected)
