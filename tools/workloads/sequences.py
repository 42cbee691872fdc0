"""Networks for sequences of vectors."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.workloads.encoder import Encoder
from engine.tools.workloads.workload import random_weights


def transformer() -> Graph:
    """An encoder of 4 layers, width 256, 4 heads, 1024 inside, over 128 positions; 10 classes."""
    to = Encoder(256, 4, 1024)
    y = "x"
    for i in range(4):
        y = to.layer(y, f"l{i}")
    to.shapes |= {"fc.w": (10, 256), "fc.b": (10,)}
    to.nodes += [
        Node("ReduceMean", (y,), ("flat",), {"axes": [1], "keepdims": 0}, name="pool"),
        Node("Gemm", ("flat", "fc.w", "fc.b"), ("scores",), {"transB": 1}, name="fc"),
    ]
    return Graph(
        "transformer", {"x": TensorType("f32", ("batch", 128, 256))}, ["scores"],
        {**random_weights(to.shapes), **to.constants}, to.nodes, {"": 17},
        {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


def gru(steps: int = 24, features: int = 12, width: int = 48) -> Graph:
    """A bidirectional GRU, the mean over time, and a linear layer to 10 classes.

    x: [batch, steps, features].
    """
    weights = {
        "w": (2, 3 * width, features), "r": (2, 3 * width, width), "b": (2, 6 * width),
        "fc.w": (10, 2 * width), "fc.b": (10,),
    }  # fmt: skip
    constants = {"join": np.array([0, 0, 2 * width])}
    attrs = {"hidden_size": width, "direction": "bidirectional", "linear_before_reset": 1}
    return Graph(
        "gru", {"x": TensorType("f32", ("batch", steps, features))}, ["scores"],
        {**random_weights(weights), **constants},
        [
            Node("Transpose", ("x",), ("t",), {"perm": [1, 0, 2]}, name="by_time"),
            Node("GRU", ("t", "w", "r", "b"), ("h",), attrs, name="gru"),
            Node("Transpose", ("h",), ("both",), {"perm": [0, 2, 1, 3]}, name="by_sample"),
            Node("Reshape", ("both", "join"), ("joined",), name="join_directions"),
            Node("ReduceMean", ("joined",), ("flat",), {"axes": [0], "keepdims": 0}, name="pool"),
            Node("Gemm", ("flat", "fc.w", "fc.b"), ("scores",), {"transB": 1}, name="fc"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip
