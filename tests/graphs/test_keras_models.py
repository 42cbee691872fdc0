"""Models of Keras: what tf2onnx does to their parameters is undone, and training is as in Keras."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import SGD, Trainer
from engine.errors import NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.offline.parameters import list_parameters
from tests.support.places import DATA

RECORDED = DATA / "keras"


def make_model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], *inputs: onnx.ValueInfoProto
) -> onnx.ModelProto:
    """Return a model as tf2onnx writes it."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["unk__1", 4]) for n in "xy")
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tf2onnx", [x, *inputs], [y], held)
    opset = helper.make_opsetid("", 15)
    return helper.make_model(graph, producer_name="tf2onnx", opset_imports=[opset], ir_version=8)


def test_losses_are_those_of_keras() -> None:
    """Group, unit and RMS normalisations with epsilons of four axes, which are not trained."""
    with np.load(RECORDED / "norms.npz") as file:
        data = dict(file)
    trainer = Trainer.from_onnx(RECORDED / "norms.onnx", "mse", SGD())
    trainer.learning_rate = 0.01
    losses = [float(trainer.step(data["x0"], data["y"])) for _ in data["losses"]]
    np.testing.assert_allclose(losses, data["losses"], rtol=1e-5)


def test_new_layers_do_not_share_their_ones_and_zeros() -> None:
    """Keras has initialised two normalisations alike, and tf2onnx has stored them once."""
    graph = onnx_io.load(RECORDED / "new_transformer.onnx")
    norms = [n for n in list_parameters(graph) if "layer_normalization" in n]
    assert norms == [
        "functional_1/layer_normalization_1/Reshape_1:0",
        "functional_1/layer_normalization_1/Reshape:0",
        "functional_1/layer_normalization_1_2/Reshape:0",
        "functional_1/layer_normalization_1_2/Reshape_1:0",
    ]
    readers = graph.find_consumers()
    assert [len(readers[name]) for name in norms] == [1, 1, 1, 1]


def test_layers_that_are_called_twice_share_their_weights() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "a/w:0"], ["h"], "net/a_1/MatMul"),
        helper.make_node("MatMul", ["h", "a/w:0"], ["y"], "net/a_1_2/MatMul"),
    ]
    graph = onnx_io.load(make_model(nodes, {"a/w:0": weight}))
    assert list_parameters(graph) == ["a/w:0"]


def test_single_factors_and_values_that_prepare_inputs_are_constants() -> None:
    """A hard swish has bounds of four axes, and a layer `rescaling` trains nothing."""
    constants = {
        "net/rescaling_1/mul/y:0": np.full(4, 0.1, np.float32),
        "net/dense_1/kernel:0": np.eye(4, dtype=np.float32),
        "const_fold_opt__7": np.full((1, 1), 3, np.float32),
        "const_fold_opt__8": np.full((1, 4), 3, np.float32),
    }
    nodes = [
        helper.make_node("Mul", ["x", "net/rescaling_1/mul/y:0"], ["a"], "net/rescaling_1/mul"),
        helper.make_node("MatMul", ["a", "net/dense_1/kernel:0"], ["b"], "net/dense_1/MatMul"),
        helper.make_node("Add", ["b", "const_fold_opt__7"], ["c"], "net/act_1/add"),
        helper.make_node("Add", ["c", "const_fold_opt__8"], ["y"], "net/dense_1/BiasAdd"),
    ]
    graph = onnx_io.load(make_model(nodes, constants))
    assert list_parameters(graph) == ["net/dense_1/kernel:0", "const_fold_opt__8"]


def test_constants_among_the_inputs_are_not_asked_for(tmp_path: Path) -> None:
    """As in exports of EfficientNet, whose first layer subtracts a mean."""
    stray = helper.make_tensor_value_info("net/normalization_1/Sub/y:0", TensorProto.FLOAT, [1, 4])
    weight = np.eye(4, dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "net/w:0"], ["y"], "net/dense_1/MatMul")]
    onnx.save(make_model(nodes, {"net/w:0": weight}, stray), tmp_path / "model.onnx")
    trainer = Trainer.from_onnx(tmp_path / "model.onnx", "mse", SGD())
    x = np.ones((3, 4), np.float32)
    assert np.isfinite(trainer.step(x, 2 * x))
    assert np.shape(trainer.predict(x)) == (3, 4)


def test_scales_of_integer_weights_are_not_trained(tmp_path: Path) -> None:
    """TensorFlow Lite's dynamic range: weights of 8 bits with a scale for each channel."""
    constants: dict[str, np.ndarray] = {
        "net/w": np.eye(4, dtype=np.int8),
        "scale__20": np.full(4, 0.1, np.float32),
        "zero_point__21": np.zeros(4, np.int8),
    }
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["net/w", "scale__20", "zero_point__21"], ["w"], "dequant", axis=1
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"], "net/dense_1/MatMul"),
    ]
    model = make_model(nodes, constants)
    assert list_parameters(onnx_io.load(model)) == []
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(NameNotFoundError, match="its weights are integers before Dequantize"):
        Trainer.from_onnx(tmp_path / "model.onnx", "mse", SGD())
