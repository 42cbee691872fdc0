"""Nodes and gradients in the forms that only onnxruntime-training's artifacts have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.errors import ShapeError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import MS, TensorType
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.recurrent import case
from tests.support.harness import run


def graph_of(nodes: list[Node], outputs: list[str], inputs: dict[str, np.ndarray]) -> Graph:
    types = {n: find_type(a) for n, a in inputs.items()}
    return Graph("g", types, outputs, {}, nodes, {"": 14, MS: 1})


def normal(*shape: int) -> np.ndarray:
    """Numbers away from 0."""
    x = np.random.default_rng(sum(shape)).normal(size=shape)
    return (x + np.sign(x)).astype(np.float32)


def test_lengths_of_a_concat_split_its_gradient() -> None:
    inputs = {"a": normal(2, 3), "b": normal(2, 4), "dy": normal(2, 7)}
    nodes = [
        Node("ConcatTraining", ("a", "b"), ("y", "n"), {"axis": -1}, MS, "cat"),
        Node("SplitTraining", ("dy", "n"), ("da", "db"), {"axis": 1}, MS, "split"),
    ]
    outcome = run(graph_of(nodes, ["y", "n", "da", "db"], inputs), inputs)
    np.testing.assert_array_equal(outcome["y"], np.concatenate([inputs["a"], inputs["b"]], 1))
    np.testing.assert_array_equal(outcome["n"], [3, 4])
    np.testing.assert_array_equal(outcome["da"], inputs["dy"][:, :3])
    np.testing.assert_array_equal(outcome["db"], inputs["dy"][:, 3:])


def test_gradients_flow_through_peepholes() -> None:
    one = OneNode(case("LSTM", 4, 3, 2, 5, "bhcp"))
    dys = {"y0": normal(4, 1, 3, 5), "y1": normal(1, 3, 5), "y2": normal(1, 3, 5)}
    backward, names = backward_of(one, dys)
    expected = run(backward, one.inputs)
    x, outs, attrs = one.node.inputs, ("y0", "y1", "y2", "cells", "gates"), one.node.attrs
    read = (*x[:3], "", *x[5:7], "y0", "cells", "gates", "dy0", "dy1", "dy2")
    made = ("d0", "d1", "d2", "d3", "d5", "d6", "d7")
    nodes = [
        Node("LSTMTraining", x, outs, attrs, MS, "lstm"),
        Node("LSTMGrad", read, made, attrs, MS, "lstm_Grad/LSTMGrad_0"),
    ]
    inputs = one.inputs | {f"d{n}": dy for n, dy in dys.items()}
    outcome = run(graph_of(nodes, [*made], inputs), inputs)
    for name in made:
        want = expected[names[f"x{name[1:]}"]]
        np.testing.assert_allclose(outcome[name], want, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("wanted", [("da", "db"), ("da", ""), ("", "db")])
@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4)), ((2, 3), ())]
)
def test_gradients_of_a_division(
    a: tuple[int, ...], b: tuple[int, ...], wanted: tuple[str, ...]
) -> None:
    inputs = {"dy": normal(*np.broadcast_shapes(a, b)), "a": normal(*a), "b": normal(*b)}
    node = Node("DivGrad", ("dy", "a", "b"), wanted, {}, MS, "/Div_Grad/DivGrad_0")
    outcome = run(graph_of([node], [w for w in wanted if w], inputs), inputs)
    dy, x, y = (v.astype(np.float64) for v in inputs.values())
    for name, whole, of in (("da", dy / y, x), ("db", -dy * x / y**2, y)):
        if name in outcome:
            lead = whole.ndim - of.ndim
            axes = [i for i in range(whole.ndim) if i < lead or of.shape[i - lead] < whole.shape[i]]
            expected = whole.sum(tuple(axes), keepdims=True).reshape(of.shape)
            np.testing.assert_allclose(outcome[name], expected, rtol=1e-5)


def test_a_malformed_division_is_refused() -> None:
    inputs = {"dy": normal(2)}
    node = Node("DivGrad", ("dy", "dy"), ("da", "db"), {}, MS, "d")
    with pytest.raises(UnsupportedOpError, match=r"DivGrad 'd' .*: input 2 is missing"):
        run(graph_of([node], ["da"], inputs), inputs)


def accumulation(buffer: np.ndarray, gradient: np.ndarray) -> tuple[Graph, dict[str, np.ndarray]]:
    inputs = {"w": buffer, "dw": gradient, "reset": np.array([False])}
    node = Node("InPlaceAccumulatorV2", ("w", "dw", "reset"), ("done",), {}, MS, "acc")
    return graph_of([node], ["done"], inputs), inputs


def test_a_gradient_of_another_shape_is_refused() -> None:
    graph, inputs = accumulation(normal(2, 3), normal(3, 2))
    with pytest.raises(ShapeError, match=r"gradient f32\[3,2\] does not fit its buffer f32\[2,3\]"):
        run(graph, inputs)


def test_a_gradient_of_a_scalar_may_have_an_axis(tmp_path: Path) -> None:
    """As in onnxruntime-training, where [1] and [] were broadcast."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["y"], "mul")]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    s = numpy_helper.from_array(np.array(3, np.float32), "s")
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [s]), opset_imports=[helper.make_opsetid("", 14)]
    )
    generate_artifacts(proto, ["s"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    model = onnx.load(tmp_path / "training_model.onnx")
    last = next(n for n in model.graph.node if n.op_type == "InPlaceAccumulatorV2")
    axes = numpy_helper.from_array(np.array([0]), "axes")
    model.graph.initializer.append(axes)
    at = list(model.graph.node).index(last)
    model.graph.node.insert(at, helper.make_node("Unsqueeze", [last.input[1], "axes"], ["long"]))
    model.graph.node[at + 1].input[1] = "long"
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(model.SerializeToString(), state)
    for total in (20, 40):
        module(np.array([2], np.float32), np.array([1], np.float32))  # d (2 s - 1)^2 / ds
        assert state.parameters["s"].grad == total


def test_pool_gradients_in_onnx_domain_survive_a_conversion() -> None:
    nodes = [
        helper.make_node("Squeeze", ["x0"], ["x"], "squeeze", axes=[0]),
        helper.make_node("MaxPool", ["x"], ["y", "i"], "pool", kernel_shape=[2], strides=[2]),
        helper.make_node("MaxPoolGrad", ["y", "i"], ["dx"], "grad", kernel_shape=[2], strides=[2]),
    ]
    ins = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, 1, 2, 4])]
    outs = [helper.make_tensor_value_info("dx", TensorProto.FLOAT, [1, 2, 4])]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", ins, outs), opset_imports=[helper.make_opsetid("", 12)]
    )
    assert onnx.defs.onnx_opset_version() > 12
    graph = onnx_io.load(proto)
    assert graph.opsets == {"": 13}
    assert (graph.nodes[-1].domain, graph.nodes[-1].op) == ("", "MaxPoolGrad")
    x = np.array([[[[3, 1, 2, 4], [0, 5, 7, 6]]]], np.float32)
    outcome = run(graph, {"x0": x})["dx"]
    np.testing.assert_array_equal(outcome, [[[3, 0, 0, 4], [0, 5, 7, 0]]])


