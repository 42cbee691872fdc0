"""Recurrent networks: a GRU and an LSTM."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.layers import Layers
from engine.tools.benchmark.workload import random_weights


def gru(steps: int = 24, features: int = 12, width: int = 48) -> Graph:
    """Return a bidirectional GRU, the mean over time, and a linear layer to 10 classes.

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


def lstm(steps: int = 100, features: int = 64, width: int = 256) -> Graph:
    """Return an LSTM, the mean over time, and a linear layer to 10 classes.

    x: [batch, steps, features].
    """
    to = Layers()
    to.shapes |= {
        "w": (1, 4 * width, features), "r": (1, 4 * width, width), "b": (1, 8 * width)
    }  # fmt: skip
    y = to.op("Transpose", "x", perm=[1, 0, 2])
    y = to.op("LSTM", y, "w", "r", "b", hidden_size=width)
    to.classify(to.op("ReduceMean", y, axes=[0, 1], keepdims=0), width)
    return to.graph("lstm", TensorType("f32", ("batch", steps, features)))
