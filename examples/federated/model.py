"""The network, and the trainer that the server and every client make from it.

To use a network of your own, load an ONNX file or call `Trainer.from_torch`.  The server and all
clients must get the same parameter names and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import words
from onnx import TensorProto, helper, numpy_helper

from edgegrad import Trainer
from edgegrad.artifacts import AdamW, CrossEntropyLoss

# For each data set: the shape of a sample, the number of classes, and each convolution's channels,
# kernel width and stride.  A pooling layer halves the output of the last one.
NETWORKS = {
    "digits": ((1, 8, 8), 10, ((16, 3, 1),)),
    "keywords": (words.SHAPE, words.CLASSES, ((16, 5, 2), (24, 3, 2), (32, 3, 2))),
}
HIDDEN = 64


def network(dataset: str = "digits", seed: int = 0) -> onnx.ModelProto:
    """Pictures or spectrograms to scores [batch, classes]; 17,258 parameters for digits.

    Weights are random (He et al., arXiv:1502.01852), the same for everybody by their seed.
    """
    (channels, height, width), classes, convolutions = NETWORKS[dataset]
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def node(op: str, name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def layer(op: str, name: str, x: str, *shape: int, **attributes: object) -> str:
        spread = np.sqrt(2 / np.prod(shape[1:]))
        kernel = (rng.standard_normal(shape) * spread).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}.weight"))
        weights.append(numpy_helper.from_array(np.zeros(shape[0], np.float32), f"{name}.bias"))
        return node(op, name, x, f"{name}.weight", f"{name}.bias", **attributes)

    x = "sample"
    for number, (out, kernel, stride) in enumerate(convolutions):
        form = {"pads": [kernel // 2] * 4, "strides": [stride] * 2}
        x = layer("Conv", f"conv{number}", x, out, channels, kernel, kernel, **form)
        x = node("Relu", f"conv{number}.relu", x)
        channels, height, width = out, -(-height // stride), -(-width // stride)
    x = node("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = node("Flatten", "flat", x)
    flat = channels * (height // 2) * (width // 2)
    x = node("Relu", "hidden.relu", layer("Gemm", "hidden", x, HIDDEN, flat, transB=1))
    x = layer("Gemm", "scores", x, classes, HIDDEN, transB=1)

    float32, (shape, _, _) = TensorProto.FLOAT, NETWORKS[dataset]
    sample = helper.make_tensor_value_info("sample", float32, ["batch", *shape])
    scores = helper.make_tensor_value_info(x, float32, ["batch", classes])
    graph = helper.make_graph(nodes, dataset, [sample], [scores], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def make_trainer(config: Mapping[str, Any]) -> Trainer:
    """The trainer of the server or of a client, from the configuration of the run."""
    seed = int(config.get("seed", 0))
    model = network(str(config.get("dataset", "digits")), seed)
    is_held = config.get("strategy") == "FedProx"
    return Trainer.from_onnx(
        model, CrossEntropyLoss(), AdamW(0.01), threads=1, seed=seed, proximal=is_held
    )
