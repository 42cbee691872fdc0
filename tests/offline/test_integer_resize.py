"""Resize of integers, as onnxruntime's QOperator format has it: gradients pass straight through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as peer

from edgegrad import SGD, AdamW, Session, Trainer
from engine.base.aliases import Array
from tests.support.integer_models import OPSETS, Samples, draw, draw_samples, run_peer

SIZES = np.array([1, 1, 2, 1.5], np.float32)


def make_resized(mode: str, twice: bool) -> onnx.ModelProto:
    """Return a network that resizes what a convolution makes, once or twice, before another."""
    node = helper.make_node
    last = "s" if twice else "r"
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], "c1"), node("Relu", ["c"], ["a"], "relu"),
        node("Resize", ["a", "", "scales"], ["r"], "up", mode=mode),
        node("Resize", ["r", "", "scales"], ["s"], "again", mode=mode),
        node("Conv", [last, "w2", "b2"], ["m"], "c2", strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"], "gap"), node("Flatten", ["g"], ["y"], "flat"),
    ]  # fmt: skip
    nodes = [n for n in nodes if twice or n.name != "again"]
    constants = {
        "w1": draw(16, 3, 3, 3), "b1": draw(16), "w2": draw(6, 16, 3, 3), "b2": draw(6),
        "scales": SIZES,
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "resized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def write(model: onnx.ModelProto, x: Array, folder: Path) -> tuple[Path, Path]:
    """Write a model, and what onnxruntime's quantiser makes of it in the QOperator format."""
    source, file = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, source)
    peer.quantize_static(source, file, Samples(x), quant_format=peer.QuantFormat.QOperator)
    made = onnx.load(file).graph
    readers = {name for n in made.node if n.op_type == "Resize" for name in n.input[:1]}
    assert readers & {n.output[0] for n in made.node if n.op_type == "QLinearConv"}
    return source, file


def run(model: Any, x: Array) -> Array:
    return np.asarray(Session(model, threads=1).run(None, {"x": x})[0])


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_adapters_train_before_and_after_it(mode: str, twice: bool, tmp_path: Path) -> None:
    x = draw_samples("Conv")
    _, file = write(make_resized(mode, twice), x, tmp_path)
    wanted = run_peer(file, x)
    scale = float(np.abs(wanted).max())
    assert np.abs(run(file, x) - wanted).max() < 0.02 * scale
    trainer = Trainer.from_onnx(file, "cross_entropy", AdamW(lr=1e-2), lora=".", threads=1, seed=0)
    assert len(list(trainer.state.parameters)) == 4
    # Integers are resized as before: what adapters that add 0 change is which way sums round.
    assert np.abs(trainer.predict(x) - wanted).max() < 0.02 * scale
    data = x, x.reshape(len(x), -1)[:, :3].argmax(1)
    before = trainer.evaluate(data)["loss"]
    trainer.fit(data, epochs=6, progress=False)
    assert trainer.evaluate(data)["loss"] < before
    trainer.export(tmp_path / "trained.onnx")
    assert "Resize" in {n.op_type for n in onnx.load(tmp_path / "trained.onnx").graph.node}
    change = np.abs(trainer.predict(x) - run_peer(tmp_path / "trained.onnx", x))
    assert change.max() < 0.02 * scale


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_gradients_are_those_of_floats(mode: str, twice: bool, tmp_path: Path) -> None:
    x = draw_samples("Conv")
    files = write(make_resized(mode, twice), x, tmp_path)
    steps = []
    for file in files:
        trainer = Trainer.from_onnx(file, "cross_entropy", SGD(lr=0.1), lora=".", threads=1)
        rng = np.random.default_rng(0)
        before = []
        for _, parameter in sorted(trainer.state.parameters):
            before.append((0.03 * rng.standard_normal(parameter.data.shape)).astype(np.float32))
            parameter.data = before[-1]
        trainer.step(x, x.reshape(len(x), -1)[:, :3].argmax(1))
        after = [parameter.data for _, parameter in sorted(trainer.state.parameters)]
        steps.append([b - a for a, b in zip(before, after, strict=True)])
    for wanted, ours in zip(*steps, strict=True):
        cosine = np.vdot(ours, wanted) / np.linalg.norm(ours) / np.linalg.norm(wanted)
        assert cosine > 0.98
