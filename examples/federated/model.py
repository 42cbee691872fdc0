"""The network, and the trainer that the server and every client make of it.

A network of your own takes its place as an ONNX file, or by `Trainer.from_torch`; all that is asked
for is that everybody gets the same names and shapes of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss

CHANNELS, HIDDEN, CLASSES = 16, 64, 10


def network(seed: int = 0) -> onnx.ModelProto:
    """Pictures [batch, 1, 8, 8] to scores [batch, 10]; 17,258 parameters.

    Weights are random (He et al., arXiv:1502.01852), the same for everybody by their seed.
    """
    rng = np.random.default_rng(seed)
    flat = CHANNELS * 4 * 4
    shapes = {
        "conv.weight": (CHANNELS, 1, 3, 3),
        "conv.bias": (CHANNELS,),
        "hidden.weight": (HIDDEN, flat),
        "hidden.bias": (HIDDEN,),
        "out.weight": (CLASSES, HIDDEN),
        "out.bias": (CLASSES,),
    }
    weights = []
    for name, shape in shapes.items():
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0
        values = (rng.standard_normal(shape) * spread).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
    nodes = [
        helper.make_node(
            "Conv", ["image", "conv.weight", "conv.bias"], ["c"], "conv",
            kernel_shape=[3, 3], pads=[1] * 4,
        ),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "hidden.weight", "hidden.bias"], ["h"], "hidden", transB=1),
        helper.make_node("Relu", ["h"], ["a"], "hidden_relu"),
        helper.make_node("Gemm", ["a", "out.weight", "out.bias"], ["scores"], "out", transB=1),
    ]  # fmt: skip
    float32 = TensorProto.FLOAT
    image = helper.make_tensor_value_info("image", float32, ["batch", 1, 8, 8])
    scores = helper.make_tensor_value_info("scores", float32, ["batch", CLASSES])
    graph = helper.make_graph(nodes, "digits", [image], [scores], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def make_trainer(config: Mapping[str, Any]) -> Trainer:
    """The trainer of the server or of a client, from the configuration of the run."""
    seed = int(config.get("seed", 0))
    return Trainer.from_onnx(network(seed), CrossEntropyLoss(), AdamW(0.01), threads=1, seed=seed)
