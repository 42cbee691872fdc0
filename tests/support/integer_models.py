"""Classifiers of two layers, as onnxruntime's quantisers write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as peer

from engine.base.aliases import Array

RNG = np.random.default_rng(0)
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


# The forms in which onnxruntime's quantisers write layers, and the layers that come last.
FORMS = ("dynamic", "dynamic channels", "dynamic optimised", "QOperator", "QDQ")
KINDS = ("MatMul", "bare", "Gemm", "Conv")


def draw(*shape: int) -> Array:
    made: Array = (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    return made


def make_float(kind: str) -> onnx.ModelProto:
    """Return a classifier of two layers with six classes, whose last layer is a kind of product."""
    node = helper.make_node
    if kind == "Conv":
        x = [None, 3, 8, 8]
        constants = {
            "w1": draw(16, 3, 3, 3),
            "b1": draw(16),
            "w2": draw(6, 16, 1, 1),
            "b2": draw(6),
        }
        nodes = [
            node("Conv", ["x", "w1", "b1"], ["h"], "c1"), node("Relu", ["h"], ["a"], "r"),
            node("Conv", ["a", "w2", "b2"], ["m"], "c2"),
            node("GlobalAveragePool", ["m"], ["p"], "gap"), node("Flatten", ["p"], ["y"], "flat"),
        ]  # fmt: skip
    else:
        x = [None, 20]
        constants = {"w1": draw(20, 32), "w2": draw(32, 6)}
        last = [node("Gemm", ["a", "w2", "b2"], ["y"], "fc2")]
        if kind != "Gemm":
            last = [node("MatMul", ["a", "w2"], ["m"], "fc2"), node("Add", ["m", "b2"], ["y"], "s")]
        nodes = [
            node("MatMul", ["x", "w1"], ["t"], "fc1"), node("Add", ["t", "b1"], ["h"], "s1"),
            node("Relu", ["h"], ["a"], "r"), *last[: 1 if kind == "bare" else 2],
        ]  # fmt: skip
        if kind == "bare":
            nodes[-1].output[0] = "y"
    constants |= {"b1": draw(16 if kind == "Conv" else 32), "b2": draw(6)}
    graph = helper.make_graph(
        nodes, kind, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 6])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


class Samples(peer.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """A batch for onnxruntime's quantiser."""

    def __init__(self, x: Array) -> None:
        self.batches = iter([x])

    def get_next(self) -> Any:
        return {"x": x} if (x := next(self.batches, None)) is not None else None


def draw_samples(kind: str, count: int = 64) -> Array:
    """Return samples for a classifier of this kind."""
    shape = [3, 8, 8] if kind == "Conv" else [20]
    return RNG.standard_normal((count, *shape)).astype(np.float32)


def write(
    model: onnx.ModelProto, how: str, x: Array, folder: Path, floats: Sequence[str] = ()
) -> Path:
    """Quantise a model with onnxruntime; return the file.

    floats: the names of nodes that stay as they are.
    """
    source, made, optimised = (folder / f"{n}.onnx" for n in ("float", "int8", "optimised"))
    onnx.save(model, source)
    if how.startswith("dynamic"):
        peer.quantize_dynamic(
            source, made, per_channel="channels" in how, nodes_to_exclude=[*floats]
        )
    else:
        form = peer.QuantFormat.QDQ if how == "QDQ" else peer.QuantFormat.QOperator
        peer.quantize_static(
            source, made, Samples(x), quant_format=form, per_channel=True,
            nodes_to_exclude=[*floats],
        )  # fmt: skip
    if "optimised" not in how:
        return made
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimised)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    return optimised


def run_peer(model: Any, x: Array) -> Array:
    """Return the output of a model in onnxruntime."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def write_attention(folder: Path, floats: Sequence[str] = ()) -> Path:
    """Write a classifier with attention between two layers, QAttention; return the file.

    It takes x of [n, 5, 12].  floats: the names of nodes that stay as they are.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["h"], "embed"),
        helper.make_node(
            "Attention", ["h", "w", "b"], ["a"], "attention", domain="com.microsoft", num_heads=2
        ),
        helper.make_node("MatMul", ["a", "v"], ["o"], "out"),
        helper.make_node("ReduceMean", ["o"], ["y"], "mean", axes=[1], keepdims=0),
    ]
    constants = {"u": draw(12, 16), "w": draw(16, 48), "b": draw(48), "v": draw(16, 6)}
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    source, file = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=8), source)
    options = {"DefaultTensorType": TensorProto.FLOAT}
    peer.quantize_dynamic(
        source, file, per_channel=True, extra_options=options, nodes_to_exclude=[*floats]
    )
    return file


def write_blocks(op: str, folder: Path, **attrs: int) -> Path:
    """Write a classifier with a layer whose weights lie in blocks of 16, between two of floats.

    op: MatMulNBits of 4 bits, or DequantizeLinear of 8.  attrs: further ones of MatMulNBits.  It
        takes x of [n, 20].  Returns the file.
    """
    constants: dict[str, Array] = {"w0": draw(20, 32), "w2": draw(8, 6), "b2": draw(6)}
    if op == "MatMulNBits":
        constants |= {
            "w1": RNG.integers(0, 256, (8, 2, 8)).astype(np.uint8),
            "s1": RNG.uniform(0.01, 0.02, 16).astype(np.float32),
            "z1": RNG.integers(0, 256, 8).astype(np.uint8),
        }
        sizes: dict[str, Any] = {"K": 32, "N": 8, "bits": 4, "block_size": 16, **attrs}
        layer = [
            helper.make_node(
                op, ["h", "w1", "s1", "z1"], ["t"], "fc1", domain="com.microsoft", **sizes
            )
        ]
    else:
        constants |= {
            "w1": RNG.integers(-127, 128, (32, 8)).astype(np.int8),
            "s1": RNG.uniform(0.001, 0.002, (2, 8)).astype(np.float32),
            "z1": RNG.integers(-5, 5, (2, 8)).astype(np.int8),
        }
        layer = [
            helper.make_node(op, ["w1", "s1", "z1"], ["d"], "w1_float", axis=0, block_size=16),
            helper.make_node("MatMul", ["h", "d"], ["t"], "fc1"),
        ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], "fc0"),
        *layer, helper.make_node("Relu", ["t"], ["a"], "relu"),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["y"], "fc2"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    file = folder / "blocks.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), file)
    return file
