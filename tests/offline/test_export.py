"""Inference models: what is kept, that stock onnxruntime runs them, and what errors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine.checkpoint import storage
from engine.errors import (
    DTypeError,
    FileError,
    InputError,
    ModelError,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
)
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline import export
from engine.kernels.vocabulary.op import TensorType
from tests.support.places import GOLDENS

CASES = ("mlp", "regression_sgd", "bce", "l1", "cnn")
F32 = np.float32

W = np.array([[1, 2], [3, 4]], F32)


def evaluation() -> Graph:
    """y = x w; loss = mean |y - target|; `u` is a parameter that only the loss reads."""
    f = TensorType
    return Graph(
        "g",
        {"x": f("f32", ("n", 2)), "target": f("f32", ("n", 2)), "w": f("f32", (2, 2)),
         "u": f("f32", ())},
        ["loss"],
        {"half": np.array(0.5, F32)},
        [
            Node("MatMul", ("x", "w"), ("y",), name="mm"),
            Node("Mul", ("y", "half"), ("z",), name="mul"),
            Node("Sub", ("y", "target"), ("d",), name="sub"),
            Node("Abs", ("d",), ("a",), name="abs"),
            Node("ReduceMean", ("a",), ("m",), {"keepdims": 0}, name="mean"),
            Node("Mul", ("m", "u"), ("loss",), name="scale"),
        ],
        {"": 17, "com.microsoft": 1},
        {"loss": f("f32", ())},
    )  # fmt: skip


VALUES = {"w": W, "u": np.array(3, F32)}


def stock(model: bytes | Path, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return list(
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    )


def test_only_what_the_outputs_need_is_kept() -> None:
    graph = evaluation()
    before = str(graph)
    made = export.make_inference_model(graph, VALUES, ["z"])
    assert list(made.inputs) == ["x"]
    assert list(made.initializers) == ["half", "w"]
    assert [n.name for n in made.nodes] == ["mm", "mul"]
    assert made.opsets == {"": 17}
    assert str(made.types["z"]) == "f32[n,2]"
    assert str(graph) == before


def test_any_values_can_be_outputs() -> None:
    x = np.array([[1, 1]], F32)
    data = export.make_inference_model_bytes(evaluation(), VALUES, ["z", "y", "x", "w"])
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    z, y, same, w = stock(data, {"x": x})
    np.testing.assert_array_equal(y, [[4, 6]])
    np.testing.assert_array_equal(z, [[2, 3]])
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(w, W)
    t = np.zeros((1, 2), F32)
    (loss,) = stock(
        export.make_inference_model_bytes(evaluation(), VALUES, ["loss"]), {"x": x, "target": t}
    )
    assert loss == 15


@pytest.mark.parametrize("case", CASES)
def test_what_onnxruntime_training_made_can_be_exported(case: str, tmp_path: Path) -> None:
    folder = GOLDENS / case
    state = storage.read(folder / "checkpoint")
    parameters: dict[str, Any] = {**state.trainable, **state.frozen}
    path = tmp_path / "inference.onnx"
    export.save_inference_model(folder / "eval_model.onnx", parameters, ["output"], path)
    onnx.checker.check_model(str(path), full_check=True)
    forward = folder / "forward.onnx"
    proto = onnx.load(path)
    assert [i.name for i in proto.graph.input] == ["input"]
    dims = onnx.load(forward).graph.input[0].type.tensor_type.shape.dim
    shape = [d.dim_value or 3 for d in dims]
    x = np.random.default_rng(0).normal(size=shape).astype(F32)
    np.testing.assert_array_equal(stock(path, {"input": x})[0], stock(forward, {"input": x})[0])


@pytest.mark.parametrize("opset", [13, 17])
def test_norms_and_dropouts_of_the_peers_eval_models_are_valid(opset: int) -> None:
    """onnxruntime-training sets training_mode to 0 and leaves the outputs that training has."""
    graph = evaluation()
    stats = {name: TensorType("f32", (2,)) for name in ("scale", "shift", "mean", "var")}
    graph.inputs |= stats
    graph.opsets[""] = opset
    mode = {"training_mode": 0} if opset >= 14 else {}
    outputs = ("n", "mean1", "var1") if opset >= 14 else ("n", "m1", "v1", "m2", "v2")
    graph.nodes[1:1] = [
        Node("BatchNormalization", ("y", *stats), outputs, mode, name="bn"),
        Node("Dropout", ("n", "half", ""), ("d0", "mask"), name="drop"),
    ]
    graph.nodes[3] = Node("Mul", ("d0", "half"), ("z",), name="mul")
    values = {
        **VALUES,
        **dict(zip(stats, np.array([[1, 2], [0, 1], [3, 4], [1, 4]], F32), strict=True)),
    }
    data = export.make_inference_model_bytes(graph, values, ["z"])
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    (z,) = stock(data, {"x": np.array([[1, 1]], F32)})
    np.testing.assert_allclose(z, [[0.5 * (4 - 3), 0.5 * (2 * (6 - 4) / 2 + 1)]], rtol=1e-4)
    with pytest.raises(
        ModelError, match=r"'bn': \['m.*1'\] are read, but the node computes them only in training"
    ):
        export.make_inference_model(graph, values, ["z", outputs[1]])


def test_large_parameters_go_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = evaluation()
    graph.inputs["w"] = TensorType("f32", (2, 500))
    w = np.arange(1000, dtype=F32).reshape(2, 500)
    monkeypatch.setattr(onnx_io, "EXTERNAL_BYTES", 1000)
    export.save_inference_model(graph, {"w": w}, ["y"], tmp_path / "m.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    x = np.array([[1, 2]], F32)
    np.testing.assert_array_equal(stock(tmp_path / "m.onnx", {"x": x})[0], x @ w)


def test_training_operators_are_refused_by_name() -> None:
    graph = evaluation()
    graph.nodes[1] = Node("ReluGrad", ("y", "y"), ("z",), domain="com.microsoft", name="rg")
    with pytest.raises(UnsupportedOpError, match=r"operators for training only:.*ReluGrad 'rg'"):
        export.make_inference_model(graph, VALUES, ["z"])
    export.make_inference_model(graph, VALUES, ["y"])  # not on the way to this one
    graph.nodes[1] = Node("Map", ("y",), ("z",), domain="engine", name="ours")
    with pytest.raises(UnsupportedOpError, match="Map 'ours'"):
        export.make_inference_model(graph, VALUES, ["z"])
    graph.nodes[1] = Node("Gelu", ("y",), ("z",), domain="com.microsoft", name="gelu")
    graph.types["z"] = TensorType("f32", ("n", 2))
    made = export.make_inference_model(graph, VALUES, ["z"])  # onnxruntime has it without training
    assert made.opsets == {"": 17, "com.microsoft": 1}


@pytest.mark.parametrize(
    ("values", "outputs", "error", "message"),
    [
        (VALUES, [], InputError, r"expected a list of at least one, got \[\]"),
        (VALUES, "z", InputError, "expected a list of at least one, got 'z'"),
        (VALUES, ["zz"], NameNotFoundError,
         "'zz' could not be found in the eval model. Please regenerate the eval .*nearest: 'z'"),
        ({"w": W.astype("f8")}, ["z"], DTypeError,
         r"parameter 'w' is f64\[2,2\]; the model has f32\[2,2\]"),
        ({"w": W[0]}, ["z"], ShapeError, r"parameter 'w' is f32\[2\]; the model has f32\[2,2\]"),
    ],
)  # fmt: skip
def test_what_errors_say(
    values: dict[str, Any], outputs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export.make_inference_model(evaluation(), values, outputs)


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot write .*m\.onnx': No such file or directory"):
        export.save_inference_model(evaluation(), VALUES, ["z"], tmp_path / "no" / "m.onnx")
