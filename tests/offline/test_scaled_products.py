"""Layers whose weights alone are integers, as torchao's are exported: heads, adapters, answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgegrad import AdamW, Session, Trainer
from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.scaled_products import join_scales
from engine.graphs.passes.infer import note_output_types

RNG = np.random.default_rng(0)


def build(nodes: list[onnx.NodeProto], **constants: Array) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "scaled", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],  # without a shape
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_constants() -> dict[str, Array]:
    """Two layers of int8 weights with a scale for each channel; the second has zero points."""
    return {
        "w1": RNG.integers(-128, 128, (32, 20)).astype(np.int8),
        "s1": RNG.uniform(0.001, 0.004, (32, 1)).astype(np.float32),
        "b1": RNG.standard_normal(32).astype(np.float32),
        "w2": RNG.integers(-128, 128, (6, 32)).astype(np.int8),
        "s2": RNG.uniform(0.001, 0.004, (6, 1)).astype(np.float32),
        "z2": RNG.integers(-20, 20, (6, 1)).astype(np.int8),
        "b2": RNG.standard_normal(6).astype(np.float32),
        "rows": np.array([-1, 20]), "images": np.array([-1, 4, 32]), "pairs": np.array([-1, 32]),
        "flat": np.array([-1]),
    }  # fmt: skip


def list_first(form: str) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Return the first layer, a = x w1 s1 + b1: its weights as integers, or folded to floats."""
    node, constants = helper.make_node, make_constants()
    nodes = [node("Reshape", ["x", "rows"], ["r"])]
    if form == "integers":
        nodes += [node("Transpose", ["w1"], ["t"], perm=[1, 0]), node("Cast", ["t"], ["v"], to=1),
                  node("Reshape", ["s1", "flat"], ["u"])]  # fmt: skip
    else:
        constants |= {"v": constants["w1"].T.astype(np.float32), "u": constants["s1"].reshape(-1)}
    nodes += [node("MatMul", ["r", "v"], ["m"], "fc1"), node("Mul", ["m", "u"], ["c"]),
              node("Reshape", ["c", "images"], ["i"]), node("Add", ["i", "b1"], ["a"])]  # fmt: skip
    return nodes, constants


def make_classifier(form: str) -> bytes:
    """Return a model whose last layer is scaled afterwards, or has weights that are computed."""
    node = helper.make_node
    nodes, constants = list_first("floats" if form == "floats" else "integers")
    nodes += [node("Relu", ["a"], ["h"]), node("ReduceMean", ["h"], ["p"], axes=[1], keepdims=0)]
    if form == "computed":
        nodes += [
            node("Cast", ["w2"], ["e"], to=1), node("Cast", ["z2"], ["f"], to=1),
            node("Sub", ["e", "f"], ["d"]), node("Mul", ["d", "s2"], ["g"]),
            node("Gemm", ["p", "g", "b2"], ["y"], "fc2", transB=1),
        ]  # fmt: skip
    else:
        if form == "integers":
            nodes += [node("Cast", ["w2"], ["e"], to=1), node("Transpose", ["e"], ["g"])]
        else:
            constants["g"] = constants["w2"].T.astype(np.float32)
        nodes += [
            node("Reshape", ["s2", "flat"], ["k"]), node("MatMul", ["p", "g"], ["q"], "fc2"),
            node("Mul", ["k", "q"], ["o"]), node("Add", ["o", "b2"], ["y"]),
        ]  # fmt: skip
    return bytes(build(nodes, **constants).SerializeToString())


def run(model: bytes, x: Array) -> Array:
    return np.asarray(Session(model, threads=1).run(None, {"x": x})[0])


def run_peer(model: Any, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("how", [{"train": "head"}, {"lora": "."}, {"train": "head", "classes": 3}])
@pytest.mark.parametrize("form", ["integers", "floats", "computed"])
def test_the_last_layer_and_adapters_train(form: str, how: dict[str, Any], tmp_path: Any) -> None:
    model, x = make_classifier(form), RNG.standard_normal((16, 4, 20)).astype(np.float32)
    labels = np.arange(16) % how.get("classes", 6)
    trainer = Trainer.from_onnx(model, "cross_entropy", AdamW(lr=1e-2), threads=1, seed=0, **how)
    if "classes" not in how:
        np.testing.assert_allclose(trainer.predict(x), run_peer(model, x), rtol=1e-4, atol=1e-4)
    before = trainer.evaluate((x, labels))["loss"]
    trainer.fit((x, labels), epochs=8, progress=False)
    assert trainer.evaluate((x, labels))["loss"] < 0.95 * before
    trainer.export(tmp_path / "trained.onnx")
    wanted = run_peer(tmp_path / "trained.onnx", x)
    np.testing.assert_allclose(trainer.predict(x), wanted, rtol=1e-4, atol=1e-4)


def load(form: str, scale: Array) -> tuple[Graph, Array]:
    nodes, constants = list_first(form)
    nodes = nodes[1:] if form == "floats" else nodes[1:3] + nodes[4:]
    nodes[-4].input[0], nodes[-2].output[0] = "x", "y"
    constants["u"] = scale
    x = RNG.standard_normal((3, 4, 20)).astype(np.float32)
    return note_output_types(onnx_io.load(build(nodes[:-1], **constants))), x


SCALES: dict[str, tuple[tuple[int, ...], bool]] = {
    "one": ((), True), "columns": ((32,), True), "columns of images": ((1, 1, 32), True),
    "rows": ((4, 1), False), "images": ((3, 1, 1), False), "more axes": ((1, 1, 1, 32), False),
}  # fmt: skip


@pytest.mark.parametrize("form", ["integers", "floats"])
@pytest.mark.parametrize("case", SCALES)
def test_scales_of_columns_alone_are_joined(case: str, form: str) -> None:
    shape, is_joined = SCALES[case]
    graph, x = load(form, RNG.uniform(0.001, 0.004, shape).astype(np.float32))
    wanted = run(onnx_io.to_bytes(graph), x) if case != "more axes" else None
    assert join_scales(graph) == is_joined
    assert ("Mul" in {node.op for node in graph.nodes}) != is_joined
    if wanted is not None:
        made = run(onnx_io.to_bytes(graph), x)
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
    if is_joined and form == "integers":
        assert graph.initializers["w1"].dtype == np.int8
        assert "DequantizeLinear" in {node.op for node in graph.nodes}
