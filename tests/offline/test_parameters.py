"""The parameters of forward models: where exporters put weights, and gradients that reach them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Trainer
from engine.errors import NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.offline.parameters import list_parameters, match_parameters
from tests.support.harness import copy_parameters

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.standard_normal((8, 3), np.float32),
    "b": RNG.standard_normal(8, np.float32),
    "v": RNG.standard_normal((8, 2), np.float32),
}
SCALARS = {"three": np.array([3], np.float32), "six": np.array(6, np.float32)}


def write_model(*, are_nodes: bool) -> onnx.ModelProto:
    """Return a classifier with a hard swish, whose weights are nodes or initializers."""
    arrays = [numpy_helper.from_array(a, n) for n, a in WEIGHTS.items()]
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(a, f"{name}/value"))
        for name, a in (WEIGHTS | SCALARS if are_nodes else SCALARS).items()
    ]
    nodes = [
        *constants,
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Add", ["h", "three"], ["moved"]),
        helper.make_node("Clip", ["moved", "", "six"], ["cut"]),
        helper.make_node("Mul", ["h", "cut"], ["product"]),
        helper.make_node("Div", ["product", "six"], ["swished"]),
        helper.make_node("MatMul", ["swished", "v"], ["scores"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])
    held = [] if are_nodes else arrays
    graph = helper.make_graph(nodes, "paddle", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_weights_that_are_nodes_train_as_initializers_do() -> None:
    x = RNG.standard_normal((16, 3), np.float32)
    labels = RNG.integers(0, 2, 16)
    losses, trained = [], []
    for are_nodes in (False, True):
        proto = write_model(are_nodes=are_nodes)
        before = proto.SerializeToString()
        trainer = Trainer.from_onnx(proto, loss="cross_entropy", seed=0)
        assert proto.SerializeToString() == before
        assert {name for name, _ in trainer.state.parameters} == set(WEIGHTS)
        losses.append([trainer.step(x, labels) for _ in range(5)])
        trained.append(copy_parameters(trainer))
    assert losses[0] == losses[1]
    for name in WEIGHTS:
        np.testing.assert_array_equal(trained[0][name], trained[1][name])
        assert not np.array_equal(trained[0][name], WEIGHTS[name])


def test_constants_stay_where_a_model_has_weights() -> None:
    """PyTorch's exporter writes masks and tables as nodes, and parameters as initializers."""
    proto = write_model(are_nodes=False)
    table = numpy_helper.from_array(np.ones(3, np.float32), "table/value")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["table"], value=table))
    proto.graph.node.insert(1, helper.make_node("Mul", ["x", "table"], ["scaled"]))
    next(node for node in proto.graph.node if node.op_type == "Gemm").input[0] = "scaled"
    assert sorted(list_parameters(onnx_io.load(proto))) == sorted(WEIGHTS)


def test_weights_that_a_branch_reads_are_parameters() -> None:
    """A squeeze of PyTorch becomes an If whose branches read what comes before it."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[b, 3] x, bool c) => (float[b, 3] y)
        <float[3] v = {1, 2, 3}, float[3] w = {1, 2, 3}, float[3] unused = {1, 2, 3}> {
            h = Mul(x, v)
            y = If (c) <
                then_branch = a () => (float[b, 3] o) { o = Mul(h, w) },
                else_branch = e () => (float[b, 3] o) { k = Shape(unused) o = Identity(h) }
            >
        }""")
    assert list_parameters(onnx_io.load(proto)) == ["v", "w"]


def test_weights_within_branches_are_told() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[b, 3] x, bool c) => (float[b, 3] y) {
            y = If (c) <
                then_branch = a () => (float[b, 3] o) {
                    w = Constant <value = float[3] {1, 2, 3}> () o = Mul(x, w)
                },
                else_branch = e () => (float[b, 3] o) { o = Identity(x) }
            >
        }""")
    with pytest.raises(NameNotFoundError, match=r"0 parameters; 3 float values .* body of If"):
        match_parameters(onnx_io.load(proto), ["*"])
