"""What pages take for granted and their readers bring: files in the current folder."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine import artifacts

PARAMETERS = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def forward(path: str = "forward.onnx", features: int = 20, classes: int = 3) -> None:
    """Write two linear layers, as an exporter does: input `images`, output `output`."""
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (32, features), "fc1.bias": (32,), "fc2.weight": (classes, 32),
              "fc2.bias": (classes,)}  # fmt: skip
    values = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["images", *PARAMETERS[:2]], ["hidden"], "fc1", transB=1),
            helper.make_node("Relu", ["hidden"], ["active"], "relu"),
            helper.make_node("Gemm", ["active", *PARAMETERS[2:]], ["output"], "fc2", transB=1),
        ],
        "classifier",
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def made(folder: str = "artifacts") -> None:
    """Write `forward.onnx` and its artifacts for cross-entropy and AdamW."""
    forward()
    artifacts.generate_artifacts(
        "forward.onnx",
        requires_grad=PARAMETERS,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def batch(size: int = 8, features: int = 20, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels that the model can learn."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, size)
    means = rng.standard_normal((classes, features))
    return (means[labels] + rng.standard_normal((size, features))).astype(np.float32), labels
