"""Layers of integers, written with floats: they stand for the same, and adapters train in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as peer

from edgegrad import SGD, AdamW, Session, Trainer, artifacts, lora
from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.graphs.offline.integer_layers import write_layers
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from tests.support.integer_models import (
    FORMS,
    KINDS,
    OPSETS,
    RNG,
    Samples,
    draw,
    draw_samples,
    make_float,
    run_peer,
    write,
    write_attention,
)

MS = "com.microsoft"


def make_labels(x: Array) -> Array:
    labels: Array = x.reshape(len(x), -1)[:, :3].argmax(1).astype(np.int64)
    return labels


def run(model: Any, x: Array) -> Array:
    return np.asarray(Session(model, threads=1).run(None, {"x": x})[0])


def count_integers(graph: Any) -> int:
    return sum(a.size for a in graph.initializers.values() if a.dtype in (np.int8, np.uint8))


def train_beside_peer(
    trainer: Trainer, file: Path, x: Array, trained: Path
) -> tuple[Array, Array, float]:
    """Train adapters and export them, comparing answers with onnxruntime's before and afterwards.

    Returns how far ours are from onnxruntime's afterwards, these, and the largest of ours before.
    """
    predicted: Any = trainer.predict(x, batch_size=len(x))
    scale = float(np.abs(predicted).max())
    # At first adapters add 0; what is rounded afterwards may be rounded the other way.
    assert np.abs(predicted - run_peer(file, x)).max() < 0.02 * scale
    data = x, make_labels(x)
    before = trainer.evaluate(data)["loss"]
    trainer.fit(data, epochs=6, progress=False)
    assert trainer.evaluate(data)["loss"] < before
    trainer.export(trained)
    predicted = trainer.predict(x, batch_size=len(x))
    theirs = run_peer(trained, x)
    change = np.abs(predicted - theirs)
    assert change.max() < 0.02 * scale
    return change, theirs, scale


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_they_stand_for_the_same_numbers(how: str, kind: str, tmp_path: Path) -> None:
    x = draw_samples(kind)
    file = write(make_float(kind), how, x, tmp_path)
    graph = onnx_io.load(file)
    before = count_integers(graph)
    assert write_layers(graph) == (how != "QDQ")
    assert {n.op for n in graph.nodes}.isdisjoint({"QLinearMatMul", "QLinearConv", "MatMulInteger"})
    ours, wanted = run(onnx_io.to_bytes(graph), x), run(file, x)
    if how.startswith("dynamic"):
        # Sums are floats now: a value in the middle of two integers may round to the other one.
        change, largest = np.abs(ours - wanted), np.abs(wanted).max()
        assert np.median(change) < 1e-6 * largest
        assert change.max() < 0.01 * largest
    else:  # both forms are computed in integers
        np.testing.assert_array_equal(ours, wanted)
    assert count_integers(graph) <= before + 8
    assert not write_layers(graph)


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_train_in_what_onnxruntime_quantised(how: str, kind: str, tmp_path: Path) -> None:
    x = draw_samples(kind)
    file = write(make_float(kind), how, x, tmp_path)
    # Convolutions in front of the first adapter stay as they are.
    names = "w2" if kind == "Conv" else "."
    trainer = Trainer.from_onnx(
        file, "cross_entropy", AdamW(lr=1e-2), lora=names, threads=1, seed=0
    )
    assert len(list(trainer.state.parameters)) == (2 if kind == "Conv" else 4)
    change, theirs, scale = train_beside_peer(trainer, file, x, tmp_path / "trained.onnx")
    assert change.mean() < 1e-3 * scale
    # Weights are stored in 8 bits, and layers in front of the adapters are as they were.
    made = onnx_io.load(tmp_path / "trained.onnx")
    floats = {n: a for n, a in made.initializers.items() if a.dtype.kind == "f"}
    assert all(a.size <= 32 or "lora" in n for n, a in floats.items())
    ops = [n.op for n in made.nodes]
    if kind == "Conv" and how != "QDQ":
        assert ("QLinearConv" if how == "QOperator" else "ConvInteger") in ops
    lora.merge(tmp_path / "trained.onnx", tmp_path / "merged.onnx", dequantise=True)
    merged = run_peer(tmp_path / "merged.onnx", x)
    assert np.abs(merged - theirs).max() < 0.03 * scale


@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
def test_gradients_are_those_of_the_network_that_rounds_nothing(kind: str, tmp_path: Path) -> None:
    """Straight through roundings: of adapters in both layers, beside the float network's."""
    model, x = make_float(kind), draw_samples(kind)
    onnx.save(model, tmp_path / "plain.onnx")
    files = {how: write(model, how, x, tmp_path) for how in FORMS}
    files["plain"] = tmp_path / "plain.onnx"
    steps = {}
    for how, file in files.items():
        trainer = Trainer.from_onnx(file, "cross_entropy", SGD(lr=0.1), lora=".", threads=1)
        rng, before = np.random.default_rng(0), []
        for _, parameter in sorted(trainer.state.parameters):
            before.append((0.03 * rng.standard_normal(parameter.data.shape)).astype(np.float32))
            parameter.data = before[-1]
        trainer.step(x, make_labels(x))
        after = [parameter.data for _, parameter in sorted(trainer.state.parameters)]
        steps[how] = [b - a for a, b in zip(before, after, strict=True)]
    exact = steps.pop("plain")
    for changes in steps.values():
        for ours, wanted in zip(changes, exact, strict=True):
            cosine = np.vdot(ours, wanted) / np.linalg.norm(ours) / np.linalg.norm(wanted)
            assert cosine > 0.99


