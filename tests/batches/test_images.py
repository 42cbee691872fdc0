"""Ops on images beyond their case rows: shapes known only at run time, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError, LabelError
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case, f32
from tests.support.harness import run

OPEN = (
    "ConvTranspose", "Resize", "GridSample", "DeformConv", "LpPool", "GlobalLpPool", "RoiAlign",
    "MaxRoiPool", "MaxPool", "AveragePool",
)  # fmt: skip


def first(op: str) -> Case:
    """The first differentiable case row of an op."""
    return next(c for c in list_cases() if c.op == op and c.grad)


@pytest.mark.parametrize("op", [*OPEN, "MaxUnpool", "AffineGrid"])
def test_gradients_of_images_of_any_size(op: str) -> None:
    """Nodes made for symbolic shapes compute what those made for the shapes themselves do."""
    one = OneNode(first(op), double=True)
    outputs = run(one.graph, one.inputs)
    rng = np.random.default_rng(1)
    weights = {n: rng.standard_normal(y.shape) for n, y in outputs.items() if y.dtype.kind == "f"}
    graph, names = backward_of(one, weights)
    expected = run(graph, one.inputs)
    known = one.graph.inputs["x0"]
    spatial = [f"d{i}" for i in range(2, known.rank)] if op in OPEN else known.shape[2:]
    one.graph.inputs["x0"] = TensorType(known.dtype, ("n", known.shape[1], *spatial))
    graph, again = backward_of(one, weights)
    outcome = run(graph, one.inputs)
    assert list(again) == list(names)
    for name in names:
        np.testing.assert_allclose(outcome[again[name]], expected[names[name]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_of_images_keep_their_layout(axis: int) -> None:
    """Conv, Concat, Split, Conv: channels-last from the first to the last."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    w = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    nodes = [
        Node("Conv", ("x", "w"), ("a",), {}, "", "a"),
        Node("Concat", ("a", "x"), ("b",), {"axis": axis}, "", "b"),
        Node("Split", ("b",), ("c", "d"), {"axis": axis}, "", "d"),
        Node("Sub", ("c", "d"), ("e",), {}, "", "e"),
        Node("Conv", ("d", "w"), ("f",), {}, "", "f"),
    ]
    graph = Graph("g", {"x": find_type(x)}, ["b", "e", "f"], {"w": w}, nodes, {"": 13})
    outcome = run(graph, {"x": x}, threads=2)
    np.testing.assert_array_equal(outcome["b"], np.concatenate([x, x], axis))
    np.testing.assert_array_equal(outcome["e"], 0 * x)
    np.testing.assert_array_equal(outcome["f"], x)
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    copies = sorted(step.source for step in plan.steps if "ToPlain" in step.source)
    assert copies == ["b/ToPlain", "e/ToPlain", "f/ToPlain"]  # the outputs


X = np.zeros((1, 4, 6, 5), np.float32)
GRID = np.zeros((1, 2, 2, 2), np.float32)
ROIS, TWICE = np.zeros((2, 4), np.float32), np.array([1, 1, 2, 2], np.float32)
W = np.zeros((4, 3, 2, 2), np.float32)
OFFSET = np.zeros((1, 8, 5, 4), np.float32)


