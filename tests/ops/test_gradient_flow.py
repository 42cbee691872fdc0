"""Gradients go where StopGradient and Redirect say, and files hold these for other runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import backend
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.differentiate import differentiate, find_reached
from engine.graphs.offline.normalize import name_nodes, pass_on
from engine.graphs.passes.infer import infer
from engine.trainer.trainer import Trainer

OURS = "engine"
X = np.array([[1.0, -2.0, 3.0]], np.float32)


def graph_of(text: str) -> Graph:
    """The graph of a model whose input is x: float[1,3] and whose output is y: float."""
    opsets = '<ir_version: 8, opset_import: ["": 17, "engine": 1]>'
    model = onnx.parser.parse_model(f"{opsets} g (float[1,3] x) => (float y) {{{text}}}")
    return name_nodes(onnx_io.load(model))


def gradient(text: str) -> np.ndarray:
    """The gradient of y with respect to x."""
    graph = graph_of(text)
    graph.outputs = [differentiate(graph, "y", ["x"], infer(graph.copy()).types)["x"]]
    graph.types = infer(pass_on(graph).copy()).types
    (outcome,) = backend.prepare(onnx_io.to_proto(graph)).run([X])
    return outcome


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s = engine.StopGradient(x) z = Mul(s, x) y = ReduceSum <keepdims=0> (z)", X),
        # reversed
        (
            """s = engine.StopGradient(x) d = engine.Cotangent(s) e = Neg(d)
               z = engine.Redirect(s, d, x, e) w = Mul(z, z) y = ReduceSum <keepdims=0> (w)""",
            -2 * X,
        ),
        # through the output as well, as it is not stopped
        (
            """d = engine.Cotangent(x) e = Mul(d, x) z = engine.Redirect(x, d, x, e)
               y = ReduceSum <keepdims=0> (z)""",
            1 + X,
        ),
        # a gradient that does not depend on the output's
        (
            """s = engine.StopGradient(x) d = engine.Cotangent(s) e = Abs(x)
               z = engine.Redirect(s, d, x, e) y = ReduceSum <keepdims=0> (z)""",
            np.abs(X),
        ),
        # one inside the nodes of another: the gradient of the gradient stays out of it
        (
            """s = engine.StopGradient(x) d = engine.Cotangent(s)
               e = Mul(d, x) f = Exp(e) h = Mul(f, d)
               z = engine.Redirect(s, d, x, h) w = Add(z, z) y = ReduceSum <keepdims=0> (w)""",
            2 * np.exp(2 * X),
        ),
    ],
)
def test_the_gradient_is_the_one_that_is_told(text: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(gradient(text), expected, rtol=1e-6)


def test_values_behind_a_stop_have_no_gradient() -> None:
    graph = graph_of("a = Exp(x) s = engine.StopGradient(a) z = Mul(s, x) y = ReduceMax(z)")
    reached = find_reached(graph, ["y"], infer(graph.copy()).types)
    assert reached == {"y", "z", "s", "x"}


def test_what_serves_gradients_alone_goes_with_them() -> None:
    graph = graph_of(
        """s = engine.StopGradient(x) d = engine.Cotangent(s) e = Neg(d)
           z = engine.Redirect(s, d, x, e) y = ReduceSum <keepdims=0> (z)"""
    )
    assert [n.op for n in pass_on(graph).nodes] == ["Identity", "Identity", "ReduceSum"]
    assert OURS not in graph.opsets


def model_of(path: Path) -> Path:
    """A file: y = x w - stop(x w), whose outputs are 0 and whose gradient is not."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("StopGradient", ["h"], ["s"], domain=OURS),
        helper.make_node("Sub", ["h", "s"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["batch", 3])],
        [value("y", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor("w", TensorProto.FLOAT, [3, 2], np.ones(6, np.float32))],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OURS, 1)]
    onnx_io.save(onnx_io.load(helper.make_model(graph, opset_imports=opsets)), path)
    return path


def test_other_runtimes_run_the_file(tmp_path: Path) -> None:
    """It says what the op is to them, by a function, which our own reader leaves out."""
    ort = pytest.importorskip("onnxruntime")
    path = model_of(tmp_path / "model.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(f.domain, f.name) for f in model.functions] == [(OURS, "StopGradient")]
    (outcome,) = ort.InferenceSession(str(path)).run(None, {"x": X})
    np.testing.assert_array_equal(outcome, np.zeros((1, 2), np.float32))
    assert [n.op for n in onnx_io.load(path).nodes] == ["MatMul", "StopGradient", "Sub"]


def test_artifacts_and_exports_have_no_op_of_ours_for_it(tmp_path: Path) -> None:
    """The gradient is made by then, so that onnxruntime-training can run the artifacts."""
    path = model_of(tmp_path / "model.onnx")
    trainer = Trainer.from_onnx(path, "mse", "sgd", folder=tmp_path / "made", threads=1)
    assert trainer.step(X, np.ones((1, 2), np.float32)) == 1.0
    assert not np.allclose(trainer.state.parameters["w"].data, 1)
    trainer.export(tmp_path / "inference.onnx")
    for file in ("made/training_model.onnx", "made/eval_model.onnx", "inference.onnx"):
        model = onnx.load(tmp_path / file)
        domains = {n.domain for n in model.graph.node} | {o.domain for o in model.opset_import}
        assert OURS not in domains
        assert not model.functions
