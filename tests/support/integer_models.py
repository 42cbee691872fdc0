"""Classifiers of two layers, as onnxruntime's quantisers write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as peer

Array = np.ndarray[Any, np.dtype[Any]]
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


def write(model: onnx.ModelProto, how: str, x: Array, folder: Path) -> Path:
    """Quantise a model with onnxruntime; return the file."""
    source, made, optimised = (folder / f"{n}.onnx" for n in ("float", "int8", "optimised"))
    onnx.save(model, source)
    if how.startswith("dynamic"):
        peer.quantize_dynamic(source, made, per_channel="channels" in how)
    else:
        form = peer.QuantFormat.QDQ if how == "QDQ" else peer.QuantFormat.QOperator
        peer.quantize_static(source, made, Samples(x), quant_format=form, per_channel=True)
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
