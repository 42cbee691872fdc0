"""Casts to and from half precision, bit by bit as numpy; floats that no integer holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.base.element_types import INTEGERS, NUMPY, OF_NUMPY, ONNX_CODE
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case, fed
from tests.support.harness import run

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)


def cast(x: np.ndarray, to: Any) -> np.ndarray:
    one = OneNode(Case("Cast", (fed(x, str(x.dtype)),), {"to": ONNX_CODE[OF_NUMPY[np.dtype(to)]]}))
    return run(one.graph, one.inputs, threads=2)["y0"]


def between() -> np.ndarray:
    """All halves, what is half way between two of them, and what is just beside that, in f64."""
    halves = ALL[np.isfinite(ALL) & (ALL >= 0)].astype(np.float64)
    middle = (halves + np.append(halves[1:], 65536.0)) / 2
    beside = [np.nextafter(middle, side) for side in (0.0, np.inf)]
    near = [np.nextafter(middle.astype("f4"), np.float32(side)) for side in (0.0, np.inf)]
    special = np.array([np.inf, np.nan, 1e30, 1e-30, 5e-324, 65519.99, 65520.0])
    every = np.concatenate([halves, middle, *beside, *near, special])
    return np.concatenate([every, -every])


def assert_same(y: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the last bit, except for the bits of a NaN."""
    assert y.dtype == expected.dtype
    unsigned = f"u{y.itemsize}"
    same = (y.view(unsigned) == expected.view(unsigned)) | (np.isnan(y) & np.isnan(expected))
    assert np.all(same)


@pytest.mark.parametrize("to", [np.float32, np.float64])
def test_from_half(to: Any) -> None:
    with np.errstate(invalid="ignore"):
        assert_same(cast(ALL, to), ALL.astype(to))


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_to_half(source: Any) -> None:
    with np.errstate(all="ignore"):
        x = between().astype(source)
        assert_same(cast(x, np.float16), x.astype(np.float16))


@pytest.mark.parametrize("source", [np.int8, np.int64, np.uint16, np.bool_])
def test_integers_to_half_and_back(source: Any) -> None:
    x = np.array([0, 1, 100, 127, 5, 99, 64, 33], source)
    assert_same(cast(x, np.float16), x.astype(np.float16))
    np.testing.assert_array_equal(cast(x.astype(np.float16), source), x)


@pytest.mark.parametrize("to", [NUMPY[T] for T in INTEGERS])
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
def test_floats_that_do_not_fit_an_integer(source: Any, to: Any) -> None:
    """The same when the planner computes it as when a kernel does."""
    low, high = np.iinfo(to).min, np.iinfo(to).max
    given = [np.nan, np.inf, -np.inf, 1e30, -1e30, -1.0, 3.7, -3.7, 2.0**63, 2.0**31, 300.0]
    expected = [0 if np.isnan(v) else int(np.clip(np.trunc(v), low, high)) if abs(v) < 2**62
                else (high if v > 0 else low) for v in given]  # fmt: skip
    with np.errstate(over="ignore"):
        x = np.array(given).astype(source)
    if source == np.float16:
        expected[8:10] = [high, high]  # of infinity
    if to == np.uint64:
        expected[8:10] = [2**63 if source != np.float16 else high,
                          2**31 if source != np.float16 else high]  # fmt: skip
    expected_array = np.array(expected, dtype=to)
    np.testing.assert_array_equal(cast(x, to), expected_array)
    folded = OneNode(Case("Cast", (x,), {"to": ONNX_CODE[OF_NUMPY[np.dtype(to)]]}))
    np.testing.assert_array_equal(run(folded.graph, {})["y0"], expected_array)


@pytest.mark.parametrize("op", ["Softmax", "Relu", "ReduceMax", "LpNormalization"])
def test_outputs_without_declared_types_are_half_where_their_nodes_make_them_so(op: str) -> None:
    """They were float32 wherever a node of the graph had to compute with float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4)).astype(np.float16)
    nodes = [
        Node(op, ("x",), ("y",), {}, "", "first"),
        Node("Softmax", ("y",), ("z",), {}, "", "second"),
        Node("Cast", ("z",), ("w",), {"to": ONNX_CODE["f32"]}, "", "third"),
    ]
    graph = Graph("halves", {"x": find_type(x)}, ["y", "z", "w", "x"], {}, nodes, {"": 17})
    kinds = {name: str(array.dtype) for name, array in run(graph, {"x": x}).items()}
    assert kinds == {"y": "float16", "z": "float16", "w": "float32", "x": "float16"}
