"""Layouts: channels-last tensors between convolutions, and operands that are plain."""

from __future__ import annotations

import itertools

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


def _make_graph(nodes: list[Node], size: int = 5) -> tuple[Graph, np.ndarray]:
    """Return a graph whose nodes read `c`, the result of a convolution, and write `y`."""
    x = RNG.standard_normal((2, 3, size, 4)).astype(np.float32)
    known = {"w": RNG.standard_normal((6, 3, 1, 1)).astype(np.float32)}
    first = Node("Conv", ("x", "w"), ("c",), {}, "", "conv")
    graph = Graph("g", {"x": find_type(x)}, ["y"], known, [first, *nodes], {"": 18})
    return graph, x


def _check(graph: Graph, inputs: dict[str, np.ndarray], atol: float) -> None:
    """Compare the output `y` with onnx's reference."""
    graph.types.update(infer(graph).types)
    (expected,) = evaluate(onnx_io.to_proto(graph), inputs)
    np.testing.assert_allclose(run(graph, inputs)["y"], expected, rtol=1e-5, atol=atol)


def _count_copies(graph: Graph) -> int:
    """Return how many steps of a graph's plan copy a value into another layout or order of axes."""
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    return sum("_copy" in step.kernel for step in plan.steps)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(
    "axes", [a for n in range(1, 5) for a in itertools.combinations(range(4), n)], ids=str
)
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceL2"])
def test_reductions_read_either_layout(op: str, axes: tuple[int, ...], keep: int) -> None:
    graph, x = _make_graph([Node(op, ("c", "axes"), ("y",), {"keepdims": keep}, "", "reduce")])
    graph.initializers["axes"] = np.array(axes)
    _check(graph, {"x": x}, 1e-6)
    # The image is copied for the convolution.  The result is copied where it is one itself, and
    # the operand where the result has its axes in an order of neither layout.
    kept = [axis for axis in range(4) if axis not in axes]
    has_both = 1 in kept and any(axis > 1 for axis in kept)
    assert _count_copies(graph) == 1 + has_both


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))), ids=str)
def test_a_transpose_reads_an_image_as_it_is_stored(perm: tuple[int, ...]) -> None:
    graph, x = _make_graph(
        [
            Node("Transpose", ("c",), ("t",), {"perm": list(perm)}, "", "transpose"),
            Node("Tanh", ("t",), ("y",), {}, "", "tanh"),
        ]
    )
    _check(graph, {"x": x}, 1e-6)
    assert _count_copies(graph) == 1 + (perm != (0, 2, 3, 1))


def test_pixels_become_words_and_an_image_again_without_a_copy() -> None:
    """As a transformer of pictures does it, and the block of a ConvNeXt."""
    nodes = [
        Node("Reshape", ("c", "flat"), ("f",), {}, "", "flatten"),
        Node("Transpose", ("f",), ("words",), {"perm": [0, 2, 1]}, "", "to words"),
        Node("LayerNormalization", ("words", "m"), ("normed",), {}, "", "norm"),
        Node("Transpose", ("normed",), ("back",), {"perm": [0, 2, 1]}, "", "to channels"),
        Node("Reshape", ("back", "pixels"), ("image",), {}, "", "image"),
        Node("Add", ("image", "c"), ("sum",), {}, "", "sum"),
        Node("Conv", ("sum", "v"), ("d",), {}, "", "second"),
        Node("ReduceMean", ("d", "axes"), ("y",), {"keepdims": 0}, "", "mean"),
    ]
    graph, x = _make_graph(nodes)
    graph.initializers |= {
        "flat": np.array([2, 6, 20]),
        "pixels": np.array([2, 6, 5, 4]),
        "m": RNG.standard_normal(6).astype(np.float32),
        "v": RNG.standard_normal((7, 6, 3, 3)).astype(np.float32),
        "axes": np.array([2, 3]),
    }
    _check(graph, {"x": x}, 1e-5)
    assert _count_copies(graph) == 1  # of the input


def test_a_product_of_transposed_words_is_not_stored_as_an_image() -> None:
    """Nobody reads it channels-last, so that its reader needs no copy."""
    nodes = [
        Node("Reshape", ("c", "flat"), ("f",), {}, "", "flatten"),
        Node("Transpose", ("m",), ("t",), {"perm": [0, 2, 1]}, "", "transpose"),
        Node("Softmax", ("t",), ("s",), {"axis": -1}, "", "softmax"),
        Node("MatMul", ("f", "s"), ("y",), {}, "", "product"),
    ]
    graph, x = _make_graph(nodes)
    graph.inputs["m"] = find_type(m := RNG.standard_normal((2, 7, 20)).astype(np.float32))
    graph.initializers["flat"] = np.array([2, 6, 20])
    _check(graph, {"x": x, "m": m}, 1e-5)
    assert _count_copies(graph) == 3