def test_symbols() -> None:
    """Lengths that depend on a symbolic size are known once the size is."""
    nodes = [
        Node("ConcatTraining", ("a", "a"), ("y", "n"), {"axis": 0}, MS, "cat"),
        Node("SplitTraining", ("y", "n"), ("p", "q"), {"axis": 0}, MS, "split"),
    ]
    graph = Graph("g", {"a": TensorType("f32", ("batch", 2))}, ["q"], {}, nodes, {"": 14, MS: 1})
    a = normal(5, 2)
    np.testing.assert_array_equal(run(graph, {"a": a})["q"], a)


def test_one_symbol_for_two_sizes_is_planned_where_the_nodes_fit() -> None:
    """Labels of a language model: foreign artifacts declare them [batch], they are [batch * 8]."""
    inputs = {"x": TensorType("f32", ("batch", 8)), "labels": TensorType("f32", ("batch",))}
    graph = Graph("g", inputs, ["y"], {"flat": np.array([-1])}, [], {"": 17})
    graph.nodes.append(Node("Reshape", ("x", "flat"), ("r",), {}, "", "r"))
    graph.nodes.append(Node("Sub", ("r", "labels"), ("y",), {}, "", "s"))
    x, labels = np.ones((3, 8), np.float32), np.arange(24, dtype=np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x, "labels": labels})["y"], 1 - labels)
    for wrong in (1, 7):
        with pytest.raises(ShapeError, match=f"'labels': dimension 0 .'batch'. is {wrong}, but 3"):
            run(graph, {"x": x, "labels": labels[:wrong]})


def test_gradients_of_a_gru_take_the_products_of_its_forward_pass() -> None:
    row = case("GRU", 4, 3, 2, 5, "bh", attrs={"linear_before_reset": 1})
    one = OneNode(row)
    backward, names = backward_of(one, {"y0": normal(4, 1, 3, 5), "y1": normal(1, 3, 5)})
    plan = make_plan(backward.copy(), {}, target=detect_host(), threads=1)
    packed = [step for step in plan.steps if step.kernel.startswith("gemm_pack")]
    assert len(packed) == 3  # forward R_z and R_r, R_n; backward R
    (gradient,) = [n for n in backward.nodes if n.op == "GRUGrad"]
    made = gradient.inputs[6:]  # Y, the gates, and the gradients of Y and Y_h
    backward.outputs += made
    outcome = run(backward, one.inputs)
    given = outcome | one.inputs
    given = {n: given[n] for n in gradient.inputs if n}
    again = run(graph_of([gradient], [o for o in gradient.outputs if o], given), given)
    for name in names.values():
        np.testing.assert_array_equal(again[name], outcome[name], err_msg=name)