def make_moving() -> onnx.ModelProto:
    """Return a network that moves integers, and multiplies two values that it computes."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], "conv"), node("Relu", ["c"], ["r"], "relu"),
        node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["p", "shape"], ["h"], "rows"),
        node("Transpose", ["h"], ["t"], "columns", perm=[0, 2, 1]),
        node("MatMul", ["h", "t"], ["s"], "scores"),
        node("Concat", ["s", "s"], ["k"], "twice", axis=2),
        node("Flatten", ["k"], ["f"], "flat"),
        node("Gemm", ["f", "w2", "b2"], ["y"], "fc", transB=1),
    ]  # fmt: skip
    constants = {
        "w1": draw(8, 3, 1, 1), "b1": draw(8), "w2": draw(6, 128) * np.float32(0.1), "b2": draw(6),
        "shape": np.array([-1, 8, 16]),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "moving",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("how", ["static", "dynamic"])
def test_gradients_flow_through_integers_that_are_moved(how: str, tmp_path: Path) -> None:
    source, file, x = tmp_path / "float.onnx", tmp_path / "int8.onnx", draw_samples("Conv")
    onnx.save(make_moving(), source)
    if how == "static":
        peer.quantize_static(source, file, Samples(x), quant_format=peer.QuantFormat.QOperator)
    else:
        peer.quantize_dynamic(source, file, extra_options={"MatMulConstBOnly": False})
    kinds = [n.op_type for n in onnx.load(file).graph.node]
    assert kinds.count("QLinearMatMul" if how == "static" else "MatMulInteger") > 0
    trainer = Trainer.from_onnx(file, "cross_entropy", AdamW(lr=1e-2), lora="w1", threads=1, seed=0)
    assert [n for n, _ in trainer.state.parameters] == ["w1.lora_A.weight", "w1.lora_B.weight"]
    data = x, make_labels(x)
    predicted: Any = trainer.predict(x, batch_size=len(x))
    scale = float(np.abs(predicted).max())
    assert np.abs(predicted - run_peer(file, x)).max() < 0.02 * scale
    before = trainer.evaluate(data)["loss"]
    trainer.fit(data, epochs=6, progress=False)
    assert trainer.evaluate(data)["loss"] < before
    trainer.export(tmp_path / "trained.onnx")
    predicted = trainer.predict(x, batch_size=len(x))
    assert np.abs(predicted - run_peer(tmp_path / "trained.onnx", x)).max() < 0.02 * scale


@pytest.mark.parametrize("match", ["^u|^v", "^w_", "."])
def test_adapters_train_before_and_in_attention_of_integers(match: str, tmp_path: Path) -> None:
    file = write_attention(tmp_path)
    assert "QAttention" in [n.op_type for n in onnx.load(file).graph.node]
    x: Array = RNG.standard_normal((32, 5, 12)).astype(np.float32)
    trainer = Trainer.from_onnx(
        file, "cross_entropy", AdamW(lr=1e-2), lora=match, threads=1, seed=0
    )
    assert len(list(trainer.state.parameters)) == {"^u|^v": 4, "^w_": 2, ".": 6}[match]
    train_beside_peer(trainer, file, x, tmp_path / "trained.onnx")


MASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (None, {}),
    "keys": (np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 0, 0]]), {}),
    "lengths": (np.array([5, 2, 4, 1]), {}),
    "causal": (None, {"unidirectional": 1}),
    "sizes": (None, {"qkv_hidden_sizes": [16, 16, 8], "scale": 0.3}),
}


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("rounds", [False, True])
def test_attention_is_parted_for_adapters(form: str, rounds: bool, tmp_path: Path) -> None:
    """With new adapters, which add 0, it computes the same; they are merged into its weights."""
    mask, attrs = MASKS[form]
    columns = sum(attrs.get("qkv_hidden_sizes", [48]))
    inputs = ["x", "w", "b", "mask"] if mask is not None else ["x", "w", "b"]
    node = helper.make_node("Attention", inputs, ["y"], "layer", domain=MS, num_heads=2, **attrs)
    constants = {"w": draw(12, columns), "b": draw(columns)}
    constants |= {} if mask is None else {"mask": mask.astype(np.int32)}
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 5, "m"])]
    graph = helper.make_graph(
        [node], "attention", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5, 12])],
        outputs, [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    file = tmp_path / "attention.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=8), file)
    if rounds:
        file = tmp_path / "int8.onnx"
        options = {"DefaultTensorType": TensorProto.FLOAT}
        peer.quantize_dynamic(tmp_path / "attention.onnx", file, extra_options=options)
    x = RNG.standard_normal((4, 5, 12)).astype(np.float32)
    made = lora.adapt(file, lora.Lora("w", rank=4))
    whole, parted = run_peer(file, x), run_peer(made.to_bytes(), x)
    largest = float(np.abs(whole).max())
    np.testing.assert_allclose(parted, whole, rtol=0, atol=(1e-2 if rounds else 1e-5) * largest)
    np.testing.assert_allclose(run(made.to_bytes(), x), parted, rtol=0, atol=1e-2 * largest)
    for name, value in made.graph.initializers.items():
        if name.endswith("lora_B.weight"):
            made.graph.initializers[name] = draw(*value.shape)
    made.save(tmp_path / "adapted.onnx")
    adapted = run_peer(tmp_path / "adapted.onnx", x)
    assert np.abs(adapted - whole).max() > 0.1 * largest
    lora.merge(tmp_path / "adapted.onnx", tmp_path / "merged.onnx", dequantise=True)
    merged = run_peer(tmp_path / "merged.onnx", x)
    assert np.abs(merged - adapted).max() < (0.05 if rounds else 1e-4) * np.abs(adapted).max()


@pytest.mark.parametrize("how", ["dynamic", "QOperator"])
def test_a_training_step_reads_the_integers(how: str, tmp_path: Path) -> None:
    """Forward and backward: the plan has no float copy of the weights."""
    model, x = make_float("MatMul"), draw_samples("MatMul")
    made = lora.adapt(write(model, how, x, tmp_path), ".").to_bytes()
    artifacts.generate_artifacts(
        made, requires_grad=lora.parameters(made), artifact_directory=tmp_path,
        loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
    )  # fmt: skip
    graph = onnx_io.load(tmp_path / "training_model.onnx")
    shapes = {"x": (8, 20), "labels": (8,)}
    plan = make_plan(graph, shapes, target=detect_host(), threads=1)
    weights = 20 * 32 + 32 * 6
    assert weights < plan.compute_region_bytes("const") < 4 * weights - 512
    # Both layers, and the gradient that goes from one to the other.
    products = ("quantised_gemm", "integer_gemm")
    assert sum(step.kernel.startswith(products) for step in plan.steps) == 3
    # The frozen products are sums of integers in the forward pass.
    assert sum(step.kernel.startswith("integer_gemm") for step in plan.steps) == 2


@pytest.mark.parametrize("how", FORMS)
def test_frozen_convolutions_with_adapters_are_sums_of_integers(how: str, tmp_path: Path) -> None:
    """In answers, which are onnxruntime's, and in the forward pass of training."""
    x = draw_samples("Conv", 8)
    made = lora.adapt(write(make_float("Conv"), how, x, tmp_path), ".").to_bytes()
    np.testing.assert_allclose(run(made, x), run_peer(made, x), rtol=1e-5, atol=1e-5)
    artifacts.generate_artifacts(
        made, requires_grad=lora.parameters(made), artifact_directory=tmp_path,
        loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
    )  # fmt: skip
    training = onnx_io.load(tmp_path / "training_model.onnx")
    shapes = {"x": x.shape, "labels": (len(x),)}
    for graph in (onnx_io.load(made), training):
        known = {name: shapes[name] for name in graph.inputs if name in shapes}
        plan = make_plan(graph, known, target=detect_host(), threads=1)
        sums = [step for step in plan.steps if step.kernel.startswith("integer_")]
        assert len(sums) == 2
