"""The models the benchmarks train, as forward-only graphs, and their artifacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import artifacts
from engine.graphs import onnx_io
from engine.graphs.ir import Graph, Node
from engine.kernels._op import TensorType


@dataclass(frozen=True)
class Workload:
    """A model to train: `build` makes the forward graph; x has shape `x`, labels are below 10."""

    name: str
    x: tuple[int, ...]
    build: Callable[[], Graph]

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """A fixed random batch."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal(self.x).astype(np.float32)
        return x, rng.integers(0, 10, self.x[0]).astype(np.int64)


def write_artifacts(graph: Graph, folder: Path) -> Path:
    """Write artifacts (cross-entropy, AdamW, all parameters) and return the folder."""
    path = folder / "forward.onnx"
    onnx_io.save(graph, path)
    artifacts.generate_artifacts(
        str(path),
        requires_grad=list(graph.initializers),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    return folder


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(s) / np.sqrt(max(np.prod(s[1:]), 1))).astype(np.float32)
        for name, s in shapes.items()
    }


def mlp() -> Graph:
    """784-500-10."""
    weights = {"w1": (500, 784), "b1": (500,), "w2": (10, 500), "b2": (10,)}
    return Graph(
        "mlp", {"x": TensorType("f32", ("batch", 784))}, ["scores"], _weights(weights),
        [
            Node("Gemm", ("x", "w1", "b1"), ("h",), {"transB": 1}, name="fc1"),
            Node("Relu", ("h",), ("r",), name="relu"),
            Node("Gemm", ("r", "w2", "b2"), ("scores",), {"transB": 1}, name="fc2"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


def cnn() -> Graph:
    """Two 3x3 convolutions (32, 64 channels) on 28x28, maxpool, 9216-128-10."""
    weights = {
        "c1.w": (32, 1, 3, 3), "c1.b": (32,), "c2.w": (64, 32, 3, 3), "c2.b": (64,),
        "f1.w": (128, 9216), "f1.b": (128,), "f2.w": (10, 128), "f2.b": (10,),
    }  # fmt: skip
    return Graph(
        "cnn", {"x": TensorType("f32", ("batch", 1, 28, 28))}, ["scores"], _weights(weights),
        [
            Node("Conv", ("x", "c1.w", "c1.b"), ("a1",), {"kernel_shape": [3, 3]}, name="conv1"),
            Node("Relu", ("a1",), ("r1",), name="relu1"),
            Node("Conv", ("r1", "c2.w", "c2.b"), ("a2",), {"kernel_shape": [3, 3]}, name="conv2"),
            Node("Relu", ("a2",), ("r2",), name="relu2"),
            Node("MaxPool", ("r2",), ("p",), {"kernel_shape": [2, 2], "strides": [2, 2]},
                 name="pool"),
            Node("Flatten", ("p",), ("f",), name="flatten"),
            Node("Gemm", ("f", "f1.w", "f1.b"), ("h",), {"transB": 1}, name="fc1"),
            Node("Relu", ("h",), ("r3",), name="relu3"),
            Node("Gemm", ("r3", "f2.w", "f2.b"), ("scores",), {"transB": 1}, name="fc2"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


WORKLOADS = {
    "mlp": Workload("mlp", (64, 784), mlp),
    "cnn": Workload("cnn", (64, 1, 28, 28), cnn),
}
