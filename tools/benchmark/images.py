"""Networks for images: a multilayer perceptron, and a small convolutional one."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.workload import random_weights


def mlp() -> Graph:
    """Return the multilayer perceptron 784-500-10."""
    weights = {"w1": (500, 784), "b1": (500,), "w2": (10, 500), "b2": (10,)}
    return Graph(
        "mlp", {"x": TensorType("f32", ("batch", 784))}, ["scores"], random_weights(weights),
        [
            Node("Gemm", ("x", "w1", "b1"), ("h",), {"transB": 1}, name="fc1"),
            Node("Relu", ("h",), ("r",), name="relu"),
            Node("Gemm", ("r", "w2", "b2"), ("scores",), {"transB": 1}, name="fc2"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


def cnn() -> Graph:
    """Return a CNN: two 3x3 convolutions (32, 64 channels) on 28x28, maxpool, 9216-128-10."""
    weights = {
        "c1.w": (32, 1, 3, 3), "c1.b": (32,), "c2.w": (64, 32, 3, 3), "c2.b": (64,),
        "f1.w": (128, 9216), "f1.b": (128,), "f2.w": (10, 128), "f2.b": (10,),
    }  # fmt: skip
    return Graph(
        "cnn", {"x": TensorType("f32", ("batch", 1, 28, 28))}, ["scores"], random_weights(weights),
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