@pytest.mark.parametrize(
    ("op", "ins", "attrs", "message"),
    [
        ("Resize", (X,), {}, "scales and sizes are not given; supported: one of the two"),
        ("Resize", (X, None, TWICE), {"mode": "area"}, "mode is 'area'; supported: near"),
        ("Resize", (X, None, TWICE), {"antialias": 1}, "antialias is 1 and mode is 'nearest'"),
        ("Resize", (X.astype(np.int32), None, TWICE), {"mode": "cubic"}, "i32 and mode is 'cubic'"),
        ("Resize", (X, None, TWICE[:3]), {}, "scales has 3 numbers; expected 4"),
        ("Resize", (X, None, None, np.array([1, 4, 0, 5])), {}, r"sizes are \[1, 4, 0, 5\]"),
        ("Upsample", (X, TWICE[:2]), {}, "scales has 2 numbers; expected 4"),
        ("ConvTranspose", (X, W[:3]), {}, "input 0 has 4 channels, but the weights expect 3"),
        ("ConvTranspose", (X, W), {"group": 3}, "4 input channels are not divisible by group=3"),
        ("ConvTranspose", (X, W, X[0, 0, 0]), {}, r"expected the shape \[3\]"),
        ("ConvTranspose", (X, W[..., 0]), {}, "weights have rank 3, but the images have rank 4"),
        ("ConvTranspose", (X, W), {"kernel_shape": [2, 3]}, r"kernel_shape is \[2, 3\]"),
        ("ConvTranspose", (X, W), {"pads": [9, 0, 0, 0]}, "pads 9 and 0 cut off more than"),
        ("ConvTranspose", (X, W), {"output_padding": [-1, 0]}, "pads of 0 or more"),
        ("ConvTranspose", (X, W), {"auto_pad": "SAME"}, "auto_pad is 'SAME'; supported: NOTSET"),
        ("GridSample", (X, GRID), {"mode": "area"}, "mode is 'area'; supported: nearest, linear"),
        ("GridSample", (X, GRID[..., :1]), {}, r"expected the shape \[1, .*, 2\]"),
        ("GridSample", (X[0], GRID), {}, "have 1 spatial axes; supported: 2 or 3"),
        ("GridSample", (X, GRID.astype(float)), {}, "both of one type"),
        ("AffineGrid", (GRID[0], np.array([2, 1, 4, 4])), {}, r"expected the shape \[2, 2, 3\]"),
        ("RoiAlign", (X, ROIS[:, :3], np.array([0, 0])), {}, r"expected the shape \[2, 4\]"),
        ("RoiAlign", (X, ROIS, np.array([0, 0])), {"mode": "sum"}, "mode is 'sum'; supported: avg"),
        ("MaxRoiPool", (X, np.zeros((2, 5), np.float32)), {}, "pooled_shape is None"),
        ("MaxUnpool", (X, np.zeros(X.shape, np.int64), np.array([1, 4, 6, 4])),
         {"kernel_shape": [1, 1]}, r"output_shape is \[1, 4, 6, 4\]"),
        ("DeformConv", (X, W, OFFSET), {}, "4 channels, but the weights expect 3: 3 in each of"),
        ("DeformConv", (X, X[:, :, :2, :2], OFFSET[:, :7]), {}, r"expected the shape \[1, 8, 5, 4"),
        ("LpPool", (X,), {}, "attribute kernel_shape is missing"),
    ],
)  # fmt: skip
def test_what_is_refused(
    op: str, ins: tuple[Any, ...], attrs: dict[str, Any], message: str
) -> None:
    names = tuple("" if a is None else f"x{i}" for i, a in enumerate(ins))
    given = {n: a for n, a in zip(names, ins, strict=True) if n}
    fed = {n: find_type(a) for n, a in given.items() if a.ndim > 1}
    constants = {n: a for n, a in given.items() if n not in fed}
    node = Node(op, names, ("y",), attrs, "", "the_node")
    graph = Graph("g", fed, ["y"], constants, [node], {"": 20})
    with pytest.raises(EngineError, match=f"{op} 'the_node'.*{message}"):
        infer(graph)


@pytest.mark.parametrize(
    ("op", "rest", "attrs"),
    [
        ("RoiAlign", (ROIS, np.array([0, 3])), {}),
        ("MaxRoiPool", (np.array([[0, 0, 0, 1, 1], [3, 0, 0, 1, 1]], np.float32),),
         {"pooled_shape": [1, 1]}),
    ],
)  # fmt: skip
def test_regions_of_images_that_are_not_there(op: str, rest: Any, attrs: dict[str, Any]) -> None:
    one = OneNode(Case(op, (f32(*X.shape), *rest), attrs))
    with pytest.raises(LabelError, match="index 3 at position 1"):
        run(one.graph, one.inputs, threads=2)
